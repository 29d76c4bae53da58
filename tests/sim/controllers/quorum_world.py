"""Controllers of one quorum on virtual time: their disks, the messages between them, and what may happen to both.

Messages are delivered in memory after a latency that the seed draws, so that they overtake each other; a way that is
cut loses them. A crash takes of each disk what was not flushed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from ottla.controller import activation
from ottla.controller.controller import Controller
from ottla.controller.metadata_log import snapshots
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.metadata_log.transactions import TransactionFilter
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.quorum.snapshot_generator import SnapshotGenerator
from ottla.controller.raft.types import (
    Address,
    LeaderAndEpoch,
    OffsetAndEpoch,
    RaftSettings,
    ReplicaKey,
    VersionRange,
)
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.controller.settings import ControllerSettings
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, NotController
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.runtime.simulated import SimulatedRuntime, Simulation
from ottla.stories.partition.faulty_files import FaultyFiles, Loss
from tests.harness.waiting import until

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAw"
LOG_DIR = Path("/disk")
LISTENER = "CONTROLLER"
#: Small, so that snapshots are taken, fetched, and take the place of the log.
LOG_SETTINGS = MetadataLogSettings(
    log_segment_bytes=10_000, max_record_bytes_between_snapshots=5_000, max_retention_bytes=20_000
)


class Image:
    """A listener that keeps the image, as a broker does. An AssertionError of a listener is found by the world."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.end_offset = 0
        self.leaders: list[LeaderAndEpoch] = []

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        assert base_offset == self.end_offset < end_offset, (base_offset, self.end_offset, end_offset)
        self.image.replay_all(records)
        self.end_offset = end_offset

    def on_snapshot(self, chunks: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        assert snapshot.offset >= self.end_offset, (snapshot, self.end_offset)
        self.image = MetadataImage()
        for records in chunks:
            self.image.replay_all(records)
        self.end_offset = snapshot.offset

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        assert not self.leaders or leader.epoch >= self.leaders[-1].epoch
        self.leaders.append(leader)


class Node:
    """One machine: what is on its disk outlives its processes."""

    def __init__(self, world: "World", node_id: int, *, is_voter: bool) -> None:
        self.world = world
        self.node_id = node_id
        self.is_voter = is_voter
        self.directory_id = UUID(int=1_000 + node_id)
        self.files = FaultyFiles(random=Random(node_id))
        self.is_up = False
        self.runtime: SimulatedRuntime
        self.quorum: RaftClient
        self.controller: Controller | None = None
        self.follower: Image

    @property
    def settings(self) -> ControllerSettings:
        return ControllerSettings(cluster_id=CLUSTER_ID, node_id=self.node_id, hosts_broker=False)

    def format(self) -> None:
        """Format the directory once, as an operator does."""
        directory = LOG_DIR / "__cluster_metadata-0"
        self.files.make_dir(directory)
        if self.is_voter:
            activation.format_directory(directory, self.files, now_ms=0)
            if self.world.is_dynamic:
                snapshots.write_voters(directory, self.world.voters.to_record(), self.files, now_ms=0)
        self.files = self.files.after_crash(self.world.random, Loss.NOTHING)

    async def start(self) -> None:
        self.runtime = runtime = self.world.simulation.runtime(f"node{self.node_id}")
        raft_settings = self.world.raft_settings(self)
        self.quorum = quorum = RaftClient.open(
            LOG_DIR,
            settings=raft_settings,
            files=self.files,
            runtime=runtime,
            send=lambda to, message, timeout_ms: self.world.send(self, to, message, timeout_ms),
            on_failure=self.world.failures.append,
            log_settings=LOG_SETTINGS,
        )
        self.controller = None
        self.follower = follower = Image()
        quorum.subscribe(follower)
        if self.is_voter:
            self.controller = Controller(
                quorum,
                committed_image=lambda: follower.image,
                log_dir=LOG_DIR,
                settings=self.settings,
                files=self.files,
                runtime=runtime,
            )
        quorum.subscribe(
            SnapshotGenerator(quorum, image=lambda: follower.image, settings=LOG_SETTINGS, runtime=runtime)
        )
        quorum.subscribe(self.world.oracle(self))
        self.is_up = True
        await quorum.start()

    def crash(self, loss: Loss) -> None:
        """The process dies at once; of the disk stays what a crash leaves."""
        self.is_up = False
        self.files = self.files.after_crash(self.world.random, loss)
        if self.controller is not None:
            self.controller.stop()
        quorum, driver = self.quorum, self.quorum._driver
        for task in (driver._worker, quorum._maintenance.snapshot_task, *driver._sending):
            if task is not None:
                task.cancel()
        driver._end()

    async def stop(self) -> None:
        self.is_up = False
        if self.controller is not None:
            self.controller.stop()
        await self.quorum.stop()


class Oracle:
    """Holds a new leader against what was answered as committed before it led."""

    def __init__(self, world: "World", node: Node) -> None:
        self.world = world
        self.node = node

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        pass

    def on_snapshot(self, chunks: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        pass

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        if leader.leader_id == self.node.node_id:
            self.world.leaders.setdefault(leader.epoch, leader.leader_id)
            assert self.world.leaders[leader.epoch] == leader.leader_id, "two leaders in an epoch"
            missing = self.world.acknowledged - self.node.controller.image.topics_by_name.keys()
            assert not missing, (leader, missing)


class Complaints(logging.Handler):
    """Turns exceptions of listeners, which the driver only logs, into failures of the test."""

    def __init__(self, failures: list[BaseException]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures
        self._logger = logging.getLogger("ottla.controller.quorum.listeners")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        assert record.exc_info is not None
        self._failures.append(record.exc_info[1])

    def end(self) -> None:
        self._logger.removeHandler(self)


class World:
    """A quorum, its observers, and a client that creates topics through the leader."""

    def __init__(self, *, seed: int, voters: int = 3, observers: int = 0, is_dynamic: bool = False) -> None:
        self.simulation = Simulation(seed=seed)
        self.random = Random(seed)
        self.is_dynamic = is_dynamic
        self.nodes = {id: Node(self, id, is_voter=id <= voters) for id in range(1, voters + observers + 1)}
        self.cut: set[tuple[int, int]] = set()
        self.failures: list[BaseException] = []
        #: Topics whose creation was answered well.
        self.acknowledged: set[str] = set()
        self.leaders: dict[int, int] = {}
        self.broker_epoch = -1
        self.refusals = 0
        for node in self.nodes.values():
            node.format()
        self._complaints = Complaints(self.failures)

    @property
    def addresses(self) -> dict[int, Address]:
        return {
            node.node_id: Address(f"node{node.node_id}", 9093)
            for node in self.nodes.values()
            if node.is_voter
        }

    @property
    def voters(self) -> VoterSet:
        return VoterSet(
            {
                id: Voter(
                    ReplicaKey(id, self.nodes[id].directory_id), {LISTENER: address}, VersionRange(0, 1)
                )
                for id, address in self.addresses.items()
            }
        )

    def raft_settings(self, node: Node) -> RaftSettings:
        return RaftSettings(
            node_id=node.node_id,
            directory_id=node.directory_id,
            cluster_id=CLUSTER_ID,
            listener_name=LISTENER,
            endpoints={LISTENER: self.addresses[node.node_id]} if node.is_voter else {},
            static_voters={} if self.is_dynamic else self.addresses,
            bootstrap_servers=tuple(self.addresses.values()) if self.is_dynamic else (),
            can_become_voter=node.is_voter,
        )

    def oracle(self, node: Node) -> Oracle:
        return Oracle(self, node)

    # -- the network -----------------------------------------------------------------------------------

    def isolate(self, node: Node) -> None:
        """Nothing gets to the node, or from it."""
        for other in self.nodes:
            self.cut |= {(node.node_id, other), (other, node.node_id)}

    async def send(self, source: Node, to: Address, message: Any, timeout_ms: int) -> Any:
        target = self.nodes[int(to.host.removeprefix("node"))]
        async with asyncio.timeout(timeout_ms / 1000):
            await self._travel(source, target)
            response = await target.quorum.handle(message)
            await self._travel(target, source)
        return response

    async def _travel(self, source: Node, target: Node) -> None:
        await asyncio.sleep(self.random.uniform(0.0002, 0.02))
        if (source.node_id, target.node_id) in self.cut:
            await asyncio.Event().wait()  # lost: the sender's patience ends it
        if not target.is_up:
            raise ConnectionRefusedError

    # -- the client ------------------------------------------------------------------------------------

    async def request(self, api_key: int, message: Any) -> Any:
        """Ask the active controller, as long as it takes. An answer, or NotController, comes in bounded time."""
        while True:
            self.raise_failures()
            await asyncio.sleep(0.02)
            node = self.random.choice([node for node in self.nodes.values() if node.is_voter])
            if not node.is_up:
                continue
            try:
                async with asyncio.timeout(60):
                    return await node.controller.request(api_key, message)
            except NotController:
                self.refusals += 1

    async def join(self) -> None:
        """Register a broker, so that partitions can be placed."""
        features = {
            "metadata.version": (7, 33),
            "eligible.leader.replicas.version": (0, 1),
            "kraft.version": (0, 1),
        }
        response = await self.request(
            ApiKey.BROKER_REGISTRATION,
            BrokerRegistrationRequest(
                broker_id=100,
                cluster_id=CLUSTER_ID,
                incarnation_id=UUID(int=7),
                rack=None,
                log_dirs=[UUID(int=1077)],
                features=[
                    Feature(name=name, min_supported_version=first, max_supported_version=last)
                    for name, (first, last) in features.items()
                ],
            ),
        )
        assert response.error_code == ErrorCode.none, response
        self.broker_epoch = response.broker_epoch
        await self.beat()

    async def beat(self) -> Any:
        """A heartbeat of the broker."""
        beat = BrokerHeartbeatRequest(
            broker_id=100, broker_epoch=self.broker_epoch, current_metadata_offset=10**9
        )
        return await self.request(ApiKey.BROKER_HEARTBEAT, beat)

    async def create(self, name: str) -> None:
        """Create a topic; it may be there already, from a try whose answer was lost."""
        topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
        while True:
            response = await self.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))
            code = response.topics[0].error_code
            if code in (ErrorCode.none, ErrorCode.topic_already_exists):
                self.acknowledged.add(name)
                return
            # Fenced meanwhile, as there was no leader for its heartbeats.
            assert code == ErrorCode.invalid_replication_factor, ErrorCode(code).name
            await self.beat()

    # -- judgement -------------------------------------------------------------------------------------

    @property
    def active(self) -> list[Node]:
        return [
            node
            for node in self.nodes.values()
            if node.is_up and node.controller and node.controller.is_active
        ]

    async def until_active(self, *, within_s: float = 60) -> Node:
        await until(lambda: self.active, within_s=within_s, pause_s=0.01)
        return self.active[-1]

    async def until_equal(self, *, within_s: float = 120) -> None:
        """Wait until all running nodes have replayed the same."""
        async with asyncio.timeout(within_s):
            while True:
                await asyncio.sleep(0.01)
                up = [node for node in self.nodes.values() if node.is_up]
                ends = {node.quorum.end_offset for node in up} | {node.quorum.applied_offset for node in up}
                if len(ends) == 1 and self.active:
                    return

    def run(self, story: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        """Live through a story."""
        try:
            with self.simulation:
                self.simulation.run(story(self))
        finally:
            self._complaints.end()

    def raise_failures(self) -> None:
        """Raise the failures that nodes and their listeners have reported."""
        if self.failures:
            raise self.failures[0]

    def check(self) -> None:
        """All know the same, and it is what a replay of each log says; nothing that was acknowledged is missing."""
        self.raise_failures()
        up = [node for node in self.nodes.values() if node.is_up]
        first = up[0].follower.image
        assert self.acknowledged <= first.topics_by_name.keys(), (
            self.acknowledged - first.topics_by_name.keys()
        )
        for node in up:
            assert node.follower.image == first, node.node_id
            if node.controller is not None:
                assert node.controller.image == first, node.node_id
                assert node.controller.committed_offset == node.quorum.applied_offset
            assert replayed(node) == first, node.node_id
        for other in up[1:]:
            start_offset = max(node.quorum._log.log_start_offset for node in (up[0], other))
            assert chunks(up[0], start_offset) == chunks(other, start_offset), (up[0].node_id, other.node_id)


def chunks(node: Node, start_offset: int) -> list[Any]:
    """The batches of a node's log from this offset on, however much more it has."""
    log = node.quorum._log
    return [
        chunk
        for chunk in log.decoded_batches(log.log_start_offset, node.quorum.applied_offset)
        if chunk.base_offset >= start_offset
    ]


def replayed(node: Node) -> MetadataImage:
    """The state that a new process reads from a node's files."""
    copy = node.files.after_crash(Random(1), Loss.NOTHING)
    node.files._is_dead = False
    log = MetadataLog.open(LOG_DIR, files=copy, random=Random(1), now_ms=0, settings=LOG_SETTINGS)
    image, start_offset = MetadataImage(), 0
    if (snapshot := log.latest_snapshot) is not None and snapshot.offset > 0:
        for records in log.snapshot_records(snapshot):
            image.replay_all(records)
        start_offset = snapshot.offset
    transactions = TransactionFilter()
    for chunk in log.decoded_batches(start_offset, node.quorum.applied_offset):
        located = transactions.apply(enumerate(chunk.records, start=chunk.base_offset))
        image.replay_all(record for _, record in located)
    log.close()
    return image
