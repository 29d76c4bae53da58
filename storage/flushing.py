"""LogFlusher: which part of a log is on the disk, and the flush of the rest, in a thread.

    append, roll -> `due` -> job: run (any thread): fsync of epochs, snapshots, segments with indexes, directory
                                  finish (event loop): the recovery point advances

Invariant: nothing before the recovery point needs repair after a crash: batches, indexes of closed segments, epochs,
snapshots and directory entries before it are on the disk. A truncation or a rename that comes between the two halves of
a job makes its result invalid.

Source: UnifiedLog.flush of Kafka 4.3.1, which flushes in the appending thread where `flush.messages` is set.
"""

from ottla.protocol.errors import KafkaStorageError
from ottla.storage import partition_metadata
from ottla.storage.background import BackgroundJob
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.segment import Segment


class LogFlusher:
    """Knows which part of a log is on the disk, and flushes the rest in a thread."""

    def __init__(
        self,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        epochs: LeaderEpochCache,
        availability: LogAvailability,
        now_ms: int,
    ) -> None:
        self._offsets = offsets
        self._files = files
        self._epochs = epochs
        self._availability = availability
        #: For flush.ms.
        self._last_flushed_ms = now_ms
        #: End offset of the closed segments that wait for their flush; None without any.
        self._closed_end: int | None = None
        #: Whether a flush has moved the recovery point, to the end of a batch.
        self._has_flushed = False

    # -- when a flush is due -----------------------------------------------------------------------

    @property
    def unflushed_count(self) -> int:
        """Number of offsets that are not known to be on the disk."""
        return self._offsets.log_end_offset - self._offsets.recovery_point

    @property
    def is_due(self) -> bool:
        """Whether `flush.messages` or more offsets are unflushed, so that the last append needs a flush to count."""
        offsets = self._offsets
        return offsets.log_end_offset - offsets.recovery_point >= self._files.config.flush_messages

    @property
    def committable_end(self) -> int:
        """End of the records that this replica counts as having, for acks and the high watermark; exclusive.

        The recovery point of a checkpoint may be within a batch (`LogCheckpoints.recovery_point_to_write`),
        where no high watermark may be: before the first flush of this process nothing more counts.
        """
        offsets = self._offsets
        if not self.is_due:
            return offsets.log_end_offset
        return (
            offsets.recovery_point
            if self._has_flushed
            else min(offsets.recovery_point, offsets.high_watermark)
        )

    def due_end(self, now_ms: int) -> int | None:
        """The end offset of the flush that is due now; None without one."""
        flush_ms = self._files.config.flush_ms
        if self.is_due or (flush_ms <= now_ms - self._last_flushed_ms and self.unflushed_count):
            return self._offsets.log_end_offset
        return self._closed_end

    def step_back(self, back_ms: int) -> None:
        """Keep the time since the last flush when the clock steps back."""
        self._last_flushed_ms -= back_ms

    def job(self, end: int, *, now_ms: int) -> BackgroundJob:
        """Flush up to `end` in a thread; then advance the recovery point, unless the log was truncated meanwhile."""
        assert end >= 0, (self._files.directory, end)
        generation, active = self._files.generation, self._files.segments.active
        self._closed_end = None
        self._last_flushed_ms = now_ms
        is_flushed = False

        def run() -> None:
            nonlocal is_flushed
            try:
                self.flush_files(end)
                is_flushed = True
            except KafkaStorageError:
                return  # already reported by the log, which is offline

        def finish() -> None:
            if is_flushed:
                self._on_flushed(end, generation=generation, active=active)

        return BackgroundJob(name=f"flush {self._files.directory.name} to {end}", run=run, finish=finish)

    # -- flushes -----------------------------------------------------------------------------------

    def flush(self, offset: int | None = None) -> None:
        """Wait until everything before `offset` (None: the log end) is on the disk. [any thread]"""
        end = self._offsets.log_end_offset if offset is None else offset
        generation, active = self._files.generation, self._files.segments.active
        self.flush_files(end)
        self._on_flushed(end, generation=generation, active=active)

    def flush_files(self, end: int) -> None:
        """Wait until everything before `end` is on the disk, its indexes and epochs first. [any thread]

        Raises KafkaStorageError.
        """
        assert end >= 0, (self._files.directory, end)
        files, recovery_point = self._files, self._offsets.recovery_point
        seen = [
            (it, it.change_count)
            for it in (files.entry_changes, files.name_changes, files.active_truncations)
        ]
        if end <= recovery_point and files.entry_changes.all_flushed:
            return
        system = files.file_system
        try:
            self._epochs.flush()
            files.snapshots.flush(start=recovery_point, end=end)
            segments = files.segments
            for segment in segments.from_offset(recovery_point):
                if segment.base_offset < end or not files.active_truncations.all_flushed:
                    segment.flush(with_indexes=segment is not segments.active)
            if not (files.entry_changes.all_flushed and files.name_changes.all_flushed):
                system.fsync_path(files.directory / partition_metadata.FILE_NAME)
                system.fsync_dir(files.directory)
            if not files.name_changes.all_flushed:
                system.fsync_dir(files.directory.parent)
            for changes, count in seen:
                changes.on_flushed(count)
        except OSError as error:
            raise self._availability.failed(error) from error

    def _on_flushed(self, end: int, *, generation: int, active: Segment) -> None:
        """Advance the recovery point to `end`, unless the log has been truncated or moved since `generation`.

        The indexes of the segment that was `active` before are not flushed, but recovery trusts those of a segment
        that ends before the recovery point. So if it has been rolled since, the recovery point stops at its base
        offset, and it is flushed again (`_closed_end`).
        """
        offsets = self._offsets
        if self._files.generation == generation:
            if active is not self._files.segments.active:
                end = min(end, active.base_offset)
            end = min(end, offsets.log_end_offset)
            if end > offsets.recovery_point:
                offsets.advance_recovery_point(end)
                self._has_flushed = True
            if self._closed_end is not None and self._closed_end <= offsets.recovery_point:
                self._closed_end = None

    # -- changes that need a flush -----------------------------------------------------------------

    def on_closing_segment(self, closed: Segment, *, end_offset: int) -> None:
        """Record that the active segment is closed; the next one begins at `end_offset`.

        If all of its batches are flushed, its indexes are not: it is flushed again. The recovery point on the
        disk is before its end (`LogCheckpoints`).
        """
        assert closed.base_offset < end_offset, (str(closed), end_offset)
        if self._offsets.recovery_point == end_offset:
            self._offsets.move_recovery_point_back(closed.base_offset)

    def on_roll(self, base_offset: int) -> None:
        """Record that the segments before `base_offset` are closed, and wait for their flush."""
        assert base_offset == self._files.segments.active.base_offset, (self._files.directory, base_offset)
        self._closed_end = base_offset

    def on_directory_renamed(self) -> None:
        """Have all closed segments flushed again, since running flushes are invalid."""
        base_offset = self._files.segments.active.base_offset
        if self._offsets.recovery_point < base_offset:
            self._closed_end = base_offset

    def on_restart(self) -> None:
        """Forget the closed segments that wait for their flush: all segments have been removed."""
        assert len(self._files.segments) == 1, (self._files.directory, len(self._files.segments))
        self._closed_end = None
