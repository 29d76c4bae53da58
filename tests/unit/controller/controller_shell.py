"""A single voter with its controller on a real disk, and a clock and timers that the test moves."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from ottla.controller import activation
from ottla.controller.controller import Controller
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.quorum.listeners import Listeners
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.raft.types import Address, LeaderAndEpoch, OffsetAndEpoch, RaftSettings
from ottla.controller.settings import ControllerSettings
from ottla.metadata import records as r
from ottla.metadata.image import MetadataImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.runtime import Pool
from ottla.storage.files import Files
from ottla.stories.elections.machine import CLUSTER_ID, directory
from tests.harness.loop_turns import loop_turns


class Shell:
    """The runtime of a controller under test: a clock and timers that the test moves."""

    def __init__(self, log_dir: Path, **settings: Any) -> None:
        self.log_dir = log_dir
        self.settings = settings
        self.seconds = 100.0
        self.random = Random(3)
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.blocked: list[asyncio.Event] = []
        self.flushes = 0
        self.failures: list[BaseException] = []
        self.error: OSError | None = None
        self.turns = loop_turns()
        self.files = Files()
        self.endpoints: dict[str, Address] = {}
        self.log_settings = MetadataLogSettings()
        self.quorum: RaftClient
        self.controller: Controller

    def open(self, *, is_clean: bool = False) -> Controller:
        settings = ControllerSettings(**{"cluster_id": CLUSTER_ID, "node_id": 1, **self.settings})
        activation.format_directory(
            self.log_dir / "__cluster_metadata-0", self.files, now_ms=1_700_000_000_000
        )
        self.quorum = RaftClient.open(
            self.log_dir,
            settings=RaftSettings(
                node_id=1,
                directory_id=directory(1),
                cluster_id=CLUSTER_ID,
                listener_name="CONTROLLER",
                endpoints=self.endpoints,
                static_voters={1: Address("127.0.0.1", 9093)},
            ),
            files=self.files,
            runtime=self,
            send=self.send,
            is_clean=is_clean,
            log_settings=self.log_settings,
            on_failure=self.failures.append,
        )
        committed = Follower()
        self.quorum.subscribe(committed)
        self.controller = Controller(
            self.quorum,
            committed_image=lambda: committed.image,
            log_dir=self.log_dir,
            settings=settings,
            files=self.files,
            runtime=self,
        )
        return self.controller

    async def start(self, *, is_clean: bool = False) -> Controller:
        controller = self.open(is_clean=is_clean)
        await self.quorum.start()
        return controller

    async def stop(self) -> None:
        self.controller.stop()
        await self.quorum.stop()

    async def live_once(self) -> None:
        """Start and stop the controller once."""
        await self.start()
        await self.stop()

    # -- the runtime -----------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return self.seconds

    def create_task(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        return self.loop.create_task(coroutine, name=name)

    async def run_blocking(self, function: Callable[..., Any], *args: Any, pool: Pool) -> Any:
        assert pool is Pool.METADATA
        for event in self.blocked:
            await event.wait()
        if self.error is not None:
            raise self.error
        self.flushes += 1
        return function(*args)

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: object
    ) -> asyncio.TimerHandle:
        self.timers.append((delay_s, partial(callback, *args)))
        return asyncio.get_running_loop().call_later(10**6, lambda: None)

    async def ring(self) -> None:
        """Let the timer of the sessions ring that was set last; its decision is made then, unless another one
        is being made.
        """
        next(callback for delay_s, callback in reversed(self.timers) if delay_s == 9 / 8)()
        await asyncio.sleep(0)

    async def send(self, to: Address, message: Any, timeout_ms: int) -> Any:
        raise AssertionError(f"a single voter sends no requests, but sends {message} to {to}")


class Follower:
    """A listener that keeps its notifications."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.records: list[r.MetadataRecord] = []
        self.end_offset = 0
        self.leaders: list[LeaderAndEpoch] = []
        self.snapshots: list[OffsetAndEpoch] = []

    def on_commit(self, records: Sequence[r.MetadataRecord], base_offset: int, end_offset: int) -> None:
        assert base_offset == self.end_offset < end_offset
        self.image.replay_all(records)
        self.records += records
        self.end_offset = end_offset

    def on_snapshot(self, chunks: Iterable[list[r.MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        self.image = MetadataImage()
        for records in chunks:
            self.image.replay_all(records)
        self.end_offset = snapshot.offset
        self.snapshots.append(snapshot)

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        self.leaders.append(leader)


def follow(shell: Shell) -> Follower:
    """A listener that has everything so far, and is notified of what follows."""
    follower, quorum = Follower(), shell.quorum
    if not quorum._driver.is_started:
        quorum.subscribe(follower)
        return follower
    listeners = Listeners()
    listeners.add(follower)
    snapshot = quorum._log.latest_snapshot
    if snapshot is not None and 0 < snapshot.offset <= quorum.applied_offset:
        listeners.notify_snapshot(list(quorum._log.snapshot_records(snapshot)), snapshot)
    for chunk in quorum._log.decoded_batches(listeners.end_offset, quorum.applied_offset):
        listeners.notify_commit(chunk)
    listeners.notify_leader(quorum._listeners.leader)
    quorum._listeners.add(follower)
    return follower


async def join(
    controller: Controller, *, broker_id: int = 1, incarnation: int = 1, previous: int = -1
) -> int:
    response = await controller.request(
        ApiKey.BROKER_REGISTRATION,
        BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=incarnation),
            rack=None,
            log_dirs=[directory(broker_id)],
            previous_broker_epoch=previous,
            features=[
                Feature(name="metadata.version", min_supported_version=7, max_supported_version=33),
                Feature(
                    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
                ),
            ],
        ),
    )
    assert response.error_code == ErrorCode.none
    epoch = response.broker_epoch
    assert not (await heartbeat(controller, epoch, broker_id=broker_id)).is_fenced
    return epoch


def heartbeat(controller: Controller, epoch: int, *, broker_id: int = 1, **fields: Any) -> Awaitable[Any]:
    beat = BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=10**9, **fields
    )
    return controller.request(ApiKey.BROKER_HEARTBEAT, beat)


def create(controller: Controller, name: str, count: int = 1) -> Awaitable[Any]:
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    return controller.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))


async def lose_the_leadership(shell: Shell) -> None:
    """End the leadership as a later epoch of another voter does; the driver's listeners receive Raft's
    effects."""
    shell.quorum._dispatcher.change_leader(LeaderAndEpoch(2, 5))
