"""The broker role of a node: logs, replicas, coordinators, and the listeners of clients.

start: sockets (requests wait) -> registered -> caught up with the metadata -> logs -> replicas -> unfenced -> requests
stop:  leave the cluster -> coordinators -> sockets -> maintenance; the logs are closed after the metadata log

Source: BrokerServer of Kafka 4.3.1, with the same order: logs are opened only when the metadata is known, which has
the configurations of topics and the deleted topics.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.groups.config import OFFSETS_TOPIC, GroupConfig
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.membership import cordoning
from ottla.broker.membership.directory_assignments import DirectoryAssignments, misplaced
from ottla.broker.membership.lifecycle import BrokerLifecycle
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.network import Dispatch, NetworkServer, NetworkSettings
from ottla.broker.network.gate import Gate
from ottla.broker.producer_ids import ProducerIdManager
from ottla.broker.replicas.coordinator_partition_writer import CoordinatorPartitionWriter
from ottla.broker.replicas.log_maintenance import LogMaintenance
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.request_stats import RequestStats
from ottla.broker.roles.controller import open_sockets
from ottla.broker.roles.directories import Directories, log_settings
from ottla.broker.roles.quorum import QuorumRole
from ottla.broker.roles.replication import create_replication, preferred_read_replicas
from ottla.broker.services import BrokerServices
from ottla.broker.telemetry.client_metrics import ClientMetrics
from ottla.broker.telemetry.series import ClientSeries
from ottla.broker.topic_creator import TopicCreator
from ottla.config.broker_config import BrokerConfig
from ottla.config.cluster_config import ClusterConfig
from ottla.config.listeners import Listener, with_bound_addresses
from ottla.metadata.features import DIRECTORIES_3_7_IV2, claimed_features
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.types import TopicPartition
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import in_turns

if TYPE_CHECKING:
    from ottla.broker.tiering.remote_tier import RemoteTier

logger = logging.getLogger(__name__)

#: The timeout of a forwarded request, or one for producer ids, that waits for an active controller; Kafka's.
_FORWARDING_TIMEOUT_MS: Final = 60_000


class BrokerRole:
    """Starts and stops the broker in this process: its logs, replicas, coordinators, and the listeners of clients.

    All attributes are created in the constructor; `start` has the order of the steps.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        directories: Directories,
        role: QuorumRole,
        *,
        remote: "RemoteTier | None",
        around_requests: Callable[[Dispatch], Dispatch],
        on_failure: Callable[[str], None],
    ) -> None:
        """Create the parts of the broker; `remote` is the remote tier, if there is one.

        `around_requests` returns what handles requests instead of the broker's own dispatch, which it is given.
        `on_failure` is called with the reason, one sentence, if the node cannot continue.
        """
        self._runtime = runtime
        self._directories = directories
        self._logs = directories.logs
        self._around_requests = around_requests
        self._on_failure = on_failure
        self._cluster_config = ClusterConfig(config, lambda: role.metadata.image)
        self._remote = remote
        self.broker = self._create_services(config, role)
        if remote is not None:
            self.broker.replicas.tier = remote
        self._assignments = DirectoryAssignments(
            runtime=runtime,
            controller=role.channel("directory-assignments", timeout_ms=_FORWARDING_TIMEOUT_MS),
            node_id=config.node_id,
            broker_epoch=lambda: self.broker.lifecycle.broker_epoch,
            image=lambda: role.metadata.image,
            located=self._located,
        )
        self.broker.replicas.on_placed = self._assignments.check_replicas
        self.broker.replicas.roles.on_failure = self._on_failure
        self.broker.replicas.moves.on_directory = lambda place: self._assignments.check_replicas([place])
        self._gate = Gate(runtime)
        #: The requests of clients and other brokers.
        self.request_stats = RequestStats()
        self.server = NetworkServer(runtime, self._gate, NetworkSettings.from_config(config))
        self.server.on_unreadable = self._logs.stop_lending
        self.maintenance = LogMaintenance(
            runtime,
            self._logs,
            lambda: self.broker.config,
            after_retention=self.broker.replicas.notice_retention,
        )
        self._isr_watch: asyncio.Task[None] | None = None
        self._unfenced: asyncio.Future[None] | None = None
        #: The advertised listeners; with the bound ports where port 0 was configured.
        self.listeners: tuple[Listener, ...] = ()
        #: Whether all logs are open; None before the first one is opened.
        self.are_logs_open: bool | None = None
        #: Whether requests of clients are served.
        self.is_serving = False
        #: Whether the metadata names the log directory of each log that is open; determined when the role stops.
        self._are_logs_placed = True

    def _create_services(self, config: BrokerConfig, role: QuorumRole) -> BrokerServices:
        runtime, logs, metadata = self._runtime, self._logs, role.metadata
        forwarding = role.channel("forwarding", timeout_ms=_FORWARDING_TIMEOUT_MS)
        heartbeats = role.channel("heartbeat", timeout_ms=config.broker_heartbeat_interval_ms)
        lifecycle = BrokerLifecycle(
            runtime=runtime,
            config=config,
            controller=heartbeats,
            applied_offset=lambda: replicas.roles.applied_offset,
            offline_log_dirs=self._offline_log_dirs,
            features=lambda: claimed_features(metadata.finalized_features),
            cordoned_log_dirs=self._cordoned_log_dirs,
        )
        lifecycle.on_failure = self._on_failure
        preferred = preferred_read_replicas(runtime, config, metadata)
        client_series = ClientSeries.from_config(config)
        replicas, self.fetchers = create_replication(
            runtime,
            logs,
            role,
            self._cluster_config,
            broker_epoch=lambda: lifecycle.broker_epoch,
            reports_local_logs=preferred.uses_local_logs,
            auxiliary=None if self._remote is None else self._remote.auxiliary,
        )
        return BrokerServices(
            node_id=config.node_id,
            cluster_id=self._directories.cluster_id,
            runtime=runtime,
            config=config,
            metadata=metadata,
            controller=forwarding,
            lifecycle=lifecycle,
            replicas=replicas,
            preferred_read_replicas=preferred,
            fetch_sessions=FetchSessionCache(
                slots=config.max_incremental_fetch_session_cache_slots,
                random=runtime.random,
                turns=runtime.turns,
            ),
            groups=GroupCoordinator(
                config=GroupConfig.from_broker(config.get),
                log=CoordinatorPartitionWriter(replicas),
                runtime=runtime,
                partition_count=lambda: _partition_count(metadata, OFFSETS_TOPIC),
                is_named=lambda partition: _may_lead(
                    metadata, TopicPartition(OFFSETS_TOPIC, partition), config.node_id
                ),
                topics=metadata,
            ),
            producer_ids=ProducerIdManager(
                lambda request: forwarding.request(ApiKey.ALLOCATE_PRODUCER_IDS, request),
                broker_id=config.node_id,
                broker_epoch=lambda: lifecycle.broker_epoch,
                runtime=runtime,
            ),
            topic_creator=TopicCreator(forwarding),
            client_metrics=ClientMetrics(
                random=runtime.random,
                max_bytes=config.get("telemetry.max.bytes"),
                is_exporting=client_series is not None,
            ),
            client_series=client_series,
            remote=self._remote,
        )

    @property
    def state(self) -> int:
        """The state of the broker, as the number of Kafka's BrokerState."""
        if self.are_logs_open is None:
            return 1  # STARTING
        if not self.is_serving:
            return 2 if self._gate.is_closed else 6  # RECOVERY, PENDING_CONTROLLED_SHUTDOWN
        return 3  # RUNNING

    def unreadiness(self) -> str | None:
        """The reason why this broker serves no clients, one sentence; None: it does."""
        if self.are_logs_open is None:
            return "The broker waits for the metadata of the cluster."
        if not self.is_serving:
            return (
                "The broker opens its logs and joins the cluster."
                if self._gate.is_closed
                else "The broker stops."
            )
        if self.broker.lifecycle.is_fenced:
            return "The controller has fenced the broker."
        if self.broker.lifecycle.may_be_deposed:
            return (
                "No controller has answered a heartbeat for broker.session.timeout.ms: "
                "others may lead the partitions."
            )
        return None

    async def start(self) -> None:
        """Join the cluster as a broker; returns when clients are served.

        Raises CannotStart, RegistrationRefused, InconsistentMetaProperties, OSError.
        """
        broker, config = self.broker, self.broker.config
        ports = await open_sockets(self.server, config.listeners)
        self.listeners = with_bound_addresses(config.advertised_listeners, ports, socket.getfqdn)
        await broker.lifecycle.register(
            cluster_id=broker.cluster_id,
            listeners=self.listeners,
            log_dirs=sorted(self._logs.directory_ids.values()),
            previous_broker_epoch=self._logs.previous_broker_epoch,
        )
        await broker.lifecycle.caught_up()
        if self._logs.previous_broker_epoch is not None and broker.replicas.is_eligible_without_directory():
            logger.warning(
                "A log directory with complete replicas is not in log.dirs, and the controller has not taken "
                "this broker out of their ELRs: it registers again, as after an unclean shutdown, "
                "when its session has ended"
            )
            await broker.lifecycle.register_as_incomplete()
            await broker.lifecycle.caught_up()
        self._refresh_config()
        self._cluster_config.log_topic_warnings()
        opened_at = broker.metadata.last_applied_offset
        self.are_logs_open = False
        await self._runtime.run_blocking(
            partial(self._logs.load, is_assigned=broker.replicas.is_in),
            self._cluster_config.topic_config,
            broker.replicas.is_stray,
            self._runtime.now_ms(),
            pool=Pool.LOGS,
        )
        self.are_logs_open = True
        self._refresh_config()
        if self._remote is not None:
            self._remote.start()
        broker.replicas.apply_image(broker.metadata.image)
        broker.client_metrics.apply_image(broker.metadata.image)
        if broker.metadata.last_applied_offset != opened_at:
            # The configurations of topics may have changed while their logs were opened.
            broker.replicas.change_defaults(self._cluster_config.topic_config)
        broker.metadata.on_change(self._on_metadata)
        self._assignments.check_all()
        self._isr_watch = self._runtime.supervise(broker.replicas.watch_isrs, name="isr-watch")
        broker.groups.start()
        await broker.replicas.all_created()
        await broker.lifecycle.serve()
        await self._until_shown_unfenced()
        await broker.replicas.roles.idle()
        self._gate.open(self._around_requests(Dispatcher(broker, self.request_stats)))
        self.is_serving = True
        self.maintenance.start()
        if self._remote is not None:
            self._remote.on_broker_ready()

    async def _until_shown_unfenced(self) -> None:
        """Wait until this broker's own image shows it unfenced: the first response to a client must include it."""
        self._unfenced = self._runtime.loop.create_future()
        self._check_unfenced(self.broker.metadata.image)
        await self._unfenced

    def _check_unfenced(self, image: MetadataImage) -> None:
        own = image.brokers.get(self.broker.node_id)
        is_unfenced = own is not None and own.is_active and own.epoch == self.broker.lifecycle.broker_epoch
        if is_unfenced and self._unfenced is not None and not self._unfenced.done():
            self._unfenced.set_result(None)

    def _refresh_config(self) -> None:
        self.broker.config = self._cluster_config.refresh()
        self._cluster_config.log_dynamic_warnings()
        cordoned = cordoning.cordoned_paths(self.broker.config)
        if cordoned != self._logs.cordoned_dirs:
            self._logs.cordoned_dirs = cordoned
            self.broker.lifecycle.send_heartbeat_soon()
        self._logs.settings = log_settings(self.broker.config)
        self.server.settings = NetworkSettings.from_config(self.broker.config)
        self.maintenance.on_config_changed()
        self.fetchers.resize(self.broker.config.get("num.replica.fetchers"))
        if self._remote is not None:
            self._remote.config = self.broker.config

    def _on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply a committed change of the metadata; deletions before the creations that replace them."""
        if self._cluster_config.concerns(delta):
            self._refresh_config()
            self.broker.replicas.change_defaults(self._cluster_config.topic_config)
        self._cluster_config.log_altered_warnings(delta)
        self.broker.replicas.apply_delta(delta, image)
        self.broker.client_metrics.apply_delta(delta, image)
        self._assignments.check_delta(delta)
        if delta.topics_deleted:
            deleted = [(topic_id, topic.name) for topic_id, topic in delta.topics_deleted.items()]
            self.broker.groups.on_topics_deleted(deleted)
        self._check_unfenced(image)
        own = image.brokers.get(self.broker.node_id)
        lacks_directories = (
            own is not None and not own.log_dirs and self.broker.node_id in delta.brokers_changed
        )
        if lacks_directories and (image.metadata_version or 0) >= DIRECTORIES_3_7_IV2:
            self.broker.lifecycle.register_again()

    def on_dir_failure(self, path: Path, error: OSError) -> None:
        """Take the partitions of a failed log directory offline, or stop the node if it was the last one."""
        if len(self._logs.offline_dirs) == len(self.broker.config.log_dirs):
            self._on_failure(f"Log directory {path} has failed, and it was the last one: {error}.")
        else:
            self.broker.replicas.handle_log_dir_failure(path)
            self.broker.lifecycle.send_heartbeat_soon()

    def _located(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the directory of a replica's log, also if the log is being created or its directory is offline."""
        path = self.broker.replicas.directory_of(topic_partition)
        return None if path is None else self._logs.directory_ids.get(path)

    @property
    def shutdown_epoch(self) -> int:
        """The broker epoch of a clean shutdown; -1 if the next registration must not count as complete.

        The controller judges by the metadata which replicas have lost their directories
        (`ottla.controller.membership.brokers`). A replica that has not been reported there, or was about to
        move, could be lost without its knowledge.
        """
        return self.broker.lifecycle.broker_epoch if self._are_logs_placed else -1

    def _check_places(self) -> Iterator[None]:
        """Check, in steps, whether the metadata has the right directory of each replica.

        The failed directory of a replica counts as its directory: the controller may not know that the
        replica has not moved to another one.
        """
        ids, logs, hosted = self._logs.directory_ids, self._logs.logs, self.broker.replicas.hosted

        def located(at: TopicPartition) -> UUID | None:
            path = logs[at].directory.parent if at in logs else hosted.offline_directory(at)
            return None if path is None else ids.get(path)

        places = [(each.topic_id, each.topic_partition.partition) for each in hosted]
        for place in (*places, *hosted.offline_places()):
            self._are_logs_placed &= not misplaced(
                self.broker.metadata.image, [place], node_id=self.broker.node_id, located=located
            )
            yield

    def _offline_log_dirs(self) -> list[UUID]:
        """The ids of the failed directories; one that could not be opened at all was never registered."""
        ids: Mapping[Path, UUID] = self._logs.directory_ids
        return [ids[path] for path in sorted(self._logs.offline_dirs) if path in ids]

    def _cordoned_log_dirs(self) -> list[UUID] | None:
        """The ids of the cordoned directories, or None if the metadata version does not have them."""
        if not cordoning.is_known_to(self.broker.metadata.image):
            return None
        ids: Mapping[Path, UUID] = self._logs.directory_ids
        return [ids[path] for path in sorted(self._logs.cordoned_dirs) if path in ids]

    async def stop(self) -> None:
        """Leave the cluster, and finish the requests in progress."""
        self.is_serving = False
        await self.broker.lifecycle.controlled_shutdown()
        await self._stop_watching()
        await self.fetchers.stop()
        if self._remote is not None:
            await self._remote.stop()
        self.broker.groups.stop()  # answers requests that wait for a rebalance, so that the sockets need not wait
        await self.server.stop()
        await self.maintenance.stop()
        await in_turns(self._runtime, self._check_places())

    async def abort_start(self) -> None:
        """The start has failed: stop everything that runs; no client was served."""
        await self.broker.lifecycle.stop()
        await self._stop_watching()
        await self.fetchers.stop()
        if self._remote is not None:
            await self._remote.stop()
        self.broker.groups.stop()
        await self.server.stop(grace_s=0)
        await in_turns(self._runtime, self._check_places())

    async def _stop_watching(self) -> None:
        self._assignments.stop()
        if self._isr_watch is not None:
            self._isr_watch.cancel()
        await self.broker.replicas.stop()


def _may_lead(metadata: MetadataCache, topic_partition: TopicPartition, node_id: int) -> bool:
    """Whether this broker may lead the partition: the metadata says so, or does not have the partition yet."""
    image = metadata.partition(topic_partition)
    return image is None or image.leader == node_id


def _partition_count(metadata: MetadataCache, topic: str) -> int | None:
    found = metadata.topic(topic)
    return None if found is None else len(found.partitions)
