"""Replication throttles of a broker (KIP-73): as a leader, and as a follower.

Source: ReplicaManager.shouldLeaderThrottle, RemoteLeaderEndPoint.shouldFollowerThrottle of Kafka 4.3.1.
"""

from collections.abc import Callable, Sequence

from ottla.broker.replicas.partition import Partition
from ottla.replication.replication_quota import ReplicationQuota, is_throttled


class _Throttle:
    def __init__(self, quota: ReplicationQuota, *, node_id: int, monotonic: Callable[[], float]) -> None:
        self._quota = quota
        self._node_id = node_id
        #: Not the wall clock: one that steps back would leave the rate exceeded until it has caught up.
        self._monotonic = monotonic

    def _is_throttled(self, partition: Partition, replicas: Sequence[str]) -> bool:
        return bool(replicas) and is_throttled(replicas, partition.topic_partition, self._node_id)

    def _is_exceeded(self) -> bool:
        return self._quota.is_exceeded(now_ms=round(self._monotonic() * 1000))

    def _record(self, size_bytes: int) -> None:
        self._quota.record(size_bytes, now_ms=round(self._monotonic() * 1000))


class LeaderThrottle(_Throttle):
    """Throttles followers while this broker exceeds leader.replication.throttled.rate.

    leader.replication.throttled.replicas names leader replicas: every follower that fetches from one of them
    is throttled.
    """

    def should_throttle(self, partition: Partition, replica_id: int) -> bool:
        """Whether this follower is sent no records now.

        Never True for a member of the ISR: throttled, it would leave the ISR.
        """
        return (
            replica_id not in partition.isr
            and self._is_throttled(partition, partition.log.config.leader_replication_throttled_replicas)
            and self._is_exceeded()
        )

    def record_sent(self, partition: Partition, size_bytes: int) -> None:
        """Count `size_bytes` as sent to a follower now."""
        replicas = partition.log.files.config.leader_replication_throttled_replicas
        if replicas and self._is_throttled(partition, replicas):
            self._record(size_bytes)


class FollowerThrottle(_Throttle):
    """Throttles partitions while this broker exceeds follower.replication.throttled.rate."""

    def should_throttle(self, partition: Partition) -> bool:
        """Whether no records of this partition are fetched now."""
        return (
            self._is_throttled(partition, partition.log.config.follower_replication_throttled_replicas)
            and self._is_exceeded()
        )

    def record_received(self, partition: Partition, size_bytes: int) -> None:
        """Count `size_bytes` as received from a leader now."""
        replicas = partition.log.files.config.follower_replication_throttled_replicas
        if replicas and self._is_throttled(partition, replicas):
            self._record(size_bytes)
