"""LogTruncation: removes the end of a log, or all of it, as a follower does when its log diverges from its leader's.

`truncate_to` is one step on the event loop's thread. Everything in it that waits for the disk is done before, in jobs
for a thread (`next_job`), as long as the truncation is wanted:

    1. the checkpoints are moved back, so that the part to be removed no longer counts as flushed
    2. the producer state at the new end is read from the log
    3. if slices of the part to be removed are lent (`ottla.storage.lending`), the rest is copied
    4. if whole segments are removed, the log is truncated to the end of the one before; their removal is flushed

Invariant: the log is consistent between any two of these: it can be read and appended to, and its log end offset is
correct for a leader epoch that begins meanwhile. Only step 4 changes it. Without the jobs `truncate_to` does the same
itself, and waits: at a start, and for logs whose records are never lent.

Source: LocalLog.truncateTo and UnifiedLog.truncateFullyAndStartAt of Kafka 4.3.1, which wait for the disk in place.
"""

from collections.abc import Callable, Sequence
from logging import getLogger
from typing import NamedTuple

from ottla.storage.background import BackgroundJob
from ottla.storage.file_copy import FileCopy
from ottla.storage.flushing import LogFlusher
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_checkpoints import LogCheckpoints
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.log_reader import LogReader
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.segment import Segment
from ottla.storage.snapshot_files import replay_headers

_LOG = getLogger(__name__)


class _Prepared(NamedTuple):
    """The prepared state of a truncation to `offset`; valid only if the log has not been truncated since."""

    offset: int
    generation: int
    first_offset: int
    segment: Segment
    #: Where `segment` will end.
    position: int
    producers: ProducerStateManager


class LogTruncation:
    """Removes the end of a log, or all of it, after jobs in threads have done the parts that wait for the
    disk.
    """

    def __init__(
        self,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        reader: LogReader,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        checkpoints: LogCheckpoints,
        flusher: LogFlusher,
        availability: LogAvailability,
    ) -> None:
        self._offsets = offsets
        self._files = files
        self._reader = reader
        self._epochs = epochs
        self._producers = producers
        self._checkpoints = checkpoints
        self._flusher = flusher
        self._availability = availability
        self._prepared: _Prepared | None = None

    # -- in jobs -----------------------------------------------------------------------------------------

    def next_job(self, offset: int, *, now_ms: int) -> BackgroundJob | None:
        """The next job that `truncate_to(offset)` would otherwise wait for; None if there is none left.

        Complete it and call this again, as long as the truncation is wanted; if it is abandoned, call `discard`.
        The job's `run` raises KafkaStorageError and CorruptMessage. Raises KafkaStorageError.
        """
        assert offset >= 0, offset
        files, offsets = self._files, self._offsets
        if offset >= offsets.log_end_offset:
            return None
        if offset < files.segments.first.base_offset:
            return self.restart_job(offset, log_start_offset=self._start_of_remote_part(offset))
        with self._availability:
            later = self._segments_after(offset)
            kept = files.segments.without(later)[-1]
            job = self._checkpoints.truncation_job(
                recovery_point=self._recovery_point_at(offset, kept),
                log_start_offset=min(offsets.log_start_offset, offset),
            )
            if job is not None:
                return job
            if not files.removals.all_flushed:
                run = self._availability.guard_reading(files.flush_removals)
                return BackgroundJob(name=f"flush {files.directory}", run=run)
            end = later[0].base_offset if later else offset
            if (prepared := self._prepared_for(end)) is None:
                return self._reading_job(end, kept, now_ms)
            if prepared.segment.log.must_copy(prepared.position):
                return self._copying_job(prepared.segment, prepared.position)
            if later:
                self._truncate(end, later, now_ms)
                return self.next_job(offset, now_ms=now_ms)
        return None

    def restart_job(self, offset: int, *, log_start_offset: int | None = None) -> BackgroundJob | None:
        """The next job that `truncate_fully_and_start_at` would otherwise wait for; None if there is none left."""
        with self._availability:
            return self._checkpoints.truncation_job(
                recovery_point=min(offset, self._files.segments.first.base_offset),
                log_start_offset=offset if log_start_offset is None else log_start_offset,
            )

    def discard(self) -> None:
        """Discard the prepared copies when the truncation is abandoned or done."""
        self._checkpoints.end_truncation()
        self._prepared = None
        for segment in self._files.segments:
            segment.log.drop_copy()  # of all: its segment may not be the active one any more

    def _prepared_for(self, offset: int) -> _Prepared | None:
        prepared, files = self._prepared, self._files
        if prepared is None or prepared.segment not in files.segments:
            return None
        now = offset, files.generation, files.segments.first.base_offset
        return prepared if prepared[:3] == now else None

    def _reading_job(self, end: int, segment: Segment, now_ms: int) -> BackgroundJob:
        segments, generation = self._files.segments, self._files.generation
        snapshots, file_system = self._files.snapshots, self._files.file_system
        producers = self._producers.sibling()
        position = 0

        def run() -> None:
            nonlocal position
            snapshots.restore(
                producers, first_offset=segments.first.base_offset, end_offset=end, now_ms=now_ms
            )
            replay_headers(producers, segments, end_offset=end, files=file_system)
            position = segment.reader.position_of(end)

        def finish() -> None:
            first_offset = segments.first.base_offset
            assert producers.map_end_offset == end, (str(segment), producers.map_end_offset, end)
            self._prepared = _Prepared(end, generation, first_offset, segment, position, producers)

        name = f"producers of {self._files.directory.name} at {end}"
        return BackgroundJob(name=name, run=self._availability.guard_reading(run), finish=finish)

    def _copying_job(self, segment: Segment, position: int) -> BackgroundJob:
        generation = self._files.generation
        copied: list[FileCopy] = []

        def finish() -> None:
            (copy,) = copied
            segment.log.keep_copy(copy)
            if self._files.generation != generation:
                segment.log.drop_copy()  # the file has other batches now

        return BackgroundJob(
            name=f"copy {position} bytes of {segment}",
            run=self._availability.guard_reading(lambda: copied.append(segment.log.copy_beginning(position))),
            finish=finish,
        )

    # -- on the event loop's thread ----------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove everything from `offset` on, with the whole batch that holds it; False if there is nothing."""
        assert offset >= 0, offset
        offsets, files = self._offsets, self._files
        if offset >= offsets.log_end_offset:
            # A leader that assigned its epoch and wrote nothing leaves an entry at the log end (KIP-101).
            with self._availability:
                self._epochs.truncate_from_end(offsets.log_end_offset)
            return False
        if offset < offsets.high_watermark:
            _LOG.warning(
                "%s: truncating to %d, below the high watermark %d",
                files.directory,
                offset,
                offsets.high_watermark,
            )
        if offset < files.segments.first.base_offset:
            start = self._start_of_remote_part(offset)
            # The lineage of what stays in the remote tier stays known.
            kept = self._epochs.entries_in_range(start_offset=start, end_offset=offset)
            self._restart_with(offset, log_start_offset=start, epochs=kept, now_ms=now_ms)
            return True
        with self._availability:
            self._truncate(offset, self._segments_after(offset), now_ms)
        assert offsets.log_end_offset == offset, (files.directory, offsets, offset)
        return True

    def _segments_after(self, offset: int) -> list[Segment]:
        """The segments that a truncation to `offset` removes as a whole."""
        return [segment for segment in self._files.segments if segment.base_offset > offset]

    def _recovery_point_at(self, offset: int, kept: Segment) -> int:
        """The recovery point after a truncation to `offset`, in the segment `kept`.

        Its end and its indexes are not on the disk: after the next roll recovery would trust them, if the
        point were there.
        """
        point = self._offsets.recovery_point
        assert kept.base_offset <= offset, (str(kept), offset)
        return point if point < offset else kept.base_offset

    def _truncate(self, offset: int, later: Sequence[Segment], now_ms: int) -> None:
        """Remove the segments `later`, and everything from `offset` on in the segment before them."""
        offsets, files = self._offsets, self._files
        prepared = self._prepared_for(offset)
        recovery_point = self._recovery_point_at(offset, files.segments.without(later)[-1])
        must_write = self._checkpoints.must_write(
            recovery_point=recovery_point, log_start_offset=min(offsets.log_start_offset, offset)
        )
        offsets.begin_truncation(offset)
        offsets.move_recovery_point_back(recovery_point)
        self._on_offsets_moved_back(must_write=must_write)
        if later:
            files.remove_after(later, now_ms)
        cuts_batches = not later or offset < later[0].base_offset
        if cuts_batches and not files.removals.all_flushed:
            # Also a power failure must not restore them: if the truncated segment reached the disk first, they
            # would follow it.
            files.flush_removals()
        files.truncate_active(offset, now_ms=now_ms)
        self._epochs.truncate_from_end(offset)
        self._reload_producers(offset, None if prepared is None else prepared.producers, now_ms)
        assert self._producers.map_end_offset == offset, (
            files.directory,
            self._producers.map_end_offset,
            offset,
        )
        offsets.truncate(offset, first_unstable_offset=self._producers.first_unstable_offset)
        files.entry_changes.on_change()
        files.active_truncations.on_change()

    def _on_offsets_moved_back(self, *, must_write: bool) -> None:
        """The offsets have moved back; the files have not changed yet."""
        self._files.generation += 1
        if must_write:
            self._checkpoints.write_in_place()
        self._prepared = None
        self._reader.forget_bound()

    def _reload_producers(self, end_offset: int, prepared: ProducerStateManager | None, now_ms: int) -> None:
        producers, files = self._producers, self._files
        first_offset = files.segments.first.base_offset
        if prepared is not None:
            files.snapshots.remove_outside(first_offset=first_offset, end_offset=end_offset)
            producers.replace(prepared)
        else:
            files.snapshots.load(producers, first_offset=first_offset, end_offset=end_offset, now_ms=now_ms)
            replay_headers(producers, files.segments, end_offset=end_offset, files=files.file_system)
        files.snapshots.write(producers)

    def _start_of_remote_part(self, offset: int) -> int:
        """The log start after a truncation to `offset`, which is before the local segments."""
        return min(self._offsets.log_start_offset, offset) if self._files.is_tiered else offset

    def truncate_fully_and_start_at(
        self, offset: int, *, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        """Remove everything; the empty log starts at `offset`. Raises KafkaStorageError.

        `log_start_offset` is lower if the records before `offset` are in the remote tier.
        """
        start = offset if log_start_offset is None else log_start_offset
        self._restart_with(offset, log_start_offset=start, epochs=(), now_ms=now_ms)

    def _restart_with(
        self, offset: int, *, log_start_offset: int, epochs: Sequence[EpochEntry], now_ms: int
    ) -> None:
        def take_over() -> None:
            self._epochs.replace(epochs)
            self._producers.reset(offset)

        self.restart(offset, log_start_offset=log_start_offset, take_over=take_over, now_ms=now_ms)

    def restart(
        self,
        offset: int,
        *,
        log_start_offset: int,
        remote_end_offset: int | None = None,
        take_over: Callable[[], None],
        now_ms: int,
    ) -> None:
        """Replace all segments by an empty one at `offset`.

        `take_over` sets epochs and producers. It is called when the old files are gone, and the new ones do not
        exist: a crash in it leaves an empty log. Raises KafkaStorageError.
        """
        offsets, files = self._offsets, self._files
        with self._availability:
            # After a crash the old segments may be there again: recovery must check all of them.
            checked_from = min(offset, files.segments.first.base_offset)
            must_write = self._checkpoints.must_write(
                recovery_point=checked_from, log_start_offset=log_start_offset
            )
            recovery_point = min(offsets.recovery_point, checked_from)
            offsets.restart(
                offset,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                remote_end_offset=remote_end_offset,
            )
            self._on_offsets_moved_back(must_write=must_write)
            files.restart(offset, now_ms=now_ms, before_creation=take_over)
            assert self._producers.map_end_offset == offset, (files.directory, self._producers.map_end_offset)
            offsets.set_first_unstable(self._producers.first_unstable_offset)
            self._flusher.on_restart()
            files.entry_changes.on_change()
        assert [it.base_offset for it in files.segments] == [offsets.log_end_offset], (
            files.directory,
            offsets,
        )
