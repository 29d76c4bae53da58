"""Partition writer of a coordinator: its topic's logs and leadership, as `broker.replicas.replica_manager` offers them.

Source: Kafka's PartitionWriter (CoordinatorPartitionWriter) and CoordinatorLoader.
"""

from asyncio import Future
from typing import Protocol

from broker.groups.loader import ReplicaLog
from protocol.types import TopicPartition


class Appended(Protocol):
    """The offsets of a batch that was appended."""

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""

    @property
    def last_offset(self) -> int:
        """The offset of its last record (inclusive)."""


class LeadershipListener(Protocol):
    """Follows the leadership of a topic's partitions. Called at each change, before anything else happens to the log."""

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition, in this epoch."""

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """This broker does not lead the partition any more, or the partition is deleted."""


class CoordinatorLog(Protocol):
    """The offsets topic's partitions on this broker."""

    def append_as_coordinator(
        self, topic_partition: TopicPartition, batch: bytes | bytearray | memoryview
    ) -> Appended:
        """Append a batch to a partition that this broker leads. Raises KafkaError; then nothing was written."""

    def committed(
        self, topic_partition: TopicPartition, end_offset: int, *, timeout_ms: int
    ) -> "Future[None] | None":
        """A future that completes when the high watermark reaches `end_offset`; None if it has.

        The future fails with KafkaError.
        """

    def replica_log(self, topic_partition: TopicPartition) -> ReplicaLog:
        """The log of a partition that this broker hosts. Raises KafkaError."""

    def listen(self, topic: str, listener: LeadershipListener) -> None:
        """Notify the listener when this broker begins or ceases to lead a partition of `topic`."""
