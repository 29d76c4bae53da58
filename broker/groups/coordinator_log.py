"""What a coordinator needs of the broker's replicas (`broker.replicas.replica_manager`): its topic's logs and leadership."""

from asyncio import Future
from typing import Protocol

from broker.groups.loader import ReplicaLog
from protocol.types import TopicPartition


class Appended(Protocol):
    """The offsets of a batch that was appended."""

    @property
    def first_offset(self) -> int:
        """Of its first record."""

    @property
    def last_offset(self) -> int:
        """Of its last record, included."""


class LeadershipListener(Protocol):
    """Follows the leadership of a topic's partitions. Called at each change, before anything else happens to the log."""

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition, in this epoch."""

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """Another broker leads the partition, or it is gone."""


class CoordinatorLog(Protocol):
    """The offsets topic, as this broker's replicas hold it."""

    def append_as_coordinator(
        self, topic_partition: TopicPartition, batch: bytes | bytearray | memoryview
    ) -> Appended:
        """Append a batch to a partition that is led here. Raises KafkaError: nothing was written."""

    def committed(
        self, topic_partition: TopicPartition, end_offset: int, *, timeout_ms: int
    ) -> "Future[None] | None":
        """Done when the high watermark is at `end_offset`; None if it is already. Fails with KafkaError."""

    def replica_log(self, topic_partition: TopicPartition) -> ReplicaLog:
        """The log of a partition that this broker hosts. Raises KafkaError."""

    def listen(self, topic: str, listener: LeadershipListener) -> None:
        """Notify the listener of partitions that are led here, and no more."""
