"""ListOffsets: the offsets of partitions at a timestamp. An offset that is absent is not one that is not reported."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.cluster_client.errors import BrokerUnreachable, ClusterError, check
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.types import TopicPartition

#: The replica id of consumers.
_CONSUMER: Final = -1


@dataclass(slots=True, frozen=True)
class Offsets:
    """The offsets that leaders have reported of their partitions."""

    #: None: the log has no such offset.
    found: dict[TopicPartition, int | None] = field(default_factory=dict)
    #: The reason for each partition whose offset is not reported.
    errors: dict[TopicPartition, ClusterError] = field(default_factory=dict)

    def add(self, response: ListOffsetsResponse) -> None:
        """Add the response of one leader."""
        for topic in response.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                try:
                    check(row.error_code, str(partition))
                    self.found[partition] = row.offset if row.offset >= 0 else None
                except ClusterError as error:
                    self.errors[partition] = error

    def add_error(self, partitions: Iterable[TopicPartition], reason: Exception) -> None:
        """Add the partitions of a leader that does not answer, or does not know the timestamp."""
        error = reason if isinstance(reason, ClusterError) else ClusterError(str(reason))
        self.errors.update(dict.fromkeys(partitions, error))

    def reported(self) -> dict[TopicPartition, int | None]:
        """Return the offsets; None also for one that a leader refuses. Raises BrokerUnreachable."""
        for error in self.errors.values():
            if isinstance(error, BrokerUnreachable):
                raise error
        return self.found | dict.fromkeys(self.errors)

    def checked(self) -> dict[TopicPartition, int | None]:
        """Return the offsets. Raises ClusterError, which may be Transient, if one is not reported."""
        for error in self.errors.values():
            raise error
        return self.found


def offsets_request(
    partitions: Iterable[tuple[TopicPartition, int]],
    timestamp: int,
    *,
    replica_id: int = _CONSUMER,
    timeout_ms: int = 0,
) -> ListOffsetsRequest:
    """Make a ListOffsets of partitions, each with the leader epoch that is known of it; -1: none."""
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), epoch in partitions:
        topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(
            ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
        )
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()), timeout_ms=timeout_ms)
