"""Hosted replicas (ReplicaManager, Partition): their roles, reading, fetch sessions, and delayed operations."""
