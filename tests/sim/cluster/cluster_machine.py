"""One computer of the simulated cluster: a disk, and on it a node that runs, is stopped, is killed, or fails."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from cluster_log_dirs import LogDirs
from cluster_services import Interruptible

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.node import CannotStart, Node
from ottla.broker.roles.formatting import FormatOptions, InitialController, format_node
from ottla.broker.roles.hooks import Hooks
from ottla.broker.services import BrokerServices
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import parse_settings
from ottla.controller.quorum.raft_client import RaftClient
from ottla.runtime import Pool, Runtime
from ottla.runtime.simulated import SimulatedRuntime, Simulation
from ottla.runtime.virtual_loop import Process
from ottla.runtime.virtual_threads import VirtualLock
from ottla.storage.manager import meta_properties
from ottla.stories.partition.faulty_files import FaultyFiles, Loss

T = TypeVar("T")

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
LOG_DIR = Path("/disk")
CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
#: Where a controller may be found that is given another port.
CONTROLLER_PORTS = (CONTROLLER_PORT, 9094)

#: A few times faster than Kafka's defaults, so that a story of seconds has room for many failures; their order is
#: kept: a session outlives heartbeats, a follower outlives a slow fetch.
_TIMES = {
    "controller.quorum.election.timeout.ms": 400,
    "controller.quorum.fetch.timeout.ms": 800,
    "controller.quorum.election.backoff.max.ms": 200,
    "controller.quorum.request.timeout.ms": 800,
    "controller.quorum.retry.backoff.ms": 100,
    "broker.heartbeat.interval.ms": 300,
    "broker.session.timeout.ms": 1500,
    "replica.lag.time.max.ms": 1000,
    "replica.fetch.wait.max.ms": 300,
    "replica.fetch.backoff.ms": 150,
    "replica.socket.timeout.ms": 1200,
    "replica.high.watermark.checkpoint.interval.ms": 700,
    "controller.socket.timeout.ms": 1500,
    "leader.imbalance.check.interval.seconds": 4,
    "log.retention.check.interval.ms": 5000,
    "log.flush.offset.checkpoint.interval.ms": 1500,
    "log.index.size.max.bytes": 4096,
    # Snapshots are taken, and the metadata log is cut off behind them.
    "metadata.log.max.record.bytes.between.snapshots": 8_000,
    "internal.metadata.log.segment.bytes": 6_000,
    "metadata.max.retention.bytes": 10_000,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}  # fmt: skip


@cache
def config_of(
    node_id: int,
    roles: str,
    quorum: str,
    rack: str,
    settings: tuple[tuple[str, object], ...],
    controller_port: int = CONTROLLER_PORT,
) -> BrokerConfig:
    """The node's configuration; the same for every world of this shape, as reading one takes milliseconds.

    `quorum` is the property that says where the controllers are.
    """
    host = f"n{node_id}"
    listeners = []
    if "broker" in roles:
        listeners.append(f"PLAINTEXT://{host}:{CLIENT_PORT}")
    if "controller" in roles:
        listeners.append(f"CONTROLLER://{host}:{controller_port}")
    overrides = [
        f"process.roles={roles}",
        f"node.id={node_id}",
        quorum,
        f"listeners={','.join(listeners)}",
        "advertised.listeners=" + ",".join(each for each in listeners if each.startswith("PLAIN")),
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        f"broker.rack={rack}",
        *(f"{key}={value}" for key, value in {**_TIMES, **dict(settings)}.items()),
    ]
    if "broker" not in roles:
        overrides = [each for each in overrides if not each.startswith(("advertised", "broker.rack"))]
    return BrokerConfig({"log.dirs": str(LOG_DIR), **parse_settings(overrides)})


class _Node(Node):
    """Known to its machine from the beginning: a broker leads before its start has ended."""

    def __init__(self, runtime: Runtime, *args: Any) -> None:
        super().__init__(runtime, *args)
        assert isinstance(runtime, _Runtime)
        runtime.machine.node = self


class _Runtime(SimulatedRuntime):
    machine: "Machine"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        #: The last run of each service, by its name.
        self.services: dict[str, Interruptible] = {}
        #: Called with each run of a service before it begins.
        self.on_service: Callable[[str, Interruptible], None] = lambda name, service: None
        #: Pieces of blocking work that have not ended.
        self.threads_count = 0

    async def run_blocking(self, function: Callable[..., T], *args: object, pool: Pool) -> T:
        """Run a blocking function; before it, check the node: one that stops may be about to close its logs."""

        def checked() -> T:
            self.machine.before_death()
            return function(*args)

        self.threads_count += 1
        try:
            return await super().run_blocking(checked, pool=pool)
        finally:
            self.threads_count -= 1

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Supervise a service, which can be made to fail."""

        async def interruptible() -> None:
            self.services[name] = service = Interruptible(run())
            self.on_service(name, service)
            await service

        return super().supervise(interruptible, name=name)


class Machine:
    """One computer: its disks, and its node. `on_failure` is called with a node that has ended, and the
    reason.

    `before_death` is called while a node that is about to die can still be checked: its responses since the last
    check are in flight.
    """

    def __init__(
        self,
        simulation: Simulation,
        random: Random,
        *,
        node_id: int,
        roles: str,
        quorum: str,
        initial_voters: Sequence[InitialController] = (),
        settings: Mapping[str, object],
        on_failure: Callable[["Machine", BaseException], None],
        before_death: Callable[[], None],
    ) -> None:
        self.simulation = simulation
        self.random = random
        self.node_id = node_id
        self.host = f"n{node_id}"
        self.rack = "abc"[node_id % 3]
        self.is_broker = "broker" in roles
        self.is_controller = "controller" in roles
        self._config_of = partial(config_of, node_id, roles, quorum, self.rack)
        #: Of a quorum whose voters are in the log; those that the configuration names are none of them.
        self._initial_voters = tuple(initial_voters)
        self._settings = dict(settings)
        self.controller_port = CONTROLLER_PORT
        self.config = self._config_of(tuple(settings.items()))
        self.log_dirs = LogDirs(self, Random(f"{node_id} log dirs"))
        self.clock_error_ms = 0
        self.is_over = False
        #: How often records that are read are not in memory.
        self.is_cold = random.choice((0.0, 0.2, 0.6))
        self.files = FaultyFiles(random=Random(random.getrandbits(64)))
        #: How often the disk has been replaced, and how often something that was not flushed may have been lost.
        self.disk_number = self.loss_count = 0
        #: The directory ids of the metadata log on each of its disks.
        self.metadata_directory_ids: list[UUID] = []
        self.process: Process | None = None
        self.runtime: _Runtime | None = None
        self.node: Node | None = None
        #: The node has been started, and serves.
        self.is_serving = False
        self._on_failure = on_failure
        self.before_death = before_death
        #: Called with each file or directory whose fsync the loop waits for.
        self.on_loop_wait: Callable[[Path], None] = lambda path: None
        self._format()

    def __repr__(self) -> str:
        return self.host

    def _format(self) -> None:
        """A voter of the first set has its directory id, on its first disk."""
        is_initial = self.disk_number == 0 and self.node_id in [each.node_id for each in self._initial_voters]
        format_node(
            self.config,
            FormatOptions(
                cluster_id=CLUSTER_ID,
                initial_controllers=self._initial_voters if is_initial else (),
                no_initial_controllers=not is_initial,
            ),
            files=self.files,
            now_ms=0,
            new_uuid=lambda: UUID(int=self.random.getrandbits(128), version=4),
            random_bytes=self.random.randbytes,
            say=lambda line: None,
        )
        self.files = self.files.after_crash(self.random, Loss.NOTHING)
        properties = meta_properties.read(Path(self.config.metadata_log_dir), self.files)
        assert properties is not None
        self.metadata_directory_ids.append(properties.directory_id)

    def change_controller_port(self) -> None:
        """The controller has another port from its next start on."""
        self.controller_port = CONTROLLER_PORTS[self.controller_port == CONTROLLER_PORT]
        self.set_log_dirs(self.config.log_dirs)

    def set_log_dirs(self, paths: Sequence[str]) -> None:
        """Set the log directories of the next start."""
        settings = {**self._settings, "log.dirs": ",".join(paths)}
        self.config = self._config_of(tuple(settings.items()), self.controller_port)

    # -- its life --------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a process runs here, whatever it is doing."""
        return self.process is not None and self.process.is_alive

    @property
    def is_paused(self) -> bool:
        """Whether that process is stopped for a while."""
        return self.process is not None and self.process.is_paused

    @property
    def broker(self) -> BrokerServices | None:
        """The broker that runs here, perhaps still starting; None if none does."""
        if self.node is None or self.node._broker_role is None:
            return None
        return self.node._broker_role.broker

    @property
    def has_offline_directory(self) -> bool:
        """Whether the broker has given up one of its log directories: only another start takes it back."""
        return self.broker is not None and bool(self.broker.replicas.logs.offline_dirs)

    @property
    def metadata(self) -> MetadataCache | None:
        """The metadata as the node that runs here knows it."""
        return None if self.node is None else getattr(self.node._quorum, "metadata", None)

    @property
    def quorum(self) -> RaftClient | None:
        """The replica of the metadata log of the node that runs here."""
        return None if self.node is None else getattr(self.node._quorum, "quorum", None)

    @property
    def is_active_controller(self) -> bool:
        """Whether the controller that runs here decides."""
        controller = None if self.node is None else self.node._quorum.controller
        return controller is not None and controller.is_active

    def start(self) -> None:
        """Switch it on, if it is off, and the simulation has not ended:
        a fault that is cancelled repairs what it did.
        """
        if self.is_up or self.is_over:
            return
        self.simulation.network.plug_in(self.host)
        self.process = process = Process(self.host)
        self.files.on_death = lambda: self._die(process)
        self.runtime = _Runtime(
            simulation=self.simulation, host=self.host, clock_error_ms=self.clock_error_ms
        )
        self.runtime.machine = self
        self.runtime.interleaving.is_on = True
        self.runtime.interleaving.on_loop_wait = self.on_loop_wait
        order = self.runtime.interleaving.random
        self.files.on_operation = self.runtime.interleaving.on_operation
        self.files.has_in_memory = lambda: order.random() >= self.is_cold
        self.files.mutexes = lambda: VirtualLock(self.simulation.threads)
        self.process.create_task(self.simulation.loop, self._live(self.runtime, process))

    async def _live(self, runtime: SimulatedRuntime, process: Process) -> None:
        """Do what `ottla broker` does: start, run until a signal or a failure, stop."""
        try:
            node = await _Node.start(runtime, self.config, hooks=Hooks(files=self.files))
        except CannotStart as error:
            self._end(process)
            self._on_failure(self, error)
            return
        self.is_serving = True
        why = await node.failure
        self.is_serving = False
        await node.stop()
        await runtime.close()
        self._end(process)
        self._on_failure(self, RuntimeError(why))

    async def _stop(self, runtime: SimulatedRuntime, process: Process) -> None:
        assert self.node is not None
        await self.node.stop()
        await runtime.close()
        self._end(process)

    def stop(self) -> None:
        """A controlled shutdown begins; until it has ended the machine is up."""
        if self.is_up and self.is_serving:
            assert self.process is not None
            assert self.runtime is not None
            self.is_serving = False
            self.process.create_task(self.simulation.loop, self._stop(self.runtime, self.process))

    def kill(self) -> None:
        """The process dies; the operating system has all that it wrote."""
        if self.process is not None:
            self._die(self.process)

    def lose_power(self, loss: Loss) -> None:
        """The machine dies at once, and with it what was not flushed; out of reach until `start`."""
        if self.process is not None and self.process.is_alive:
            self.before_death()
            self.simulation.loop.kill(self.process)
        self.is_serving = False
        self.node = None
        self.simulation.network.unplug(self.host)
        self.files = self.files.after_crash(self.random, loss)
        self.loss_count += 1

    def lose_disk(self) -> None:
        """The machine dies, and comes back with another disk, which has just been formatted."""
        self.lose_power(Loss.EVERYTHING)
        self.files = FaultyFiles(random=Random(self.random.getrandbits(64)))
        self.disk_number += 1
        self._format()

    def _die(self, process: Process) -> None:
        if process.is_alive:
            self.before_death()
            self._end(process)

    def _end(self, process: Process) -> None:
        if process.is_alive:
            self.simulation.loop.kill(process)
            self.is_serving = False
            self.node = None
            self.files = self.files.after_kill()
            self.simulation.network.crash(self.host)

    def pause(self) -> None:
        """Pause the process, like SIGSTOP."""
        if self.is_up:
            assert self.process is not None
            self.process.pause()

    def resume(self) -> None:
        """Resume the process, like SIGCONT."""
        if self.is_up and self.is_paused:
            assert self.process is not None
            self.simulation.loop.resume(self.process)
