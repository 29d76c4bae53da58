"""Reads from the remote tier: the choice of copies and ranges of bytes, and the memory for chunks of batches."""
