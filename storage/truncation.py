"""Truncation: removes the end of a log, or all of it, as a follower does when its log diverges from its leader's.

`truncate_to` is one step on the event loop's thread. Everything in it that waits for the disk is done before, in jobs
for a thread (`truncation_job`), as long as the truncation is wanted:

    1. the checkpoints are moved back, so that the part to be removed no longer counts as flushed
    2. the producer state at the new end is read from the log
    3. if slices of the part to be removed are lent (`storage.lending`), the rest is copied
    4. if whole segments are removed, the log is truncated to the end of the one before; their removal is flushed

Invariant: the log is consistent between any two of these: it can be read and appended to, and its log end offset is
correct for a leader epoch that begins meanwhile. Only step 4 changes it. Without the jobs `truncate_to` does the same
itself, and waits: at a start, and for logs whose records are never lent.

Source: LocalLog.truncateTo and UnifiedLog.truncateFullyAndStartAt of Kafka 4.3.1, which wait for the disk in place.
"""

from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from typing import NamedTuple

from storage.background import BackgroundJob
from storage.file_copy import FileCopy
from storage.flush_counter import FlushCounter
from storage.log_files import DeletedFiles, LogFiles
from storage.producer_state import ProducerStateManager
from storage.segment import Segment
from storage.segments import Segments
from storage.snapshot_files import replay_headers

_LOG = getLogger(__name__)


class CheckpointLimit:
    """The new end of a truncation that is being prepared: offsets in the log's checkpoints are not beyond it."""

    __slots__ = ("is_written", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        #: Whether this holds for the checkpoint files on the disk.
        self.is_written = False


class _Prepared(NamedTuple):
    """The prepared state of a truncation to `offset`; valid only if the log has not been truncated since."""

    offset: int
    truncations: int
    first_offset: int
    segment: Segment
    #: Where `segment` will end.
    position: int
    producers: ProducerStateManager


class LogTruncation(LogFiles):
    """The truncating part of a log; see the module, and storage.log.Log."""

    #: Removals of segments at the log's end: no segment before them may be truncated until they are on the disk.
    _removals: FlushCounter
    #: Decides the content of the directory's checkpoints; the job writes them.
    _on_unflushed: Callable[[], BackgroundJob]
    _prepared: _Prepared | None = None

    # -- in jobs -----------------------------------------------------------------------------------------

    def truncation_job(self, offset: int, *, now_ms: int) -> BackgroundJob | None:
        """The next job that `truncate_to(offset)` would otherwise wait for; None if there is none left.

        Complete it and call this again, as long as the truncation is wanted; if it is abandoned, `give_up_truncation`.
        The job's `run` raises KafkaStorageError and CorruptMessage. Raises KafkaStorageError.
        """
        if offset >= self.log_end_offset:
            return None
        if offset < self.segments.first.base_offset:
            return self.restart_job(offset)
        with self._io():
            if (job := self._checkpoint_job(offset, min(self.log_start_offset, offset))) is not None:
                return job
            if not self._removals.all_flushed:
                return BackgroundJob(
                    name=f"flush {self.directory}", run=self._in_thread(self._flush_removals)
                )
            later = self._behind(offset)
            end = later[0].base_offset if later else offset
            if (prepared := self._prepared_for(end)) is None:
                return self._reading_job(end, self.segments.without(later)[-1], now_ms)
            if prepared.segment.log.must_copy(prepared.position):
                return self._copying_job(prepared.segment, prepared.position)
            if later:
                self._truncate(end, later, now_ms)
                return self.truncation_job(offset, now_ms=now_ms)
        return None

    def restart_job(self, offset: int) -> BackgroundJob | None:
        """As `truncation_job`, for `truncate_fully_and_start_at`."""
        with self._io():
            return self._checkpoint_job(min(offset, self.segments.first.base_offset), offset)

    def give_up_truncation(self) -> None:
        """Discard what was prepared, when the truncation is abandoned or done."""
        self.checkpoint_limit = None
        self._prepared = None
        for segment in self.segments:
            segment.log.drop_copy()  # of all: its segment may not be the active one any more

    def _checkpoint_job(self, offset: int, log_start_offset: int) -> BackgroundJob | None:
        limit_offset = min(offset, log_start_offset)
        if not self._goes_back(offset, log_start_offset) or self._is_written(limit_offset):
            return None
        limit = self.checkpoint_limit = CheckpointLimit(limit_offset)
        write = self._on_unflushed()

        def finish() -> None:
            limit.is_written = True

        return BackgroundJob(
            name=f"checkpoints of {self.directory}", run=self._in_thread(write.run), finish=finish
        )

    def _goes_back(self, offset: int, log_start_offset: int) -> bool:
        """Whether the recovery point or the log start offset moves back.

        Then, after a crash, new batches could be before an old recovery point, and not be checked; or before an old
        log start offset, and be removed.
        """
        return offset < self.recovery_point or log_start_offset < self.log_start_offset

    def _is_written(self, limit_offset: int) -> bool:
        limit = self.checkpoint_limit
        return limit is not None and limit.is_written and limit.offset <= limit_offset

    def _flush_removals(self) -> None:
        count = self._removals.change_count
        self._files.fsync_dir(self.directory)
        self._removals.on_flushed(count)

    def _prepared_for(self, offset: int) -> _Prepared | None:
        prepared = self._prepared
        if prepared is None or prepared.segment not in self.segments:
            return None
        now = offset, self.truncations, self.segments.first.base_offset
        return prepared if prepared[:3] == now else None

    def _reading_job(self, end: int, segment: Segment, now_ms: int) -> BackgroundJob:
        segments, truncations = self.segments, self.truncations
        producers = self.producers.sibling()
        position = 0

        def run() -> None:
            nonlocal position
            self._snapshots.restore(
                producers, first_offset=segments.first.base_offset, end_offset=end, now_ms=now_ms
            )
            replay_headers(producers, segments, end_offset=end, files=self._files)
            position = segment.reader.position_of(end)

        def finish() -> None:
            first_offset = segments.first.base_offset
            self._prepared = _Prepared(end, truncations, first_offset, segment, position, producers)

        name = f"producers of {self.topic_partition} at {end}"
        return BackgroundJob(name=name, run=self._in_thread(run), finish=finish)

    def _copying_job(self, segment: Segment, position: int) -> BackgroundJob:
        truncations = self.truncations
        copied: list[FileCopy] = []

        def finish() -> None:
            (copy,) = copied
            segment.log.keep_copy(copy)
            if self.truncations != truncations:
                segment.log.drop_copy()  # the file has other batches now

        return BackgroundJob(
            name=f"copy {position} bytes of {segment}",
            run=self._in_thread(lambda: copied.append(segment.log.copy_beginning(position))),
            finish=finish,
        )

    def _in_thread(self, run: Callable[[], None]) -> Callable[[], None]:
        """The `run` half of a job; if the log is deleted meanwhile, an OSError is not treated as a disk failure."""

        def guarded() -> None:
            try:
                run()
            except OSError as error:
                raise self._read_failed(error) from error

        return guarded

    # -- on the event loop's thread ----------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove everything from `offset` on, with the whole batch that holds it; False if there is nothing.

        Waits for the disk only for steps that `truncation_job` has not done. Raises KafkaStorageError.
        """
        assert offset >= 0, offset
        if offset >= self.log_end_offset:
            # A leader that assigned its epoch and wrote nothing leaves an entry at the log end (KIP-101).
            with self._io():
                self.leader_epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self.high_watermark:
            _LOG.warning(
                "%s: truncating to %d, below the high watermark %d",
                self.directory,
                offset,
                self.high_watermark,
            )
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, now_ms=now_ms)
            return True
        with self._io():
            self._truncate(offset, self._behind(offset), now_ms)
        return True

    def _behind(self, offset: int) -> list[Segment]:
        """The segments that are removed as a whole."""
        return [segment for segment in self.segments if segment.base_offset > offset]

    def _truncate(self, offset: int, later: Sequence[Segment], now_ms: int) -> None:
        """Remove the segments `later`, and everything from `offset` on in the segment before them."""
        prepared = self._prepared_for(offset)
        log_start_offset = min(self.log_start_offset, offset)
        must_write = self._must_write_checkpoints(offset, log_start_offset)
        self.offsets.begin_truncation(offset)
        self._note_truncation(must_write=must_write)
        if later:
            self._remove(later[::-1], now_ms)  # the newest first, so that a crash leaves no gap
            self._removals.on_change()
        cuts_batches = not later or offset < later[0].base_offset
        if cuts_batches and not self._removals.all_flushed:
            # Nor may a power cut: if the truncated segment reached the disk first, they would reappear after it.
            self._flush_removals()
        active = self.segments.active
        active.truncate_to(offset, now_ms=now_ms)
        for fd in active.log.take_replaced_fds():
            close = partial(self._files.close, fd)
            self.deleted_files.append(DeletedFiles(now_ms + self.config.file_delete_delay_ms, close, close))
        self.leader_epochs.truncate_from_end(offset)
        self._reload_producers(offset, None if prepared is None else prepared.producers, now_ms)
        self.offsets.truncate(offset, first_unstable_offset=self.producers.first_unstable_offset)
        self._entry_changes.on_change()
        self._cuts.on_change()

    def _must_write_checkpoints(self, recovery_point: int, log_start_offset: int) -> bool:
        """Whether the checkpoints on the disk may be beyond these offsets. Asked before the offsets move back."""
        return self._goes_back(recovery_point, log_start_offset) and not self._is_written(
            min(recovery_point, log_start_offset)
        )

    def _note_truncation(self, *, must_write: bool) -> None:
        """The offsets have moved back; the files have not changed yet."""
        self.truncations += 1
        if must_write:
            self._on_unflushed().complete()
        self._checkpointed_to = min(self._checkpointed_to, self.recovery_point)
        self._prepared = self._bound = None

    def _reload_producers(self, end_offset: int, prepared: ProducerStateManager | None, now_ms: int) -> None:
        first_offset = self.segments.first.base_offset
        if prepared is not None:
            self._snapshots.remove_outside(first_offset, end_offset)
            self.producers.replace(prepared)
        else:
            self._snapshots.load(
                self.producers, first_offset=first_offset, end_offset=end_offset, now_ms=now_ms
            )
            replay_headers(self.producers, self.segments, end_offset=end_offset, files=self._files)
        self._snapshots.write(self.producers)

    def truncate_fully_and_start_at(
        self, offset: int, *, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        """Remove everything; the empty log starts at `offset`. Raises KafkaStorageError."""
        with self._io():
            start = offset if log_start_offset is None else log_start_offset
            # After a crash the old segments may be there again: recovery must check all of them.
            checked_from = min(offset, self.segments.first.base_offset)
            must_write = self._must_write_checkpoints(checked_from, start)
            self.offsets.restart(
                offset, log_start_offset=start, recovery_point=min(self.recovery_point, checked_from)
            )
            self._note_truncation(must_write=must_write)
            old = list(self.segments)
            for segment in old:
                self._put_aside(segment, now_ms)
            for at in list(self._snapshots.offsets):
                self._snapshots.remove(at)
            self.segments = Segments([self._create_segment(offset, now_ms)])
            self.leader_epochs.clear()
            self.producers.reset(offset)
            self.flush_wanted_to = None
            self._entry_changes.on_change()
