"""Replication: how a partition's replicas become and stay the same log (KIP-101, 279, 320, 497, 595, 903, 966, 392).

follower.py    one follower: what it asks its leader, and what it does with the answers
"""
