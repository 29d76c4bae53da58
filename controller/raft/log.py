"""The replicated log as Raft needs it. `controller.metadata_log` is one, on a disk.

All calls are synchronous and reach no further than the page cache; what is durable is said by the driver
(`Raft.flushed`). Source: RaftLog and ReplicatedLog of Kafka 4.3.1, KIP-595, KIP-630.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.raft.types import OffsetAndEpoch
from protocol.records.quorum import QuorumMessage


@dataclass(frozen=True, slots=True)
class Valid:
    """The other log is the beginning of this one."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The other log is not the beginning of this one: it may agree up to here, and must be cut."""

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The other log ends before this one begins: it must begin with this snapshot."""

    snapshot: OffsetAndEpoch


Validation = Valid | Diverging | NeedsSnapshot


class SnapshotDownload(Protocol):
    """A snapshot that is coming in pieces. Nobody sees it before it is frozen."""

    @property
    def size(self) -> int:
        """Bytes so far: the position of the next piece."""

    def append(self, data: bytes | memoryview) -> None:
        """Add the next piece."""

    def freeze(self) -> None:
        """Check it and make it, durably, one of the log's snapshots. Raises KafkaError if it is damaged."""

    def delete(self) -> None:
        """Give it up. Does nothing after `freeze`."""


class RaftLog(Protocol):
    """One replica's log with its snapshots."""

    @property
    def log_start_offset(self) -> int:
        """Where the log begins: 0, or the end of a snapshot."""

    @property
    def end(self) -> OffsetAndEpoch:
        """Log end offset and the epoch of the last record; of the latest snapshot if there is no record."""

    @property
    def high_watermark(self) -> int:
        """The offset that `update_high_watermark` was last told, never below the log's start."""

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """The newest snapshot; (0, 0) is the one a log directory is formatted with."""

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """The oldest snapshot."""

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch here that is not after `epoch`, and where it ends."""

    def validate(self, offset: int, epoch: int) -> Validation:
        """Whether a log that ends at `offset`, with a last record of `epoch`, is the beginning of this one."""

    def append_control(self, messages: Sequence[QuorumMessage], *, epoch: int, now_ms: int) -> int:
        """Append one control batch as the leader of `epoch`; returns its base offset."""

    def append_as_follower(self, data: bytes | memoryview, *, epoch: int) -> None:
        """Append whole batches as the leader of `epoch` has sent them.

        Sound batches at the front are kept even if it raises: CorruptMessage for bytes that are damaged, or do
        not follow on the log's end, or are of a later epoch than `epoch`. What the disk refuses (OSError,
        KafkaStorageError) ends the node.
        """

    def read(self, offset: int, *, max_bytes: int) -> bytes | memoryview:
        """Whole batches from `offset` on, committed or not: up to `max_bytes`, but at least one if there is any."""

    def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on. It is flushed before the next append."""

    def truncate_to_latest_snapshot(self) -> bool:
        """Begin anew behind the latest snapshot if that is ahead of the log; whether it was."""

    def update_high_watermark(self, offset: int) -> None:
        """Everything before `offset` is committed."""

    def quorum_messages(self, start_offset: int | None = None) -> Iterator[tuple[int, QuorumMessage]]:
        """Control records with their offsets, uncommitted ones included, from `start_offset` to the log's end.

        None: from the beginning of all there is: first those in the latest snapshot, all at its last offset
        (end offset - 1; thus -1 for the snapshot (0, 0)), then those in the log behind it.
        """

    def snapshot_chunk(
        self, snapshot: OffsetAndEpoch, *, position: int, max_bytes: int
    ) -> tuple[bytes | memoryview, int] | None:
        """Bytes of a snapshot from `position` on (none behind its end), and its size; None if there is none such."""

    def begin_snapshot(self, snapshot: OffsetAndEpoch) -> SnapshotDownload | None:
        """Make room for a snapshot that the leader has; None if it is here already."""
