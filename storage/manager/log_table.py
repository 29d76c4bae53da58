"""LogTable: the logs of a broker and their directories, the common state of all parts of the LogManager."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage import file_names
from ottla.storage.background import BackgroundJob
from ottla.storage.cleaner import DEDUPE_BUFFER_BYTES
from ottla.storage.files import Files, is_out_of_descriptors
from ottla.storage.log import Log
from ottla.storage.log_availability import TooManyOpenFiles
from ottla.storage.log_files import DeletedFiles
from ottla.storage.manager.checkpoint_writer import CheckpointWriter
from ottla.storage.manager.log_directory import LogDirectory

if TYPE_CHECKING:
    from random import Random

_LOG = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerSettings:
    """The broker's configurations for all logs, with Kafka's defaults.

    Replaced as a whole when a dynamic one changes.
    """

    #: log.retention.check.interval.ms
    retention_check_interval_ms: int = 5 * 60 * 1000
    #: log.flush.offset.checkpoint.interval.ms
    checkpoint_interval_ms: int = 60 * 1000
    #: log.flush.start.offset.checkpoint.interval.ms
    log_start_checkpoint_interval_ms: int = 60 * 1000
    #: replica.high.watermark.checkpoint.interval.ms
    high_watermark_checkpoint_interval_ms: int = 5 * 1000
    #: producer.id.expiration.ms
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000
    #: producer.id.expiration.check.interval.ms
    producer_id_expiration_check_interval_ms: int = 10 * 60 * 1000
    #: log.cleaner.dedupe.buffer.size
    cleaner_dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    #: num.recovery.threads.per.data.dir
    recovery_threads_per_data_dir: int = 2


class LogDirInfo(NamedTuple):
    """One log directory, for DescribeLogDirs."""

    path: Path
    directory_id: UUID
    #: Why it is offline; None if it is online.
    error: OSError | None
    total_bytes: int | None
    usable_bytes: int | None


class _StartCheckpoint(NamedTuple):
    """The checkpoint of log start offsets that has those of a log."""

    writer: CheckpointWriter
    topic_partition: TopicPartition
    path: Path

    def written(self) -> int | None:
        """The log start offset of the log that is on the disk; None: there is none."""
        return self.writer.written_log_start(self.topic_partition, self.path)

    def job(self) -> BackgroundJob:
        """A job that writes the log start offsets of the directory as they are now."""
        return self.writer.log_start_job(self.path)


class LogTable:
    """The logs of a broker and their directories: the common state of the LogManager's parts."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        files: Files,
        settings: LogManagerSettings,
        random: "Random",
    ) -> None:
        #: Replaced as a whole when a dynamic configuration changes.
        self.settings = settings
        #: Logs of the online directories. Read only, except for the LogManager's parts.
        self.logs: dict[TopicPartition, Log] = {}
        #: Future logs, which replace logs in other directories (KIP-113); likewise.
        self.future_logs: dict[TopicPartition, Log] = {}
        #: Directories that get no new logs as long as there are others (KIP-1066).
        self.cordoned_dirs: frozenset[Path] = frozenset()
        #: Directories whose disk has failed, with the error.
        self.offline_dirs: dict[Path, OSError] = {}
        #: Called, perhaps in another thread, when a directory fails.
        self.on_dir_failure: Callable[[Path, OSError], None] = lambda path, error: None
        #: First dirty offsets of compacted logs.
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        #: Logs with a damaged batch, which compaction would lose.
        self.uncleanable: set[Log] = set()
        #: Files of deleted logs and segments; removed when they are due.
        self.deleted_files: list[DeletedFiles] = []
        self.directories = {directory.path: directory for directory in directories}
        self.checkpoints = CheckpointWriter(
            self.directories,
            logs=self.all_logs,
            cleaned_offsets=self.cleaned_offsets,
            offline_dirs=self.offline_dirs,
            on_failure=self.fail,
            mutex=files.new_mutex(),
        )
        self._files = files
        self._random = random

    def all_logs(self) -> list[Log]:
        """All online logs, with the future ones."""
        return [*list(self.logs.values()), *list(self.future_logs.values())]

    def describe_dirs(self) -> list[LogDirInfo]:
        """Every locked directory. Waits for statvfs only."""
        found = []
        for path, directory in self.directories.items():
            total = usable = None
            if (error := self.offline_dirs.get(path)) is None:
                try:
                    total, usable = self._files.usage(path)
                except OSError as failure:
                    error = failure
            found.append(LogDirInfo(path, directory.directory_id, error, total, usable))
        return found

    # -- the table -----------------------------------------------------------------------------------

    def add(self, log: Log) -> None:
        """Add the partition's log, or its future log in another directory."""
        at = log.topic_partition
        logs = self.future_logs if log.files.is_future else self.logs
        assert at not in logs, (at, logs[at].directory, log.directory)
        logs[at] = log
        self.check_partition(at)

    def check_partition(self, topic_partition: TopicPartition) -> None:
        """Assert that the partition has one log, and at most one future log, which is in another directory."""
        log, future = self.logs.get(topic_partition), self.future_logs.get(topic_partition)
        if log is not None:
            assert log.topic_partition == topic_partition, (topic_partition, log.directory)
            assert not log.files.is_future, log.directory
            assert log.directory.parent in self.directories, log.directory
        if future is not None:
            assert future.topic_partition == topic_partition, (topic_partition, future.directory)
            assert future.files.is_future, future.directory
            assert log is None or future.directory.parent != log.directory.parent, (
                log.directory,
                future.directory,
            )

    # -- creation and opening ------------------------------------------------------------------------

    def create_log(
        self,
        topic_partition: TopicPartition,
        path: Path,
        config: LogConfig,
        *,
        topic_id: UUID,
        now_ms: int,
        leader_epoch: int | None = None,
    ) -> Log:
        """Create an empty log in this directory, without adding it to the table. [any thread]

        Raises KafkaStorageError, InconsistentTopicId. After TooManyOpenFiles nothing is left of a log that is
        new: it may be created later, and in another directory.
        """
        if (failure := self.offline_dirs.get(path.parent)) is not None:
            raise KafkaStorageError(f"The log directory of {path} is offline: {failure}")
        is_new = not self._files.exists(path)
        try:
            self._files.require_descriptor()
            log = self.open_log(path, topic_partition, config, now_ms=now_ms, topic_id=topic_id)
            try:
                if leader_epoch is not None:
                    log.leader_epochs.assign(leader_epoch, start_offset=log.log_end_offset)
            except OSError:
                log.close_files()
                raise
        except OSError as error:
            if is_out_of_descriptors(error):
                if is_new:
                    self._discard(path, topic_partition, now_ms)
                raise TooManyOpenFiles(f"The log {path} cannot be created yet: {error}") from error
            self.fail(path.parent, error)
            raise KafkaStorageError(f"The log {path} cannot be created: {error}") from error
        return log

    def _discard(self, path: Path, topic_partition: TopicPartition, now_ms: int) -> None:
        """Make the folder of half a log one of a deleted log: to rename it takes no descriptor, to remove it does."""
        if not self._files.exists(path):
            return
        name = file_names.renamed_directory(
            topic_partition, unique=self.unique(), suffix=file_names.DELETE_DIRECTORY
        )
        target = path.with_name(name)
        try:
            self._files.rename(path, target)
        except OSError as error:
            self.fail(path.parent, error)
            return
        self.deleted_files.append(DeletedFiles(now_ms, partial(self._files.remove_tree, target)))

    def open_log(
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
        """Open a log with the arguments that all logs have in common. [any thread]"""
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
            producer_id_expiration_ms=lambda: self.settings.producer_id_expiration_ms,
            on_io_error=partial(self.fail, path.parent),
            write_checkpoints=partial(self._checkpoint_truncation, path.parent),
            start_checkpoint=_StartCheckpoint(self.checkpoints, topic_partition, path.parent),
        )

    def _checkpoint_truncation(self, path: Path) -> BackgroundJob:
        """Return a job that writes the checkpoints after a recovery point or log start offset moved back. The
        job raises OSError.
        """
        for topic_partition, log in list(self.logs.items()):
            if log.directory.parent == path and topic_partition in self.cleaned_offsets:
                # The clean part was flushed. Records that replace it are dirty.
                cleaned = self.cleaned_offsets[topic_partition]
                self.cleaned_offsets[topic_partition] = min(
                    cleaned, log.checkpoints.recovery_point_to_write()
                )
        job = self.checkpoints.truncation_job(path)

        def run() -> None:
            job.run()
            if (error := self.offline_dirs.get(path)) is not None:
                raise error

        return BackgroundJob(name=job.name, run=run)

    # -- removal -------------------------------------------------------------------------------------

    def rename_and_schedule_removal(
        self, log: Log, suffix: str, now_ms: int, *, before_removal: Callable[[], None] = lambda: None
    ) -> None:
        """Rename the folder of a log that is no longer in the table, and schedule its removal.

        A stray is only closed.
        """
        self.uncleanable.discard(log)
        name = file_names.renamed_directory(log.topic_partition, unique=self.unique(), suffix=suffix)
        path = log.directory.parent / name
        log.rename_directory(path)
        if suffix == file_names.STRAY_DIRECTORY:
            # It is flushed, since an operator may need it; by a job.
            self.deleted_files.append(DeletedFiles(now_ms, log.close, log.close))
            return

        def close() -> None:
            log.close_files()
            for deleted in log.files.deleted_files:
                deleted.close()

        def remove() -> None:
            before_removal()
            close()
            self._files.remove_tree(path)

        self.deleted_files.append(DeletedFiles(now_ms + log.config.file_delete_delay_ms, remove, close))

    def unique(self) -> str:
        """32 random hexadecimal digits for a unique folder name."""
        return f"{self._random.getrandbits(128):032x}"

    # -- failure -------------------------------------------------------------------------------------

    def fail(self, path: Path, error: OSError) -> None:
        """Take a directory offline: its logs refuse writes, and the broker is notified. [any thread]"""
        if path in self.offline_dirs:
            return
        self.offline_dirs[path] = error
        _LOG.error("Log directory %s is offline: %s", path, error)
        for logs in (self.logs, self.future_logs):
            for topic_partition, log in list(logs.items()):
                if log.directory.parent == path:
                    log.availability.take_offline(error)
                    logs.pop(topic_partition, None)
        self.on_dir_failure(path, error)
