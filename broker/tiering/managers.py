"""Creates the storage manager and the metadata manager that the configuration names, with their own settings.

Source: RemoteLogManager.configAndWrapRsmPlugin and configAndWrapRlmmPlugin of Kafka 4.3.1.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from ottla.config.broker_config import BrokerConfig
from ottla.remote import plugins
from ottla.remote.checked_copies import CheckedCopies
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.reading.index_cache_files import DIRECTORY
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.transfers.messages import Setup
from ottla.remote.transfers.worker_store import WORKER_MODULE, WorkerStore
from ottla.runtime.workers import Worker
from ottla.storage.files import Files

#: `Runtime.worker`: starts the worker process of a module, unless the runtime has no other processes.
StartWorker = Callable[[str, object], Worker | None]


def create_storage_manager(
    config: BrokerConfig, start_worker: StartWorker, files: Files, log_dirs: Collection[Path]
) -> RemoteStorageManager:
    """Create the configured storage manager. Raises InvalidConfig. [any thread]

    The import of a plugin may take a second.

    The store is created if this broker has had no remote tier, as its log directories say, of which
    `log_dirs` are online.

    Its copies run in a process of their own, and its deletions in another one, which `start_worker` (of a
    Runtime) prepares, if that is enabled and the runtime has other processes; else threads read the segments
    by `files`. Either checks them before a copy.
    """
    name = config.get("remote.log.storage.manager.class.name")
    path = config.get("remote.log.storage.manager.class.path")
    configs = storage_manager_settings(config)
    store = plugins.load_storage_manager(
        name, configs, class_path=path, creates_store=not _has_had_tier(config, log_dirs, files)
    )
    checked = CheckedCopies(store, files)
    if not config.get("remote.log.storage.manager.process.enable"):
        return checked
    setup = Setup(class_name=name, class_path=path, configs=configs)
    copies, deletions = (start_worker(WORKER_MODULE, setup) for _ in range(2))
    if copies is None or deletions is None:
        return checked
    return WorkerStore(store, copies=copies, deletions=deletions)


def _has_had_tier(config: BrokerConfig, log_dirs: Collection[Path], files: Files) -> bool:
    """Whether the broker has had a remote tier: then an earlier process has created the index cache.

    With an offline directory it may have had one.
    """
    return len(log_dirs) < len(config.log_dirs) or any(files.is_dir(each / DIRECTORY) for each in log_dirs)


def create_metadata_manager(
    config: BrokerConfig, *, cluster_id: str, topic_based: Callable[[], RemoteLogMetadataManager]
) -> RemoteLogMetadataManager:
    """Create the configured metadata manager. Raises InvalidConfig.

    `topic_based` creates the default one, which keeps the metadata in `__remote_log_metadata`.
    """
    return plugins.load_metadata_manager(
        config.get("remote.log.metadata.manager.class.name"),
        metadata_manager_settings(config, cluster_id=cluster_id),
        class_path=config.get("remote.log.metadata.manager.class.path"),
        topic_based=topic_based,
    )


def storage_manager_settings(config: BrokerConfig) -> dict[str, object]:
    """Return all properties with the storage manager's prefix, without it, and `broker.id`."""
    return {
        **_with_prefix(config, config.get("remote.log.storage.manager.impl.prefix")),
        "broker.id": config.node_id,
    }


def metadata_manager_settings(config: BrokerConfig, *, cluster_id: str) -> dict[str, object]:
    """Return all properties with the metadata manager's prefix, without it, and those of the broker that it needs.

    These are `broker.id`, `log.dir` and `cluster.id`.
    """
    return {
        **_with_prefix(config, config.get("remote.log.metadata.manager.impl.prefix")),
        "broker.id": config.node_id,
        "log.dir": config.log_dirs[0],
        "cluster.id": cluster_id,
    }


def _with_prefix(config: BrokerConfig, prefix: str) -> dict[str, object]:
    return {
        name.removeprefix(prefix): text
        for name, text in config.texts.items()
        if name.startswith(prefix) and name != prefix
    }
