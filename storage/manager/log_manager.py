"""LogManager: all logs of a broker, in one or several log directories.

Opening loads every log, in parallel, and recovers those that were not closed. While the broker runs,
`maintain` is called about once a second: it decides on the event loop's thread, and returns
BackgroundJobs for work that waits for the disk. `shutdown` closes all and writes `.kafka_cleanshutdown`.

A directory whose disk fails goes offline with its logs; the others stay online.

Source: LogManager of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage import file_names
from ottla.storage.background import BackgroundJob, run_one_by_one
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.log_files import DeletedFiles, removal_job
from ottla.storage.manager.future_logs import FutureLogs
from ottla.storage.manager.log_creation import LogCreation, LogCreations, NewLog
from ottla.storage.manager.log_deletion import LogDeletion
from ottla.storage.manager.log_directory import LogDirectory, LogDirInUse, lock_directories
from ottla.storage.manager.log_loading import DirectoryContents, IsStray, LogToOpen, RunParallel, loading_jobs
from ottla.storage.manager.log_table import LogDirInfo, LogManagerSettings, LogTable
from ottla.storage.manager.meta_properties import InconsistentMetaProperties
from ottla.storage.manager.scheduled_tasks import LogCleanerManager, ScheduledTasks

if TYPE_CHECKING:
    from random import Random

__all__ = [
    "InconsistentMetaProperties", "LogCreation", "LogDirInUse", "LogDirInfo", "LogManager",
    "LogManagerSettings", "NewLog",
]  # fmt: skip

_LOG = getLogger(__name__)


def _close(log: Log) -> None:
    try:
        log.close()
    except KafkaStorageError as error:  # the directory is offline now
        _LOG.error("%s: the log was not closed: %s", log.topic_partition, error)


class LogManager(LogTable):
    """All logs of a broker, in one or several log directories. Made by `LogManager.open`."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        files: Files,
        cluster_id: str,
        settings: LogManagerSettings,
        random: "Random",
        run_parallel: RunParallel,
        now_ms: int,
    ) -> None:
        super().__init__(directories, files=files, settings=settings, random=random)
        self.cluster_id = cluster_id
        #: Moves of logs to other directories.
        self.moving = FutureLogs(self)
        self._topic_config: Callable[[str], LogConfig] = lambda topic: LogConfig()
        self._is_assigned: Callable[[TopicPartition, UUID], bool] = lambda topic_partition, directory_id: (
            False
        )
        self._creations = LogCreations(self, topic_config=lambda topic: self._topic_config(topic))
        self._deletion = LogDeletion(self)
        self._scheduled = ScheduledTasks(self, now_ms=now_ms)
        self._cleaner = LogCleanerManager(self)
        self._run_parallel = run_parallel

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
        is_stray: IsStray = lambda topic_partition, topic_id: False,
        run_parallel: RunParallel = run_one_by_one,
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
        manager.load(topic_config or (lambda topic: config), is_stray, now_ms)
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
        run_parallel: RunParallel = run_one_by_one,
        settings: LogManagerSettings | None = None,
    ) -> Self:
        """Lock the directories and read their `meta.properties`; no log is opened. [any thread]

        A separate step, because `load` needs the metadata log, which is in one of them: for the topics'
        configurations, and to recognise strays. `cluster_id` None: that of the directories. `directory_id`
        draws an id for a new directory. `run_parallel` runs the jobs of each directory's logs, see
        `log_loading.RunParallel`.
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
        """Unlock the directories without a clean shutdown, after a failed start. [any thread]"""
        for directory in self.directories.values():
            directory.unlock()

    def keep_clean(self, *, broker_epoch: int | None) -> None:
        """Restore the clean shutdown files, after a start that failed before any log was opened. [any thread]

        `broker_epoch` is that of the registration that this start has made, None if it has made none.
        """
        for path, directory in self.directories.items():
            if path not in self.offline_dirs:
                directory.keep_clean(broker_epoch=broker_epoch)

    # -- loading -----------------------------------------------------------------------------------

    def load(
        self,
        topic_config: Callable[[str], LogConfig],
        is_stray: IsStray,
        now_ms: int,
        *,
        is_assigned: Callable[[TopicPartition, UUID], bool] = lambda topic_partition, directory_id: False,
    ) -> None:
        """Open all logs, recover those that were not closed, and rename strays. [any thread]

        Of two logs of a partition the one in the directory that `is_assigned` is kept, and the other is a
        stray: a directory that had left `log.dirs` is back, after the replica was copied to another one. Raises
        InconsistentMetaProperties if neither is assigned, OSError if no directory is left.
        Strays do not count: while a directory is offline, its topics may be deleted, and created again in another one.
        """
        self._topic_config = topic_config
        self._is_assigned = is_assigned
        groups = []
        for directory in self.directories.values():
            try:
                contents = DirectoryContents.read(directory)
            except OSError as error:
                self.fail(directory.path, error)
                continue
            self.checkpoints.on_loaded(directory.recovery_points, contents.recovery_points)
            self.checkpoints.on_loaded(directory.log_start_offsets, contents.log_start_offsets)
            self.checkpoints.on_loaded(directory.cleaned_offsets, contents.cleaned_offsets)
            for name in contents.deleted:
                path = directory.path / name
                self.deleted_files.append(DeletedFiles(now_ms, partial(self._files.remove_tree, path)))
            load_log = partial(self._load_log, is_stray=is_stray, now_ms=now_ms)
            groups.append(loading_jobs(contents, load_log, topic_config))
        self._run_parallel(groups, threads_per_group=self.settings.recovery_threads_per_data_dir)
        # Those of logs that are open, before one of them is rolled (`LogCheckpoints`).
        for job in self.checkpoints.recovery_point_jobs():
            job.complete()
        if not set(self.directories) - set(self.offline_dirs):
            raise next(iter(self.offline_dirs.values()))

    def _load_log(self, found: LogToOpen, *, is_stray: IsStray, now_ms: int) -> Log | None:
        """Open a log and add it to the table; None if its directory is offline, or if it is a stray. [any thread]"""
        path, topic_partition = found.path, found.topic_partition
        if path.parent in self.offline_dirs:
            return None
        try:
            log = self.open_log(
                path,
                topic_partition,
                found.config,
                is_clean=found.is_clean,
                recovery_point=found.recovery_point,
                log_start_offset=found.log_start_offset,
                now_ms=now_ms,
            )
        except OSError as error:
            self.fail(path.parent, error)
            return None
        if is_stray(topic_partition, log.topic_id):
            self._rename_stray(log, now_ms)
            return None
        log.update_high_watermark(found.high_watermark)
        logs = self.future_logs if found.is_future else self.logs
        other = logs.setdefault(topic_partition, log)
        if other is not log:
            if self._choose(logs, other, log, now_ms) is other:
                return None
            self.cleaned_offsets.pop(topic_partition, None)  # of the other log
        if path.parent in self.offline_dirs:
            # The directory has failed with another log, in another thread, before this one was in the table.
            log.availability.take_offline(self.offline_dirs[path.parent])
            logs.pop(topic_partition, None)
            return None
        cleaned = found.cleaned_offset
        if (
            not found.is_future
            and cleaned is not None
            and cleaned <= log.log_end_offset
            and logs.get(topic_partition) is log
        ):
            self.cleaned_offsets[topic_partition] = cleaned
        return log

    def _choose(self, logs: dict[TopicPartition, Log], first: Log, second: Log, now_ms: int) -> Log:
        """Keep the one of two logs that is in the assigned directory; the other is renamed to a stray. [any thread]"""
        topic_partition = first.topic_partition
        for kept, other in ((first, second), (second, first)):
            directory_id = self.directories[kept.directory.parent].directory_id
            if self._is_assigned(topic_partition, directory_id):
                logs[topic_partition] = kept
                self._rename_stray(other, now_ms)
                return kept
        raise InconsistentMetaProperties(
            f"{topic_partition} has two logs, {first.directory} and {second.directory}. One of them may have "
            f"failed while its log was moved to the other: remove the one that is older"
        )

    # -- logs --------------------------------------------------------------------------------------

    @property
    def directory_ids(self) -> dict[Path, UUID]:
        """The ids of the directories that could be opened (KIP-858)."""
        return {path: directory.directory_id for path, directory in self.directories.items()}

    @property
    def was_clean(self) -> bool:
        """Whether the last process closed all directories cleanly."""
        return all(directory.was_clean for directory in self.directories.values())

    @property
    def previous_broker_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown, if all directories have the same one (KIP-966).

        None with a directory offline: its logs are missing, so the broker's logs must not count as complete.
        """
        epochs = {directory.broker_epoch for directory in self.directories.values()}
        return epochs.pop() if len(epochs) == 1 and not self.offline_dirs else None

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log, if there is one in an online directory."""
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
        """The partition's log, created in the directory with the fewest logs if there is none.

        Unless the partition `is_new`, none is created while a directory is offline: its log may be there, and
        an empty one in its place would be served as if nothing had ever been written.
        Raises InconsistentTopicId if there is one of an older topic of that name, KafkaStorageError if no
        directory is online.
        """
        new = NewLog(topic_partition, topic_id, config, is_new)
        creation = self.creation([new], now_ms=now_ms)
        part = creation.next_part(1)
        creation.run(part)
        creation.finish(part)
        if topic_partition in creation.errors:
            raise creation.errors[topic_partition]
        return creation.logs[topic_partition]

    def creation(self, wanted: Iterable[NewLog], *, now_ms: int) -> LogCreation:
        """`get_or_create` for many logs, whose slow part can run in a thread; see `log_creation`.

        Until it is finished, none of its partitions may be requested again, but all may be deleted.
        """
        wanted = list(wanted)
        for new in wanted:
            self._deletion.free_name(new.topic_partition, now_ms)
        return self._creations.creation(wanted, now_ms=now_ms)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the partition's logs, for `rename_deleted`; a new log of this name may be created at once."""
        self._creations.record_deletion(topic_partition)
        self._deletion.delete(topic_partition)

    @property
    def deleted_count(self) -> int:
        """The number of deleted partitions that wait for `rename_deleted`."""
        return self._deletion.waiting_count

    def rename_deleted(self, now_ms: int) -> Iterator[None]:
        """Rename the directories of deleted logs, one partition per step; files go after file.delete.delay.ms."""
        return self._deletion.steps(now_ms)

    def rename_strays(self, is_stray: IsStray, *, now_ms: int) -> None:
        """Rename logs that are no longer in the metadata (strays); their files are left to the operator.

        Each log is checked by itself: a future log may be of an older topic than the partition's log.
        """
        for log in self.all_logs():
            topic_partition = log.topic_partition
            if not is_stray(topic_partition, log.topic_id):
                continue
            if log.files.is_future:
                self.future_logs.pop(topic_partition, None)
            else:
                self.logs.pop(topic_partition, None)
                self.cleaned_offsets.pop(topic_partition, None)
            self._rename_stray(log, now_ms)

    def _rename_stray(self, log: Log, now_ms: int) -> None:
        _LOG.warning(
            "%s: the metadata has no such replica in this log directory: the log is renamed to a stray",
            log.directory,
        )
        try:
            self.rename_and_schedule_removal(log, file_names.STRAY_DIRECTORY, now_ms)
        except KafkaStorageError as error:  # its directory is offline
            _LOG.error("%s: the stray log cannot be renamed: %s", log.topic_partition, error)

    # -- all logs ----------------------------------------------------------------------------------

    def update_config(self, topic: str, partitions: Iterable[int], config: LogConfig) -> None:
        """Apply a topic's new configuration; its partitions are looked up, since there may be many other logs.

        A log that becomes tiered begins at the checkpointed log start from then on, and not at its first segment.
        """
        for index in partitions:
            for logs in (self.logs, self.future_logs):
                if (log := logs.get(TopicPartition(topic, index))) is not None:
                    was_tiered = log.is_tiered
                    log.update_config(config)
                    if log.is_tiered and not was_tiered:
                        self._scheduled.write_log_starts_soon()

    # -- failure -----------------------------------------------------------------------------------

    def take_offline(self, path: Path, error: OSError) -> None:
        """Take a directory offline after a failed write outside of LogManager; no clean shutdown file is written."""
        if path in self.directories:
            self.fail(path, error)

    def stop_lending(self) -> None:
        """Stop mapping files, after a socket could not send a page of one: all reads are copied from now on.

        The kernel does not report which file it was. The next read of the page is a pread, which fails and takes its
        log directory offline.
        """
        if self._files.may_map:
            self._files.may_map = False
            _LOG.error(
                "A page of a log file could not be sent (EFAULT): its disk may be failing. Records are copied "
                "from now on; the next read of the page takes its log directory offline"
            )

    # -- scheduled tasks and the cleaner ---------------------------------------------------------------------

    def maintain(self, now_ms: int) -> list[BackgroundJob]:
        """Do the periodic work that is due. Call it about once a second, and run the jobs one after the other.

        On the event loop: retention, a few logs per call, and producer expiry. In the jobs: flushes of closed
        segments and for flush.ms, removal of files, checkpoints, timestamps that elections ask for.
        """
        return self._scheduled.maintain(now_ms)

    def clean_one(
        self, now_ms: int, *, throttle: Callable[[int], None] = lambda size_bytes: None
    ) -> BackgroundJob | None:
        """A job that compacts the log with the largest dirty ratio; None if none is due.

        Then call again after log.cleaner.backoff.ms.
        `throttle` is called in the job's thread with the number of bytes read or written, and may block there.
        """
        return self._cleaner.clean_one(now_ms, throttle=throttle)

    # -- shutdown ----------------------------------------------------------------------------------

    def shutdown(self, now_ms: int, *, broker_epoch: int) -> None:
        """Close and flush all logs, write checkpoints and clean shutdown files, unlock the directories. [any thread]

        Called when the logs are no longer in use; `broker_epoch` -1 for a node that is no broker.
        """
        self._run_parallel(
            [
                [partial(_close, log) for log in self.all_logs() if log.directory.parent == path]
                for path in self.directories
            ],
            threads_per_group=self.settings.recovery_threads_per_data_dir,
        )
        for _ in self.rename_deleted(now_ms):
            pass
        for log in self.all_logs():
            self.deleted_files += log.files.take_deleted()
        removal_job([deleted for deleted in self.deleted_files if deleted.due_ms <= now_ms]).run()
        for deleted in self.deleted_files:
            if deleted.due_ms > now_ms:
                deleted.close()
        for job in self.checkpoints.all_jobs():
            job.complete()
        for path, directory in self.directories.items():
            if path not in self.offline_dirs:
                try:
                    directory.write_clean_shutdown(broker_epoch)
                except OSError as error:
                    self.fail(path, error)
            directory.unlock()
