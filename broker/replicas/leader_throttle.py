"""How much a broker sends to the followers of partitions that are being moved: its side of KIP-73."""

from collections.abc import Callable

from broker.replicas.partition import Partition
from broker.replication.throttles import ReplicationQuota, is_throttled


class LeaderThrottle:
    """Holds followers back while the leaders of one broker have sent more than leader.replication.throttled.rate."""

    def __init__(self, quota: ReplicationQuota, *, node_id: int, now_ms: Callable[[], int]) -> None:
        self._quota = quota
        self._node_id = node_id
        self._now_ms = now_ms

    def is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether this follower gets no records now; a member of the ISR always does."""
        return (
            replica_id not in partition.isr
            and self._is_throttled(partition)
            and self._quota.is_exceeded(now_ms=self._now_ms())
        )

    def note_sent(self, partition: Partition, size_bytes: int) -> None:
        """A follower is being sent so much."""
        if self._is_throttled(partition):
            self._quota.record(size_bytes, now_ms=self._now_ms())

    def _is_throttled(self, partition: Partition) -> bool:
        # The list names replicas that lead, not those that follow: whoever copies from one of them is held back.
        replicas = partition.log.config.leader_replication_throttled_replicas
        return bool(replicas) and is_throttled(replicas, partition.topic_partition, self._node_id)
