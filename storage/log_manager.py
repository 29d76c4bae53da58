"""All logs of a broker, in one or several log directories.

Opening loads every log, in parallel, and recovers those that were not closed. While the broker runs,
`maintain` is called about once a second: it decides on the event loop's thread, and hands out
BackgroundJobs for what waits for the disk. `shutdown` closes all and says so in `.kafka_cleanshutdown`.

A directory whose disk fails goes offline with its logs; the others serve on.

Source: LogManager of Kafka 4.3.1.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartition
from protocol.types import TopicPartition
from storage import file_names
from storage.background import BackgroundJob, run_one_by_one
from storage.checkpoint_writer import CheckpointWriter
from storage.cleaner import cleaning_job, filthiest
from storage.files import Files
from storage.flushing import close_log, flush_due, flush_job
from storage.future_logs import FutureLogs
from storage.log import Log
from storage.log_config import LogConfig
from storage.log_creation import LogCreation, NewLog
from storage.log_dir_info import LogDirInfo, describe_dirs
from storage.log_directory import LogDirectory, LogDirInUse, lock_directories
from storage.log_files import DeletedFiles, removal_job
from storage.log_loading import DirectoryContents, LogToOpen, RunParallel, loading_jobs
from storage.log_manager_settings import LogManagerSettings
from storage.meta_properties import InconsistentMetaProperties

if TYPE_CHECKING:
    from random import Random

__all__ = [
    "InconsistentMetaProperties", "LogCreation", "LogDirInUse", "LogDirInfo", "LogManager", "LogManagerSettings", "NewLog",
]  # fmt: skip

#: Logs that one call of `maintain` looks at for retention: 20 us each.
LOGS_A_CALL = 100

_LOG = getLogger(__name__)


class LogManager(FutureLogs):
    """See the module. Made by `LogManager.open`."""

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
        self.cluster_id = cluster_id
        self.settings = settings
        #: To look at only.
        self.logs = {}
        self.future_logs = {}
        #: Directories that get no new logs as long as there are others (KIP-1066).
        self.cordoned_dirs: frozenset[Path] = frozenset()
        #: Directories whose disk has failed, and how.
        self.offline_dirs = {}
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
            self._directories,
            logs=self._all_logs,
            cleaned_offsets=self.cleaned_offsets,
            offline_dirs=self.offline_dirs,
            on_failure=self._fail,
        )
        #: The directories of logs that are being made. None: its topic was deleted meanwhile.
        self._being_made: dict[TopicPartition, Path | None] = {}

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
        run_parallel: RunParallel = run_one_by_one,
        settings: LogManagerSettings | None = None,
    ) -> Self:
        """Take possession of the directories, and read whose they are; their logs are not looked at. [any thread]

        A step of its own because the metadata log, which lies in one of them, knows the topics'
        configurations that `load` asks for. `cluster_id` None: whatever the directories say.
        `directory_id` draws an id for a new directory. `run_parallel` runs what the logs of each
        directory need, see `log_loading.RunParallel`.
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
        """Open all logs, and recover those that were not closed. [any thread]

        Raises InconsistentMetaProperties if two directories have the same log, OSError if no directory is left.
        """
        self._topic_config = topic_config
        groups = []
        for directory in self._directories.values():
            try:
                contents = DirectoryContents.read(directory)
            except OSError as error:
                self._fail(directory.path, error)
                continue
            self.cleaned_offsets.update(contents.cleaned_offsets)
            self._checkpoints.found(directory.recovery_points, contents.recovery_points)
            self._checkpoints.found(directory.log_start_offsets, contents.log_start_offsets)
            self._checkpoints.found(directory.cleaned_offsets, contents.cleaned_offsets)
            for name in contents.deleted:
                path = directory.path / name
                self._deleted.append(DeletedFiles(now_ms, partial(self._files.remove_tree, path)))
            groups.append(loading_jobs(contents, partial(self._load_log, now_ms=now_ms), topic_config))
        self._run_parallel(groups)
        if not set(self._directories) - set(self.offline_dirs):
            raise next(iter(self.offline_dirs.values()))

    def _load_log(self, found: LogToOpen, *, now_ms: int) -> Log | None:
        """Open a log and keep it; None if its directory is offline. [any thread]"""
        path, topic_partition = found.path, found.topic_partition
        if path.parent in self.offline_dirs:
            return None
        try:
            log = self._open_log(
                path,
                topic_partition,
                found.config,
                is_clean=found.is_clean,
                recovery_point=found.recovery_point,
                log_start_offset=found.log_start_offset,
                now_ms=now_ms,
            )
        except OSError as error:
            self._fail(path.parent, error)
            return None
        log.update_high_watermark(found.high_watermark)
        if found.is_future:
            log.settle_doubt(can_copy=True, now_ms=now_ms)
        logs = self.future_logs if found.is_future else self.logs
        other = logs.setdefault(topic_partition, log)
        if other is not log:
            raise InconsistentMetaProperties(
                f"{topic_partition} is in {other.directory} and in {path}. One of them may have failed while its "
                f"log was moved to the other: remove the one that is older"
            )
        if path.parent in self.offline_dirs:
            # It has failed with another log, in another thread, which did not see this one yet.
            log.take_offline(self.offline_dirs[path.parent])
            logs.pop(topic_partition, None)
            return None
        if not found.is_future and self.cleaned_offsets.get(topic_partition, 0) > log.log_end_offset:
            del self.cleaned_offsets[topic_partition]
        return log

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
        """The epoch of the broker that stopped cleanly, if all directories say the same one (KIP-966).

        Not with a directory offline: what is in it is not here, and must not count as complete.
        """
        epochs = {directory.broker_epoch for directory in self._directories.values()}
        return epochs.pop() if len(epochs) == 1 and not self.offline_dirs else None

    def _all_logs(self) -> list[Log]:
        return [*list(self.logs.values()), *list(self.future_logs.values())]

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
        new = NewLog(topic_partition, topic_id, config, is_new)
        creation = self.creation([new], now_ms=now_ms)
        part = creation.next_part(1)
        creation.run(part)
        creation.finish(part)
        if topic_partition in creation.errors:
            raise creation.errors[topic_partition]
        return creation.logs[topic_partition]

    def creation(self, wanted: Iterable[NewLog], *, now_ms: int) -> LogCreation:
        """`get_or_create` for many logs, of which the slow part can run in a thread; see `log_creation`.

        Until it is finished, none of its partitions may be asked for again, but all may be deleted.
        """
        creation = LogCreation(
            open_log=partial(self._make_planned, now_ms=now_ms), keep=partial(self._keep_made, now_ms=now_ms)
        )
        counts = self._log_counts()
        for new in wanted:
            topic_partition = new.topic_partition
            assert topic_partition not in self._being_made, topic_partition
            try:
                if (log := self.logs.get(topic_partition)) is not None:
                    log.assign_topic_id(new.topic_id)
                    if new.config is not None and new.config != log.config:
                        log.update_config(new.config)
                    creation.logs[topic_partition] = log
                    continue
                if self.offline_dirs and not new.is_new:
                    raise KafkaStorageError(
                        f"{topic_partition} may be in {[*self.offline_dirs]}, which is offline"
                    )
                path = self._emptiest(counts)
            except KafkaError as error:
                creation.errors[topic_partition] = error
                continue
            counts[path] += 1
            self._checkpoints.forget_predecessor(topic_partition, path)
            self._being_made[topic_partition] = path
            config = new.config or self._topic_config(topic_partition.topic)
            creation.plan(new._replace(config=config), path / str(topic_partition))
        return creation

    def _make_planned(self, new: NewLog, path: Path, *, now_ms: int) -> Log:
        """Make a log, unless its topic is gone by now. [any thread]"""
        if self._being_made[new.topic_partition] is None:
            raise UnknownTopicOrPartition(f"{new.topic_partition} was deleted before its log was made")
        log = self._make_log(new, path, now_ms=now_ms)
        if new.leader_epoch is not None:
            log.assign_epoch(new.leader_epoch, log.log_end_offset)
        return log

    def _make_log(self, new: NewLog, path: Path, *, now_ms: int) -> Log:
        """The log, empty, in this directory. Raises KafkaStorageError, InconsistentTopicId. [any thread]"""
        assert new.config is not None, new
        if (failure := self.offline_dirs.get(path.parent)) is not None:
            raise KafkaStorageError(f"{path}: {failure}")
        try:
            return self._open_log(path, new.topic_partition, new.config, now_ms=now_ms, topic_id=new.topic_id)
        except OSError as error:
            self._fail(path.parent, error)
            raise KafkaStorageError(f"{path}: {error}") from error

    def _keep_made(
        self, topic_partition: TopicPartition, log: Log | None, *, now_ms: int
    ) -> KafkaError | None:
        """A log has been made, or could not be; why it is not kept."""
        path = self._being_made.pop(topic_partition)
        if log is None:
            return None
        if (failure := self.offline_dirs.get(log.directory.parent)) is not None:
            log.take_offline(failure)
            return KafkaStorageError(f"{log.directory}: {failure}")
        if path is None:
            self._put_aside(log, file_names.DELETE_DIRECTORY, now_ms)
            return UnknownTopicOrPartition(f"{topic_partition} was deleted while its log was made")
        self.logs[topic_partition] = log
        return None

    def _log_counts(self) -> Counter[Path]:
        """How many logs each directory that serves has, or is about to have."""
        counts = Counter({path: 0 for path in self._directories if path not in self.offline_dirs})
        if len(counts) > 1:
            places = [*(log.directory.parent for log in self._all_logs()), *self._being_made.values()]
            counts.update(path for path in places if path is not None and path in counts)
        return counts

    def _emptiest(self, counts: Counter[Path]) -> Path:
        serving = [path for path in counts if path not in self.offline_dirs]
        if not serving:
            raise KafkaStorageError("No log directory is online")
        allowed = [path for path in serving if path not in self.cordoned_dirs]
        # All may have been cordoned after the replica was put on this broker.
        return min(allowed, key=lambda path: counts[path]) if allowed else serving[0]

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Take the partition's logs away; their names are free at once, their files go after file.delete.delay.ms."""
        if topic_partition in self._being_made:
            self._being_made[topic_partition] = None
        self._take_away(topic_partition, file_names.DELETE_DIRECTORY, now_ms)

    def delete_stray(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Put logs aside that the metadata does not know; their files are left to the operator."""
        self._take_away(topic_partition, file_names.STRAY_DIRECTORY, now_ms)

    def _take_away(self, topic_partition: TopicPartition, suffix: str, now_ms: int) -> None:
        self.cleaned_offsets.pop(topic_partition, None)
        errors = []
        for logs in (self.logs, self.future_logs):
            if (log := logs.pop(topic_partition, None)) is not None:
                try:
                    self._put_aside(log, suffix, now_ms)
                except KafkaStorageError as error:  # the other one has another disk
                    errors.append(error)
        if errors:
            raise errors[0]

    def _put_aside(
        self, log: Log, suffix: str, now_ms: int, *, before_removal: Callable[[], None] = lambda: None
    ) -> None:
        """Rename the folder of a log that is not in our tables any more, and have it removed unless it is a stray."""
        self._uncleanable.discard(log)
        name = file_names.renamed_directory(log.topic_partition, unique=self._unique(), suffix=suffix)
        path = log.directory.parent / name
        log.rename_directory(path)
        if suffix == file_names.STRAY_DIRECTORY:
            log.close()
            return

        def remove() -> None:
            before_removal()
            log.close_files()
            for deleted in log.deleted_files:
                deleted.remove()
            self._files.remove_tree(path)

        self._deleted.append(DeletedFiles(now_ms + log.config.file_delete_delay_ms, remove))

    def _unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    # -- all logs ----------------------------------------------------------------------------------

    def update_config(self, topic: str, config: LogConfig) -> None:
        """The topic's configuration has changed."""
        for log in self._all_logs():
            if log.topic_partition.topic == topic:
                log.update_config(config)

    def describe_dirs(self) -> list[LogDirInfo]:
        """Every configured directory with its logs and their sizes. Waits for statvfs only."""
        return describe_dirs(self._directories, self.logs, self.future_logs, self.offline_dirs, self._files)

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
        for logs in (self.logs, self.future_logs):
            for topic_partition, log in list(logs.items()):
                if log.directory.parent == path:
                    log.take_offline(error)
                    logs.pop(topic_partition, None)
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
            for log in self._all_logs():
                log.producers.remove_expired(now_ms)
        jobs: list[BackgroundJob] = []
        for log in self._all_logs():
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
            self._retention_queue.extend(self._all_logs())
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
        # A log that moves is left as it is, so that what counts as clean in it is so in the copy, too.
        logs = [
            log
            for log in list(self.logs.values())
            if log not in self._uncleanable and log.topic_partition not in self.future_logs
        ]
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
        elif self.logs.get(log.topic_partition) is log and log.topic_partition not in self.future_logs:
            self.cleaned_offsets[log.topic_partition] = clean_end

    # -- the end -----------------------------------------------------------------------------------

    def shutdown(self, now_ms: int, *, broker_epoch: int) -> None:
        """Close and flush all logs, note where they end, and let the directories go. [any thread]

        To be called when nobody uses the logs any more; `broker_epoch` -1 for a node that is no broker.
        """
        self._run_parallel(
            [
                [partial(close_log, log) for log in self._all_logs() if log.directory.parent == path]
                for path in self._directories
            ]
        )
        for log in self._all_logs():
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
