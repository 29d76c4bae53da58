"""The remote tier of a broker (KIP-405): wires `remote/` to replicas, metadata and configuration."""
