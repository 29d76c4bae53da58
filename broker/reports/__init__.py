"""Reports about a cluster, as values: the commands and the page share the rules, and so agree.

health.py            healthy, degraded or unavailable, in a sentence with its reasons
replica_reports.py   the offsets and sizes of one broker's replicas, asked of it
description.py       one partition, and why its leader leads
words.py             numbers, sizes and durations for a reader
"""
