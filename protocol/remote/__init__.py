"""Records of `__remote_log_metadata`, in Kafka's format: the segments in the remote tier (KIP-405)."""
