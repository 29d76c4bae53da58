"""TieredPartition: the interface of a partition on this broker for the RemoteLogManager."""

from typing import Protocol
from uuid import UUID

from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.storage.log import Log


class TieredPartition(Protocol):
    """A partition with `remote.storage.enable`; ottla.broker.replicas.partition.Partition is one.

    Belongs to the event loop.
    """

    @property
    def topic_id(self) -> UUID:
        """The id of the partition's topic."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic's name, and the partition's number."""

    @property
    def log(self) -> Log:
        """The log of this broker's replica; another one after a move to another log directory."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch: the generation of the partition's leadership."""

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assigned replicas, by broker id; those that a reassignment adds or removes, too."""

    @property
    def isr(self) -> tuple[int, ...]:
        """The broker ids of the in-sync replicas, as the metadata log has them."""

    @property
    def is_deleted(self) -> bool:
        """Whether the topic is deleted, or the replica is not on this broker any more."""

    def notice_retention(self) -> bool:
        """Notify delayed requests, if the log start offset has moved."""


def id_of(partition: TieredPartition) -> TopicIdPartition:
    """Return the partition's id in the metadata of its copies: the topic's id and name, and the partition's number."""
    return TopicIdPartition(partition.topic_id, partition.topic_partition)
