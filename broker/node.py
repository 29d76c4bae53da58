"""A node: broker and controller of one process, wired together. The only module that knows both.

start: log directories -> metadata log -> logs -> sockets -> registered -> replicas -> unfenced
stop:  leave the cluster -> coordinators -> sockets -> metadata log -> logs, with the mark of a clean stop
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self
from uuid import UUID

from broker.broker import Broker
from broker.cluster_config import ClusterConfig
from broker.config import BrokerConfig
from broker.config.definitions import BROKER_CONFIGS, CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from broker.config.listeners import Listener, with_bound_addresses
from broker.config.resources import validate_client_metrics_alter, validate_group_alter
from broker.dispatch import Dispatcher
from broker.groups.config import OFFSETS_TOPIC, GroupConfig
from broker.groups.coordinator import GroupCoordinator
from broker.lifecycle import BrokerLifecycle, RegistrationRefused
from broker.maintenance import Maintenance
from broker.metadata_cache import MetadataCache
from broker.network import NetworkServer, NetworkSettings
from broker.replicas.producer_ids import ProducerIds
from broker.replicas.replica_manager import ReplicaManager
from broker.runtime import Runtime
from broker.topic_creator import TopicCreator
from controller.node import Controller, InvalidMetadata
from controller.settings import ConfigValidators, ControllerSettings
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.metadata.image import MetadataDelta, MetadataImage
from storage import meta_properties
from storage.files import Files
from storage.kafka_uuid import to_text
from storage.log_config import validate_topic_configs
from storage.log_manager import InconsistentMetaProperties, LogDirInUse, LogManager, LogManagerSettings

logger = logging.getLogger(__name__)


class CannotStart(Exception):
    """Why a node does not start, in a sentence for an operator."""


class Node:
    """One process's share of a cluster: for now a whole cluster of one node.

    Made by `start`; every attribute is there from then on.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        controller: Controller,
        logs: LogManager,
        broker: Broker,
        cluster_config: ClusterConfig,
    ) -> None:
        self._runtime = runtime
        self._controller = controller
        self._logs = logs
        self._cluster_config = cluster_config
        self.broker = broker
        self._server = NetworkServer(runtime, Dispatcher(broker), NetworkSettings.from_config(broker.config))
        self._maintenance = Maintenance(
            runtime, logs, lambda: broker.config, after_retention=broker.replicas.notice_retention
        )
        #: What clients are told, by listener; real ports, also where 0 was asked for.
        self.listeners: tuple[Listener, ...] = ()
        #: Done when the node cannot go on: why, in a sentence for an operator. Who runs it ends the process.
        self.failure: asyncio.Future[str] = runtime.loop.create_future()
        logs.on_dir_failure = self._on_dir_failure_in_a_thread

    @classmethod
    async def start(cls, runtime: Runtime, config: BrokerConfig, *, files: Files | None = None) -> Self:
        """Start broker and controller; returns when clients are served. Raises CannotStart.

        `files`: the disk; None is the operating system's.
        """
        for warning in config.warnings():
            logger.warning("%s", warning)
        files = files or Files()
        try:
            logs = await runtime.run_blocking(_lock_logs, runtime, config, files)
        except (LogDirInUse, InconsistentMetaProperties) as error:
            raise CannotStart(str(error)) from error
        except OSError as error:
            raise CannotStart(
                f"Cannot use the log directories {', '.join(config.log_dirs)}: {error.strerror}. "
                f"log.dirs (--data-dir) must name folders that this user can write."
            ) from error
        try:
            node = await cls._assemble(runtime, config, files, logs)
            await node._join()
        except BaseException as error:
            logs.unlock()
            if isinstance(
                error, InvalidMetadata | RegistrationRefused | InconsistentMetaProperties | OSError
            ):
                raise CannotStart(str(error)) from error
            raise
        return node

    @classmethod
    async def _assemble(cls, runtime: Runtime, config: BrokerConfig, files: Files, logs: LogManager) -> Self:
        nodes: list[Self] = []

        def on_failure(error: BaseException) -> None:
            for node in nodes:
                node.on_controller_failure(error)

        try:
            controller = await runtime.run_blocking(
                _open_controller, runtime, config, files, logs, on_failure
            )
        except InvalidMetadata:
            # The next start must refuse it, too, rather than take the damage for a write that a crash has torn.
            await runtime.run_blocking(logs.keep_clean)
            raise
        await controller.start()
        metadata = MetadataCache(MetadataImage())
        cluster_config = ClusterConfig(config, metadata)
        controller.subscribe(metadata.apply)
        cluster_config.refresh()
        await runtime.run_blocking(logs.load, cluster_config.topic_config, runtime.now_ms())
        lifecycle = BrokerLifecycle(
            runtime=runtime,
            config=config,
            controller=controller,
            applied_offset=lambda: metadata.last_applied_offset,
            # One that could not be opened at all was never registered.
            offline_log_dirs=lambda: [
                logs.directory_ids[path] for path in sorted(logs.offline_dirs) if path in logs.directory_ids
            ],
        )
        replicas = ReplicaManager(
            node_id=config.node_id,
            logs=logs,
            metadata=metadata,
            runtime=runtime,
            topic_config=cluster_config.topic_config,
            fetch_session_slots=config.max_incremental_fetch_session_cache_slots,
            fetch_max_bytes=config.fetch_max_bytes,
        )
        broker = Broker(
            node_id=config.node_id,
            cluster_id=logs.cluster_id,
            runtime=runtime,
            config=cluster_config.current,
            metadata=metadata,
            controller=controller,
            lifecycle=lifecycle,
            replicas=replicas,
            groups=GroupCoordinator(
                config=GroupConfig.from_broker(config.get),
                log=replicas,
                runtime=runtime,
                partition_count=lambda: _partition_count(metadata, OFFSETS_TOPIC),
            ),
            producer_ids=ProducerIds(
                lambda request: controller.request(ApiKey.ALLOCATE_PRODUCER_IDS, request),
                broker_id=config.node_id,
                broker_epoch=lambda: lifecycle.broker_epoch,
                runtime=runtime,
            ),
            topic_creator=TopicCreator(controller),
        )
        node = cls(
            runtime=runtime,
            controller=controller,
            logs=logs,
            broker=broker,
            cluster_config=cluster_config,
        )
        nodes.append(node)
        return node

    async def _join(self) -> None:
        """Open the sockets, register, host what the metadata says, and be unfenced."""
        broker, config = self.broker, self.broker.config
        ports = {}
        for listener in config.listeners:
            try:
                listening = await self._server.listen(listener.name, listener.host or None, listener.port)
            except OSError as error:
                raise CannotStart(f"Cannot listen at {listener}: {error.strerror or error}.") from error
            ports[listener.name] = listening.port
        self.listeners = with_bound_addresses(config.advertised_listeners, ports, socket.getfqdn())
        await broker.lifecycle.register(
            cluster_id=broker.cluster_id,
            listeners=self.listeners,
            log_dirs=sorted(self._logs.directory_ids.values()),
            previous_broker_epoch=self._logs.previous_broker_epoch,
        )
        broker.replicas.apply_image(broker.metadata.image)
        broker.metadata.on_change(self._on_metadata)
        broker.groups.start()
        await broker.lifecycle.serve()
        self._maintenance.start()

    def _on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow what the controller has committed; deletions before what takes their place."""
        if self._cluster_config.concerns(delta):
            self.broker.config = self._cluster_config.refresh()
            self._server.settings = NetworkSettings.from_config(self.broker.config)
            self.broker.replicas.change_defaults(self._cluster_config.topic_config)
        self.broker.replicas.apply_delta(delta, image)
        if delta.topics_deleted:
            deleted = [(topic_id, topic.name) for topic_id, topic in delta.topics_deleted.items()]
            self.broker.groups.on_topics_deleted(deleted)

    def _on_dir_failure_in_a_thread(self, path: Path, error: OSError) -> None:
        self._runtime.loop.call_soon_threadsafe(self._on_dir_failure, path, error)

    def _on_dir_failure(self, path: Path, error: OSError) -> None:
        """A log directory has failed: its partitions are offline, or the node is."""
        config = self.broker.config
        if path == Path(config.metadata_log_dir):
            self._fail(f"Log directory {path}, which holds the metadata log, has failed: {error}.")
        elif len(self._logs.offline_dirs) == len(config.log_dirs):
            self._fail(f"Log directory {path} has failed, and it was the last one: {error}.")
        else:
            self.broker.replicas.take_offline(path)
            self.broker.lifecycle.beat_soon()

    def on_controller_failure(self, error: BaseException) -> None:
        """The metadata log takes no more records."""
        self._fail(f"The controller has failed: {error}.")

    def _fail(self, why: str) -> None:
        if not self.failure.done():
            logger.critical("%s The node stops.", why)
            self.failure.set_result(why)

    def ready_line(self) -> str:
        """One line for people and scripts: where to connect, which cluster, where its data is."""
        told = self.listeners[0]
        data = ",".join(str(Path(path).resolve()) for path in self.broker.config.log_dirs)
        address = f"{told.host}:{told.port}"
        return (
            f"READY bootstrap={address} cluster.id={self.broker.cluster_id} node.id={self.broker.node_id} "
            f"data={data} connect: bootstrap.servers={address} in any Kafka client; stop: Ctrl-C"
        )

    async def stop(self) -> None:
        """Leave the cluster, answer what was begun, and leave logs that need no recovery."""
        await self.broker.lifecycle.leave()
        self.broker.groups.stop()  # answers who waits for a rebalance, so that the sockets need not wait for them
        await self._server.stop()
        await self._maintenance.stop()
        # Before the folders are marked as closed, and unlocked: the mark speaks for the metadata log, too.
        try:
            await self._controller.stop()
        except (KafkaError, OSError) as error:
            logger.error("the metadata log was not closed: %s", error)
            self._logs.take_offline(Path(self.broker.config.metadata_log_dir), OSError(str(error)))
        epoch = self.broker.lifecycle.broker_epoch
        await self._runtime.run_blocking(
            lambda: self._logs.shutdown(self._runtime.now_ms(), broker_epoch=epoch)
        )


def _lock_logs(runtime: Runtime, config: BrokerConfig, files: Files) -> LogManager:
    """The log directories, ours from now on; new ones join the cluster of the others, or a new one."""

    def new_id() -> UUID:
        return UUID(int=runtime.random.getrandbits(128), version=4)

    paths = [Path(path) for path in config.log_dirs]
    found = [properties for path in paths if (properties := meta_properties.read(path, files))]
    return LogManager.lock(
        paths,
        files=files,
        cluster_id=found[0].cluster_id if found else to_text(new_id()),
        node_id=config.node_id,
        directory_id=new_id,
        random=runtime.random,
        now_ms=runtime.now_ms(),
        run_parallel=partial(
            runtime.run_parallel, threads_per_group=config.get("num.recovery.threads.per.data.dir")
        ),
        settings=LogManagerSettings(
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
            max_transaction_timeout_ms=config.transaction_max_timeout_ms,
        ),
    )


def _open_controller(
    runtime: Runtime,
    config: BrokerConfig,
    files: Files,
    logs: LogManager,
    on_failure: Callable[[BaseException], None],
) -> Controller:
    log_dir = Path(config.metadata_log_dir)
    if (error := logs.offline_dirs.get(log_dir)) is not None:
        raise error
    return Controller.open(
        log_dir,
        settings=ControllerSettings(
            cluster_id=logs.cluster_id,
            node_id=config.node_id,
            directory_id=logs.directory_ids[log_dir],
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            delete_topic_enable=config.delete_topic_enable,
            broker_session_timeout_ms=config.broker_session_timeout_ms,
            static_configs=config.static,
        ),
        files=files,
        random=runtime.random,
        now_ms=runtime.now_ms,
        monotonic=runtime.monotonic,
        run_blocking=runtime.run_blocking,
        call_later=runtime.call_later,
        is_clean=logs.was_clean,
        on_failure=on_failure,
        validators=ConfigValidators(
            topic=lambda _, configs, existing: validate_topic_configs(
                configs, defaults=config.topic_defaults, existing=existing
            ),
            group=lambda _, configs, __: validate_group_alter(config, configs),
            client_metrics=lambda name, configs, _: validate_client_metrics_alter(name, configs),
            broker_keys=BROKER_CONFIGS,
            group_keys=GROUP_CONFIGS,
            client_metrics_keys=CLIENT_METRICS_CONFIGS,
        ),
    )


def _partition_count(metadata: MetadataCache, topic: str) -> int | None:
    found = metadata.topic(topic)
    return None if found is None else len(found.partitions)
