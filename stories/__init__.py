"""The scenarios of the KIPs, played step by step: stages, traces, planted bugs, `ottla play` and `ottla docs`.

stories/README.md shows how they are connected; `trace` is the schema of what a player reads.
"""
