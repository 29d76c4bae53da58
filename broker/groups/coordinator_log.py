"""Partition writer of a coordinator: its topic's logs and leadership, as `coordinator_partition_writer` offers them.

Source: Kafka's PartitionWriter (CoordinatorPartitionWriter) and CoordinatorLoader.
"""

from asyncio import Future
from typing import Protocol

from ottla.broker.groups.loader import ReplicaLog
from ottla.broker.replicas.role_listeners import LeadershipListener
from ottla.protocol.types import TopicPartition


class Appended(Protocol):
    """The offsets of a batch that was appended."""

    @property
    def first_offset(self) -> int:
        """The offset of the batch's first record."""

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last record (inclusive)."""


class CoordinatorLog(Protocol):
    """The partitions of the offsets topic on this broker, as their coordinator uses them."""

    def append_as_coordinator(
        self, topic_partition: TopicPartition, batch: bytes | bytearray | memoryview
    ) -> Appended:
        """Append a batch to a partition that this broker leads. Raises KafkaError; then nothing was written."""

    def committed(
        self, topic_partition: TopicPartition, end_offset: int, *, timeout_ms: int
    ) -> "Future[None] | None":
        """Return a future that completes when the high watermark reaches `end_offset`; None if it has.

        The future fails with KafkaError.
        """

    def replica_log(self, topic_partition: TopicPartition) -> ReplicaLog:
        """The log of a partition that this broker hosts. Raises KafkaError."""

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Notify the listener of all partitions of this broker; at once of those that it leads already."""
