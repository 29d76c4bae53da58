"""`ottla partitions`: the replicas of partitions, as each of their brokers reports them.

any broker  --Metadata, DescribeTopicPartitions, ListPartitionReassignments, DescribeConfigs--+
                                                                                              +--> cluster_reports.py
each broker --ListOffsets, Fetch, DescribeLogDirs: replica_reports.py-------------------------+          |
                                                                                                   description.py
                                          command.py <-- lines.py <-- leadership.py (why it leads) <-----+
"""
