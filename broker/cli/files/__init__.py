"""`ottla dump-log` and `ottla verify-log`: contents of a log's files, and their errors (Kafka's DumpLogSegments)."""
