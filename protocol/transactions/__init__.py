"""Records of `__transaction_state`, in Kafka's format: what each transactional id is doing (KIP-98, KIP-890)."""
