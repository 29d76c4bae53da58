"""`ottla.testing.Cluster`: several brokers and a controller of their own, all in this process.

    with ottla.testing.Cluster(brokers=3, racks="abc", tier=True) as cluster:
        cluster.create_topic("orders")                      # on all three brokers
        cluster.kill(cluster.leader("orders"))
        assert cluster.leader("orders") != -1               # another one leads, at once
        cluster.brokers[0].inject_error("FETCH", ...)

Each node has a thread, a loop, a clock, a disk and a network of its own, so that each can be killed, paused, isolated
or restarted. The nodes are those of `ottla cluster up`, in the same folders.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Self, TypeVar
from uuid import uuid4

from ottla.broker.cli.cluster_plan import NodePlan, formatting, make_plan, write_properties
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.roles.directories import CannotStart
from ottla.broker.roles.formatting import format_node
from ottla.config.load import load_config
from ottla.config.tier_text import metadata_topic_properties, tier_properties
from ottla.metadata.image import MetadataImage
from ottla.protocol.errors import NotController
from ottla.runtime.production import random_bytes, wall_clock_ms
from ottla.storage.files import Files
from ottla.testing.awaitables import AwaitableOf
from ottla.testing.cluster_node import ClusterNode
from ottla.testing.controlled_cluster import (
    LIVENESS_MS,
    STEP_S,
    TIER_DEFAULTS,
    ControlledAwaitables,
    ControlledCluster,
)
from ottla.testing.held_port import HeldPort
from ottla.testing.in_process import NodeLife
from ottla.testing.operations import PATIENCE_S, config_text
from ottla.testing.tier import Tier

T = TypeVar("T")

#: The most replicas that a topic has unless its creation says otherwise.
_MAX_REPLICAS: Final = 3
_POLL_S: Final = 0.002


class Cluster(ControlledCluster):
    """A cluster of brokers and dedicated controllers, each of which a test controls."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        controllers: int = 1,
        racks: str | Sequence[str] = "",
        config: Mapping[str, object] | None = None,
        data_dir: Path | str | None = None,
        tier: bool | Path | str = False,
        keep: bool = False,
        strict: bool = True,
    ) -> None:
        """Describe a cluster; `start` or `with` starts it.

        `racks` are assigned to the brokers in turn: "abc", or a list of names. `config` are Kafka's configurations, for
        all nodes; topics have a replica on each broker, at most three, unless `default.replication.factor` or
        `create_topic` says otherwise. The other arguments are those of `ottla.testing.Broker`; a `tier` is shared by
        all brokers.
        """
        super().__init__(data_dir=data_dir, tier=tier, keep=keep, strict=strict)
        self._config = {key: config_text(value) for key, value in (config or {}).items()}
        self._racks = list(racks)
        #: The object store, as all brokers reach it; `broker.tier` is the same for one of them.
        self.tier = Tier("cluster.tier")
        #: The brokers 1, 2, 3, ...
        self.brokers = tuple(ClusterNode(self, f"broker-{number}") for number in range(1, brokers + 1))
        #: The controllers 101, 102, ...
        self.controllers = tuple(
            ClusterNode(self, f"controller-{number}") for number in range(1, controllers + 1)
        )
        self._ports: list[HeldPort] = []

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all nodes that do not run, with their data and ports. Raises CannotStart, KafkaError."""
        is_first = not self._ports
        try:
            if not self._ports:
                self._prepare()
            _for_all(self.controllers, ClusterNode.start)
            _for_all(self.brokers, ClusterNode.start)
        except BaseException:
            if is_first:
                self._end(cleanly=False)
            raise
        return self

    def stop(self) -> None:
        """Stop all nodes, cleanly if their data stay, or delete the temporary folder. Raises FaultNeverStruck."""
        with ExitStack() as ends:
            ends.callback(self._reset_faults)
            ends.callback(partial(self._end, cleanly=not self._leaves_nothing))
            for node in (*self.controllers, *self.brokers):
                ends.callback(node.heal_stores)

    # -- its nodes --------------------------------------------------------------------------------------

    @property
    def aio(self) -> "ClusterAwaitables":
        """The same methods as awaitables: `await cluster.aio.kill(1)`."""
        return ClusterAwaitables(self)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers for clients' `bootstrap.servers`: HOST:PORT,..."""
        return ",".join(f"127.0.0.1:{each.port}" for each in self.brokers)

    def broker(self, broker_id: int) -> ClusterNode:
        """Return the broker of this id, counted from 1, as `leader` returns it."""
        if not 1 <= broker_id <= len(self.brokers):
            raise ValueError(
                f"There is no broker {broker_id}: the cluster has brokers 1 to {len(self.brokers)}."
            )
        return self.brokers[broker_id - 1]

    def kill(self, broker_id: int) -> None:
        """Kill the broker, as SIGKILL does; others lead its partitions when this returns."""
        self.broker(broker_id).kill()

    def isolate(self, broker_id: int) -> None:
        """Break all connections of the broker, and refuse new ones; others lead its partitions when this returns."""
        self.broker(broker_id).isolate()

    def heal(self, broker_id: int) -> None:
        """Let the broker have connections again: it joins the cluster, and catches up."""
        self.broker(broker_id).heal()

    def expire_session(self, broker_id: int) -> None:
        """Let the controller fence the broker, as if its heartbeats had not arrived: others lead its partitions.

        A broker that is connected is unfenced by its next heartbeat.
        """
        node = self.broker(broker_id)
        if not self._fence(node):
            raise ClusterError("No controller is running.")

    if not TYPE_CHECKING:  # a name that is not there is an error for them

        def __getattr__(self, name: str) -> NoReturn:
            """Say where a method of one broker is."""
            if not name.startswith("_") and hasattr(ClusterNode, name):
                raise AttributeError(
                    f"{name} concerns one broker: cluster.broker(1).{name}, or each of cluster.brokers."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- waiting ----------------------------------------------------------------------------------------

    def wait_for_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: int | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> int:
        """Wait until the partition has a leader, other than one that is named, and return its broker id."""
        return self._wait(
            lambda: found if (found := self.leader(topic, partition)) not in (-1, other_than) else None,
            f"{topic}-{partition} has no {'other ' if other_than is not None else ''}leader.",
            timeout_s,
        )

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """Return the broker ids of the partition's in-sync replicas, as a broker knows them that runs."""
        for isr in self._ask_brokers(
            lambda image: (
                image.topics_by_name[topic].partitions[partition].isr
                if topic in image.topics_by_name and partition in image.topics_by_name[topic].partitions
                else ()
            )
        ):
            if isr:
                return sorted(isr)
        raise ClusterError(f"No broker knows {topic}-{partition}.")

    def wait_until_in_sync(self, *topics: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all replicas of these topics are in sync; without names those of all topics."""

        def lagging(image: MetadataImage) -> list[str]:
            return [
                f"{name}-{index}"
                for name, topic in image.topics_by_name.items()
                for index, each in topic.partitions.items()
                if (not topics or name in topics) and set(each.isr) != set(each.replicas)
            ]

        self._wait(
            lambda: None if any(self._ask_brokers(lagging)) else True,
            "Not all replicas are in sync.",
            timeout_s,
        )

    # -- what its nodes call ----------------------------------------------------------------------------

    def on_lost(self, node: ClusterNode) -> None:
        """A broker was killed or isolated, or has failed: the controller is notified as if its session had expired."""
        if node in self.brokers:
            self._fence(node)

    def on_started(self, node: ClusterNode) -> None:
        """A controller has started: it has not noticed which brokers have died meanwhile."""
        if node in self.controllers:
            for broker in self.brokers:
                if broker.was_lost:
                    self._fence(broker)

    # -- inside -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Plan, configure and format the nodes that are new. Raises CannotStart, KafkaError."""

        def free_ports(count: int) -> list[int]:
            self._ports += (HeldPort() for _ in range(count))
            return [each.port for each in self._ports]

        plan = make_plan(
            self.data_dir,
            broker_count=len(self.brokers),
            controller_count=len(self.controllers),
            racks=self._racks,
            port=0,
            free_ports=free_ports,
        )
        properties = self._properties()
        write_properties(plan, properties)
        overrides = [f"{key}={value}" for key, value in self._config.items()]
        # The controllers' value counts, and brokers warn of theirs.
        replicas = f"default.replication.factor={min(_MAX_REPLICAS, len(self.brokers))}"
        for node, planned in zip(self.controllers + self.brokers, plan.nodes, strict=True):
            of_role = [replicas] if planned.role == "controller" else []
            node.plan(planned, load_config(planned.properties_file, overrides=of_role + overrides))
            if planned.port not in {
                each.port for each in self._ports
            }:  # that of an earlier cluster in this folder
                self._ports.append(_held(planned))
        for planned, options in formatting(plan, uuid4):
            format_node(
                load_config(planned.properties_file, overrides=overrides),
                options,
                files=_Unflushed(),
                now_ms=wall_clock_ms(),
                new_uuid=uuid4,
                random_bytes=random_bytes,
                say=lambda _: None,
            )

    def _properties(self) -> dict[str, str]:
        """Return what is the same for all nodes, in addition to the properties of `ottla cluster up`."""
        properties = {
            # `advance` moves the clocks by days: no session of a broker ends by it, no request between nodes fails,
            # and no replica counts as lagging.
            "broker.session.timeout.ms": str(LIVENESS_MS),
            "replica.lag.time.max.ms": str(LIVENESS_MS),
            "replica.socket.timeout.ms": str(LIVENESS_MS),
            "controller.socket.timeout.ms": str(LIVENESS_MS),
            "request.timeout.ms": str(LIVENESS_MS),
            "connections.max.idle.ms": str(LIVENESS_MS),
            # A broker whose session a test has ended, or whose network it has healed, is back soon.
            "broker.heartbeat.interval.ms": "500",
            # A follower fetches from a new leader when its present Fetch has returned.
            "replica.fetch.wait.max.ms": "50",
            "replica.fetch.backoff.ms": "20",
            "offsets.topic.num.partitions": "1",
            "log.initial.task.delay.ms": "0",
        }
        if self._tier_text is not None:
            properties |= {**tier_properties(str(self._tier_text)), **TIER_DEFAULTS}
            properties |= metadata_topic_properties(len(self.brokers))
        return properties

    def _end(self, *, cleanly: bool) -> None:
        """Stop or kill all nodes, and release all that they have used."""
        is_led = any(each.is_running for each in self.controllers)
        for node in self.controllers:
            node.let_go_on()
        end = ClusterNode.stop if cleanly else ClusterNode.die
        with ExitStack() as ends:  # in reverse order, each of them also if another one fails
            ends.callback(self._delete_folder)
            ends.callback(self._release_ports)
            ends.callback(self.close_operations)
            ends.callback(_for_all, self.controllers, end)
            # Without a controller brokers would wait for it until their time limit.
            ends.callback(_for_all, self.brokers, end if is_led else ClusterNode.die)

    def _begin_again(self) -> None:
        _for_all(self.brokers, ClusterNode.die)
        _for_all(self.controllers, ClusterNode.die)
        self.start()

    def _run_again(self) -> None:
        for node in (*self.controllers, *self.brokers):
            node.let_go_on()
        self.start()

    def _release_ports(self) -> None:
        ports, self._ports = self._ports, []
        for port in ports:
            port.close()

    def _reset_faults(self) -> None:
        with ExitStack() as resets:
            resets.callback(self.tier.reset, verify=self._strict)
            for node in (*self.controllers, *self.brokers):
                resets.callback(node.reset_faults, verify=self._strict)

    def _lives(self) -> Sequence[NodeLife]:
        found = [life for each in (*self.controllers, *self.brokers) if (life := each.life) is not None]
        if not found:
            raise RuntimeError("The cluster does not run: call start(), or use `with`.")
        return found

    def _settle(self) -> None:
        """Wait until the controller has a heartbeat of each broker that is reachable, if it is reachable itself."""
        if any(each.is_reachable for each in self.controllers):
            self._wait(
                lambda: True if all(each.silence_s < STEP_S / 2 for each in self.brokers) else None,
                "Not all brokers have sent a heartbeat.",
                PATIENCE_S,
            )

    def _addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", each.port) for each in self.brokers if each.is_reachable]

    def _fence(self, broker: ClusterNode) -> bool:
        """Let the active controller fence a broker; the others know it when this returns. False: none is running."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            reachable = [each for each in self.controllers if each.is_reachable]
            if not reachable:
                return False
            for each in reachable:
                try:
                    each.expire_session(broker.node_id)
                except (NotController, RuntimeError):
                    continue
                self._wait_until_known_as_fenced(broker)
                return True
            time.sleep(_POLL_S)
        raise ClusterError(f"No controller is active (waited {PATIENCE_S:g} s).")

    def _wait_until_known_as_fenced(self, broker: ClusterNode) -> None:
        """Wait until no other broker shows this one as a leader; one that is connected may be unfenced by then."""
        if not broker.is_reachable:
            self._wait(
                lambda: (
                    True
                    if all(
                        each.regards_as_fenced(broker.node_id) for each in self.brokers if each.is_reachable
                    )
                    else None
                ),
                f"Not all brokers know that broker {broker.node_id} is fenced.",
                PATIENCE_S,
            )

    def _ask_brokers(self, look: Callable[[MetadataImage], T]) -> list[T]:
        """Return what is in the image of each broker that is reachable."""
        lives = [each.life for each in self.brokers if each.is_reachable]
        return [life.ask(partial(_look, look, life)) for life in lives if life is not None]

    def _wait(self, find: Callable[[], T | None], problem: str, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while (found := find()) is None:
            if time.monotonic() >= deadline:
                raise ClusterError(f"{problem} (waited {timeout_s:g} s)")
            time.sleep(_POLL_S)
        return found


class ClusterAwaitables(ControlledAwaitables):
    """The methods of a cluster of several nodes as awaitables."""

    kill = AwaitableOf(Cluster.kill)
    isolate = AwaitableOf(Cluster.isolate)
    heal = AwaitableOf(Cluster.heal)
    expire_session = AwaitableOf(Cluster.expire_session)
    wait_for_leader = AwaitableOf(Cluster.wait_for_leader)
    in_sync = AwaitableOf(Cluster.in_sync)
    wait_until_in_sync = AwaitableOf(Cluster.wait_until_in_sync)


class _Unflushed(Files):
    """The operating system's files without flushes: a formatting need not outlive a crash of the machine."""

    def fsync(self, fd: int) -> None:
        """Return at once, without a flush."""


def _look(look: Callable[[MetadataImage], T], life: NodeLife) -> T:
    return look(life.node.broker.metadata.image)


def _held(node: NodePlan) -> HeldPort:
    try:
        return HeldPort(node.port)
    except OSError as error:
        raise CannotStart(
            f"Node {node.node_id} cannot listen at {node.listener}: {error.strerror}."
        ) from error


def _for_all(nodes: Sequence[ClusterNode], act: Callable[[ClusterNode], object]) -> None:
    """Do the same with all nodes at a time; the first error is raised when all are done."""
    if len(nodes) == 1:
        act(nodes[0])
        return
    with ThreadPoolExecutor(len(nodes), thread_name_prefix="ottla-nodes") as pool:
        acts = [pool.submit(act, each) for each in nodes]
    for each in acts:
        each.result()
