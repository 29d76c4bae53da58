"""Records of `__remote_log_metadata`, in Kafka's format: which segments lie in the second tier (KIP-405)."""
