"""Producer snapshot files of a log, and rebuilding producer state from them and the log.

A snapshot `<offset>.snapshot` has the producer state of the log up to `offset`, exclusive. One is written for
each new segment, when the log is closed, and when it is opened; opening a log loads the newest one that is not
corrupt, and replays the batches after it.

Source: ProducerStateManager and UnifiedLog.rebuildProducerState of Kafka 4.3.1.
"""

from bisect import bisect_left
from collections.abc import Iterable
from logging import getLogger
from pathlib import Path

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import BatchHeader
from ottla.storage import file_names, producer_snapshot
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.producer_state import ProducerStateManager, ProducerUpdates
from ottla.storage.segment import Segment
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

_LOG = getLogger(__name__)


class SnapshotFiles:
    """The `.snapshot` files in one log's directory."""

    def __init__(self, directory: Path, files: Files, offsets: Iterable[int] = ()) -> None:
        self.directory = directory
        self._files = files
        #: Ascending.
        self.offsets = sorted(offsets)

    def path_of(self, offset: int) -> Path:
        """The path of the snapshot at `offset`."""
        return self.directory / file_names.of_offset(offset, file_names.PRODUCER_SNAPSHOT)

    @property
    def latest(self) -> int | None:
        """The newest snapshot's offset."""
        return self.offsets[-1] if self.offsets else None

    def write(self, producers: ProducerStateManager) -> None:
        """Write a snapshot of the current state, unless the log has not grown since the last one.

        Not flushed: recovery ignores an incomplete snapshot.
        """
        offset = producers.map_end_offset
        if offset <= producers.last_snapshot_offset:
            return
        self._files.write_atomically(
            self.path_of(offset), producer_snapshot.encode(producers.producers), durable=False
        )
        self.add(offset)
        producers.last_snapshot_offset = offset

    def add(self, offset: int) -> None:
        """Add the offset of a snapshot file that has been written."""
        assert offset >= 0, (self.directory, offset)
        at = bisect_left(self.offsets, offset)
        if at == len(self.offsets) or self.offsets[at] != offset:
            self.offsets.insert(at, offset)

    def adopt(self, path: Path, *, offset: int) -> None:
        """Take the file `path`, which is renamed, as the snapshot at `offset`."""
        self._files.rename(path, self.path_of(offset))
        self.add(offset)

    def load(
        self, producers: ProducerStateManager, *, first_offset: int, end_offset: int, now_ms: int
    ) -> None:
        """Load the newest good snapshot in [first, end] into `producers`; without one, they are empty as of the first.

        `first_offset` is the first segment's base offset, not the log start offset: the batches between them are
        still in the files, and a snapshot at that base offset is all that is left of the producers before it. So the
        state is the same whenever, and after any kind of shutdown, the log is opened. Kafka removes all snapshots up
        to the log start offset, and so may lose producers, and transactions that began before it.
        Snapshots outside of the range and corrupt ones are removed.
        """
        self.remove_outside(first_offset=first_offset, end_offset=end_offset)
        for offset in self.restore(
            producers, first_offset=first_offset, end_offset=end_offset, now_ms=now_ms
        ):
            self.remove(offset)

    def remove_outside(self, *, first_offset: int, end_offset: int) -> None:
        """Remove the snapshots at offsets outside of [first_offset, end_offset], both included."""
        for offset in [at for at in self.offsets if not first_offset <= at <= end_offset]:
            self.remove(offset)

    def restore(
        self, producers: ProducerStateManager, *, first_offset: int, end_offset: int, now_ms: int
    ) -> list[int]:
        """Load the newest good snapshot in [first, end] into `producers`; without one, they are empty as of the first.

        Removes nothing; returns the offsets of the corrupt snapshots that it skipped. [any thread]
        """
        assert 0 <= first_offset <= end_offset, (self.directory, first_offset, end_offset)
        corrupt = []
        for offset in [at for at in reversed(self.offsets) if first_offset <= at <= end_offset]:
            try:
                states = producer_snapshot.decode(self._files.read(self.path_of(offset)))
            except (producer_snapshot.CorruptSnapshot, FileNotFoundError) as error:
                _LOG.warning(
                    "Producer snapshot %s is not usable, an older one is read: %s",
                    self.path_of(offset),
                    error,
                )
                corrupt.append(offset)
            else:
                producers.load(states, offset=offset, now_ms=now_ms)
                return corrupt
        producers.reset(first_offset)
        return corrupt

    def remove(self, offset: int) -> None:
        """Remove one snapshot; a missing one is ignored."""
        at = bisect_left(self.offsets, offset)  # thousands may be removed at once
        if at < len(self.offsets) and self.offsets[at] == offset:
            del self.offsets[at]
            self._files.unlink(self.path_of(offset))

    def remove_stray(self, base_offsets: Iterable[int]) -> None:
        """Remove the snapshots of no segment; the newest of them stays if it is after all segments' base offsets.

        That one was written at the log's end.
        """
        bases = set(base_offsets)
        stray = [offset for offset in self.offsets if offset not in bases]
        if stray and stray[-1] > max(bases):
            del stray[-1]
        for offset in stray:
            self.remove(offset)

    def flush(self, *, start: int, end: int) -> None:
        """Wait until the snapshots from `start` to `end` (inclusive) are on the disk. [any thread]"""
        for at in list(self.offsets):
            if start <= at <= end:
                self._files.fsync_path(self.path_of(at))


def apply_updates(
    producers: ProducerStateManager, updates: ProducerUpdates, transactions: TransactionIndex
) -> None:
    """Apply updates whose batches are in the log, and add aborted transactions to their segment's index."""
    producers.apply(updates)
    for completed in updates.completed:
        if completed.is_aborted:
            transactions.add(
                AbortedTransaction(
                    completed.producer_id,
                    completed.first_offset,
                    completed.last_offset,
                    producers.last_stable_offset_after(completed),
                )
            )
        producers.complete(completed)


def replay(
    producers: ProducerStateManager,
    header: BatchHeader,
    batch: memoryview | bytes,
    transactions: TransactionIndex | None,
) -> None:
    """Update the state of the producer of a batch in the log. `transactions` None: the index is correct.

    `batch` needs its records only if it is a control batch. A batch that contradicts the state is logged as a
    WARNING and skipped: it is in the log, and every replica has read the same.
    """
    if header.producer_id >= 0:
        try:
            updates = producers.analyze(((header, batch),), origin=AppendOrigin.REPLICATION)
        except KafkaError as error:
            _LOG.warning(
                "The batch at offset %d contradicts the producer state, which is not updated: %s",
                header.base_offset,
                error,
            )
        else:
            if transactions is not None:
                apply_updates(producers, updates, transactions)
            else:
                producers.apply(updates)
                for completed in updates.completed:
                    producers.complete(completed)
    producers.map_end_offset = header.next_offset


def replay_headers(
    producers: ProducerStateManager,
    segments: Iterable[Segment],
    *,
    end_offset: int,
    files: Files,
    snapshots: SnapshotFiles | None = None,
) -> None:
    """Replay the batches from `producers.map_end_offset` to `end_offset`. Only of control batches the records are read.

    With `snapshots` one is written at each segment's base offset.
    """
    assert producers.map_end_offset <= end_offset, (producers.map_end_offset, end_offset)
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if snapshots is not None and segment.base_offset > producers.map_end_offset:
            producers.map_end_offset = segment.base_offset
            snapshots.write(producers)
        for header, position in segment.log.valid_headers(segment.reader.start_of(producers.map_end_offset)):
            if header.next_offset > end_offset:
                break  # it has been truncated, or will be
            if header.next_offset <= producers.map_end_offset:
                continue
            is_needed = header.is_control and header.has_producer_id
            batch = files.pread(segment.log.fd, header.size_bytes, position) if is_needed else b""
            replay(producers, header, batch, None)
    producers.map_end_offset = end_offset
