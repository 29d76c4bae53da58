"""LogCheckpoints: the rows of one log in its directory's checkpoints of recovery points and log start offsets.

A checkpoint is written seldom, and is behind the log; that is safe while the log grows. Before a truncation it must
not be ahead: after a crash new batches could be before an old recovery point, and not be checked; or before an old log
start offset, and be removed. So rows that move back are written before files change: by a job, if the truncation is
prepared (`storage.truncation`), else in place.

Source: LogManager.truncateTo of Kafka 4.3.1, which writes the checkpoint after the truncation.
"""

from collections.abc import Callable

from storage.background import BackgroundJob
from storage.log_availability import LogAvailability
from storage.log_files import LogFiles
from storage.log_offsets import LogOffsets


class _Limit:
    """The new end of a truncation that is being prepared: the rows of the log are not beyond it."""

    __slots__ = ("is_written", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        #: Whether this holds for the checkpoint files on the disk.
        self.is_written = False


class LogCheckpoints:
    """See the module. `write_all` decides the content of the directory's checkpoints; its job writes them."""

    def __init__(
        self,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        availability: LogAvailability,
        write_all: Callable[[], BackgroundJob],
    ) -> None:
        self._offsets = offsets
        self._files = files
        self._availability = availability
        self._write_all = write_all
        #: The recovery point in the checkpoint on the disk is not beyond this offset.
        self.written_recovery_point = offsets.recovery_point
        self._limit: _Limit | None = None

    def recovery_point_to_write(self) -> int:
        """The recovery point of this log for the checkpoint.

        Recovery trusts the indexes of a segment that ends at the recovery point. Those of the active segment are
        flushed after it is closed: until then its last offset does not count as flushed.
        """
        offsets, active = self._offsets, self._files.segments.active
        point = offsets.recovery_point
        if point == offsets.log_end_offset > active.base_offset and active.indexes.may_be_unflushed:
            point -= 0 if self._availability.is_closed else 1
        if self._limit is not None:
            point = min(point, self._limit.offset)
        assert 0 <= point <= offsets.recovery_point, (self._files.directory, point, offsets)
        self.written_recovery_point = max(self.written_recovery_point, point)
        return point

    def log_start_to_write(self) -> int | None:
        """The log start offset of this log for the checkpoint; None: it is the first segment's base offset.

        That of a tiered log is always written, as it may be before the first segment.
        """
        start = self._offsets.log_start_offset
        if self._limit is not None:
            start = min(start, self._limit.offset)
        is_tiered = self._files.is_tiered
        return start if is_tiered or start > self._files.segments.first.base_offset else None

    # -- before a truncation -----------------------------------------------------------------------

    def truncation_job(self, *, recovery_point: int, log_start_offset: int) -> BackgroundJob | None:
        """The job that writes rows not beyond these offsets; None if they are on the disk already."""
        if not self.must_write(recovery_point=recovery_point, log_start_offset=log_start_offset):
            return None
        limit = self._limit = _Limit(min(recovery_point, log_start_offset))
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
        if recovery_point >= offsets.recovery_point and log_start_offset >= offsets.log_start_offset:
            return False
        if limit is None or not limit.is_written:
            return True
        return limit.offset > min(recovery_point, log_start_offset)

    def on_offsets_moved_back(self, *, must_write: bool) -> None:
        """A truncation has moved offsets back, and changes files next. Waits for the disk if the rows `must_write`."""
        if must_write:
            self._write_all().complete()
        self.written_recovery_point = min(self.written_recovery_point, self._offsets.recovery_point)

    def end_truncation(self) -> None:
        """The truncation is done or abandoned."""
        self._limit = None
