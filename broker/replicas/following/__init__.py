"""Partitions that this broker follows: replica fetchers execute what `ottla.replication.follower` decides."""
