"""A cluster whose nodes see each other through proxies only, and the nemesis that breaks it, as a seed draws it.

    clients ---------------------------> PLAINTEXT of a broker
    brokers ------> proxy of a broker -> REPLICATION
    all nodes ----> proxy of a voter --> CONTROLLER

So a broker that is cut off still has its clients: it must not acknowledge anything to them.
"""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ottla.bench.components.processes import comes_true, steady_ports
from tests.compat.chaos_configurations import Configurations
from tests.harness.cluster import OttlaCluster
from tests.harness.proxy import Network
from tests.harness.slow_disk import make_slow

BROKERS = (1, 2, 3)
CONTROLLERS = (101, 102, 103)
RACKS = "abc"

#: Shorter than Kafka's defaults, so that much happens in a minute, and long enough for a loaded machine.
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "replica.socket.timeout.ms": "3000",
    "replica.fetch.backoff.ms": "200",
    "request.timeout.ms": "3000",
    "controller.socket.timeout.ms": "3000",
    "min.insync.replicas": "2",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # A broker that starts waits for a controller as long as it takes.
    "initial.broker.registration.timeout.ms": "600000",
    # Segments that end: recovery, and followers that begin in the middle.
    "log.segment.bytes": "1048576",
}

#: How often each kind of fault is drawn, beside the others.
_WEIGHTS = {
    "kill": 4, "pause": 3, "isolate": 3, "deafen": 1, "mute": 1, "slow": 1, "reset": 1, "stop": 1, "slow disk": 3,
}  # fmt: skip

#: Of all that happens: the part that is a change of configuration, of which each node learns when it can.
_CHANGES_OF_CONFIGURATION = 0.2


class ProxiedCluster(OttlaCluster):
    """A cluster whose nodes reach each other through proxies only; `network` has the proxies between them."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(
            folder, brokers=len(BROKERS), controllers=len(CONTROLLERS), racks=RACKS, settings=SETTINGS
        )
        self.network = network
        for node, port in zip(self.plan.nodes, steady_ports(len(self.plan.nodes)), strict=True):
            lines = node.properties_file.read_text()
            if node.role == "controller":
                # The voters are known by the planned ports: these become the proxies'.
                network.serve(node.node_id, port=node.port, target_port=port)
                planned = f"listeners=CONTROLLER://{node.listener}"
                assert planned in lines
                lines = lines.replace(
                    planned,
                    f"listeners=CONTROLLER://127.0.0.1:{port}\nadvertised.listeners=CONTROLLER://{node.listener}",
                )
            else:
                proxy_port = network.serve(node.node_id, target_port=port)
                planned = f"listeners=PLAINTEXT://{node.listener}"
                assert planned in lines
                lines = lines.replace(planned, f"{planned},REPLICATION://127.0.0.1:{port}").replace(
                    "inter.broker.listener.name=PLAINTEXT",
                    f"advertised.listeners=PLAINTEXT://{node.listener},REPLICATION://127.0.0.1:{proxy_port}\n"
                    "listener.security.protocol.map="
                    "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
                    "inter.broker.listener.name=REPLICATION",
                )
            node.properties_file.write_text(lines)

    def _module(self, node_id: int) -> list[str]:
        return ["tests.harness.slow_disk", str(self.slow_disk_switch(node_id))]

    def slow_disk_switch(self, node_id: int) -> Path:
        """The file that makes the node's disk slow while it exists."""
        return self.node(node_id).folder / "slow-disk"

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.stop()
        else:
            # Some may be paused, or cut off: they would not stop.
            self.kill(*self.running)

    def logs(self, node_id: int) -> list[Path]:
        """The output of each of a node's processes, in order."""
        return sorted(self.node(node_id).folder.glob("node-*.log"), key=lambda path: path.stat().st_ctime_ns)


class _Healing(NamedTuple):
    due: float
    node_id: int
    heal: Callable[[int], None]


class Nemesis:
    """Injects faults into the cluster, one at a time for each node; `story` lists them, with seconds since
    the start."""

    def __init__(self, cluster: ProxiedCluster, seed: int, topic: str) -> None:
        self._cluster = cluster
        self.configurations = Configurations([node.port for node in cluster.plan.brokers], topic)
        self._network = cluster.network
        self._random = random.Random(seed)
        self._healings: list[_Healing] = []
        self.began = time.monotonic()
        self.story: list[str] = []
        #: The kinds of what was done, in order.
        self.suffered: list[str] = []
        self._kinds: dict[str, Callable[[int], Callable[[int], None] | None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "isolate": self._isolate,
            "deafen": self._deafen,
            "mute": self._mute,
            "slow": self._slow,
            "reset": self._reset,
            "stop": self._stop,
            "slow disk": self._slow_disk,
        }

    def rage(self, seconds: float) -> None:
        """Inject a fault at random intervals, and heal it later. Raises AssertionError if a node ends by itself."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._sleep(self._random.uniform(0.3, 3.5))
            if self._random.random() < _CHANGES_OF_CONFIGURATION:
                self._note(self.configurations.change(self._random))
                continue
            victims = self._victims()
            if not victims:
                continue
            node_id = self._random.choice(victims)
            [kind] = self._random.choices(list(_WEIGHTS), weights=_WEIGHTS.values())
            lasts_s = self._random.choice((0.5, 2.0, 4.0, 7.0)) * self._random.uniform(0.7, 1.3)
            heal = self._kinds[kind](node_id)
            self.suffered.append(kind)
            self._note(f"{kind} {node_id}" + (f" for {lasts_s:.1f} s" if heal else ""))
            if heal is not None:
                self._healings.append(_Healing(time.monotonic() + lasts_s, node_id, heal))

    def heal(self) -> None:
        """Heal everything, wait until all nodes are ready, and change the configuration once more, which
        succeeds now.
        """
        for healing in self._healings:
            healing.heal(healing.node_id)
        self._healings.clear()
        self._note("healed")
        for node_id in (*CONTROLLERS, *BROKERS):
            self._cluster.wait_ready(node_id)
        self._note("all are ready")
        self._note(self.configurations.change(self._random))

    # -- when and whom -----------------------------------------------------------------------------

    def _victims(self) -> list[int]:
        """The nodes that may fail now: one controller at a time, seldom two brokers; in most cases a leader."""
        suffering = {healing.node_id for healing in self._healings}
        bound = 2 if self._random.random() < 0.3 else 1
        victims: list[int] = []
        if len(suffering.intersection(BROKERS)) < bound:
            victims += [node_id for node_id in BROKERS if node_id not in suffering]
        if not suffering.intersection(CONTROLLERS):
            victims.append(self._cluster.active_controller())
            victims.append(self._random.choice(CONTROLLERS))
        return victims

    def _sleep(self, seconds: float) -> None:
        """Heal what is due meanwhile."""

        def heal() -> None:
            now = time.monotonic()
            for healing in [each for each in self._healings if each.due <= now]:
                self._healings.remove(healing)
                healing.heal(healing.node_id)
                self._note(f"healed {healing.node_id}")
            self._check()

        comes_true(heal, timeout_s=seconds, interval_s=0.05)

    def _check(self) -> None:
        suffering = {healing.node_id for healing in self._healings}
        for node_id in (*BROKERS, *CONTROLLERS):
            child = self._cluster.child(node_id)
            assert child.is_running or node_id in suffering, (
                f"node {node_id} has ended:\n{child.output()[-3000:]}"
            )

    def _note(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self.began:8.2f} {text}")

    # -- kinds: each breaks, and returns what heals it -----------------------------------------------

    def _kill(self, node_id: int) -> Callable[[int], None]:
        self._cluster.kill(node_id)
        return self._restart

    def _stop(self, node_id: int) -> Callable[[int], None]:
        """Stop the node cleanly, as far as it gets in the time that it is given."""
        self._cluster.child(node_id).send_signal(signal.SIGTERM)
        return self._restart

    def _restart(self, node_id: int) -> None:
        if self._cluster.child(node_id).is_running:
            self._cluster.kill(node_id)
        self._cluster.spawn(node_id)

    def _pause(self, node_id: int) -> Callable[[int], None]:
        self._cluster.child(node_id).send_signal(signal.SIGSTOP)
        return self._resume

    def _resume(self, node_id: int) -> None:
        self._cluster.child(node_id).send_signal(signal.SIGCONT)

    def _isolate(self, node_id: int) -> Callable[[int], None]:
        self._network.isolate(node_id, (*BROKERS, *CONTROLLERS))
        return self._network.heal

    def _deafen(self, node_id: int) -> Callable[[int], None]:
        """It sends, and receives nothing."""
        self._network.isolate(node_id, (*BROKERS, *CONTROLLERS), out_of=False)
        return self._network.heal

    def _mute(self, node_id: int) -> Callable[[int], None]:
        """It receives, and its own messages are lost."""
        self._network.isolate(node_id, (*BROKERS, *CONTROLLERS), into=False)
        return self._network.heal

    def _slow(self, node_id: int) -> Callable[[int], None]:
        self._network.delay(node_id, self._random.uniform(0.01, 0.3))
        return self._network.heal

    def _slow_disk(self, node_id: int) -> Callable[[int], None]:
        """Flushes take up to two seconds, reads of what is not cached a tenth of that."""
        make_slow(self._cluster.slow_disk_switch(node_id), self._random.choice((0.1, 0.5, 2.0)))
        return lambda node_id: self._cluster.slow_disk_switch(node_id).unlink()

    def _reset(self, node_id: int) -> None:
        """Its connections break, and can be opened again."""
        self._network.reset(node_id)
