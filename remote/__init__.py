"""The remote tier (KIP-405): stores, metadata of copies, the tasks that copy and delete them, and reads."""
