"""CoordinatorRecord: records of the coordinators' own topics, `__consumer_offsets` and `__share_group_state`.

A record's key starts with the number of its kind (int16; Kafka's CoordinatorRecordType), its value with the version of
its schema (int16); a null value is a tombstone. Keys have no schema version, so that compaction sees one key for one
entity; the value's version grows with Kafka.
"""
