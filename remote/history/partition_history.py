"""The history of a partition, made up of copies: no record twice, none of another branch, none missing.

The newest finished copy has the leader epochs of its log from the log start up to its end: the lineage. Each
offset is read from a copy that has it in the lineage's epoch, as by a broker
(`ottla.remote.reading.copies_of_log`), up to where the two part.

    copies     A [0, 60) e0@0    B [40, 100) e0@40 e1@50    C [60, 90) e0@60   (given up after an unclean election)
    lineage    e0@0 e1@50, of B, whose last epoch is the newest
    pieces     A [0, 50)    B [50, 100)

The history ends with the newest copy; what follows is in the local tier only. For read_committed it ends at the first
offset of a transaction that was open there: how it has ended is not in the store yet.

A transaction index has the transactions whose markers are in its segment (KIP-98). So the aborted transactions of
a range of offsets are those of its copies and of later ones, up to the first entry that says that no later
transaction begins before the end of the range. What a copy has behind its piece is of another branch.

Source: RemoteLogManager.collectAbortedTransactions and findOffsetByTimestamp of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.copied_state import read_epochs, read_snapshot
from ottla.remote.errors import RemoteStorageError
from ottla.remote.history.copy_batches import CopyBatches
from ottla.remote.lineage import without_empty_epochs
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.reading.copies_of_log import agreed_end
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.storage import producer_snapshot
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.storage.transaction_index import AbortedTransaction

#: The entries of a copy's transaction index.
ReadIndex = Callable[[RemoteLogSegmentMetadata], Iterable[AbortedTransaction]]


class Piece(NamedTuple):
    """A non-empty range of offsets of the log that is read from one copy."""

    copy: RemoteLogSegmentMetadata
    start_offset: int
    #: The end, exclusive.
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistory:
    """The copies that make up a partition's log in the remote tier, piece by piece.

    Pieces and holes are in the order of their offsets, and do not overlap.
    """

    partition: TopicIdPartition
    pieces: tuple[Piece, ...]
    #: Ranges [start, end) between pieces that no copy has.
    holes: tuple[tuple[int, int], ...] = ()
    #: The offset at which a reader of committed records stops: behind it transactions may still be open.
    stable_end_offset: int = 0

    @property
    def start_offset(self) -> int:
        """The first offset of the history; 0 if it is empty."""
        return self.pieces[0].start_offset if self.pieces else 0

    @property
    def end_offset(self) -> int:
        """The end of the history, exclusive; 0 if it is empty."""
        return self.pieces[-1].end_offset if self.pieces else 0


def newest_copy(copies: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogSegmentMetadata | None:
    """Return the finished copy of the newest leader epoch that ends last; None: there is none."""
    finished = (each for each in copies if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    return max(finished, key=lambda each: (each.leader_epochs[-1].epoch, each.end_offset), default=None)


def history_of(
    store: RemoteStorageManager,
    partition: TopicIdPartition,
    copies: Iterable[RemoteLogSegmentMetadata],
    *,
    log_start_offset: int | None = None,
    log_end_offset: int | None = None,
) -> PartitionHistory:
    """Return the history of a partition with these copies, in any state.

    `log_start_offset` and `log_end_offset`: those of the leader, if they are known. Reads two objects of the
    newest copy. Raises RemoteStorageError.
    """
    cache = RemoteLogMetadataCache(partition)
    for copy in copies:
        cache.restore(copy)
    newest = newest_copy(cache.segments())
    if newest is None:
        return PartitionHistory(partition=partition, pieces=())
    epochs = read_epochs(store, newest)
    end = newest.end_offset if log_end_offset is None else min(newest.end_offset, log_end_offset)
    start = epochs.entries[0].start_offset
    if log_start_offset is not None:
        start = max(start, log_start_offset)
    pieces, holes = _walk(cache, epochs, start, end)
    open_from = _first_open_transaction(store, newest)
    return PartitionHistory(
        partition=partition,
        pieces=tuple(pieces),
        holes=tuple(holes),
        stable_end_offset=end if open_from is None else min(end, open_from),
    )


def _walk(
    cache: RemoteLogMetadataCache, epochs: LeaderEpochCache, start: int, end: int
) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Return pieces and holes of [start, end).

    Missing offsets at the beginning are no hole: retention has deleted them.
    """
    lineage = without_empty_epochs(epochs.entries)
    pieces: list[Piece] = []
    holes: list[tuple[int, int]] = []
    offset = start
    while offset < end:
        epoch = epochs.epoch_for_offset(offset)
        copy = None if epoch is None else cache.segment(epoch=epoch, offset=offset)
        reached = (
            offset if copy is None else min(end, agreed_end(copy, lineage, offset=offset, log_end_offset=end))
        )
        if copy is not None and reached > offset:
            pieces.append(Piece(copy, offset, reached))
        else:
            reached = min(end, _next_copied(cache, lineage, offset, end))
            if pieces:
                holes.append((offset, reached))
        offset = reached
    return pieces, holes


def _next_copied(cache: RemoteLogMetadataCache, lineage: list[EpochEntry], offset: int, end: int) -> int:
    """Return the first offset behind `offset` that a copy has in the lineage's epoch; `end`: there is none."""
    for number, entry in enumerate(lineage):
        epoch_end = lineage[number + 1].start_offset if number + 1 < len(lineage) else end
        if epoch_end <= offset:
            continue
        for copy in cache.referenced(entry.epoch):
            found = copy.epoch_range(entry.epoch)
            assert found is not None, (copy, entry)
            first = max(found[0], entry.start_offset, offset + 1)
            if first < min(found[1], epoch_end):
                return first
    return end


def _first_open_transaction(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata) -> int | None:
    """Return the first offset of the transactions that are open at the end of a copy; None: none is."""
    producers = producer_snapshot.decode(read_snapshot(store, copy))
    firsts = (each.transaction_first_offset for each in producers)
    return min((first for first in firsts if first is not None), default=None)


def check_no_holes(history: PartitionHistory) -> None:
    """Raise RemoteStorageError if offsets within the history are in no copy."""
    if history.holes:
        ranges = ", ".join(f"[{start}, {end})" for start, end in history.holes)
        raise RemoteStorageError(
            f"{history.partition.topic_partition}: no copy in the store has the offsets {ranges}, "
            "which are within its history"
        )


def aborted_in(
    pieces: Iterable[Piece], read_index: ReadIndex, *, start_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with records in [start_offset, end_offset), by their first offset.

    Raises RemoteStorageError.
    """
    found: set[AbortedTransaction] = set()
    for piece in pieces:
        if piece.end_offset <= start_offset or piece.copy.is_transaction_index_empty:
            continue
        for entry in read_index(piece.copy):
            if entry.last_offset >= piece.end_offset:
                break
            if entry.last_offset < max(start_offset, piece.start_offset):
                continue
            if entry.first_offset < end_offset:
                found.add(entry)
            if entry.last_stable_offset >= end_offset:
                return _sorted(found)
    return _sorted(found)


def _sorted(found: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple(sorted(found, key=lambda each: (each.first_offset, each.producer_id)))


def first_offset_at(history: PartitionHistory, batches: CopyBatches, timestamp_ms: int) -> int | None:
    """Return the first offset whose record is not older than `timestamp_ms`, as ListOffsets finds it (KIP-79, KIP-405).

    None: all records are older. Reads two indexes and a part of one copy. Raises RemoteStorageError.
    """
    for piece in history.pieces:
        if piece.copy.max_timestamp_ms < timestamp_ms:
            continue
        found = batches.first_offset_at(
            piece.copy, timestamp_ms, start_offset=piece.start_offset, end_offset=piece.end_offset
        )
        if found is not None:
            return found
    return None
