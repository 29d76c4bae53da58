"""One of the folders in `log.dirs`: locked, known to be ours, with its checkpoints and its logs' folders.

.lock                              held while a process uses the folder
meta.properties                    whose it is
.kafka_cleanshutdown               there only between a clean stop and the next start (KIP-966: broker epoch)
recovery-point-offset-checkpoint   and the other checkpoints
topic-0/  topic-1/  ...            logs
topic-2.<hex>-delete/              a deleted log, until its files go
topic-3.<hex>-stray/               a log that the metadata does not know; left to the operator
topic-4.<hex>-future/              a log that is to take the place of the one in another folder (KIP-113)
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from protocol.types import TopicPartition
from storage import checkpoints, file_names, meta_properties
from storage.checkpoints import CorruptCheckpoint, OffsetCheckpoint
from storage.files import Files
from storage.meta_properties import InconsistentMetaProperties, MetaProperties

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_VERSION = 0
#: Folders that are no partition's, and not opened here: the controller's log has its own owner.
METADATA_LOG = "__cluster_metadata-0"
#: The id that the metadata topic has in every cluster: AAAAAAAAAAAAAAAAAAAAAQ.
METADATA_TOPIC_ID = UUID(int=1)
_NO_LOGS = frozenset({METADATA_LOG, "remote-log-index-cache"})

_LOG = getLogger(__name__)


class LogDirInUse(RuntimeError):
    """Another process has the folder."""


class LogDirInfo(NamedTuple):
    """One log directory, for DescribeLogDirs."""

    path: Path
    directory_id: UUID
    #: Why it is offline; None if it serves.
    error: OSError | None
    total_bytes: int | None
    usable_bytes: int | None
    #: With their sizes in bytes.
    logs: list[tuple[TopicPartition, int]]
    future_logs: list[tuple[TopicPartition, int]]


class LogNames(NamedTuple):
    """The folders in a log directory."""

    logs: dict[str, TopicPartition]
    future_logs: dict[str, TopicPartition]
    #: Of deleted logs.
    deleted: list[str]


@dataclass(slots=True, kw_only=True)
class LogDirectory:
    """A folder that this process has locked."""

    path: Path
    files: Files
    lock_fd: int
    cluster_id: str
    directory_id: UUID
    was_clean: bool
    #: Of the broker that stopped cleanly; None if it did not, or did not say.
    broker_epoch: int | None
    recovery_points: OffsetCheckpoint = field(init=False)
    log_start_offsets: OffsetCheckpoint = field(init=False)
    high_watermarks: OffsetCheckpoint = field(init=False)
    cleaned_offsets: OffsetCheckpoint = field(init=False)

    def __post_init__(self) -> None:
        def checkpoint(name: str) -> OffsetCheckpoint:
            return OffsetCheckpoint(self.path / name, self.files)

        self.recovery_points = checkpoint(checkpoints.RECOVERY_POINT_FILE)
        self.log_start_offsets = checkpoint(checkpoints.LOG_START_OFFSET_FILE)
        self.high_watermarks = checkpoint(checkpoints.HIGH_WATERMARK_FILE)
        self.cleaned_offsets = checkpoint(checkpoints.CLEANER_FILE)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        files: Files,
        cluster_id: str | None,
        node_id: int,
        new_directory_id: Callable[[], UUID],
    ) -> "LogDirectory":
        """Make the folder if it is missing, lock it, and see whose it is.

        Raises LogDirInUse, InconsistentMetaProperties; OSError.
        """
        _make_durably(path, files)
        lock_fd = files.lock(path / LOCK_FILE)
        if lock_fd is None:
            raise LogDirInUse(
                f"Log directory {path} is in use by another process (it holds {path / LOCK_FILE})"
            )
        try:
            properties = _own(
                path,
                files=files,
                cluster_id=cluster_id,
                node_id=node_id,
                new_directory_id=new_directory_id,
            )
            was_clean, broker_epoch = _take_clean_shutdown(path, files)
        except BaseException:
            files.close(lock_fd)
            raise
        return cls(
            path=path,
            files=files,
            lock_fd=lock_fd,
            cluster_id=properties.cluster_id,
            directory_id=properties.directory_id,
            was_clean=was_clean,
            broker_epoch=broker_epoch,
        )

    def log_names(self) -> LogNames:
        """Folders of logs with their partitions; what is no log's is told, and left alone."""
        logs: dict[str, TopicPartition] = {}
        future_logs: dict[str, TopicPartition] = {}
        deleted: list[str] = []
        for name in self.files.list(self.path):
            if name in _NO_LOGS or not self.files.is_dir(self.path / name):
                continue
            if name.endswith(file_names.DELETE_DIRECTORY) and file_names.partition_being_removed(name):
                deleted.append(name)
            elif name.endswith(file_names.STRAY_DIRECTORY):
                _LOG.warning("%s is left alone", self.path / name)
            elif future := file_names.future_partition_of(name):
                future_logs[name] = future
            elif topic_partition := file_names.topic_partition_of(name):
                logs[name] = topic_partition
            else:
                _LOG.warning("%s is no log's folder", self.path / name)
        return LogNames(logs, future_logs, deleted)

    def read_checkpoint(self, checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
        """Its offsets; none if it is corrupt: recovery then reads whole logs."""
        try:
            return checkpoint.read()
        except CorruptCheckpoint as error:
            _LOG.warning("%s: %s; it is not used", checkpoint.path, error)
            return {}

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """All logs are closed and flushed."""
        content = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
        self.files.write_atomically(
            self.path / CLEAN_SHUTDOWN_FILE, json.dumps(content, separators=(",", ":")).encode()
        )

    def keep_clean(self, *, broker_epoch: int | None = None) -> None:
        """No log in it was opened: if it was closed cleanly, it still is, by this broker epoch (None: the one it says).

        A disk that refuses it is told, and no error: the next start recovers.
        """
        if not self.was_clean:
            return
        epoch = self.broker_epoch if broker_epoch is None else broker_epoch
        try:
            self.write_clean_shutdown(-1 if epoch is None else epoch)
        except OSError as error:
            _LOG.error("%s will be recovered: %s", self.path, error)

    def unlock(self) -> None:
        """Let other processes have the folder."""
        self.files.close(self.lock_fd)


def _make_durably(path: Path, files: Files) -> None:
    """The folder, with its entry on the disk: whatever is flushed in it later is worth nothing without."""
    missing = [folder for folder in (path, *path.parents) if not files.is_dir(folder)]
    files.make_dir(path)
    for folder in missing:
        files.fsync_dir(folder.parent)


class _Owner(NamedTuple):
    cluster_id: str
    directory_id: UUID


def _own(
    path: Path, *, files: Files, cluster_id: str | None, node_id: int, new_directory_id: Callable[[], UUID]
) -> _Owner:
    """Whose the folder is; one without `meta.properties` becomes ours."""
    found = meta_properties.read(path, files)
    if found is not None:
        meta_properties.check(path, found, cluster_id=cluster_id, node_id=node_id)
        if found.directory_id is not None:
            return _Owner(found.cluster_id, found.directory_id)
        cluster_id = found.cluster_id
    elif cluster_id is None:
        raise InconsistentMetaProperties(f"Log directory {path} belongs to no cluster yet")
    owner = _Owner(cluster_id, new_directory_id())
    properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=owner.directory_id)
    meta_properties.write(path, properties, files)
    return owner


def lock_directories(
    paths: Sequence[Path],
    *,
    files: Files,
    cluster_id: str | None,
    node_id: int,
    new_directory_id: Callable[[], UUID],
) -> tuple[list[LogDirectory], dict[Path, OSError]]:
    """All directories that can be used, locked, and why the others cannot; all of one cluster.

    `cluster_id` None: whatever they say. Raises LogDirInUse, InconsistentMetaProperties, and OSError if
    no directory can be used; none stays locked then.
    """
    directories: list[LogDirectory] = []
    failures: dict[Path, OSError] = {}
    try:
        for path in paths:
            try:
                directory = LogDirectory.open(
                    path,
                    files=files,
                    cluster_id=cluster_id,
                    node_id=node_id,
                    new_directory_id=new_directory_id,
                )
            except OSError as error:
                _LOG.error("Log directory %s cannot be used: %s", path, error)
                failures[path] = error
            else:
                directories.append(directory)
        if not directories:
            raise next(iter(failures.values()), ValueError("No log directories"))
        if len(ids := {directory.cluster_id for directory in directories}) > 1:
            raise InconsistentMetaProperties(
                f"The log directories belong to different clusters: {sorted(ids)}"
            )
    except BaseException:
        for directory in directories:
            directory.keep_clean()
            directory.unlock()
        raise
    return directories, failures


def _take_clean_shutdown(path: Path, files: Files) -> tuple[bool, int | None]:
    """Whether the last user stopped cleanly, and its broker epoch. The file goes: if we crash, it must not speak for us."""
    try:
        text = files.read(path / CLEAN_SHUTDOWN_FILE)
    except FileNotFoundError:
        return False, None
    files.unlink(path / CLEAN_SHUTDOWN_FILE)
    files.fsync_dir(path)
    try:
        broker_epoch = json.loads(text)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return True, None  # older versions wrote an empty file
    return True, broker_epoch if isinstance(broker_epoch, int) else None
