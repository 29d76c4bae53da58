"""Transfers to the remote tier in a process of their own, so that they do not delay clients' requests."""
