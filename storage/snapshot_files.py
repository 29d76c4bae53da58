"""Which producer snapshots a log has, and rebuilding producer state from them and the log.

A snapshot `<offset>.snapshot` says what was known of the producers when the log ended at `offset`. One is
written for each new segment, when the log is closed, and when it was opened; a log that is opened reads on
from the newest that is not corrupt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from logging import getLogger
from pathlib import Path

from protocol.errors import KafkaError
from protocol.records.batch import BatchHeader
from storage import file_names, producer_snapshot
from storage.append_origin import AppendOrigin
from storage.files import Files
from storage.producer_state import ProducerStateManager, ProducerUpdates
from storage.segment import Segment
from storage.transaction_index import AbortedTransaction

_LOG = getLogger(__name__)


class SnapshotFiles:
    """The `.snapshot` files in one log's directory."""

    def __init__(self, directory: Path, files: Files, offsets: Iterable[int] = ()) -> None:
        self.directory = directory
        self._files = files
        #: Ascending.
        self.offsets = sorted(offsets)

    def path_of(self, offset: int) -> Path:
        """Where the snapshot of the log's first `offset` offsets is."""
        return self.directory / file_names.of_offset(offset, file_names.PRODUCER_SNAPSHOT)

    @property
    def latest(self) -> int | None:
        """The newest snapshot's offset."""
        return self.offsets[-1] if self.offsets else None

    def write(self, producers: ProducerStateManager) -> None:
        """A snapshot of what is known now, unless the log has not grown since the last one.

        Not flushed: recovery does without a snapshot that is torn.
        """
        offset = producers.map_end_offset
        if offset <= producers.last_snapshot_offset:
            return
        self._files.write_atomically(
            self.path_of(offset), producer_snapshot.encode(producers.producers), durable=False
        )
        if offset not in self.offsets:
            self.offsets.insert(bisect_right(self.offsets, offset), offset)
        producers.last_snapshot_offset = offset

    def load(
        self, producers: ProducerStateManager, *, first_offset: int, end_offset: int, now_ms: int
    ) -> None:
        """Make `producers` know what the newest good snapshot in [first, end] says, else nothing as of the first.

        `first_offset` is where the first segment begins, not the log start: what lies between them is still in
        the files, and a snapshot of the first segment's beginning is all that is left of what was before it. So
        the same is known however often, and after whatever end, the log is opened. Kafka drops all snapshots up
        to the log start, and forgets producers, and transactions that began before it, now and then.
        Snapshots outside of the range and corrupt ones are removed.
        """
        self.remove_outside(first_offset, end_offset)
        for offset in self.restore(
            producers, first_offset=first_offset, end_offset=end_offset, now_ms=now_ms
        ):
            self.remove(offset)

    def remove_outside(self, first_offset: int, end_offset: int) -> None:
        """Remove the snapshots that are not of the log [first, end)."""
        for offset in [at for at in self.offsets if not first_offset <= at <= end_offset]:
            self.remove(offset)

    def restore(
        self, producers: ProducerStateManager, *, first_offset: int, end_offset: int, now_ms: int
    ) -> list[int]:
        """As `load`, but removes nothing; the corrupt snapshots that it has passed over. [any thread]"""
        corrupt = []
        for offset in [at for at in reversed(self.offsets) if first_offset <= at <= end_offset]:
            try:
                states = producer_snapshot.decode(self._files.read(self.path_of(offset)))
            except (producer_snapshot.CorruptSnapshot, FileNotFoundError) as error:
                _LOG.warning("Producer snapshot %s: %s; an older one is used", self.path_of(offset), error)
                corrupt.append(offset)
            else:
                producers.load(states, offset=offset, now_ms=now_ms)
                return corrupt
        producers.reset(first_offset)
        return corrupt

    def remove(self, offset: int) -> None:
        """Remove one snapshot; a missing one is fine."""
        at = bisect_left(self.offsets, offset)  # thousands may go at once
        if at < len(self.offsets) and self.offsets[at] == offset:
            del self.offsets[at]
            self._files.unlink(self.path_of(offset))

    def remove_stray(self, base_offsets: Iterable[int]) -> None:
        """Remove those that belong to no segment; the newest of them may stay: it was written at the log's end."""
        bases = set(base_offsets)
        stray = [offset for offset in self.offsets if offset not in bases]
        if stray and stray[-1] > max(bases):
            del stray[-1]
        for offset in stray:
            self.remove(offset)

    def flush(self, start: int, end: int) -> None:
        """Wait until the snapshots from `start` to `end` (inclusive) are on the disk. [any thread]"""
        for at in list(self.offsets):
            if start <= at <= end:
                self._files.fsync_path(self.path_of(at))


def remember(producers: ProducerStateManager, updates: ProducerUpdates, segment: Segment) -> None:
    """What was analyzed is in the log: apply it, and note aborted transactions in the segment's index."""
    producers.apply(updates)
    for completed in updates.completed:
        if completed.is_aborted:
            segment.transactions.append(
                AbortedTransaction(
                    completed.producer_id,
                    completed.first_offset,
                    completed.last_offset,
                    producers.last_stable_offset_after(completed),
                )
            )
        producers.complete(completed)


def replay(
    producers: ProducerStateManager, header: BatchHeader, batch: memoryview | bytes, segment: Segment | None
) -> None:
    """A batch that lies in the log: know its producer again. `segment` None: its transaction index is right.

    `batch` needs its records only if it is a control batch. What contradicts itself is noted in the
    process's log and passed over: it is in the log, and every replica has read it so.
    """
    if header.producer_id >= 0:
        try:
            updates = producers.analyze(((header, batch),), origin=AppendOrigin.REPLICATION)
        except KafkaError as error:
            _LOG.warning("Producer state at offset %d: %s", header.base_offset, error)
        else:
            if segment is not None:
                remember(producers, updates, segment)
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
    """Read whole batches from `producers.map_end_offset` to `end_offset`. Control batches are read whole, others' headers only.

    With `snapshots` one is written where a segment begins.
    """
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if snapshots is not None and segment.base_offset > producers.map_end_offset:
            producers.map_end_offset = segment.base_offset
            snapshots.write(producers)
        for header, position in segment.sound_headers(segment.start_of(producers.map_end_offset)):
            if header.next_offset > end_offset:
                break  # it is truncated away, or about to be
            if header.next_offset <= producers.map_end_offset:
                continue
            is_needed = header.is_control and header.has_producer_id
            batch = files.pread(segment.fd, header.size_bytes, position) if is_needed else b""
            replay(producers, header, batch, None)
    producers.map_end_offset = end_offset
