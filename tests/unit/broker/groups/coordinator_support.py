"""The coordinator on virtual time, over a log in memory."""

import asyncio
from dataclasses import dataclass, field
from itertools import accumulate
from uuid import UUID

from ottla.broker.groups.config import OFFSETS_TOPIC, GroupConfig
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.shard import partition_for
from ottla.protocol.coordinator.group_records import OffsetCommitValue
from ottla.protocol.coordinator.record_codec import decode
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    MessageTooLarge,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.records.batch import patched, read_header
from ottla.protocol.records.record import records
from ottla.protocol.steps import at_once
from ottla.protocol.types import ZERO_UUID, TopicPartition
from ottla.runtime.simulated import SimulatedRuntime

E = ErrorCode
COUNT = 4
#: The id of each topic, unless a test replaces it.
TOPIC_ID = UUID(int=1)
PARTITION = partition_for("g", COUNT)


@dataclass
class Appended:
    first_offset: int
    last_offset: int


@dataclass
class KnownTopic:
    topic_id: UUID


@dataclass
class KnownTopics:
    """Every topic has the id 1, unless the test says otherwise."""

    by_name: dict[str, UUID] = field(default_factory=lambda: {"t": UUID(int=1)})
    ids: set[UUID] = field(default_factory=lambda: {UUID(int=1)})

    def topic(self, name):
        return KnownTopic(self.by_name[name]) if name in self.by_name else None

    def topic_by_id(self, topic_id):
        return KnownTopic(topic_id) if topic_id in self.ids else None

    def replace(self, name, topic_id):
        """The topic is deleted, and created again."""
        self.ids.remove(self.by_name[name])
        self.by_name[name] = topic_id
        self.ids.add(topic_id)


@dataclass
class MemoryReplica:
    """The log of one of them."""

    batches: list[bytes]
    log_start_offset: int = 0

    @property
    def log_end_offset(self):
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    def epoch_for_offset(self, offset):
        return next(
            h.partition_leader_epoch for h in map(read_header, self.batches) if h.next_offset > offset
        )

    def read_for_replay(self, offset, *, max_bytes):
        found = [batch for batch in self.batches if read_header(batch).next_offset > offset]
        sizes = accumulate(map(len, found))
        return b"".join(
            batch for batch, size in zip(found, sizes, strict=True) if size <= max(max_bytes, len(found[0]))
        )


def offset_value(offset: CommittedOffset) -> OffsetCommitValue:
    """The record value of a committed offset."""
    return OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=-1 if offset.expire_timestamp_ms is None else offset.expire_timestamp_ms,
        topic_id=ZERO_UUID if offset.topic_id is None else UUID(int=offset.topic_id),
    )


def elect(listener, partition, leader_epoch):
    listener.on_election(TopicPartition(OFFSETS_TOPIC, partition), leader_epoch)


def resign(listener, partition, leader_epoch):
    listener.on_resignation(TopicPartition(OFFSETS_TOPIC, partition), leader_epoch)


@dataclass
class MemoryLog:
    """The partitions of the offsets topic; replicas follow at once, unless they are held."""

    batches: dict[int, list[bytes]] = field(default_factory=dict)
    replicas: dict[int, MemoryReplica] = field(default_factory=dict)
    refuse: KafkaError | None = None
    refuse_commitment: KafkaError | None = None
    max_batch_bytes: int = 2**20
    is_held: bool = False
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    high_watermarks: dict[int, int] = field(default_factory=dict)
    listener: GroupCoordinator | None = None

    def add_leadership_listener(self, listener):
        self.listener = listener
        for partition in range(COUNT):
            elect(listener, partition, 0)

    def append_as_coordinator(self, topic_partition, batch):
        if self.refuse is not None:
            raise self.refuse
        if len(batch) > self.max_batch_bytes:
            raise MessageTooLarge(f"{len(batch)} bytes")
        end = self.end(topic_partition.partition)
        written = b"".join(patched(memoryview(batch), base_offset=end, leader_epoch=0))
        self.batches.setdefault(topic_partition.partition, []).append(written)
        return Appended(end, read_header(written).last_offset)

    def end(self, partition):
        last = self.batches.get(partition, [])[-1:]
        return read_header(last[0]).next_offset if last else 0

    def committed(self, topic_partition, end_offset, *, timeout_ms):
        partition = topic_partition.partition
        assert end_offset <= self.end(partition)
        assert timeout_ms == 5_000
        if self.refuse_commitment is not None:
            raise self.refuse_commitment
        if not self.is_held:
            self.high_watermarks[partition] = self.end(partition)
        if end_offset <= self.high_watermarks.get(partition, 0):
            return None
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def settle(self, error=None):
        waiting, self.waiting = self.waiting, []
        if error is None:
            self.high_watermarks = {partition: self.end(partition) for partition in self.batches}
        for future in waiting:
            future.set_result(None) if error is None else future.set_exception(error)

    def replica_log(self, topic_partition):
        partition = topic_partition.partition
        return self.replicas.setdefault(partition, MemoryReplica(self.batches.setdefault(partition, [])))

    def kept(self, partition):
        """The records that compaction would keep, as (key, value)."""
        last = {}
        for batch in self.batches.get(partition, []):
            for record in records(batch):
                decoded = decode(record.key, record.value)
                last[record.key] = decoded
        return [record for record in last.values() if record.value is not None]


class World:
    def __init__(self, runtime: SimulatedRuntime, log: MemoryLog, **config: int) -> None:
        self.log = log
        #: Partitions whose leader is this broker by the metadata.
        self.named: set[int] = set()
        self.topics = KnownTopics()
        self.groups = GroupCoordinator(
            config=GroupConfig(initial_rebalance_delay_ms=0, **config),
            log=log,
            runtime=runtime,
            partition_count=lambda: COUNT,
            is_named=lambda partition: partition in self.named,
            topics=self.topics,
        )

    async def join(
        self, member_id="", *, version=3, instance=None, session=10_000, client="c"
    ) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")],
        )
        return await here(self.groups.join(request, version=version, client_id=client, client_host="/h"))

    def sync_request(self, member_id, assignments=None, *, generation=1):
        rows = [
            SyncGroupRequestAssignment(member_id=to, assignment=a) for to, a in (assignments or {}).items()
        ]
        request = SyncGroupRequest(
            group_id="g", generation_id=generation, member_id=member_id, assignments=rows
        )
        return self.groups.sync(request)

    async def member(self) -> str:
        """The only member of a stable group."""
        joined = await self.join()
        synced = await here(self.sync_request(joined.member_id, {joined.member_id: b"all"}))
        assert synced.assignment == b"all"
        return joined.member_id

    def heartbeat(self, member_id, *, generation=1) -> ErrorCode:
        request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
        return E(self.groups.heartbeat(request).error_code)

    def commit(self, offset, *, member_id="", generation=-1, group="g", topic="t", topic_id=TOPIC_ID):
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
                )
            ],
        )
        return self.groups.commit_offsets(request, version=9)

    async def committed(self, offset, **fields) -> ErrorCode:
        response = await here(self.commit(offset, **fields))
        return E(response.topics[0].partitions[0].error_code)

    def fetch(self, group="g", *, topics=None):
        asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
        return at_once(
            self.groups.fetch_offsets(asked, require_stable=True, complete=lambda response: iter(()))
        )

    async def fetched(self, group="g", *, topics=None):
        response = await here(self.fetch(group, topics=topics))
        if response.error_code:
            return E(response.error_code)
        return [row.committed_offset for topic in response.topics for row in topic.partitions]


async def here(answer):
    return await answer if isinstance(answer, asyncio.Future) else answer


def simulate(story, log=None, **config):
    """Run a story with a coordinator that has loaded its partitions."""
    runtime = SimulatedRuntime(seed=1)

    async def run():
        world = World(runtime, log or MemoryLog(), **config)
        world.groups.start()
        await asyncio.sleep(0.001)
        await story(world)
        world.groups.stop()
        # Nothing goes on after the end.
        await asyncio.sleep(100_000)

    with runtime.simulation:
        runtime.run(run())


def append(log, batch):
    log.append_as_coordinator(TopicPartition("__consumer_offsets", PARTITION), batch)


def another_group() -> str:
    return next(name for name in map(str, range(99)) if partition_for(name, COUNT) == PARTITION)
