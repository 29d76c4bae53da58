"""The second tier (KIP-405)."""
