"""`ottla partitions`: the replicas of partitions, as each of their brokers reports them.

any broker  --Metadata, DescribeTopicPartitions, ListPartitionReassignments, DescribeConfigs--+
                                                                                              +--> cluster_reports.py
each broker --ListOffsets, Fetch, DescribeLogDirs: reports/replica_reports.py--------------------+          |
                             command.py (the table) <-- description.py (why the leader leads) <-------+
"""
