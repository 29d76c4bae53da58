"""Writes the checkpoint files of all log directories, each when it is due and has changed.

The event loop's thread decides the content of a file; a job writes it, perhaps much later, unless a newer content was
decided meanwhile. A truncation's job writes the content that was decided last, which claims no more than its own.

Source: the checkpoint methods of LogManager of Kafka, and ReplicaManager.checkpointHighWatermarks.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from logging import getLogger
from pathlib import Path

from ottla.protocol.types import TopicPartition
from ottla.storage.background import BackgroundJob
from ottla.storage.checkpoints import OffsetCheckpoint
from ottla.storage.files import is_out_of_descriptors
from ottla.storage.log import Log
from ottla.storage.manager.log_directory import LogDirectory

_LOG = getLogger(__name__)


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
        mutex: AbstractContextManager[object],
    ) -> None:
        self._directories = directories
        self._logs = logs
        self._cleaned_offsets = cleaned_offsets
        self._offline_dirs = offline_dirs
        self._on_failure = on_failure
        #: What each file holds.
        self._written: dict[Path, dict[TopicPartition, int]] = {}
        #: The content that was decided last for each file; a job writes no other rows.
        self._latest: dict[Path, dict[TopicPartition, int]] = {}
        #: Held while a file is written and `_written` changes. The holder may wait for the disk.
        self._lock = mutex

    def _offsets(self, of: Callable[[Log], int | None]) -> dict[Path, dict[TopicPartition, int]]:
        """The rows of a checkpoint in each online directory, of the logs for which `of` returns an offset."""
        offsets: dict[Path, dict[TopicPartition, int]] = {
            path: {} for path in self._directories if path not in self._offline_dirs
        }
        for log in self._logs():
            offset = of(log)
            if offset is not None and (rows := offsets.get(log.directory.parent)) is not None:
                rows[log.topic_partition] = offset
        return offsets

    def on_loaded(self, checkpoint: OffsetCheckpoint, rows: Mapping[TopicPartition, int]) -> None:
        """Record the content that the file had at start-up. [any thread]"""
        self._written[checkpoint.path] = dict(rows)

    def remove_deleted_log(self, topic_partition: TopicPartition, path: Path) -> None:
        """Remove the rows of a deleted log of this name before a new one is created in the directory. [any thread]

        Else, after a crash, the new log would get the old one's log start offset, and lose its records. The
        files are replaced at once, but not flushed: the next checkpoint is.
        """
        directory = self._directories[path]
        for checkpoint in (directory.log_start_offsets, directory.recovery_points, directory.cleaned_offsets):
            latest, written = (it.get(checkpoint.path, {}) for it in (self._latest, self._written))
            if topic_partition not in latest and topic_partition not in written:
                continue  # nearly always: no wait for a job that holds the lock
            try:
                with self._lock:
                    latest.pop(topic_partition, None)
                    if topic_partition in self._written.get(checkpoint.path, ()):
                        self._write_without_deleted(path, checkpoint, topic_partition)
            except OSError as error:
                self._failed(path, error)

    def _write_without_deleted(
        self, path: Path, checkpoint: OffsetCheckpoint, deleted: TopicPartition
    ) -> None:
        """Rewrite the file without the rows of this log and of logs that do not exist any more."""
        written = self._written.pop(checkpoint.path)  # so that the next checkpoint writes it again, flushed
        there = {log.topic_partition for log in self._logs() if log.directory.parent == path}
        rows = {it: at for it, at in written.items() if it != deleted and it in there}
        checkpoint.write(rows, durable=False)

    def all_jobs(self) -> list[BackgroundJob]:
        """The jobs of all checkpoints."""
        return [*self.recovery_point_jobs(), *self.log_start_jobs(), *self.high_watermark_jobs()]

    def recovery_point_jobs(self) -> list[BackgroundJob]:
        """The jobs of the recovery points and of the cleaner offsets."""
        cleaned = self._offsets(
            lambda log: None if log.files.is_future else self._cleaned_offsets.get(log.topic_partition)
        )
        return [
            *self._write_jobs("cleaned offsets", cleaned, lambda it: it.cleaned_offsets),
            *self._write_jobs(
                "recovery points", self._offsets(_recovery_point), lambda it: it.recovery_points
            ),
        ]

    def log_start_jobs(self) -> list[BackgroundJob]:
        """The jobs of the log start offsets that differ from the first segment's base offset."""
        offsets = self._offsets(_explicit_log_start)
        return self._write_jobs("log start offsets", offsets, lambda it: it.log_start_offsets)

    def high_watermark_jobs(self) -> list[BackgroundJob]:
        """The jobs of the high watermarks."""
        offsets = self._offsets(lambda log: log.high_watermark)
        return self._write_jobs("high watermarks", offsets, lambda it: it.high_watermarks)

    def written_log_start(self, topic_partition: TopicPartition, path: Path) -> int | None:
        """The log start offset of this log that the checkpoint in the directory has on the disk; None: it has none."""
        return self._written.get(self._directories[path].log_start_offsets.path, {}).get(topic_partition)

    def log_start_job(self, path: Path) -> BackgroundJob:
        """Return a job that writes the log start offsets of this directory, as they are now."""
        checkpoint = self._directories[path].log_start_offsets
        rows = self._offsets(_explicit_log_start).get(path)
        if rows is not None:
            self._latest[checkpoint.path] = rows

        def run() -> None:
            if rows is not None:
                self._write_latest(path, checkpoint)

        return BackgroundJob(name=f"log start offsets of {path} before retention", run=run)

    def truncation_job(self, path: Path) -> BackgroundJob:
        """Return a job that writes the checkpoint after a recovery point or log start offset in this
        directory moved back.
        """
        directory = self._directories[path]
        changed = []
        for checkpoint, of in (
            (directory.recovery_points, _recovery_point),
            (directory.log_start_offsets, _explicit_log_start),
        ):
            rows = self._offsets(of).get(path)
            if rows is not None:
                self._latest[checkpoint.path] = rows
                changed.append(checkpoint)

        def run() -> None:
            for checkpoint in changed:
                self._write_latest(path, checkpoint)

        return BackgroundJob(name=f"checkpoints of {path} before a truncation", run=run)

    def _write_jobs(
        self,
        what: str,
        offsets: Mapping[Path, dict[TopicPartition, int]],
        which: Callable[[LogDirectory], OffsetCheckpoint],
    ) -> list[BackgroundJob]:
        """A job for each directory whose offsets differ from those that were written last."""
        jobs = []
        for path, rows in offsets.items():
            checkpoint = which(self._directories[path])
            self._latest[checkpoint.path] = rows
            if self._written.get(checkpoint.path) != rows:
                jobs.append(
                    BackgroundJob(
                        name=f"checkpoint of {len(rows)} {what}",
                        run=partial(self._write_checkpoint, path, checkpoint, rows),
                    )
                )
        return jobs

    def _write_checkpoint(
        self, path: Path, checkpoint: OffsetCheckpoint, rows: dict[TopicPartition, int]
    ) -> None:
        """Write the rows, unless a newer content was decided since or the file already has them. [any thread]"""
        if self._latest.get(checkpoint.path) is rows:
            self._write_latest(path, checkpoint)

    def _write_latest(self, path: Path, checkpoint: OffsetCheckpoint) -> None:
        """Write the content that was decided last, unless the file already has it. [any thread]"""
        try:
            with self._lock:
                rows = self._latest[checkpoint.path]
                if self._written.get(checkpoint.path) != rows:
                    checkpoint.write(rows)
                    self._written[checkpoint.path] = dict(rows)
        except OSError as error:
            self._failed(path, error)

    def _failed(self, path: Path, error: OSError) -> None:
        if is_out_of_descriptors(error):
            _LOG.warning("A checkpoint of %s is not written now: %s", path, error)  # once in each interval
        else:
            self._on_failure(path, error)


def _recovery_point(log: Log) -> int | None:
    return log.checkpoints.recovery_point_to_write()


def _explicit_log_start(log: Log) -> int | None:
    return log.checkpoints.log_start_to_write()
