"""The commands of `ottla`, each of which `ottla.command_line` imports when it is called.

| command | module |
|---|---|
| broker | `broker.py` |
| container | `container.py`, `environment.py` |
| cluster up | `cluster.py`, `cluster_plan.py` |
| topics, groups, configs, cluster status | `admin/` |
| produce, consume | `records/` |
| partitions | `partitions/` |
| tier | `tier/` |
| format, info, random-uuid | `storage.py` |
| dump-log, verify-log | `files/` |

Those that ask a cluster use `broker/cluster_client`, which needs no library of a Kafka client; `bootstrap.py` has the
options that they share, `output.py` tables and JSON.
"""
