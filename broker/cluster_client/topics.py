"""Topics of a Metadata response, with the leaders of their partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ottla.broker.cluster_client.errors import ClusterError, Transient
from ottla.broker.network.client import Address
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.types import TopicPartition

#: Kafka marks only some of its own topics as internal.
_INTERNAL_PREFIX: Final = "__"


@dataclass(slots=True, frozen=True, kw_only=True)
class Leader:
    """The leader of a partition: its broker id, leader epoch and address."""

    node_id: int
    epoch: int
    address: Address


@dataclass(slots=True, frozen=True, kw_only=True)
class Topic:
    """A topic with its partitions; None for a partition without leader."""

    name: str
    topic_id: UUID
    leaders: Mapping[int, Leader | None]

    def leader(self, partition: int) -> Leader | None:
        """Return the leader of a partition, if it has one. Raises ClusterError if there is no such partition."""
        if partition not in self.leaders:
            raise ClusterError(
                f"Topic {self.name} has {len(self.leaders)} partitions: there is no partition {partition}."
            )
        return self.leaders[partition]

    def leader_of(self, partition: int) -> Leader:
        """Return the leader of a partition. Raises Transient if it has none, ClusterError as `leader` does."""
        if (leader := self.leader(partition)) is None:
            raise Transient(f"{self.name}-{partition} has no leader.")
        return leader


def topics_of(response: MetadataResponse) -> dict[str, Topic]:
    """The topics that exist, with the leaders of their partitions."""
    addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
    return {
        topic.name: Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            leaders={
                each.partition_index: Leader(
                    node_id=each.leader_id, epoch=each.leader_epoch, address=addresses[each.leader_id]
                )
                if each.leader_id in addresses
                else None
                for each in topic.partitions
            },
        )
        for topic in response.topics
        if topic.error_code == ErrorCode.none and topic.name is not None
    }


def leaders_of(response: MetadataResponse) -> dict[TopicPartition, Leader]:
    """The partitions that have a leader."""
    return {
        TopicPartition(name, index): leader
        for name, topic in topics_of(response).items()
        for index, leader in topic.leaders.items()
        if leader is not None
    }


def names_of(topics: Sequence[MetadataResponseTopic]) -> list[str]:
    """The names of the topics that exist."""
    return [topic.name for topic in topics if topic.name is not None and not topic.error_code]


def is_internal(topic: MetadataResponseTopic) -> bool:
    """Whether a topic is one of the brokers' own."""
    return topic.is_internal or (topic.name or "").startswith(_INTERNAL_PREFIX)
