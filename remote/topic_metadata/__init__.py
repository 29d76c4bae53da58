"""TopicBasedRemoteLogMetadataManager: metadata of copies in the topic `__remote_log_metadata` (KIP-405).

change --> record --> append to the partition's metadata partition --> read back --> caches --> look-ups

partitioner.py    the metadata partition of a user partition
records.py        metadata <-> records of the topic
topic.py          the topic as the manager needs it; the broker's client implements it
reader.py         reads one metadata partition for its subscribers, fed in the order of the records:
subscriber.py     the cache of an assigned user partition, and who else needs the records
manager.py        changes and look-ups
settings.py       rlmm.config.*
snapshot.py       `remote_log_snapshot`: a partition's cache on the disk, so that a start does not read the whole topic
snapshots.py      which of them are read and written, and when; committed_offsets.py: how far they go
"""
