"""Metadata of segments in the remote tier, and the states of their copies (KIP-405, "RemoteLogMetadataManager").

    (none) --> COPY_SEGMENT_STARTED --> COPY_SEGMENT_FINISHED
                        |                       |
                        v                       v
                     DELETE_SEGMENT_STARTED <---+
                        |
                        v
                     DELETE_SEGMENT_FINISHED

    (none) --> DELETE_PARTITION_MARKED --> DELETE_PARTITION_STARTED --> DELETE_PARTITION_FINISHED

The repetition of a state is a legal transition: records of `__remote_log_metadata` may be written twice.

Each attempt to copy a segment has a RemoteLogSegmentId of its own, so two brokers never write the same object.
`end_offset` is exclusive here, as every end in this project; the record on the wire has the last offset.

Source: RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState, RemotePartitionDeleteMetadata,
RemotePartitionDeleteState of Kafka 4.3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from ottla.protocol.errors import InvalidTopic
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.protocol.topic_names import check_topic_name
from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION, ZERO_UUID, TopicPartition
from ottla.storage.leader_epoch_cache import EpochEntry

_SEGMENT_TRANSITIONS: Final[Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]]] = (
    MappingProxyType(
        {
            None: frozenset({RemoteLogSegmentState.COPY_SEGMENT_STARTED}),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED: frozenset(
                {RemoteLogSegmentState.COPY_SEGMENT_FINISHED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED}
            ),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED: frozenset(
                {RemoteLogSegmentState.DELETE_SEGMENT_STARTED}
            ),
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED: frozenset(
                {RemoteLogSegmentState.DELETE_SEGMENT_FINISHED}
            ),
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: frozenset(),
        }
    )
)
_PARTITION_TRANSITIONS: Final[
    Mapping[RemotePartitionDeleteState | None, frozenset[RemotePartitionDeleteState]]
] = MappingProxyType(
    {
        None: frozenset({RemotePartitionDeleteState.DELETE_PARTITION_MARKED}),
        RemotePartitionDeleteState.DELETE_PARTITION_MARKED: frozenset(
            {RemotePartitionDeleteState.DELETE_PARTITION_STARTED}
        ),
        RemotePartitionDeleteState.DELETE_PARTITION_STARTED: frozenset(
            {RemotePartitionDeleteState.DELETE_PARTITION_FINISHED}
        ),
        RemotePartitionDeleteState.DELETE_PARTITION_FINISHED: frozenset(),
    }
)

State = TypeVar("State", RemoteLogSegmentState, RemotePartitionDeleteState)


def is_segment_transition(old: RemoteLogSegmentState | None, new: RemoteLogSegmentState) -> bool:
    """Whether a copy's state may change from `old` (None: the copy is unknown) to `new`.

    >>> is_segment_transition(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    False
    """
    return old is new or new in _SEGMENT_TRANSITIONS[old]


def is_partition_transition(old: RemotePartitionDeleteState | None, new: RemotePartitionDeleteState) -> bool:
    """Whether the deletion of a partition may change its state from `old` (None: not deleted) to `new`."""
    return old is new or new in _PARTITION_TRANSITIONS[old]


class TopicIdPartition(NamedTuple):
    """A partition by id and name of its topic: a topic that is created again is another one."""

    topic_id: UUID
    topic_partition: TopicPartition

    @classmethod
    def checked(cls, topic_id: UUID, topic: str, partition: int) -> "TopicIdPartition":
        """Return a partition from a record, a file or an object's name; raises ValueError unless it can exist.

        Stores make names of objects from it, which must not lead out of their folder.
        """
        try:
            check_topic_name(topic)
        except InvalidTopic as error:
            raise ValueError(str(error)) from None
        if topic_id == ZERO_UUID or not 0 <= partition <= MAX_PARTITION:
            raise ValueError(f"{topic} has topic id {to_text(topic_id)} and partition {partition}")
        return cls(topic_id, TopicPartition(topic, partition))

    def __str__(self) -> str:
        return f"{to_text(self.topic_id)}:{self.topic_partition}"


class RemoteLogSegmentId(NamedTuple):
    """One attempt to copy a segment of a partition."""

    partition: TopicIdPartition
    id: UUID

    def __str__(self) -> str:
        return f"{self.partition}/{to_text(self.id)}"


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """One copy of a segment, as of its latest record."""

    segment_id: RemoteLogSegmentId
    #: The segment's base offset.
    start_offset: int
    #: The end, exclusive: the base offset of the next segment.
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_bytes: int
    #: The epochs of the segment's records, each from its first offset in the segment on. Not empty; epochs and
    #: offsets grow, the first offset is at or behind `start_offset`.
    leader_epochs: tuple[EpochEntry, ...]
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    #: Metadata of the RemoteStorageManager, which gets it back with each later call.
    custom_metadata: bytes | None = None
    is_transaction_index_empty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start_offset < self.end_offset <= MAX_OFFSET:
            raise ValueError(f"{self.segment_id}: offsets [{self.start_offset}, {self.end_offset})")
        if self.segment_size_bytes < 0:
            raise ValueError(f"{self.segment_id} has {self.segment_size_bytes} bytes")
        if not self.leader_epochs:
            raise ValueError(f"{self.segment_id} has no leader epochs")
        for before, after in zip(self.leader_epochs, self.leader_epochs[1:], strict=False):
            if not (before.epoch < after.epoch and before.start_offset <= after.start_offset):
                raise ValueError(f"{self.segment_id}: leader epochs {before} and {after} do not grow")
        first = self.leader_epochs[0]
        if first.epoch < 0 or first.start_offset < self.start_offset:
            raise ValueError(f"{self.segment_id} starts at {self.start_offset}, and with {first}")
        if self.leader_epochs[-1].start_offset >= self.end_offset:
            raise ValueError(f"{self.segment_id} ends at {self.end_offset}, before {self.leader_epochs[-1]}")

    @property
    def partition(self) -> TopicIdPartition:
        """The partition of the copied segment."""
        return self.segment_id.partition

    def epoch_range(self, epoch: int) -> tuple[int, int] | None:
        """Return the offsets [start, end) of `epoch` in this segment; None if it has none of that epoch."""
        for index, entry in enumerate(self.leader_epochs):
            if entry.epoch == epoch:
                is_last = index + 1 == len(self.leader_epochs)
                return entry.start_offset, self.end_offset if is_last else self.leader_epochs[
                    index + 1
                ].start_offset
        return None

    def updated(self, update: "RemoteLogSegmentMetadataUpdate") -> "RemoteLogSegmentMetadata":
        """Return this copy after `update`; its transition must be legal."""
        assert update.segment_id == self.segment_id, (self.segment_id, update.segment_id)
        assert is_segment_transition(self.state, update.state), (self.segment_id, self.state, update.state)
        return replace(
            self,
            state=update.state,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
        )


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """The record of a copy's new state."""

    segment_id: RemoteLogSegmentId
    state: RemoteLogSegmentState
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class RemotePartitionDeleteMetadata:
    """The record of a new state of the deletion of all copies of a partition."""

    partition: TopicIdPartition
    state: RemotePartitionDeleteState
    broker_id: int
    event_timestamp_ms: int
