"""Leader replication throttle (KIP-73): bounds the records sent to followers of throttled partitions.

Source: ReplicaManager.shouldLeaderThrottle of Kafka 4.3.1.
"""

from collections.abc import Callable

from broker.replicas.partition import Partition
from broker.replication.replication_quota import ReplicationQuota, is_throttled


class LeaderThrottle:
    """Holds followers back while this broker exceeds leader.replication.throttled.rate as a leader."""

    def __init__(self, quota: ReplicationQuota, *, node_id: int, now_ms: Callable[[], int]) -> None:
        self._quota = quota
        self._node_id = node_id
        self._now_ms = now_ms

    def is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether this follower gets no records now; never True for a member of the ISR, which would fall out of it."""
        return (
            replica_id not in partition.isr
            and self._is_throttled(partition)
            and self._quota.is_exceeded(now_ms=self._now_ms())
        )

    def note_sent(self, partition: Partition, size_bytes: int) -> None:
        """Count `size_bytes` as sent to a follower now."""
        if self._is_throttled(partition):
            self._quota.record(size_bytes, now_ms=self._now_ms())

    def _is_throttled(self, partition: Partition) -> bool:
        # The list names leader replicas, not followers: every follower that copies from one of them is throttled.
        replicas = partition.log.config.leader_replication_throttled_replicas
        return bool(replicas) and is_throttled(replicas, partition.topic_partition, self._node_id)
