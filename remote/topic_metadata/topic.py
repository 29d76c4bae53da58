"""The interface to the topic `__remote_log_metadata` for its manager: append, read, the end; the broker implements it.

An append is acknowledged by all in-sync replicas, and a read returns only records below the high watermark: the records
that a reader has applied are not lost in a clean election. After an unclean one, or a power cut, the log may
have been truncated and have grown again: a reader names the leader epoch of the last record that it has, as a
follower does, by which the leader detects that (KIP-320, KIP-595). All waits are bounded by the implementation.

Source: ProducerManager and the consumer of ConsumerTask of Kafka 4.3.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ottla.protocol.errors import KafkaError
from ottla.protocol.topic_names import REMOTE_LOG_METADATA
from ottla.remote.errors import RemoteStorageError
from ottla.remote.topic_metadata.settings import TopicSettings

TOPIC: Final = REMOTE_LOG_METADATA


class MetadataTopicUnusable(RemoteStorageError):
    """The topic exists with properties under which its records cannot be trusted; an operator has to change it."""


class MetadataOffsetOutOfRange(RemoteStorageError):
    """A read begins outside of the partition's log: [start_offset, end_offset]."""

    def __init__(self, *, partition: int, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"{TOPIC}-{partition} has offsets [{start_offset}, {end_offset}), not {offset}")
        self.start_offset = start_offset
        self.end_offset = end_offset


class Position(NamedTuple):
    """The offset at which a reader continues in a partition, and the leader epoch of the record before."""

    offset: int
    #: The leader epoch of the record before `offset`; None: it is not known, as at the beginning.
    last_epoch: int | None = None


class MetadataDiverged(RemoteStorageError):
    """The leader's log does not have the record before the position: it was truncated, and may have grown again."""

    def __init__(self, partition: int, position: Position, *, epoch: int, end_offset: int) -> None:
        super().__init__(
            f"{TOPIC}-{partition} has epoch {epoch} up to {end_offset}, and not what was read of epoch "
            f"{position.last_epoch} up to {position.offset}"
        )


class ReadRecord(NamedTuple):
    """A record that a read has found."""

    offset: int
    leader_epoch: int
    #: The value, or the reason why this record and the rest of its batch cannot be read, now or later.
    value: bytes | KafkaError | None


@dataclass(slots=True, frozen=True, kw_only=True)
class MetadataRecords:
    """The records that a read has returned, in order; possibly none."""

    #: The records, to be iterated over once.
    records: Iterable[ReadRecord]
    #: The position at which the next read continues: not before that of this read; behind all of `records`.
    next: Position


class MetadataTopic(Protocol):
    """The topic `__remote_log_metadata`. Failures that may pass are RetriableRemoteStorageError."""

    @property
    def topic_id(self) -> UUID:
        """The id of the topic, known once `open` has returned. A topic that is created again has another one."""

    async def open(self, settings: TopicSettings) -> None:
        """Create the topic if it does not exist. Raises MetadataTopicUnusable, RetriableRemoteStorageError."""

    async def append(self, partition: int, value: bytes) -> int:
        """Append a record without a key; return its offset. After RetriableRemoteStorageError it may be there, too."""

    async def read(self, partition: int, position: Position, *, max_wait_ms: int) -> MetadataRecords:
        """Return records from a position on, below the high watermark; wait up to `max_wait_ms` for the first one.

        Raises MetadataDiverged, MetadataOffsetOutOfRange, RetriableRemoteStorageError.
        """

    async def end_of_epoch(self, partition: int, *, epoch: int) -> tuple[int, int] | None:
        """Return the leader's largest epoch up to `epoch`, and its end offset (KIP-101); None: it has none.

        Raises RetriableRemoteStorageError.
        """

    async def end_offset(self, partition: int) -> int:
        """Return the high watermark of a partition. Raises RetriableRemoteStorageError."""

    async def close(self) -> None:
        """Release all connections; calls that wait raise RetriableRemoteStorageError."""
