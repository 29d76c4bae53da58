"""Records of `__transaction_state`, in Kafka's format: the state of each transactional id (KIP-98, KIP-890)."""
