"""This node's replica of the metadata log, and its listeners: one for the whole process, for all its roles.

A controller is a voter of the quorum (or may become one), a broker is an observer. Both roles of a combined node use
the same image, and the same `LeaderWatch` for the current leader. Source: SharedServer of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from ottla.broker.controller_api.services import QUORUM_REQUESTS
from ottla.broker.log_lines import OutageLog
from ottla.broker.membership.controller_channel import LeaderWatch, QuorumChannel
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.network.client import ClientSettings, Disconnected, NodeClient
from ottla.broker.network.settings import size_or_none
from ottla.broker.request_context import RequestContext
from ottla.broker.roles.directories import Directories
from ottla.config.broker_config import BrokerConfig
from ottla.config.cluster_config import ClusterConfig
from ottla.config.definitions import BROKER_CONFIGS, CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from ottla.config.listeners import Listener
from ottla.config.log_config import validate_topic_configs
from ottla.config.resources import validate_client_metrics_alter, validate_group_alter
from ottla.controller import activation
from ottla.controller.controller import Controller
from ottla.controller.membership.controller_registration import ControllerRegistration
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.quorum.snapshot_generator import SnapshotGenerator
from ottla.controller.raft.messages import QuorumResponse
from ottla.controller.raft.types import Address, RaftSettings
from ottla.controller.settings import ConfigValidators, ControllerSettings
from ottla.metadata.image import Endpoint, MetadataImage
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Request
from ottla.runtime import Pool, Runtime
from ottla.storage.files import Files

logger = logging.getLogger(__name__)

#: The timeout of one attempt to register this controller.
_REGISTRATION_TIMEOUT_MS: Final = 5_000


class LocalQuorum:
    """The controller and the quorum of this process behind one method; implements `LocalController`."""

    def __init__(self, controller: Controller, quorum: RaftClient) -> None:
        self._controller = controller
        self._quorum = quorum

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Handle a request of this process; the quorum handles its own also if this node is not the leader."""
        if api_key in QUORUM_REQUESTS:
            listener_name = None if context is None else context.listener_name
            return await self._quorum.handle(message, listener_name=listener_name)
        return await self._controller.request(api_key, message, context)


class QuorumRole:
    """The quorum, the controller if this node is one, the image, and the channels to the active controller."""

    def __init__(self, runtime: Runtime, config: BrokerConfig, directories: Directories) -> None:
        self._runtime = runtime
        self._config = config
        self._directories = directories
        self._clients: list[NodeClient] = []
        # Raft sends to other nodes while one is unreachable, so its requests do not wait for a reconnect.
        self._raft_client = self._client(
            "raft",
            reconnect_backoff_max_ms=500,
            waits_for_reconnect=False,
            receive_buffer_bytes=size_or_none(config.socket_receive_buffer_bytes),
        )
        #: Rate-limited log lines about unreachable nodes; all channels to the controller share the second one.
        self._raft_outages = OutageLog(logger, monotonic=runtime.monotonic)
        self._channel_outages = OutageLog(logger, monotonic=runtime.monotonic)
        #: Whether the metadata log is open.
        self.is_open = False
        self._on_failure: Callable[[BaseException], None] = lambda error: None
        #: Controllers that have responded INCONSISTENT_CLUSTER_ID.
        self._foreign_controllers: set[tuple[str, int]] = set()
        self._registration: ControllerRegistration | None = None
        #: Set by `open`.
        self.quorum: RaftClient
        self.controller: Controller | None = None
        self.local: LocalQuorum | None = None
        self.metadata: MetadataCache
        self.leader: LeaderWatch

    async def open(
        self,
        listeners: Mapping[str, Endpoint],
        files: Files,
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Read the metadata log. `listeners` are this node's endpoints as a controller, if it is one.

        `on_failure` is called with the reason if the running node cannot continue. Raises InvalidMetadata, OSError.
        """
        runtime, config, directories = self._runtime, self._config, self._directories
        self._on_failure = on_failure
        controller_settings = self._controller_settings(listeners)

        def read() -> RaftClient:
            log_dir = directories.metadata_log_dir
            if config.is_whole_cluster:
                activation.format_directory(log_dir / "__cluster_metadata-0", files, now_ms=runtime.now_ms())
            return RaftClient.open(
                log_dir,
                settings=self._raft_settings(listeners),
                log_settings=_log_settings(config),
                files=files,
                runtime=runtime,
                send=self._send,
                on_failure=on_failure,
                is_clean=directories.was_clean,
            )

        self.quorum = quorum = await runtime.run_blocking(read, pool=Pool.METADATA)
        self.metadata = MetadataCache(MetadataImage(), kraft_version=lambda: quorum.kraft_version)
        quorum.subscribe(self.metadata)
        if config.is_controller:
            self.controller = Controller(
                quorum,
                committed_image=lambda: self.metadata.image,
                log_dir=directories.metadata_log_dir,
                settings=controller_settings,
                validators=_validators(ClusterConfig(config, lambda: self.metadata.image).refresh),
                files=files,
                runtime=runtime,
            )
            self.local = LocalQuorum(self.controller, quorum)
        self.is_open = True
        self.leader = LeaderWatch(quorum)
        quorum.subscribe(
            SnapshotGenerator(
                quorum,
                image=lambda: self.metadata.image,
                settings=_log_settings(config),
                runtime=runtime,
            )
        )
        quorum.subscribe(self.leader)
        if config.is_controller:
            self._registration = ControllerRegistration(
                settings=controller_settings,
                incarnation_id=UUID(int=runtime.random.getrandbits(128), version=4),
                request=self.channel("controller-registration", timeout_ms=_REGISTRATION_TIMEOUT_MS).request,
                runtime=runtime,
            )
            quorum.subscribe(self._registration)

    def channel(self, purpose: str, *, timeout_ms: int) -> QuorumChannel:
        """Create a separate channel to the active controller.

        Requests of one purpose do not wait for those of another.
        """
        return QuorumChannel(
            runtime=self._runtime,
            leader=self.leader,
            local=self.local,
            client=self._client(purpose),
            outages=self._channel_outages,
            unreachable=self._raft_outages.reasons.values,
            timeout_ms=timeout_ms,
            request_timeout_ms=self._config.get("controller.socket.timeout.ms"),
        )

    async def stop(self) -> None:
        """Leave the quorum, close the metadata log, and all connections to other nodes. Raises OSError, KafkaError."""
        if self._registration is not None:
            await self._registration.stop()
        if self.controller is not None:
            self.controller.stop()
        try:
            if self.is_open:
                await self.quorum.stop()
        finally:
            for client in self._clients:
                await client.close()

    def _client(self, purpose: str, **settings: Any) -> NodeClient:  # noqa: ANN401 (fields of ClientSettings)
        client = NodeClient(
            self._runtime,
            client_id=f"{purpose}-{self._config.node_id}",
            settings=replace(ClientSettings.from_config(self._config), **settings),
        )
        self._clients.append(client)
        return client

    async def _send(self, to: Address, message: Request, timeout_ms: int) -> QuorumResponse:
        node = f"controller {to.host}:{to.port}"
        try:
            response: QuorumResponse = await self._raft_client.request(
                to, message.__api_key__, message, timeout_s=timeout_ms / 1000
            )
        except (Disconnected, TimeoutError) as error:
            self._raft_outages.failed(node, error)
            raise
        self._raft_outages.answered(node)
        if getattr(response, "error_code", 0) == ErrorCode.inconsistent_cluster_id:
            self._on_foreign_cluster(to)
        return response

    def _on_foreign_cluster(self, address: Address) -> None:
        """Note that a controller belongs to another cluster: if all known ones do, the node fails.

        Kafka's nodes retry, and their brokers stop when they could not register for a minute.
        """
        self._foreign_controllers.add(address)
        config = self._config
        known = {(host, port) for voter_id, host, port in config.quorum_voters if voter_id != config.node_id}
        own = {(listener.host, listener.port) for listener in config.advertised_controller_listeners}
        known |= set(config.quorum_bootstrap_servers) - own
        if known <= self._foreign_controllers and self.leader.leader_id is None:
            addresses = ", ".join(f"{host}:{port}" for host, port in sorted(known))
            self._on_failure(
                RuntimeError(
                    f"the controllers at {addresses} belong to another cluster than this node's log directories "
                    f"(cluster.id {self._directories.cluster_id})"
                )
            )

    def _raft_settings(self, listeners: Mapping[str, Endpoint]) -> RaftSettings:
        config = self._config
        voters = {voter_id: Address(host, port) for voter_id, host, port in config.quorum_voters}
        own = listeners.get(config.controller_listener_names[0].upper())
        if config.is_controller and config.is_whole_cluster and own is not None:
            # Instead of the configured voters: the system may have chosen the port.
            voters = {config.node_id: Address(own.host, own.port)}
        return RaftSettings(
            node_id=config.node_id,
            directory_id=self._directories.metadata_directory_id,
            cluster_id=self._directories.cluster_id,
            listener_name=config.controller_listener_names[0].upper(),
            endpoints={name: Address(each.host, each.port) for name, each in listeners.items()},
            static_voters=voters,
            bootstrap_servers=tuple(Address(host, port) for host, port in config.quorum_bootstrap_servers),
            can_become_voter=config.is_controller,
            auto_join_enable=config.get("controller.quorum.auto.join.enable"),
            election_timeout_ms=config.get("controller.quorum.election.timeout.ms"),
            fetch_timeout_ms=config.get("controller.quorum.fetch.timeout.ms"),
            election_backoff_max_ms=config.get("controller.quorum.election.backoff.max.ms"),
            request_timeout_ms=config.get("controller.quorum.request.timeout.ms"),
            retry_backoff_ms=config.get("controller.quorum.retry.backoff.ms"),
            fetch_max_bytes=config.get("controller.quorum.fetch.max.bytes"),
            fetch_snapshot_max_bytes=config.get("controller.quorum.fetch.snapshot.max.bytes"),
        )

    def _controller_settings(self, listeners: Mapping[str, Endpoint]) -> ControllerSettings:
        config = self._config
        return ControllerSettings(
            cluster_id=self._directories.cluster_id,
            node_id=config.node_id,
            listeners=listeners,
            hosts_broker=config.is_broker,
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            delete_topic_enable=config.delete_topic_enable,
            broker_session_timeout_ms=config.broker_session_timeout_ms,
            max_idle_interval_ms=config.get("metadata.max.idle.interval.ms") or None,
            auto_leader_rebalance_enable=config.get("auto.leader.rebalance.enable"),
            leader_imbalance_check_interval_seconds=config.get("leader.imbalance.check.interval.seconds"),
            unclean_leader_election_interval_ms=config.get("unclean.leader.election.interval.ms"),
            static_configs=config.static,
        )


def controller_endpoints(listeners: tuple[Listener, ...]) -> dict[str, Endpoint]:
    """Return listeners as endpoints of the metadata."""
    return {
        listener.name: Endpoint(
            host=listener.host, port=listener.port, security_protocol=listener.security_protocol
        )
        for listener in listeners
    }


def _log_settings(config: BrokerConfig) -> MetadataLogSettings:
    retention_bytes = config.get("metadata.max.retention.bytes")
    retention_ms = config.get("metadata.max.retention.ms")
    return MetadataLogSettings(
        log_segment_bytes=(
            config.get("internal.metadata.log.segment.bytes") or config.get("metadata.log.segment.bytes")
        ),
        log_segment_ms=config.get("metadata.log.segment.ms"),
        max_retention_bytes=retention_bytes if retention_bytes >= 0 else None,
        max_retention_ms=retention_ms if retention_ms >= 0 else None,
        max_record_bytes_between_snapshots=config.get("metadata.log.max.record.bytes.between.snapshots"),
        max_snapshot_interval_ms=config.get("metadata.log.max.snapshot.interval.ms"),
    )


def _validators(current: Callable[[], BrokerConfig]) -> ConfigValidators:
    """`current` returns this node's effective configuration, against which topics and groups are validated."""
    return ConfigValidators(
        topic=lambda _, configs, existing: validate_topic_configs(
            configs,
            defaults=current().topic_defaults,
            existing=existing,
            is_remote_storage_system_enabled=current().remote_log_storage_system_enable,
        ),
        group=lambda _, configs, __: validate_group_alter(current(), configs),
        client_metrics=lambda name, configs, _: validate_client_metrics_alter(name, configs),
        broker_keys=BROKER_CONFIGS,
        group_keys=GROUP_CONFIGS,
        client_metrics_keys=CLIENT_METRICS_CONFIGS,
    )
