"""LogCheckpoints: the rows of one log in its directory's checkpoints of recovery points and log start offsets.

A checkpoint is written seldom, and is behind the log; that is safe while the log grows. Before a truncation it must
not be ahead: after a crash new batches could be before an old recovery point, and not be checked; or before an old log
start offset, and be removed. So rows that move back are written before files change: by a job, if the truncation is
prepared (`ottla.storage.truncation`), else in place.

It must not be behind, either, where a tiered log removes segments before its log start. The log start of a tiered log
is the checkpointed one, whichever segments there are; that of another log is at least that of its first segment. After
a crash the log would begin before the segments that are left, and no copy would have the records in between, if
DeleteRecords came before they were copied.

Recovery trusts the indexes of a segment that ends at the recovery point, and those of the active one are
flushed only after it is closed. Invariant: while a log is open, the recovery point on the disk is not the end
of its active segment, unless that is empty. So the segment can be rolled at any time, without a flush
(`LogFlusher.on_closing_segment`).

Source: LogManager.truncateTo of Kafka 4.3.1, which writes the checkpoint after the truncation.
"""

from collections.abc import Callable
from typing import Final, Protocol

from ottla.protocol.types import MAX_OFFSET
from ottla.storage.background import BackgroundJob
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets


class _Limit:
    """The offsets of a truncation that is being prepared: the rows of the log are not beyond them."""

    __slots__ = ("is_written", "log_start_offset", "recovery_point")

    def __init__(self, *, recovery_point: int, log_start_offset: int) -> None:
        assert min(recovery_point, log_start_offset) >= 0, (recovery_point, log_start_offset)
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        #: Whether this holds for the checkpoint files on the disk.
        self.is_written = False


class StartCheckpoint(Protocol):
    """The checkpoint of log start offsets in a log's directory."""

    def written(self) -> int | None:
        """The log start offset of the log that is on the disk; None: there is none."""

    def job(self) -> BackgroundJob:
        """A job that writes the log start offsets of the directory as they are now."""


class _NoStartCheckpoint:
    """A log that has no checkpoint waits for none."""

    def written(self) -> int:
        """The largest offset there is."""
        return MAX_OFFSET

    def job(self) -> BackgroundJob:
        """A job that does nothing."""
        return BackgroundJob(name="no checkpoint", run=lambda: None)


NO_START_CHECKPOINT: Final = _NoStartCheckpoint()


class LogCheckpoints:
    """The recovery point and log start offset of one log, as its directory's checkpoints have them.

    `write_all` decides the content of the directory's checkpoints; its job writes them.
    """

    def __init__(
        self,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        availability: LogAvailability,
        write_all: Callable[[], BackgroundJob],
        start: StartCheckpoint,
    ) -> None:
        self._offsets = offsets
        self._files = files
        self._availability = availability
        self._write_all = write_all
        self._start = start
        self._limit: _Limit | None = None
        #: No row of this log on the disk has a larger recovery point, which may be beyond the one in memory: that moves
        #: back when a segment is rolled.
        self._largest_written = offsets.recovery_point

    def recovery_point_to_write(self) -> int:
        """The recovery point of this log for the checkpoint.

        The last offset of the active segment does not count as flushed while the log is open; see the module.
        """
        offsets, active = self._offsets, self._files.segments.active
        point = offsets.recovery_point
        if not self._availability.is_closed:
            point = min(point, max(offsets.log_end_offset - 1, active.base_offset))
        if self._limit is not None:
            point = min(point, self._limit.recovery_point)
        assert 0 <= point <= offsets.recovery_point, (self._files.directory, point, offsets)
        self._largest_written = max(self._largest_written, point)
        return point

    def log_start_to_write(self) -> int | None:
        """The log start offset of this log for the checkpoint; None: it is the first segment's base offset.

        That of a tiered log is always written, as it may be before the first segment.
        """
        start = self._offsets.log_start_offset
        if self._limit is not None:
            start = min(start, self._limit.log_start_offset)
        assert 0 <= start <= self._offsets.log_start_offset, (self._files.directory, start, self._offsets)
        is_tiered = self._files.is_tiered
        return start if is_tiered or start > self._files.segments.first.base_offset else None

    def has_log_start(self, offset: int) -> bool:
        """Whether the checkpoint has this log start offset, or a larger one."""
        return offset <= (self._start.written() or 0)

    def log_start_job(self) -> BackgroundJob:
        """A job that writes the log start offset as it is now, and those of the directory's other logs."""
        return self._start.job()

    # -- before a truncation -----------------------------------------------------------------------

    def truncation_job(self, *, recovery_point: int, log_start_offset: int) -> BackgroundJob | None:
        """The job that writes the log's rows, not beyond these offsets; None if such rows are on the disk already."""
        if not self.must_write(recovery_point=recovery_point, log_start_offset=log_start_offset):
            return None
        limit = self._limit = _Limit(recovery_point=recovery_point, log_start_offset=log_start_offset)
        write = self._write_all()

        def finish() -> None:
            limit.is_written = True

        return BackgroundJob(
            name=f"checkpoints of {self._files.directory}",
            run=self._availability.guard_reading(write.run),
            finish=finish,
        )

    def must_write(self, *, recovery_point: int, log_start_offset: int) -> bool:
        """Whether the rows on the disk may be beyond these offsets. Called before the log's offsets move back."""
        offsets, limit = self._offsets, self._limit
        most = max(offsets.recovery_point, self._largest_written)
        if recovery_point >= most and log_start_offset >= offsets.log_start_offset:
            return False
        if limit is None or not limit.is_written:
            return True
        return limit.recovery_point > recovery_point or limit.log_start_offset > log_start_offset

    def write_in_place(self) -> None:
        """Write the rows when a truncation has moved offsets back, before it changes files. Waits for the disk."""
        self._write_all().complete()

    def end_truncation(self) -> None:
        """Let the rows of the checkpoints advance again: the truncation is done or abandoned."""
        self._limit = None
