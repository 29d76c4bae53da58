"""Records of the coordinators' own topics, in Kafka's format: what lies in `__consumer_offsets`.

A record's key begins with the number of its kind (int16), its value with the version of its schema
(int16); a null value is a tombstone. The kind never changes, so that compaction sees one key for one
thing; the value's version grows with Kafka.
"""
