"""Replicas of one partition, with and without a remote tier, for stories and for tests."""
