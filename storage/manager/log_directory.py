"""Log directory: one of the folders in `log.dirs`, locked, with its checkpoints and its logs' folders.

.lock                              locked while a process uses the folder
meta.properties                    the cluster and node that it belongs to
.kafka_cleanshutdown               exists only between a clean shutdown and the next start (KIP-966: broker epoch)
recovery-point-offset-checkpoint   and the other checkpoints
topic-0/  topic-1/  ...            logs
topic-2.<hex>-delete/              a deleted log, until its files are removed
topic-3.<hex>-stray/               a log that is not in the metadata; left to the operator
topic-4.<hex>-future/              a future log, which replaces the one in another folder (KIP-113)
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.types import MAX_OFFSET, TopicPartition
from ottla.storage import checkpoints, file_names, json_object
from ottla.storage.checkpoints import CorruptCheckpoint, OffsetCheckpoint
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from ottla.storage.manager.meta_properties import InconsistentMetaProperties, MetaProperties

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_VERSION = 0
#: The id that the metadata topic has in every cluster: AAAAAAAAAAAAAAAAAAAAAQ.
METADATA_TOPIC_ID = UUID(int=1)
_NO_LOGS = frozenset({file_names.METADATA_LOG, "remote-log-index-cache"})

_LOG = getLogger(__name__)


class LogDirInUse(RuntimeError):
    """Another process has locked the folder."""


class LogNames(NamedTuple):
    """The folders of a log directory that hold logs: logs, future logs and deleted logs."""

    logs: dict[str, TopicPartition]
    future_logs: dict[str, TopicPartition]
    #: Folders of deleted logs.
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
    #: Broker epoch of the last clean shutdown; None if there was none, or its file has no epoch.
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
        """Create the folder if it is missing, lock it, and check its `meta.properties`.

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
        """The folders of logs with their partitions; other folders are logged, and not changed."""
        logs: dict[str, TopicPartition] = {}
        future_logs: dict[str, TopicPartition] = {}
        deleted: list[str] = []
        for name in self.files.list(self.path):
            if name in _NO_LOGS or not self.files.is_dir(self.path / name):
                continue
            if name.endswith(file_names.DELETE_DIRECTORY) and file_names.partition_being_removed(name):
                deleted.append(name)
            elif name.endswith(file_names.STRAY_DIRECTORY):
                _LOG.warning(
                    "%s: a stray log, not in the metadata when it was renamed; remove it if it is not needed",
                    self.path / name,
                )
            elif future := file_names.future_partition_of(name):
                future_logs[name] = future
            elif topic_partition := file_names.topic_partition_of(name):
                logs[name] = topic_partition
            else:
                _LOG.warning("%s: ignored, as its name is not that of a partition", self.path / name)
        return LogNames(logs, future_logs, deleted)

    def read_checkpoint(self, checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
        """The offsets of a checkpoint; empty if it is corrupt: recovery then reads whole logs."""
        try:
            return checkpoint.read()
        except CorruptCheckpoint as error:
            _LOG.warning(
                "%s is corrupt and not used; logs are recovered from their start: %s", checkpoint.path, error
            )
            return {}

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """Write `.kafka_cleanshutdown`, after all logs have been closed and flushed."""
        content = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
        self.files.write_atomically(
            self.path / CLEAN_SHUTDOWN_FILE, json.dumps(content, separators=(",", ":")).encode()
        )

    def keep_clean(self, *, broker_epoch: int | None = None) -> None:
        """Write the clean shutdown file again, if there was one: no log has been opened since.

        `broker_epoch` None: the one that the file had. A disk failure is logged and ignored: the next start recovers.
        """
        if not self.was_clean:
            return
        epoch = self.broker_epoch if broker_epoch is None else broker_epoch
        try:
            self.write_clean_shutdown(-1 if epoch is None else epoch)
        except OSError as error:
            _LOG.error(
                "%s: the clean shutdown file cannot be written, so the next start recovers all logs: %s",
                self.path,
                error,
            )

    def unlock(self) -> None:
        """Release the lock of the folder."""
        self.files.close(self.lock_fd)


def _make_durably(path: Path, files: Files) -> None:
    """Create the folder and flush its entry: without it, flushed files in the folder would be lost."""
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
    """The cluster and directory id of the folder; without `meta.properties`, the file is written for this node."""
    found = meta_properties.read(path, files)
    if found is not None:
        meta_properties.check(path, found, cluster_id=cluster_id, node_id=node_id)
        if found.directory_id is not None:
            return _Owner(found.cluster_id, found.directory_id)
        cluster_id = found.cluster_id
    elif cluster_id is None:
        raise InconsistentMetaProperties(
            f"Log directory {path} is not formatted: it has no {meta_properties.FILE_NAME}"
        )
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
    """Lock all usable directories, which must belong to one cluster; also returns the errors of the others.

    `cluster_id` None: that of the directories. Raises LogDirInUse, InconsistentMetaProperties, and OSError if
    no directory can be used; then none stays locked.
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
    """Whether the last shutdown was clean, and its broker epoch. Removes the file: it must not exist if we crash."""
    try:
        text = files.read(path / CLEAN_SHUTDOWN_FILE)
    except FileNotFoundError:
        return False, None
    files.unlink(path / CLEAN_SHUTDOWN_FILE)
    files.fsync_dir(path)
    try:
        broker_epoch = json_object.parse(text).get("brokerEpoch")
    except ValueError:
        return True, None  # older versions wrote an empty file
    is_epoch = type(broker_epoch) is int and -1 <= broker_epoch <= MAX_OFFSET
    return True, broker_epoch if is_epoch else None
