"""Replicas that move to another log directory of this broker (KIP-113, KIP-858)."""
