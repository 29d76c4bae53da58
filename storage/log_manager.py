"""All logs of a broker, in one or several log directories.

Opening loads every log, in parallel, and recovers those that were not closed. While the broker runs,
`maintain` is called about once a second: it decides on the event loop's thread, and hands out
BackgroundJobs for what waits for the disk. `shutdown` closes all and says so in `.kafka_cleanshutdown`.

A directory whose disk fails goes offline with its logs; the others serve on.

Source: LogManager of Kafka 4.3.1.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from protocol.errors import KafkaError, KafkaStorageError
from protocol.types import TopicPartition
from storage import file_names
from storage.background import BackgroundJob, run_one_by_one
from storage.checkpoint_writer import CheckpointWriter
from storage.cleaner import cleaning_job, filthiest
from storage.files import Files
from storage.flushing import close_log, flush_due, flush_job
from storage.log import Log
from storage.log_config import LogConfig
from storage.log_dir_info import LogDirInfo, describe_dirs
from storage.log_directory import LogDirectory, LogDirInUse, lock_directories
from storage.log_files import DeletedFiles, removal_job
from storage.log_manager_settings import LogManagerSettings
from storage.meta_properties import InconsistentMetaProperties

if TYPE_CHECKING:
    from random import Random

__all__ = ["InconsistentMetaProperties", "LogDirInUse", "LogDirInfo", "LogManager", "LogManagerSettings"]

#: Logs that one call of `maintain` looks at for retention: 20 us each.
LOGS_A_CALL = 100

_LOG = getLogger(__name__)


class LogManager:
    """See the module. Made by `LogManager.open`."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        files: Files,
        cluster_id: str,
        settings: LogManagerSettings,
        random: "Random",
        run_parallel: Callable[[Sequence[Callable[[], None]]], None],
        now_ms: int,
    ) -> None:
        self.cluster_id = cluster_id
        self.settings = settings
        #: To look at only.
        self.logs: dict[TopicPartition, Log] = {}
        #: Directories whose disk has failed, and how.
        self.offline_dirs: dict[Path, OSError] = {}
        #: Called, perhaps in another thread, when a directory fails.
        self.on_dir_failure: Callable[[Path, OSError], None] = lambda path, error: None
        #: Up to where compacted logs are clean.
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        #: Logs with a damaged batch, which compaction would lose.
        self._uncleanable: set[Log] = set()
        self._directories = {directory.path: directory for directory in directories}
        self._files = files
        self._topic_config: Callable[[str], LogConfig] = lambda topic: LogConfig()
        self._random = random
        self._run_parallel = run_parallel
        self._deleted: list[DeletedFiles] = []
        self._retention_queue: deque[Log] = deque()
        self._next_retention_ms = now_ms + settings.retention_check_interval_ms
        self._next_expiry_ms = now_ms + settings.producer_id_expiration_check_interval_ms
        self._next_checkpoint_ms = now_ms + settings.checkpoint_interval_ms
        self._next_high_watermarks_ms = now_ms + settings.high_watermark_checkpoint_interval_ms
        self._checkpoints = CheckpointWriter(
            self._directories, self.logs, self.cleaned_offsets, self.offline_dirs, on_failure=self._fail
        )

    @classmethod
    def open(
        cls,
        log_dirs: Sequence[Path],
        *,
        files: Files,
        cluster_id: str | None,
        node_id: int,
        directory_id: Callable[[], UUID],
        random: "Random",
        now_ms: int,
        default_config: LogConfig | None = None,
        topic_config: Callable[[str], LogConfig] | None = None,
        run_parallel: Callable[[Sequence[Callable[[], None]]], None] = run_one_by_one,
        settings: LogManagerSettings | None = None,
    ) -> Self:
        """`lock` the directories and `load` all logs in them. [any thread]"""
        manager = cls.lock(
            log_dirs,
            files=files,
            cluster_id=cluster_id,
            node_id=node_id,
            directory_id=directory_id,
            random=random,
            now_ms=now_ms,
            run_parallel=run_parallel,
            settings=settings,
        )
        config = default_config if default_config is not None else LogConfig()
        manager.load(topic_config or (lambda topic: config), now_ms)
        return manager

    @classmethod
    def lock(
        cls,
        log_dirs: Sequence[Path],
        *,
        files: Files,
        cluster_id: str | None,
        node_id: int,
        directory_id: Callable[[], UUID],
        random: "Random",
        now_ms: int,
        run_parallel: Callable[[Sequence[Callable[[], None]]], None] = run_one_by_one,
        settings: LogManagerSettings | None = None,
    ) -> Self:
        """Take possession of the directories, and read whose they are; their logs are not looked at. [any thread]

        A step of its own because the metadata log, which lies in one of them, knows the topics'
        configurations that `load` asks for. `cluster_id` None: whatever the directories say.
        `directory_id` draws an id for a new directory. `run_parallel` runs all of the callables it is
        given, in any order, and returns when all are done.
        Raises LogDirInUse, InconsistentMetaProperties, and OSError if no directory can be used.
        """
        directories, failures = lock_directories(
            log_dirs, files=files, cluster_id=cluster_id, node_id=node_id, new_directory_id=directory_id
        )
        manager = cls(
            directories,
            files=files,
            cluster_id=directories[0].cluster_id,
            settings=settings or LogManagerSettings(),
            random=random,
            run_parallel=run_parallel,
            now_ms=now_ms,
        )
        manager.offline_dirs.update(failures)
        return manager

    def unlock(self) -> None:
        """Give the directories back without a clean shutdown: for a start that failed. [any thread]"""
        for directory in self._directories.values():
            directory.unlock()

    def keep_clean(self) -> None:
        """A start was refused before any log was touched: what was closed cleanly still is. [any thread]"""
        for directory in (it for it in self._directories.values() if it.was_clean):
            directory.write_clean_shutdown(-1 if directory.broker_epoch is None else directory.broker_epoch)

    # -- loading -----------------------------------------------------------------------------------

    def load(self, topic_config: Callable[[str], LogConfig], now_ms: int) -> None:
        """Open all logs, and recover those that were not closed. [any thread]"""
        self._topic_config = topic_config
        jobs: list[Callable[[], None]] = []
        for directory in self._directories.values():
            try:
                logs, deleted = directory.log_names()
                recovery_points = directory.read_checkpoint(directory.recovery_points)
                log_starts = directory.read_checkpoint(directory.log_start_offsets)
                high_watermarks = directory.read_checkpoint(directory.high_watermarks)
                cleaned_offsets = directory.read_checkpoint(directory.cleaned_offsets)
            except OSError as error:
                self._fail(directory.path, error)
                continue
            self.cleaned_offsets.update(cleaned_offsets)
            self._checkpoints.found(directory.recovery_points, recovery_points)
            self._checkpoints.found(directory.log_start_offsets, log_starts)
            self._checkpoints.found(directory.cleaned_offsets, cleaned_offsets)
            for name in deleted:
                path = directory.path / name
                self._deleted.append(DeletedFiles(now_ms, partial(self._files.remove_tree, path)))
            for name, topic_partition in logs.items():
                jobs.append(
                    partial(
                        self._load_log,
                        directory,
                        name,
                        topic_partition,
                        recovery_point=recovery_points.get(topic_partition, 0),
                        log_start_offset=log_starts.get(topic_partition, 0),
                        high_watermark=high_watermarks.get(topic_partition, 0),
                        now_ms=now_ms,
                    )
                )
            if logs and not directory.was_clean:
                _LOG.info("%s was not closed: recovering %d logs", directory.path, len(logs))
        self._run_parallel(jobs)
        if not set(self._directories) - set(self.offline_dirs):
            raise next(iter(self.offline_dirs.values()))

    def _load_log(
        self,
        directory: LogDirectory,
        name: str,
        topic_partition: TopicPartition,
        *,
        recovery_point: int,
        log_start_offset: int,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        try:
            log = self._open_log(
                directory.path / name,
                topic_partition,
                self._topic_config(topic_partition.topic),
                is_clean=directory.was_clean,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                now_ms=now_ms,
            )
        except OSError as error:
            self._fail(directory.path, error)
            return
        log.update_high_watermark(high_watermark)
        if self.cleaned_offsets.get(topic_partition, 0) > log.log_end_offset:
            del self.cleaned_offsets[topic_partition]
        other = self.logs.setdefault(topic_partition, log)
        if other is not log:
            raise InconsistentMetaProperties(
                f"{topic_partition} is in {other.directory} and in {log.directory}"
            )

    def _open_log(
        self,
        path: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now_ms: int,
        is_clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        topic_id: UUID | None = None,
    ) -> Log:
        return Log.open(
            path,
            config=config,
            topic_partition=topic_partition,
            now_ms=now_ms,
            files=self._files,
            random=self._random,
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            topic_id=topic_id,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            max_transaction_timeout_ms=self.settings.max_transaction_timeout_ms,
            on_io_error=partial(self._fail, path.parent),
            on_unflushed=partial(self._checkpoint_truncation, path.parent),
        )

    def _checkpoint_truncation(self, path: Path) -> None:
        """A recovery point or log start has gone back; as Kafka, this waits for the disk.

        Rare: what is truncated was seldom flushed.
        """
        for topic_partition, log in self.logs.items():
            if log.directory.parent == path and topic_partition in self.cleaned_offsets:
                # What was cleaned was flushed. What comes in its place is dirty.
                cleaned = self.cleaned_offsets[topic_partition]
                self.cleaned_offsets[topic_partition] = min(cleaned, log.recovery_point)
        self._checkpoints.note_truncation(path)
        if (error := self.offline_dirs.get(path)) is not None:
            raise error

    # -- logs --------------------------------------------------------------------------------------

    @property
    def directory_ids(self) -> dict[Path, UUID]:
        """The ids of the directories that could be opened (KIP-858)."""
        return {path: directory.directory_id for path, directory in self._directories.items()}

    @property
    def was_clean(self) -> bool:
        """Whether all directories were closed by the last process."""
        return all(directory.was_clean for directory in self._directories.values())

    @property
    def previous_broker_epoch(self) -> int | None:
        """The epoch of the broker that stopped cleanly, if all directories say the same one (KIP-966)."""
        epochs = {directory.broker_epoch for directory in self._directories.values()}
        return epochs.pop() if len(epochs) == 1 else None

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log, if there is one in a directory that serves."""
        return self.logs.get(topic_partition)

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: UUID,
        now_ms: int,
        config: LogConfig | None = None,
        is_new: bool = True,
    ) -> Log:
        """The partition's log, made in the directory with the fewest logs if there is none.

        Unless the partition `is_new`, none is made while a directory is offline: its log may be there, and
        an empty one in its place would be served as if nothing had ever been written.
        Raises InconsistentTopicId if there is one of an older topic of that name, KafkaStorageError if no
        directory serves.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            log.assign_topic_id(topic_id)
            if config is not None and config != log.config:
                log.update_config(config)
            return log
        if self.offline_dirs and not is_new:
            raise KafkaStorageError(f"{topic_partition} may be in {[*self.offline_dirs]}, which is offline")
        path = self._emptiest() / str(topic_partition)
        self._checkpoints.forget_predecessor(topic_partition, path.parent)
        try:
            log = self._open_log(
                path,
                topic_partition,
                config or self._topic_config(topic_partition.topic),
                now_ms=now_ms,
                topic_id=topic_id,
            )
        except OSError as error:
            self._fail(path.parent, error)
            raise KafkaStorageError(f"{path}: {error}") from error
        self.logs[topic_partition] = log
        return log

    def _emptiest(self) -> Path:
        counts = {path: 0 for path in self._directories if path not in self.offline_dirs}
        if not counts:
            raise KafkaStorageError("No log directory is online")
        if len(counts) == 1:
            return next(iter(counts))
        for log in list(self.logs.values()):
            counts[log.directory.parent] += 1
        return min(counts, key=lambda path: counts[path])

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Take the partition's log away; its name is free at once, its files go after file.delete.delay.ms."""
        self._put_aside(topic_partition, file_names.DELETE_DIRECTORY, now_ms)

    def delete_stray(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Put a log aside that the metadata does not know; its files are left to the operator."""
        self._put_aside(topic_partition, file_names.STRAY_DIRECTORY, now_ms)

    def _put_aside(self, topic_partition: TopicPartition, suffix: str, now_ms: int) -> None:
        log = self.logs.pop(topic_partition, None)
        if log is None:
            return
        self.cleaned_offsets.pop(topic_partition, None)
        self._uncleanable.discard(log)
        unique = f"{self._random.getrandbits(128):032x}"
        name = file_names.renamed_directory(topic_partition, unique=unique, suffix=suffix)
        path = log.directory.parent / name
        log.rename_directory(path)
        if suffix == file_names.STRAY_DIRECTORY:
            log.close()
            return

        def remove() -> None:
            log.close_files()
            for deleted in log.deleted_files:
                deleted.remove()
            self._files.remove_tree(path)

        self._deleted.append(DeletedFiles(now_ms + log.config.file_delete_delay_ms, remove))

    def update_config(self, topic: str, config: LogConfig) -> None:
        """The topic's configuration has changed."""
        for topic_partition, log in list(self.logs.items()):
            if topic_partition.topic == topic:
                log.update_config(config)

    def describe_dirs(self) -> list[LogDirInfo]:
        """Every configured directory with its logs and their sizes. Waits for statvfs only."""
        return describe_dirs(self._directories, self.logs, self.offline_dirs, self._files)

    # -- failure -----------------------------------------------------------------------------------

    def take_offline(self, path: Path, error: OSError) -> None:
        """Somebody else's write to the directory has failed: it was not closed as it should be."""
        if path in self._directories:
            self._fail(path, error)

    def _fail(self, path: Path, error: OSError) -> None:
        """The directory's disk has failed: its logs refuse writes, and the broker is told. [any thread]"""
        if path in self.offline_dirs:
            return
        self.offline_dirs[path] = error
        _LOG.error("Log directory %s is offline: %s", path, error)
        for topic_partition, log in list(self.logs.items()):
            if log.directory.parent == path:
                log.take_offline(error)
                self.logs.pop(topic_partition, None)
        self.on_dir_failure(path, error)

    # -- upkeep ------------------------------------------------------------------------------------

    def maintain(self, now_ms: int) -> list[BackgroundJob]:
        """What is due; call it about once a second, and run the jobs one after the other.

        On the loop: retention and producer expiry, a few logs a call. In the jobs: flushes of closed
        segments and for flush.ms, removal of files, checkpoints.
        """
        self._retain_some(now_ms)
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + self.settings.producer_id_expiration_check_interval_ms
            for log in list(self.logs.values()):
                log.producers.remove_expired(now_ms)
        jobs: list[BackgroundJob] = []
        for log in list(self.logs.values()):
            if log.deleted_files:
                self._deleted += log.deleted_files
                log.deleted_files = []
            if (end := flush_due(log, now_ms)) is not None:
                jobs.append(flush_job(log, end, now_ms))
        if due := [deleted for deleted in self._deleted if deleted.due_ms <= now_ms]:
            self._deleted = [deleted for deleted in self._deleted if deleted.due_ms > now_ms]
            jobs.append(removal_job(due))
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + self.settings.checkpoint_interval_ms
            jobs += self._checkpoints.all_jobs()
        elif now_ms >= self._next_high_watermarks_ms:
            self._next_high_watermarks_ms = now_ms + self.settings.high_watermark_checkpoint_interval_ms
            jobs += self._checkpoints.high_watermark_jobs()
        return jobs

    def _retain_some(self, now_ms: int) -> None:
        if now_ms >= self._next_retention_ms and not self._retention_queue:
            self._next_retention_ms = now_ms + self.settings.retention_check_interval_ms
            self._retention_queue.extend(list(self.logs.values()))
        for _ in range(min(LOGS_A_CALL, len(self._retention_queue))):
            log = self._retention_queue.popleft()
            try:
                log.apply_retention(now_ms)
            except KafkaError as error:
                _LOG.error("%s: retention: %s", log.directory, error)
            for segment in log.segments:
                segment.release_mapping()

    # -- compaction --------------------------------------------------------------------------------

    def clean_one(
        self, now_ms: int, *, throttle: Callable[[int], None] = lambda size_bytes: None
    ) -> BackgroundJob | None:
        """A job that compacts the log that needs it most; None if none does: ask again after log.cleaner.backoff.ms.

        `throttle` is told, in the job's thread, how many bytes were read or written, and may wait there.
        """
        logs = [log for log in list(self.logs.values()) if log not in self._uncleanable]
        chosen = filthiest(logs, self.cleaned_offsets, now_ms, on_damage=self._uncleanable.add)
        if chosen is None:
            return None
        return cleaning_job(
            chosen,
            now_ms=now_ms,
            on_done=self._on_cleaned,
            dedupe_buffer_bytes=self.settings.cleaner_dedupe_buffer_bytes,
            throttle=throttle,
        )

    def _on_cleaned(self, log: Log, clean_end: int | None) -> None:
        if clean_end is None:
            # It would fail again and again; the next start tries once more.
            self._uncleanable.add(log)
        elif self.logs.get(log.topic_partition) is log:
            self.cleaned_offsets[log.topic_partition] = clean_end

    # -- the end -----------------------------------------------------------------------------------

    def shutdown(self, now_ms: int, *, broker_epoch: int) -> None:
        """Close and flush all logs, note where they end, and let the directories go. [any thread]

        To be called when nobody uses the logs any more; `broker_epoch` -1 for a node that is no broker.
        """
        self._run_parallel([partial(close_log, log) for log in self.logs.values()])
        for log in self.logs.values():
            self._deleted += log.deleted_files
            log.deleted_files = []
        removal_job([deleted for deleted in self._deleted if deleted.due_ms <= now_ms]).run()
        for job in self._checkpoints.all_jobs():
            job.complete()
        for path, directory in self._directories.items():
            if path not in self.offline_dirs:
                try:
                    directory.write_clean_shutdown(broker_epoch)
                except OSError as error:
                    self._fail(path, error)
            directory.unlock()
