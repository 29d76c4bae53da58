"""TopicBasedRemoteLogMetadataManager: metadata of copies in the topic `__remote_log_metadata` (KIP-405).

change --> record --> append to the partition's metadata partition --> read back --> caches --> look-ups

manager.py           changes and look-ups
topic.py             the topic as the manager needs it; the broker's client implements it
partitioner.py       the metadata partition of a user partition
records.py           metadata <-> records of the topic
partition_reader.py  reads one metadata partition for its subscribers, in the order of the records
subscriber.py        the states that follow the topic: the cache of an assigned user partition, and
overview.py          the user partitions of a metadata partition that have copies, for the removers of deleted topics
subscriptions.py     all subscribers, their readers and their snapshots, and the offsets that these have reached
snapshots.py         when snapshots are written; snapshot.py: one file, so that a start reads only new records
settings.py          rlmm.config.*
"""
