"""Creates the replica manager of a broker, its fetchers, ISR changes and replication quotas.

Source: the wiring of ReplicaManager, ReplicaFetcherManager, AlterPartitionManager and QuotaFactory in BrokerServer.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.network.client import Address, ClientSettings
from ottla.broker.network.settings import size_or_none
from ottla.broker.replicas.following.leader_endpoint import FetcherSettings
from ottla.broker.replicas.following.replica_fetcher_manager import ReplicaFetcherManager
from ottla.broker.replicas.leading.alter_partition_manager import AlterPartitionManager
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.roles.directories import CannotStart
from ottla.broker.roles.quorum import QuorumRole
from ottla.config.broker_config import BrokerConfig
from ottla.config.cluster_config import ClusterConfig
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.replication.replica_selector import UnknownSelector, load_selector
from ottla.replication.replication_quota import ReplicationQuota
from ottla.runtime import Runtime
from ottla.storage.manager.log_manager import LogManager

#: Room in a Fetch response for the rows of its partitions, besides their records.
_ROWS_BYTES: Final = 16 * 1024 * 1024
#: The timeout of an AlterPartition request, before the ISR change is sent again.
_ALTER_PARTITION_TIMEOUT_MS: Final = 60_000


def create_replication(
    runtime: Runtime,
    logs: LogManager,
    role: QuorumRole,
    cluster_config: ClusterConfig,
    *,
    broker_epoch: Callable[[], int],
    reports_local_logs: bool,
    auxiliary: AuxiliaryStates | None,
) -> tuple[ReplicaManager, ReplicaFetcherManager]:
    """The replica manager, and the fetchers that it starts and stops. Raises CannotStart.

    `reports_local_logs`: the replica selector of all brokers asks for local log starts.
    """
    config, metadata = cluster_config.current, role.metadata
    listener_name = config.inter_broker_listener_name

    def address_of(broker_id: int) -> Address | None:
        endpoint = metadata.endpoint(broker_id, listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def quota(rate: Callable[[], int]) -> ReplicationQuota:
        return ReplicationQuota(
            rate=rate,
            window_count=config.get("replication.quota.window.num"),
            window_ms=config.get("replication.quota.window.size.seconds") * 1000,
        )

    fetchers = ReplicaFetcherManager(
        runtime=runtime,
        settings=FetcherSettings(
            node_id=config.node_id,
            wait_max_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.get("replica.fetch.min.bytes"),
            max_bytes=config.get("replica.fetch.max.bytes"),
            response_max_bytes=config.get("replica.fetch.response.max.bytes"),
            backoff_ms=config.get("replica.fetch.backoff.ms"),
            request_timeout_ms=config.get("request.timeout.ms"),
            connections=replace(
                ClientSettings.from_config(config),
                response_max_bytes=config.get("replica.fetch.response.max.bytes")
                + config.socket_request_max_bytes
                + _ROWS_BYTES,
                ready_timeout_ms=config.get("replica.socket.timeout.ms"),
                receive_buffer_bytes=size_or_none(config.get("replica.socket.receive.buffer.bytes")),
            ),
        ),
        fetcher_count=config.get("num.replica.fetchers"),
        address_of=address_of,
        broker_epoch=broker_epoch,
        auxiliary=auxiliary,
        prefers_last_tiered=lambda: cluster_config.current.get("follower.fetch.last.tiered.offset.enable"),
        quota=quota(lambda: cluster_config.current.dynamic_value("follower.replication.throttled.rate")),
    )
    move_quota = ReplicationQuota(
        rate=lambda: cluster_config.current.dynamic_value("replica.alter.log.dirs.io.max.bytes.per.second"),
        window_count=config.get("alter.log.dirs.replication.quota.window.num"),
        window_ms=config.get("alter.log.dirs.replication.quota.window.size.seconds") * 1000,
    )
    alter_partition_manager = AlterPartitionManager(
        runtime=runtime,
        controller=role.channel("alter-partition", timeout_ms=_ALTER_PARTITION_TIMEOUT_MS),
        node_id=config.node_id,
        broker_epoch=broker_epoch,
    )
    replicas = ReplicaManager(
        node_id=config.node_id,
        logs=logs,
        metadata=metadata,
        runtime=runtime,
        topic_config=cluster_config.topic_config,
        propose_isr=alter_partition_manager.submit,
        report_local_logs=alter_partition_manager.report,
        followers=fetchers,
        leader_quota=quota(lambda: cluster_config.current.dynamic_value("leader.replication.throttled.rate")),
        move_quota=move_quota,
        max_lag_ms=config.replica_lag_time_max_ms,
        reports_local_logs=reports_local_logs,
        fetch_max_bytes=config.fetch_max_bytes,
    )
    return replicas, fetchers


def preferred_read_replicas(
    runtime: Runtime, config: BrokerConfig, metadata: MetadataCache
) -> PreferredReadReplicas:
    """Chooses consumers' preferred read replicas by replica.selector.class. Raises CannotStart."""
    try:
        selector = load_selector(config.get("replica.selector.class"), config.values)
    except UnknownSelector as error:
        raise CannotStart(str(error)) from error
    return PreferredReadReplicas(selector, node_id=config.node_id, metadata=metadata, now_ms=runtime.now_ms)
