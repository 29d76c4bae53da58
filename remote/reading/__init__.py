"""Reads from the remote tier: from which copy, which bytes of it, and what is kept of them for later reads."""
