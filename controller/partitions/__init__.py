"""Topics and their partitions: creation, placement, election, reassignment; Kafka's ReplicationControlManager."""
