"""TopicBasedRemoteLogMetadataManager: metadata of copies in the topic `__remote_log_metadata` (KIP-405).

change --> record --> append to the partition's metadata partition --> read back --> caches --> look-ups

partitioner.py    the metadata partition of a user partition
records.py        metadata <-> records of the topic
store.py          the caches of all assigned partitions, fed with the topic's records in their order
snapshot.py       `remote_log_snapshot`: a partition's cache on the disk, so that a start does not read the whole topic
"""
