"""RaftLog: the replicated log as Raft needs it. `ottla.controller.metadata_log.log` implements it on a disk.

All calls are synchronous and write no further than the page cache; the driver reports what is durable
(`Raft.flushed`). Source: RaftLog and KafkaRaftLog of Kafka 4.3.1, KIP-595, KIP-630.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.controller.raft.types import OffsetAndEpoch
from ottla.protocol.records.quorum import QuorumMessage


@dataclass(frozen=True, slots=True)
class Valid:
    """The other log is a prefix of this one."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The other log is not a prefix of this one: it agrees up to `end` at most, and must be truncated."""

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The other log ends before this one starts: it must load this snapshot first."""

    snapshot: OffsetAndEpoch


Validation = Valid | Diverging | NeedsSnapshot


class SnapshotDownload(Protocol):
    """A snapshot that is downloaded in chunks, then frozen, then added to the log's snapshots."""

    @property
    def size(self) -> int:
        """The number of bytes that are written so far: the position of the next chunk."""

    def append(self, data: bytes | memoryview) -> None:
        """Add the next chunk."""

    def freeze(self) -> None:
        """Validate the download and rename it to a snapshot, durably. [any thread]

        Raises KafkaError if it is corrupt, and OSError.
        """

    def delete(self) -> None:
        """Abandon the download and delete its file. Does nothing after `freeze`."""


class RaftLog(Protocol):
    """One replica's metadata log with its snapshots, as the Raft machine uses it."""

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log: 0, or the end offset of a snapshot."""

    @property
    def end(self) -> OffsetAndEpoch:
        """Log end offset and the epoch of the last record; of the latest snapshot if there is no record."""

    @property
    def high_watermark(self) -> int:
        """The offset of the last `update_high_watermark`, never below the log start offset."""

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """The newest snapshot; (0, 0) is the one a log directory is formatted with."""

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """The oldest snapshot of the log; None if there is no snapshot."""

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch of this log that is not after `epoch`, and where it ends (exclusive)."""

    def validate(self, offset: int, epoch: int) -> Validation:
        """Whether a log that ends at `offset`, with a last record of `epoch`, is a prefix of this one."""

    def append_control(self, messages: Sequence[QuorumMessage], *, epoch: int, now_ms: int) -> int:
        """Append one control batch as the leader of `epoch`; returns its base offset."""

    def append_as_follower(self, data: bytes | memoryview, *, epoch: int) -> None:
        """Append whole batches as the leader of `epoch` has sent them.

        Raises CorruptMessage for batches that are corrupt, do not start at the log end offset, or are of a later
        epoch than `epoch`; valid batches before those stay appended. An I/O error (OSError, KafkaStorageError) stops
        the node.
        """

    def read(self, offset: int, *, max_bytes: int) -> bytes | memoryview:
        """Whole batches from `offset` on, committed or not: up to `max_bytes`, but at least one if there is any."""

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on. The truncation is durable before the next append."""

    def truncate_to_latest_snapshot(self) -> bool:
        """Empty the log and start it at the end of the latest snapshot, if that is ahead of the log; whether it was."""

    def update_high_watermark(self, offset: int) -> None:
        """Advance the high watermark: everything before `offset` is committed."""

    def quorum_messages(self, start_offset: int | None = None) -> Iterator[tuple[int, QuorumMessage]]:
        """Control records with their offsets, uncommitted ones included, from `start_offset` to the log's end.

        None: everything, first those in the latest snapshot, all at its last offset (end offset - 1; thus -1 for the
        snapshot (0, 0)), then those in the log after it.
        """

    def snapshot_chunk(
        self, snapshot: OffsetAndEpoch, *, position: int, max_bytes: int
    ) -> tuple[bytes | memoryview, int] | None:
        """Bytes of a snapshot from `position` on (none past its end), and its size; None if it does not exist."""

    def begin_snapshot(self, snapshot: OffsetAndEpoch) -> SnapshotDownload | None:
        """Begin the download of a snapshot from the leader; None if it is stored already."""

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """The download of this snapshot is frozen: it is one of the log's snapshots now."""
