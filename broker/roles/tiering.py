"""Opens the remote tier of a broker. Imported only where `remote.log.storage.system.enable` is true.

The storage manager and the metadata manager are those that the configuration names, with their own settings.

Source: BrokerServer.createRemoteLogManager, RemoteLogManager.configAndWrapRsmPlugin and configAndWrapRlmmPlugin of
Kafka 4.3.1.
"""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

from ottla.broker.network.client import ClientSettings
from ottla.broker.roles.directories import CannotStart, Directories
from ottla.broker.roles.quorum import QuorumRole
from ottla.broker.tiering.metadata_topic import BrokerMetadataTopic
from ottla.broker.tiering.partition_remover import PartitionRemover
from ottla.broker.tiering.partition_removers import MetadataBarrier, PartitionRemovers
from ottla.broker.tiering.remote_tier import RemoteTier
from ottla.broker.tiering.settings import metadata_listener_name, remote_log_manager_settings
from ottla.config.broker_config import BrokerConfig
from ottla.config.cluster_config import ClusterConfig
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import InvalidConfig
from ottla.remote import plugins
from ottla.remote.checked_copies import CheckedCopies
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.reading.index_cache_files import DIRECTORY, IndexFiles
from ottla.remote.reading.index_cache_files import DIRECTORY as INDEX_CACHE
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.transfers.messages import Setup
from ottla.remote.transfers.worker_store import WORKER_MODULE, WorkerStore
from ottla.remote.watched_store import WatchedStore
from ottla.runtime import Pool, Runtime
from ottla.runtime.workers import Worker
from ottla.storage.files import Files

#: The timeout of the request that creates the metadata topic.
_CREATION_TIMEOUT_MS: Final = 60_000
#: The timeout of the request by which removers learn that a topic is deleted.
_BARRIER_TIMEOUT_MS: Final = 60_000
#: `Runtime.worker`: starts the worker process of a module, unless the runtime has no other processes.
StartWorker = Callable[[str, object], Worker | None]


async def open_remote_tier(
    runtime: Runtime,
    config: BrokerConfig,
    role: QuorumRole,
    directories: Directories,
    files: Files,
    *,
    around_store: Callable[[RemoteStorageManager], RemoteStorageManager] = lambda store: store,
) -> RemoteTier:
    """The remote tier, its store opened in a thread. Raises CannotStart, OSError.

    `around_store` may put something in front of the store, as tests that inject faults.
    """
    assert config.remote_log_storage_system_enable
    online = [path for path in map(Path, config.log_dirs) if path not in directories.logs.offline_dirs]
    cluster_config = ClusterConfig(config, lambda: role.metadata.image)

    def topic_based() -> RemoteLogMetadataManager:
        topic = BrokerMetadataTopic(
            runtime,
            node_id=config.node_id,
            metadata=role.metadata,
            controller=role.channel("remote-log-metadata", timeout_ms=_CREATION_TIMEOUT_MS),
            topic_config=cluster_config.topic_config,
            listener_name=lambda: metadata_listener_name(config),
            connections=ClientSettings.from_config(config),
        )
        return TopicBasedRemoteLogMetadataManager(
            runtime=runtime, topic=topic, log_directory=log_directory, files=files
        )

    def log_directory(partition: TopicIdPartition) -> Path | None:
        log = directories.logs.get(partition.topic_partition)
        return log.directory if log is not None and log.topic_id == partition.topic_id else None

    try:
        configured = await runtime.run_blocking(
            partial(create_storage_manager, around_store=around_store),
            config,
            runtime.worker,
            files,
            online,
            pool=Pool.LOGS,
        )
        metadata = create_metadata_manager(config, cluster_id=directories.cluster_id, topic_based=topic_based)
    except InvalidConfig as error:
        raise CannotStart(str(error)) from error
    store = WatchedStore(configured, monotonic=runtime.monotonic)
    tier = RemoteTier(
        runtime=runtime,
        config=config,
        store=store,
        metadata=metadata,
        index_files=IndexFiles(*(each / INDEX_CACHE for each in online), files=files, store=store),
        topic_overrides=lambda topic: role.metadata.image.topic_config(topic),
        read_times=configured.read_times if isinstance(configured, WorkerStore) else None,
    )
    if isinstance(metadata, TopicBasedRemoteLogMetadataManager):
        tier.removers = _removers(tier, metadata, runtime, role)
    await tier.index_cache.start()
    return tier


def _removers(
    tier: RemoteTier, metadata: TopicBasedRemoteLogMetadataManager, runtime: Runtime, role: QuorumRole
) -> PartitionRemovers:
    node_id = tier.config.node_id
    channel = role.channel("remote-log-removers", timeout_ms=_BARRIER_TIMEOUT_MS)
    return PartitionRemovers(
        node_id=node_id,
        runtime=runtime,
        cluster=role.metadata,
        barrier=MetadataBarrier(
            role.metadata,
            lambda request: channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, request),
            node_id=node_id,
        ),
        metadata=metadata,
        remover=PartitionRemover(
            node_id=node_id,
            runtime=runtime,
            metadata=metadata,
            store=tier.store,
            settings=lambda: remote_log_manager_settings(tier.config),
            metrics=tier.metrics,
            on_deleted=tier.on_deleted,
        ),
    )


def create_storage_manager(
    config: BrokerConfig,
    start_worker: StartWorker,
    files: Files,
    log_dirs: Collection[Path],
    *,
    around_store: Callable[[RemoteStorageManager], RemoteStorageManager] = lambda store: store,
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
    store = around_store(
        plugins.load_storage_manager(
            name, configs, class_path=path, creates_store=not _has_had_tier(config, log_dirs, files)
        )
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
