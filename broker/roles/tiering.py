"""Opens the remote tier of a broker. Imported only where `remote.log.storage.system.enable` is true.

Source: BrokerServer.createRemoteLogManager of Kafka 4.3.1.
"""

from pathlib import Path
from typing import Final

from ottla.broker.network.client import ClientSettings
from ottla.broker.roles.directories import CannotStart, Directories
from ottla.broker.roles.quorum import QuorumRole
from ottla.broker.tiering.managers import create_metadata_manager, create_storage_manager
from ottla.broker.tiering.metadata_barrier import MetadataBarrier
from ottla.broker.tiering.metadata_topic import BrokerMetadataTopic
from ottla.broker.tiering.partition_remover import PartitionRemover
from ottla.broker.tiering.partition_removers import PartitionRemovers
from ottla.broker.tiering.remote_tier import RemoteTier
from ottla.broker.tiering.settings import metadata_listener_name, remote_log_manager_settings
from ottla.config.broker_config import BrokerConfig
from ottla.config.cluster_config import ClusterConfig
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import InvalidConfig
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.reading.index_cache_files import DIRECTORY as INDEX_CACHE
from ottla.remote.reading.index_cache_files import IndexFiles
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.transfers.worker_store import WorkerStore
from ottla.remote.watched_reads import WatchedReads
from ottla.runtime import Pool, Runtime
from ottla.storage.files import Files

#: The timeout of the request that creates the metadata topic.
_CREATION_TIMEOUT_MS: Final = 60_000
#: The timeout of the request by which removers learn that a topic is deleted.
_BARRIER_TIMEOUT_MS: Final = 60_000


async def open_remote_tier(
    runtime: Runtime, config: BrokerConfig, role: QuorumRole, directories: Directories, files: Files
) -> RemoteTier:
    """The remote tier, its store opened in a thread. Raises CannotStart, OSError."""
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
            create_storage_manager, config, runtime.worker, files, online, pool=Pool.LOGS
        )
        metadata = create_metadata_manager(config, cluster_id=directories.cluster_id, topic_based=topic_based)
    except InvalidConfig as error:
        raise CannotStart(str(error)) from error
    store = WatchedReads(configured, monotonic=runtime.monotonic)
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
