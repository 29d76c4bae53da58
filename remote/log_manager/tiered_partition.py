"""TieredPartition: what the RemoteLogManager needs of a partition on this broker."""

from typing import Protocol
from uuid import UUID

from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.storage.log import Log


class TieredPartition(Protocol):
    """A partition with `remote.storage.enable`; ottla.broker.replicas.partition.Partition is one. Belongs to the event loop."""

    @property
    def topic_id(self) -> UUID:
        """The topic's id."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic's name, and the partition's number."""

    @property
    def log(self) -> Log:
        """The replica; another one after a move to another log directory."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""

    @property
    def leader_epoch(self) -> int:
        """The generation of the leadership."""

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assigned replicas, by broker id; those that a reassignment adds or removes, too."""

    @property
    def isr(self) -> tuple[int, ...]:
        """Those that are in sync, as the metadata log has them."""

    @property
    def is_deleted(self) -> bool:
        """Whether the topic is deleted, or the replica is not on this broker any more."""

    def notice_retention(self) -> bool:
        """Notify delayed requests, if the log start offset has moved."""


def id_of(partition: TieredPartition) -> TopicIdPartition:
    """The partition as the metadata of its copies names it."""
    return TopicIdPartition(partition.topic_id, partition.topic_partition)
