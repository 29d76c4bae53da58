"""A node's log directories: locked while the process runs, and checked to belong to this node.

A node that is a whole cluster by itself formats new directories at its start. The directories of all others must
have been formatted (`ottla format`, or Kafka's kafka-storage.sh): only that determines their cluster.
"""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from ottla.config.broker_config import BrokerConfig
from ottla.protocol.kafka_uuid import to_text
from ottla.runtime import Pool, Runtime
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from ottla.storage.manager.log_manager import (
    InconsistentMetaProperties,
    LogDirInUse,
    LogManager,
    LogManagerSettings,
)


class CannotStart(Exception):
    """The node cannot start; the message is a sentence for an operator."""


class Directories:
    """The log directories, and the one of the metadata log, which may be one of them. Created by `lock`."""

    def __init__(self, logs: LogManager, of_metadata: LogManager, metadata_log_dir: Path) -> None:
        #: The directories of partitions.
        self.logs = logs
        #: Called when a directory fails, possibly in another thread.
        self.on_failure: Callable[[Path, OSError], None] = lambda path, error: None
        #: The directory of the metadata log: the same object unless metadata.log.dir is not in log.dirs.
        self._of_metadata = of_metadata
        self.metadata_log_dir = metadata_log_dir
        for manager in self._managers():
            manager.on_dir_failure = lambda path, error: self.on_failure(path, error)

    @classmethod
    async def lock(cls, runtime: Runtime, config: BrokerConfig, files: Files) -> "Directories":
        """Lock all log directories. Raises CannotStart."""
        try:
            return await runtime.run_blocking(cls._lock, runtime, config, files, pool=Pool.LOGS)
        except (LogDirInUse, InconsistentMetaProperties) as error:
            raise CannotStart(str(error)) from error
        except OSError as error:
            raise CannotStart(
                f"Cannot use the log directories {', '.join(config.log_dirs)}: {error.strerror}. "
                f"log.dirs (--data-dir) must name folders that this user can write."
            ) from error

    @classmethod
    def _lock(cls, runtime: Runtime, config: BrokerConfig, files: Files) -> "Directories":
        def new_id() -> UUID:
            return UUID(int=runtime.random.getrandbits(128), version=4)

        metadata_log_dir = Path(config.metadata_log_dir)
        paths = [Path(path) for path in config.log_dirs]
        if not config.is_broker:
            # A controller has no partitions: all its directories are for the metadata log.
            paths = list(dict.fromkeys([*paths, metadata_log_dir]))
        apart = [] if metadata_log_dir in paths else [metadata_log_dir]
        found = {path: _read(path, files, metadata_log_dir) for path in [*paths, *apart]}
        known = [properties for properties in found.values() if properties is not None]
        if not config.is_whole_cluster and found[metadata_log_dir] is None:
            raise CannotStart(
                f"Log directory {metadata_log_dir} is not formatted, and node {config.node_id} is not a cluster by "
                "itself. Format it for its cluster: ottla format --cluster-id ID --config FILE"
            )
        cluster_id = known[0].cluster_id if known else to_text(new_id())

        def lock(log_dirs: list[Path]) -> LogManager:
            return LogManager.lock(
                log_dirs,
                files=files,
                cluster_id=cluster_id,
                node_id=config.node_id,
                directory_id=new_id,
                random=runtime.random,
                now_ms=runtime.now_ms(),
                run_parallel=runtime.run_parallel,
                settings=log_settings(config),
            )

        logs = lock(paths)
        try:
            return cls(logs, lock(apart) if apart else logs, metadata_log_dir)
        except BaseException:
            logs.keep_clean(broker_epoch=None)
            logs.unlock()
            raise

    @property
    def cluster_id(self) -> str:
        """The id of the cluster to which all log directories belong."""
        return self.logs.cluster_id

    @property
    def metadata_directory_id(self) -> UUID:
        """The id of the metadata log's directory. Raises OSError if that one cannot be used."""
        manager = self._of_metadata
        if (error := manager.offline_dirs.get(self.metadata_log_dir)) is not None:
            raise error
        return manager.directory_ids[self.metadata_log_dir]

    @property
    def was_clean(self) -> bool:
        """Whether the last process has closed the directory of the metadata log cleanly."""
        return self._of_metadata.was_clean

    def metadata_log_failed(self, error: OSError) -> None:
        """Note that the metadata log could not be closed: its directory must not be marked as closed."""
        self._of_metadata.take_offline(self.metadata_log_dir, error)

    def keep_clean(self, *, broker_epoch: int | None) -> None:
        """Restore the clean shutdown files after a start that failed before any log was opened. [any thread]"""
        for manager in self._managers():
            manager.keep_clean(broker_epoch=broker_epoch)

    def unlock(self) -> None:
        """Release the locks without a clean shutdown: for a start that failed. [any thread]"""
        for manager in self._managers():
            manager.unlock()

    def shutdown(self, now_ms: int, *, broker_epoch: int) -> None:
        """Close the open logs, mark the directories as cleanly closed, and release the locks. [any thread]"""
        for manager in self._managers():
            manager.shutdown(now_ms, broker_epoch=broker_epoch)

    def _managers(self) -> list[LogManager]:
        return [self.logs] if self._of_metadata is self.logs else [self.logs, self._of_metadata]


def log_settings(config: BrokerConfig) -> LogManagerSettings:
    """The settings of a configuration that apply to all logs."""
    return LogManagerSettings(
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_start_checkpoint_interval_ms=config.get("log.flush.start.offset.checkpoint.interval.ms"),
        high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        cleaner_dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        recovery_threads_per_data_dir=config.get("num.recovery.threads.per.data.dir"),
    )


def _read(path: Path, files: Files, metadata_log_dir: Path) -> meta_properties.MetaProperties | None:
    """The meta.properties of a directory, or None. Raises CannotStart if those of the metadata log's are unreadable.

    For another directory, an I/O error counts as None: locking it will fail, and the node starts without it.
    """
    try:
        return meta_properties.read(path, files)
    except OSError as error:
        if path != metadata_log_dir:
            return None
        raise CannotStart(
            f"Cannot read {path / meta_properties.FILE_NAME}: {error.strerror}. The metadata log is in this directory "
            "(metadata.log.dir, or else the first of log.dirs), and no node starts without it."
        ) from error
