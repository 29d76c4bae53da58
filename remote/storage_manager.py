"""RemoteStorageManager: the interface to a store of segments and their indexes (KIP-405, "RemoteStorageManager").

An implementation is configured once, by `configure`, and is called by several threads at a time. It keeps nothing about
segments: everything that it needs to find an object is in the metadata that is passed to each call, which holds the
custom metadata that it has returned from `copy_log_segment_data`.

Every call may take long, and waits in the caller's thread. Errors: RetriableRemoteStorageError where a repetition may
succeed, RemoteResourceNotFound for what is not in the store, RemoteStorageError for everything else.
`ottla.remote.testing` has the tests that every implementation must pass.

Source: org.apache.kafka.server.log.remote.storage.RemoteStorageManager and LogSegmentData of Kafka 4.3.1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata


class IndexType(Enum):
    """The kinds of objects that are stored beside a segment's batches."""

    OFFSET = "index"
    TIMESTAMP = "timeindex"
    PRODUCER_SNAPSHOT = "snapshot"
    #: Only where the segment has aborted transactions.
    TRANSACTION = "txnindex"
    #: The leader epochs of the log up to the segment's end, as a leader-epoch-checkpoint file.
    LEADER_EPOCH = "leader_epoch_checkpoint"


def no_limit(count: int, /) -> None:
    """The default of `LogSegmentData.on_bytes`: no limit."""


@dataclass(slots=True, frozen=True, kw_only=True)
class LogSegmentData:
    """The local files of a closed segment, which are copied. No file changes or disappears during a copy."""

    log_segment: Path
    offset_index: Path
    time_index: Path
    #: The transaction index; None without aborted transactions.
    transaction_index: Path | None
    #: The producer state at the segment's end.
    producer_snapshot: Path
    leader_epoch_index: bytes
    #: The bytes that replace the file `time_index`, whose entries are of headers that claim too early times; a storage
    #: manager gets them as such a file (`ottla.remote.checked_copies`). None: the file is right.
    time_index_of_records: bytes | None = None
    #: The store calls it before it sends a piece of a file, with the piece's size (at most 1 MiB). It may
    #: wait, as for a quota, so that also a large segment is sent at the quota's rate (KIP-956); its exception
    #: cancels the copy, and is raised to the caller after the store has removed as much as it can.
    on_bytes: Callable[[int], None] = field(default=no_limit, compare=False)


class RemoteStream(Protocol):
    """A stream of bytes from the store, in order.

    Both methods may wait, and raise the errors of `ottla.remote.errors`.
    """

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, or all that remain; empty at the end only."""

    def close(self) -> None:
        """Release the connection, also before the end."""


#: Fills a part of a buffer, as soon as there are bytes; returns their number, 0 at the end only.
Fill = Callable[[memoryview], int]


def filling(stream: RemoteStream, *, piece_bytes: int) -> Fill:
    """Return the function that reads a stream into memory: its own `readinto1`, if it has one, or by its `read`.

    `readinto1` is as that of `io.BufferedIOBase`. A `read` may wait for all the bytes that it is called for,
    so that these are at most `piece_bytes`.
    """
    readinto1: Fill | None = getattr(stream, "readinto1", None)
    if readinto1 is not None:
        return readinto1

    def fill(buffer: memoryview) -> int:
        data = stream.read(min(piece_bytes, len(buffer)))
        if len(data) > len(buffer):
            raise RetriableRemoteStorageError(f"{len(data)} bytes were sent instead of {len(buffer)} at most")
        buffer[: len(data)] = data
        return len(data)

    return fill


class RemoteStorageManager(ABC):
    """A store of segments and their indexes, called by several threads at a time (KIP-405)."""

    @abstractmethod
    def configure(self, configs: Mapping[str, object]) -> None:
        """Configure the manager; called once, before all else.

        `configs` has the `rsm.config.*` settings, without the prefix, and `broker.id`.

        Raises InvalidConfig for a setting that cannot be used: with the key, the value and the remedy.
        """

    @property
    def request_timeout_s(self) -> float | None:
        """The longest time, in seconds, that one request waits for an answer, once configured; None: unknown.

        A copy or deletion that reports nothing for the time of several requests is given up.
        """
        return None

    def create(self) -> None:  # noqa: B027 (most stores are created by an operator)
        """Create the directory or bucket that the store needs, if it is missing.

        Called before `open`, by a broker that has had no remote tier before. May be slow. Raises
        InvalidConfig, with the key, the value and the remedy.
        """

    def open(self) -> None:  # noqa: B027 (an implementation that is cheap to use at first needs none)
        """Import and open all that the first read would wait for; called once, after `configure`.

        May be slow, and may fail.
        """

    def check(self, broker_id: int) -> bool:
        """Check that the store can be written, read and deleted from; return False if there is no such check.

        Called after `open`, once clients are served, and again while the store cannot be used. What is written
        has a name of the broker's own, which no copy has, and is deleted. Raises RemoteStorageError, whose text
        is a sentence for an operator: the setting, its value, the reason and the remedy.
        """
        return False

    @abstractmethod
    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Copy the segment and its indexes; return custom metadata, or None.

        Idempotent: objects of a failed attempt with the same id are overwritten.
        """

    @abstractmethod
    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """Return the segment's bytes [start_position, end_position), or to its end. The caller closes the stream.

        `end_position` beyond the segment means its end.
        """

    @abstractmethod
    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Return one index of the segment. The caller closes the stream."""

    @abstractmethod
    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment and its indexes. Idempotent: objects that do not exist count as deleted."""

    def close(self) -> None:  # noqa: B027 (an implementation without connections needs none)
        """Release all connections. No call follows."""


class StorageManagerInFront(RemoteStorageManager):
    """A storage manager in front of another one, which gets all calls that a subclass does not change."""

    def __init__(self, store: RemoteStorageManager) -> None:
        """`store` is configured, and closed by `close`."""
        self.store = store

    def configure(self, configs: Mapping[str, object]) -> None:
        """Raise AssertionError: the store is configured already."""
        raise AssertionError(f"{type(self).__name__} is made from a storage manager that is configured")

    @property
    def request_timeout_s(self) -> float | None:
        """The request timeout of the store, in seconds; None: unknown."""
        return self.store.request_timeout_s

    def open(self) -> None:
        """Open the store behind this one."""
        self.store.open()

    def check(self, broker_id: int) -> bool:
        """Check the store behind this one; return False if it has no check."""
        return self.store.check(broker_id)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Copy the segment and its indexes to the store; return the store's custom metadata."""
        return self.store.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """Return the bytes [start_position, end_position) of the segment from the store."""
        return self.store.fetch_log_segment(
            metadata, start_position=start_position, end_position=end_position
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Return one index of the segment from the store."""
        return self.store.fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment and its indexes from the store."""
        self.store.delete_log_segment_data(metadata)

    def close(self) -> None:
        """Close the store behind this one."""
        self.store.close()
