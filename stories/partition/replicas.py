"""Brokers' replicas without controllers: logs, partitions, handlers and fetchers are the real ones,
a test is the controller.

    cluster = ReplicaCluster(simulation, [1, 2])
    cluster.create("orders", {0: [1, 2]})
    cluster.elect(TopicPartition("orders", 0), 1)          # all brokers that run replay it

Disks are in memory (`faulty_files`). Requests are answered by the handlers of `ottla.broker.api`:
`answer` calls one by hand, `listen` serves them on the simulation's network.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import UUID

from ottla.broker.api import api
from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.network import Buffers, Connection, NetworkServer, Reply
from ottla.broker.network.client import Address
from ottla.broker.replicas.following.leader_endpoint import FetcherSettings
from ottla.broker.replicas.following.replica_fetcher_manager import ReplicaFetcherManager
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.request_context import RequestContext
from ottla.broker.telemetry.client_metrics import ClientMetrics
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import standalone_profile
from ottla.config.log_config import LogConfig, default_topic_values
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.framing import encode_response_header
from ottla.protocol.types import TopicPartition
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.replication.replica_selector import ReplicaSelector
from ottla.replication.replication_quota import ReplicationQuota
from ottla.runtime.simulated import SimulatedRuntime, Simulation
from ottla.storage.manager.log_manager import LogManager
from ottla.stories.partition.faulty_files import FaultyFiles, Loss
from ottla.stories.partition.remote_tier import BrokerTier, RemoteTier

LISTENER = "PLAINTEXT"
PORT = 9092
TOPIC_ID = UUID(int=0xA)
DATA = Path("/data")
_UNLIMITED = 2**63 - 1


class NoController:
    """The test is the controller; no channel leads to it."""

    controller_versions = None


class ReplicaBroker:
    """The part of a broker that handlers of `ottla.broker.api` need to serve replicas. Its disks outlive its
    processes.
    """

    def __init__(
        self,
        cluster: "ReplicaCluster",
        node_id: int,
        *,
        rack: str | None = None,
        log_dirs: Sequence[Path] = (DATA,),
        fetching: Mapping[str, Any] | None = None,
    ) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.rack = rack
        self.host = f"broker{node_id}"
        self.port = PORT
        #: Changes its responses in flight; for tests of how followers handle that.
        self.tamper: Callable[[bytes], bytes] | None = None
        self.log_dirs = log_dirs
        self.epoch = 0
        self.is_up = False
        #: While it is not, its image stays as it is.
        self.replays = True
        self.replayed = 0
        #: Partitions whose leader is to report local logs to the controller.
        self.reporting: list[Partition] = []
        self.report: Callable[[Partition], None] = self.reporting.append
        self.selector = cluster.selector
        self.leader_rate = self.follower_rate = self.move_rate = _UNLIMITED
        self.fetching = dict(fetching or {})
        self.files = self.new_disk()
        self.runtime: SimulatedRuntime
        self.logs: LogManager
        self.metadata: MetadataCache
        self.replicas: ReplicaManager
        self.fetchers: ReplicaFetcherManager
        self.cluster_id = "a-cluster"
        self.config = BrokerConfig(standalone_profile())
        self.long_answers = asyncio.Lock()
        self.controller = NoController()
        #: With `reads`, what consumers read from a remote tier; None: they read local segments only.
        self.remote: Any = None
        self._server: NetworkServer | None = None
        self._correlation_id = 0

    # -- life ------------------------------------------------------------------------------------------

    def new_disk(self) -> FaultyFiles:
        """A disk with empty log directories."""
        files = FaultyFiles(random=Random(self.node_id))
        for path in self.log_dirs:
            files.make_dir(path)
            for parent in path.parents:
                files.fsync_dir(parent)
        return files

    def start(self) -> None:
        """A new process: it knows all metadata there is, and begins to follow."""
        self.runtime = runtime = self.cluster.simulation.runtime(self.host)
        self.logs = LogManager.open(
            self.log_dirs,
            files=self.files,
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            directory_id=lambda: UUID(int=runtime.random.getrandbits(128)),
            random=runtime.random,
            now_ms=runtime.now_ms(),
            topic_config=self.cluster.topic_config,
        )
        self.metadata = MetadataCache(MetadataImage())
        tier: BrokerTier | None = None
        if self.cluster.tier is not None:
            tier = self.cluster.tier.start(self.node_id, runtime, lambda: self.files)
        self.fetchers = ReplicaFetcherManager(
            runtime=runtime,
            settings=FetcherSettings(node_id=self.node_id, **self.fetching),
            fetcher_count=1,
            address_of=self._address_of,
            broker_epoch=lambda: self.epoch,
            quota=ReplicationQuota(rate=lambda: self.follower_rate),
            prefers_last_tiered=lambda: self.cluster.prefers_last_tiered,
            auxiliary=self.cluster.auxiliary(self) if tier is None else tier.auxiliary,
        )
        self.preferred_read_replicas = PreferredReadReplicas(
            self.selector, node_id=self.node_id, metadata=self.metadata, now_ms=runtime.now_ms
        )
        self.replicas = ReplicaManager(
            node_id=self.node_id,
            logs=self.logs,
            metadata=self.metadata,
            runtime=runtime,
            topic_config=self.cluster.topic_config,
            propose_isr=self._propose,
            report_local_logs=lambda partition: self.report(partition),
            followers=self.fetchers,
            leader_quota=ReplicationQuota(rate=lambda: self.leader_rate),
            move_quota=ReplicationQuota(rate=lambda: self.move_rate),
            max_lag_ms=self.cluster.max_lag_ms,
            reports_local_logs=self.preferred_read_replicas.uses_local_logs,
        )
        self.fetch_sessions = FetchSessionCache(slots=1000, random=runtime.random, turns=runtime.turns)
        self.client_metrics = ClientMetrics(random=runtime.random, max_bytes=0, is_exporting=False)
        if tier is not None:
            self.replicas.tier = tier
        self.is_up = True
        self.replayed = 0
        self.epoch = self.cluster.register(self)
        for records in self.cluster.batches:
            self.metadata.image.replay_all(records)
        self.replayed = len(self.cluster.batches)
        self.replicas.apply_image(self.metadata.image)
        self.metadata.on_change(self.replicas.apply_delta)

    def replay(self) -> None:
        """Replay the records that were committed since the last replay."""
        while self.replayed < len(self.cluster.batches):
            records = self.cluster.batches[self.replayed]
            self.replayed += 1
            self.metadata.on_commit(records, self.replayed - 1, self.replayed)

    async def listen(self) -> None:
        """Serve on the network."""
        dispatch = Dispatcher(cast(Any, self))

        def answer(frame: memoryview, connection: Connection) -> Reply:
            reply = dispatch(frame, connection)
            if isinstance(reply, list):
                return self._tampered(reply)
            return None if reply is None else self._tampered_later(reply)

        self._server = NetworkServer(self.runtime, answer)
        await self._server.listen(LISTENER, self.host, self.port)

    def _tampered(self, reply: Buffers) -> Buffers:
        return reply if self.tamper is None else [self.tamper(b"".join(reply))]

    async def _tampered_later(self, reply: Awaitable[Any]) -> Buffers | None:
        buffers: Buffers | None = await reply
        return None if buffers is None else self._tampered(buffers)

    async def stop(self) -> None:
        """A clean stop, as far as the network is concerned."""
        self.is_up = False
        if self.cluster.tier is not None:
            await self.cluster.tier.stop(self.node_id)
        await self.fetchers.stop()
        if self._server is not None:
            await self._server.stop(grace_s=0)
        if self.cluster.tier is not None:
            await self.runtime.close()

    async def crash(self, loss: Loss) -> None:
        """The process ends; the disk keeps what `loss` leaves."""
        self.files = self.files.after_crash(self.runtime.random, loss)
        await self.stop()

    def checkpoint(self) -> None:
        """Checkpoint the high watermarks, as maintenance does every five seconds."""
        for job in self.logs.checkpoints.high_watermark_jobs():
            job.complete()

    def _address_of(self, broker_id: int) -> Address | None:
        endpoint = self.metadata.endpoint(broker_id, LISTENER)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _propose(self, partition: Partition) -> None:
        self.cluster.proposals.append((self, partition))

    # -- work ------------------------------------------------------------------------------------------

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return the broker's replica of a partition."""
        return self.replicas.partition(topic_partition)

    def answer(self, key: int, message: Any, version: int) -> Any:
        """The response to a request, or an awaitable of it; hot APIs are encoded and decoded on the way."""
        self._correlation_id += 1
        context = RequestContext(key, version, self._correlation_id, "client", "127.0.0.1", LISTENER)
        served = api(key)
        if served.handle is not None:
            return served.handle(message, context, cast(Any, self))
        assert served.handle_raw is not None
        reply = served.handle_raw(
            memoryview(bytearray(encode_request(key, version, message))), context, cast(Any, self)
        )
        if isinstance(reply, list):
            return _decoded(reply, key, version, self._correlation_id)
        assert reply is not None
        return _decode_later(reply, key, version, self._correlation_id)


async def _decode_later(reply: Any, key: int, version: int, correlation_id: int) -> Any:
    return _decoded(await reply, key, version, correlation_id)


def _decoded(reply: Iterable[bytes | memoryview], key: int, version: int, correlation_id: int) -> Any:
    whole = b"".join(reply)
    header = encode_response_header(ApiKey(key), version, correlation_id)
    assert whole.startswith(header)
    return decode_response(key, version, whole[len(header) :])


class ReplicaCluster:
    """Brokers, and the metadata log that assigns partitions to them; ISRs are granted when `grant` is called."""

    max_lag_ms = 30_000
    #: follower.fetch.last.tiered.offset.enable
    prefers_last_tiered = False

    def __init__(
        self,
        simulation: Simulation,
        broker_ids: Iterable[int],
        *,
        racks: Mapping[int, str] | None = None,
        log_dirs: Sequence[Path] = (DATA,),
        fetching: Mapping[str, Any] | None = None,
        configs: Mapping[str, str] | None = None,
        tier: RemoteTier | None = None,
        selector: ReplicaSelector | None = None,
    ) -> None:
        """`configs`: of all topics; `tier`: the remote tier of all brokers, `selector`: their replica selector."""
        self.simulation = simulation
        self.selector = selector
        self.tier = tier
        self.batches: list[list[MetadataRecord]] = []
        self.configs = dict(configs or {})
        #: What leaders have asked the controller for.
        self.proposals: list[tuple[ReplicaBroker, Partition]] = []
        self.brokers = {
            id: ReplicaBroker(self, id, rack=(racks or {}).get(id), log_dirs=log_dirs, fetching=fetching)
            for id in broker_ids
        }
        self.image = MetadataImage()
        self.commit(FeatureLevelRecord(name="metadata.version", feature_level=25))
        for broker in self.brokers.values():
            broker.start()

    def auxiliary(self, broker: ReplicaBroker) -> AuxiliaryStates | None:
        """The remote tier as the broker's followers use it; None: there is none."""
        return None

    def topic_config(self, name: str) -> LogConfig:
        """Return the configuration of a topic: the same for all."""
        return LogConfig.from_overrides(default_topic_values(), self.configs)

    def commit(self, *records: MetadataRecord) -> None:
        """A batch of the metadata log; brokers replay it unless they are down or cut off."""
        self.batches.append(list(records))
        self.image.replay_all(records)
        for broker in self.brokers.values():
            if broker.is_up and broker.replays:
                broker.replay()

    def register(self, broker: ReplicaBroker) -> int:
        """A new incarnation; its epoch."""
        epoch = len(self.batches)
        self.batches.append([])  # the broker itself replays it with everything else
        record = RegisterBrokerRecord(
            broker_id=broker.node_id,
            broker_epoch=epoch,
            incarnation_id=UUID(int=epoch + 1),
            endpoints=[
                BrokerEndpoint(name=LISTENER, host=broker.host, port=broker.port, security_protocol=0)
            ],
            rack=broker.rack,
            fenced=False,
            log_dirs=sorted(broker.logs.directory_ids.values()),
        )
        self.batches[-1].append(record)
        self.image.replay_all([record])
        for other in self.brokers.values():
            if other is not broker and other.is_up and other.replays:
                other.replay()
        return epoch

    def create(
        self, topic: str, partitions: Mapping[int, Sequence[int]], *, topic_id: UUID = TOPIC_ID
    ) -> None:
        """A topic whose partitions have these replicas, and no leader yet."""
        rows: list[MetadataRecord] = [
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=list(replicas),
                leader=-1,
                leader_epoch=-1,
                partition_epoch=0,
                directories=[self.directory(replica) for replica in replicas],
            )
            for index, replicas in partitions.items()
        ]
        self.commit(TopicRecord(name=topic, topic_id=topic_id), *rows)

    def directory(self, broker_id: int) -> UUID:
        """Return the id of the broker's first log directory."""
        return min(self.brokers[broker_id].logs.directory_ids.values())

    def change(self, topic_partition: TopicPartition, **fields: Any) -> None:
        """A PartitionChangeRecord with these fields."""
        topic = self.image.topics_by_name[topic_partition.topic]
        self.commit(
            PartitionChangeRecord(partition_id=topic_partition.partition, topic_id=topic.topic_id, **fields)
        )

    def fence(self, broker_id: int) -> None:
        """The broker's requests to the controller are lost; the test changes leaders and ISRs."""
        broker = self.brokers[broker_id]
        self.commit(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=1))

    def elect(self, topic_partition: TopicPartition, leader: int, isr: Iterable[int] | None = None) -> int:
        """A new leader epoch; which."""
        self.change(topic_partition, leader=leader, isr=None if isr is None else sorted(isr))
        topic = self.image.topics_by_name[topic_partition.topic]
        return topic.partitions[topic_partition.partition].leader_epoch

    def grant(self) -> list[tuple[ReplicaBroker, frozenset[int]]]:
        """Grant the ISRs that the leaders have proposed; returns them by leader."""
        granted = []
        proposals, self.proposals = self.proposals, []
        for broker, partition in proposals:
            if partition.leader is not None and partition.leader.state.proposed_isr is not None:
                isr = partition.leader.state.proposed_isr
                granted.append((broker, isr))
                self.change(partition.topic_partition, isr=sorted(isr))
        return granted


async def turns(count: int = 50) -> None:
    """Run all brokers until nothing is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
