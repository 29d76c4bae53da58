"""The checkpoint files of all log directories: written when they are due, and only when they have changed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from protocol.types import TopicPartition
from storage.background import BackgroundJob
from storage.checkpoints import OffsetCheckpoint
from storage.log import Log
from storage.log_directory import LogDirectory


class CheckpointWriter:
    """Makes the jobs that write recovery points, log starts, high watermarks and cleaned offsets."""

    def __init__(
        self,
        directories: Mapping[Path, LogDirectory],
        *,
        logs: Callable[[], Sequence[Log]],
        cleaned_offsets: Mapping[TopicPartition, int],
        offline_dirs: Mapping[Path, OSError],
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self._directories = directories
        self._logs = logs
        self._cleaned_offsets = cleaned_offsets
        self._offline_dirs = offline_dirs
        self._on_failure = on_failure
        #: What each file holds.
        self._written: dict[Path, dict[TopicPartition, int]] = {}
        #: Files that a job is about to write, and what it must not say any more when it has.
        self._in_flight: dict[Path, set[TopicPartition]] = {}
        #: Files in flight of which something else has gone back meanwhile.
        self._outdated: set[Path] = set()

    def _offsets(self, of: Callable[[Log], int | None]) -> dict[Path, dict[TopicPartition, int]]:
        """An offset of each log that has one, by directory; only of directories that serve."""
        offsets: dict[Path, dict[TopicPartition, int]] = {
            path: {} for path in self._directories if path not in self._offline_dirs
        }
        for log in self._logs():
            offset = of(log)
            if offset is not None and (rows := offsets.get(log.directory.parent)) is not None:
                rows[log.topic_partition] = offset
        return offsets

    def found(self, checkpoint: OffsetCheckpoint, rows: Mapping[TopicPartition, int]) -> None:
        """What the file held at the start. [any thread]"""
        self._written[checkpoint.path] = dict(rows)

    def forget_predecessor(self, topic_partition: TopicPartition, path: Path) -> None:
        """A log is about to be made in this directory: what is noted of a deleted one of that name is not its.

        After a crash the new log would be taken to begin where the old one did, and lose its records. The
        files are replaced at once, but not flushed: the next checkpoint is.
        """
        directory = self._directories[path]
        for checkpoint in (directory.log_start_offsets, directory.recovery_points, directory.cleaned_offsets):
            if checkpoint.path in self._in_flight:
                self._in_flight[checkpoint.path].add(topic_partition)
            elif topic_partition in self._written.get(checkpoint.path, ()):
                self._write_without_deleted(path, checkpoint, {topic_partition})

    def _write_without_deleted(
        self, path: Path, checkpoint: OffsetCheckpoint, forgotten: Collection[TopicPartition]
    ) -> None:
        """The file without the rows of these, and of logs that are not there any more."""
        written = self._written.pop(checkpoint.path, {})  # so that the next checkpoint writes it, flushed
        there = {log.topic_partition for log in self._logs() if log.directory.parent == path}
        rows = {it: at for it, at in written.items() if it not in forgotten and it in there}
        try:
            checkpoint.write(rows, durable=False)
        except OSError as error:
            self._on_failure(path, error)

    def all_jobs(self) -> list[BackgroundJob]:
        """Of all checkpoints."""
        return [*self.recovery_point_jobs(), *self.log_start_jobs(), *self.high_watermark_jobs()]

    def recovery_point_jobs(self) -> list[BackgroundJob]:
        """Of the recovery points, and of what is compacted."""
        cleaned = self._offsets(
            lambda log: None if log.is_future else self._cleaned_offsets.get(log.topic_partition)
        )
        return [
            *self._write_jobs("cleaned offsets", cleaned, lambda it: it.cleaned_offsets),
            *self._recovery_points(self._offsets(lambda log: log.recovery_point)),
        ]

    def log_start_jobs(self) -> list[BackgroundJob]:
        """Of the log starts that the first segments do not tell."""
        return self._log_starts(self._offsets(_explicit_log_start))

    def high_watermark_jobs(self) -> list[BackgroundJob]:
        """Of the high watermarks, which move all the time."""
        offsets = self._offsets(lambda log: log.high_watermark)
        return self._write_jobs("high watermarks", offsets, lambda it: it.high_watermarks)

    def note_truncation(self, path: Path) -> None:
        """A recovery point or a log start in this directory has gone back: write that, here and now.

        A file that a job is about to write is written once more when it has.
        """
        recovery_points = {path: self._offsets(lambda log: log.recovery_point).get(path, {})}
        log_starts = {path: self._offsets(_explicit_log_start).get(path, {})}
        directory = self._directories[path]
        if directory.recovery_points.path in self._in_flight:
            self._outdated.add(directory.recovery_points.path)
        else:
            for job in self._recovery_points(recovery_points):
                job.complete()
        if directory.log_start_offsets.path in self._in_flight:
            self._outdated.add(directory.log_start_offsets.path)
        else:
            for job in self._log_starts(log_starts):
                job.complete()

    def _recovery_points(self, offsets: Mapping[Path, dict[TopicPartition, int]]) -> list[BackgroundJob]:
        return self._write_jobs("recovery points", offsets, lambda it: it.recovery_points)

    def _log_starts(self, offsets: Mapping[Path, dict[TopicPartition, int]]) -> list[BackgroundJob]:
        return self._write_jobs("log start offsets", offsets, lambda it: it.log_start_offsets)

    def _write_jobs(
        self,
        what: str,
        offsets: Mapping[Path, dict[TopicPartition, int]],
        which: Callable[[LogDirectory], OffsetCheckpoint],
    ) -> list[BackgroundJob]:
        """A job for each directory whose offsets are not those that were written last."""
        jobs = []
        for path, rows in offsets.items():
            checkpoint = which(self._directories[path])
            if self._written.get(checkpoint.path) != rows:
                self._in_flight[checkpoint.path] = set()
                jobs.append(
                    BackgroundJob(
                        name=f"checkpoint of {len(rows)} {what}",
                        run=partial(self._write_checkpoint, path, checkpoint, rows),
                        finish=partial(self._finish, path, checkpoint),
                    )
                )
        return jobs

    def _write_checkpoint(
        self, path: Path, checkpoint: OffsetCheckpoint, rows: dict[TopicPartition, int]
    ) -> None:
        try:
            checkpoint.write(rows)
        except OSError as error:
            self._on_failure(path, error)
        else:
            self._written[checkpoint.path] = rows

    def _finish(self, path: Path, checkpoint: OffsetCheckpoint) -> None:
        forgotten = self._in_flight.pop(checkpoint.path, set())
        if forgotten & self._written.get(checkpoint.path, {}).keys():
            self._write_without_deleted(path, checkpoint, forgotten)
        if checkpoint.path in self._outdated:
            self._outdated.discard(checkpoint.path)
            self.note_truncation(path)


def _explicit_log_start(log: Log) -> int | None:
    """The log start offset, if the first segment does not say it."""
    start = log.log_start_offset
    return start if start > log.segments.first.base_offset else None
