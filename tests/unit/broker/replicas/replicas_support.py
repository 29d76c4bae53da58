"""Partitions on real logs in a temporary folder, and record batches to put into them."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from uuid import UUID

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.replicas.coordinator_partition_writer import CoordinatorPartitionWriter
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.request_context import RequestContext
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import standalone_profile
from ottla.config.log_config import LogConfig, default_topic_values
from ottla.metadata.image import MetadataImage, PartitionImage
from ottla.metadata.records import MetadataRecord, PartitionRecord, TopicRecord
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import KafkaError
from ottla.protocol.framing import encode_response_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record
from ottla.protocol.types import TopicPartition
from ottla.replication.replication_quota import ReplicationQuota
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.manager.log_manager import LogManager

NODE_ID = 1
TOPIC_ID = UUID(int=0xA)
NOW_MS = 1_700_000_000_000


def batch(*values: bytes, timestamp: int = NOW_MS, key: bytes | None = None, **fields) -> bytearray:
    records = [Record(offset, timestamp, key, value, ()) for offset, value in enumerate(values)]
    return bytearray(build_batch(records, **fields))


def image(
    *, leader: int | None = NODE_ID, epoch: int = 0, partition_epoch: int | None = None, **fields
) -> PartitionImage:
    replicas = fields.pop("replicas", (NODE_ID,))
    return PartitionImage(
        replicas=replicas,
        isr=fields.pop("isr", replicas),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch if partition_epoch is None else partition_epoch,
        **fields,
    )


class Cluster:
    """A cluster in which every broker is alive and what it was, and that remembers what it is asked for."""

    max_lag_ms = 30_000
    reports_local_logs = False

    def __init__(self) -> None:
        self.clock_ms = NOW_MS
        self.proposed: list[frozenset[int]] = []
        self.reporting: list[Partition] = []
        self.flushing: list[Partition] = []
        self.lost_directories: set[UUID] = set()
        #: Broker id -> its epoch; others have none.
        self.broker_epochs: dict[int, int] = {}

    def now_ms(self) -> int:
        return self.clock_ms

    def is_isr_eligible(self, broker_id: int, broker_epoch: int | None) -> bool:
        return broker_epoch in (-1, self.broker_epochs.get(broker_id, -1))

    def is_online(self, broker_id: int, directory: UUID) -> bool:
        return directory not in self.lost_directories

    def is_alive(self, broker_id: int) -> bool:
        return True

    def is_stale(self, broker_id: int, broker_epoch: int) -> bool:
        return self.broker_epochs.get(broker_id, -1) > broker_epoch

    def propose_isr(self, partition: Partition) -> None:
        self.proposed.append(partition.leader.state.proposed_isr)

    def report_local_logs(self, partition: Partition) -> None:
        self.reporting.append(partition)

    def flush(self, partition: Partition) -> None:
        self.flushing.append(partition)


def follower_fetches(
    partition: Partition, replica: int, offset: int, *, now_ms: int = NOW_MS, **fields
) -> None:
    """The follower `replica` has everything before `offset`."""
    row = {"log_start_offset": 0, "local_log": None, "broker_epoch": -1, "session": None} | fields
    partition.as_leader().on_follower_fetch(replica, fetch_offset=offset, now_ms=now_ms, **row)


class PartitionOnDisk:
    """One partition with its log, and the keys it has signalled."""

    def __init__(self, folder: Path, **config) -> None:
        self.signals: list[object] = []
        self.cluster = Cluster()
        self.topic_partition = TopicPartition("t", 0)
        self.log = Log.open(
            folder / "t-0",
            config=LogConfig(**config),
            topic_partition=self.topic_partition,
            topic_id=TOPIC_ID,
            now_ms=NOW_MS,
            files=Files(),
            random=Random(1),
        )
        self.partition = Partition(
            self.topic_partition,
            topic_id=TOPIC_ID,
            node_id=NODE_ID,
            log=self.log,
            signal=self.signals.append,
            cluster=self.cluster,
            propose_isr=self.cluster.propose_isr,
            report_local_logs=self.cluster.report_local_logs,
            flush=self.cluster.flush,
        )

    def append(self, *values: bytes, acks: int = -1, **fields):
        return self.partition.as_leader().append_records(
            batch(*values, **fields), required_acks=acks, now_ms=NOW_MS
        )


def topic_records(name: str, topic_id: UUID, partitions: dict[int, PartitionImage]) -> list[MetadataRecord]:
    rows: list[MetadataRecord] = [TopicRecord(name=name, topic_id=topic_id)]
    for index, partition in partitions.items():
        rows.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(partition.replicas),
                isr=list(partition.isr),
                leader=-1 if partition.leader is None else partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                directories=[UUID(int=100)] * len(partition.replicas),
            )
        )
    return rows


class BrokerInFolder:
    """Logs, metadata and replicas of a broker, without network and controller; handlers are called by hand."""

    def __init__(self, folder: Path, runtime, *, files: Files | None = None) -> None:
        self.runtime = runtime
        self.config = BrokerConfig(standalone_profile())
        self.configs: dict[str, dict[str, str]] = {}
        self.metadata = MetadataCache(MetadataImage())
        self.logs = LogManager.open(
            [folder],
            files=files or Files(),
            cluster_id="a-cluster",
            node_id=NODE_ID,
            directory_id=lambda: UUID(int=100),
            random=Random(1),
            now_ms=runtime.now_ms(),
            topic_config=self.topic_config,
        )
        #: Partitions whose leadership has proposed an ISR, and those that follow.
        self.proposals: list[Partition] = []
        self.reporting: list[Partition] = []
        self.following: dict[Partition, int | None] = {}
        self.replicas = ReplicaManager(
            node_id=NODE_ID,
            propose_isr=self.proposals.append,
            report_local_logs=self.reporting.append,
            followers=self,
            leader_quota=ReplicationQuota(rate=lambda: self.leader_rate),
            move_quota=ReplicationQuota(rate=lambda: self.move_rate),
            logs=self.logs,
            metadata=self.metadata,
            runtime=runtime,
            topic_config=self.topic_config,
        )
        self.writer = CoordinatorPartitionWriter(self.replicas)
        self.fetch_sessions = FetchSessionCache(slots=1000, random=runtime.random, turns=runtime.turns)
        self.preferred_read_replicas = PreferredReadReplicas(
            None, node_id=NODE_ID, metadata=self.metadata, now_ms=runtime.now_ms
        )
        self.lifecycle = SimpleNamespace(may_be_deposed=False)
        self.long_answers = asyncio.Lock()
        self.correlation_id = 0

    leader_rate = move_rate = 2**63 - 1
    #: With `reads`, the remote tier.
    remote = None

    def follow(self, partition: Partition) -> None:
        self.following[partition] = partition.leader_id

    def unfollow(self, partition: Partition) -> None:
        self.following.pop(partition, None)

    def refresh(self, partition: Partition) -> None:
        assert partition in self.following

    def topic_config(self, name: str) -> LogConfig:
        return LogConfig.from_overrides(default_topic_values(), self.configs.get(name, {}))

    def replay(self, *records: MetadataRecord) -> None:
        delta = self.metadata.image.replay_all(records)
        self.replicas.apply_delta(delta, self.metadata.image)

    def create(self, name: str = "t", topic_id: UUID = TOPIC_ID, partitions=1, config=None) -> None:
        self.configs[name] = config or {}
        rows = partitions if isinstance(partitions, dict) else dict.fromkeys(range(partitions), image())
        self.replay(*topic_records(name, topic_id, rows))

    def raw(self, module, request, version: int, *, client_id: str = "client"):
        """The decoded response of a hot API, None, or a future of one of the two."""
        self.correlation_id += 1
        key = module.API.key
        context = RequestContext(key, version, self.correlation_id, client_id, "127.0.0.1", "PLAINTEXT")
        frame = memoryview(bytearray(encode_request(key, version, request)))
        reply = module.API.handle_raw(frame, context, self)
        if isinstance(reply, Awaitable):
            return self._decode_later(reply, key, version, self.correlation_id)
        return self._decode(reply, key, version, self.correlation_id)

    async def _decode_later(self, reply, key, version, correlation_id):
        while isinstance(reply, Awaitable):
            reply = await reply
        return self._decode(reply, key, version, correlation_id)

    def _decode(self, reply, key, version, correlation_id):
        if reply is None:
            return None
        whole = b"".join(reply)
        header = encode_response_header(key, version, correlation_id)
        assert whole.startswith(header)
        return decode_response(key, version, whole[len(header) :])

    def call(self, module, request, version: int):
        """The response of another API; or an awaitable of it."""
        context = RequestContext(module.API.key, version, 1, "client", "127.0.0.1", "PLAINTEXT")
        return module.API.handle(request, context, self)


def same_of_each(simulation, sides, act):
    """The result of both sides in one turn of the loop, which must be the same."""

    async def turn():
        found = []
        for side in sides:
            try:
                found.append(act(side))
            except KafkaError as error:
                found.append((type(error), error.message))
        await asyncio.sleep(0.001)
        return found

    general, fast = simulation.run(turn())
    assert general == fast
    return fast
