"""The topic `__remote_log_metadata`, as far as its manager needs it: append, read, the end; the broker implements it.

An append is acknowledged by all in-sync replicas, and a read returns only what lies below the high watermark: what a
reader has applied is not lost in a clean election. All waits are bounded by the implementation.

Source: ProducerManager and the consumer of ConsumerTask of Kafka 4.3.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from remote.errors import RemoteStorageError
from remote.topic_metadata.settings import TopicSettings

TOPIC: Final = "__remote_log_metadata"


class MetadataTopicUnusable(RemoteStorageError):
    """The topic exists with properties under which its records cannot be trusted; an operator has to change it."""


class MetadataOffsetOutOfRange(RemoteStorageError):
    """A read begins outside of the partition's log: [start_offset, end_offset]."""

    def __init__(self, *, partition: int, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"{TOPIC}-{partition} has offsets [{start_offset}, {end_offset}), not {offset}")
        self.start_offset = start_offset
        self.end_offset = end_offset


@dataclass(slots=True, frozen=True, kw_only=True)
class MetadataRecords:
    """What a read has found: (offset, value) of each record, in order; possibly nothing. Iterated over once."""

    records: Iterable[tuple[int, bytes | None]]
    #: Where the next read continues. Not before the offset of the read; behind all of `records`.
    next_offset: int


class MetadataTopic(Protocol):
    """See the module. Failures that may pass are RetriableRemoteStorageError."""

    @property
    def topic_id(self) -> UUID:
        """The id of the topic, known once `open` has returned. A topic that is created again has another one."""

    async def open(self, settings: TopicSettings) -> None:
        """Create the topic if it does not exist. Raises MetadataTopicUnusable, RetriableRemoteStorageError."""

    async def append(self, partition: int, value: bytes) -> int:
        """Append a record without a key; returns its offset. After RetriableRemoteStorageError it may be there, too."""

    async def read(self, partition: int, offset: int, *, max_wait_ms: int) -> MetadataRecords:
        """Records from `offset` on, below the high watermark; waits up to `max_wait_ms` for the first one.

        Raises MetadataOffsetOutOfRange, RetriableRemoteStorageError.
        """

    async def end_offset(self, partition: int) -> int:
        """The high watermark. Raises RetriableRemoteStorageError."""

    async def close(self) -> None:
        """Release connections; calls that wait raise RetriableRemoteStorageError."""
