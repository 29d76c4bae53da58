"""Raft without I/O, and its driver: `machine` is the way in, and opens with the map."""
