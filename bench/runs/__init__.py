"""`ottla bench run`: a workload on the harness, from the command line to the result's folder."""
