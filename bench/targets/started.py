"""Targets that the bench starts on this machine: Kafka and Ottla with equal settings, and the store behind them.

one broker        a process that is broker and controller (`servers.py`)
several brokers   and one controller, as processes of their own; racks a, b and c in turn (`clusters.py`)
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ottla.bench.components.fetch import KAFKA_VERSION
from ottla.bench.components.processes import StartFailed
from ottla.bench.targets.clusters import CLUSTERS, Cluster
from ottla.bench.targets.servers import NODE_ID, SERVERS
from ottla.bench.targets.settings import SETTINGS
from ottla.bench.targets.stores import DirectoryStore, MinioStore, Store
from ottla.bench.targets.target import Broker, Nodes, TargetError
from ottla.bench.targets.tiering_clusters import TIER_PROPERTIES, metadata_topic
from ottla.bench.targets.wire import Address
from ottla.bench.workloads.model import ClusterNeeds, Tier

#: The names that `--start` takes, with the version that is started.
STARTABLE: Final[Mapping[str, str]] = {
    "ottla": f"Ottla {version('ottla')}",
    "kafka": f"Apache Kafka {KAFKA_VERSION}",
}


def started(name: str, needs: ClusterNeeds, folder: Path, *, can_be_slow: bool = False) -> "StartedTarget":
    """Make a target of STARTABLE, which its `start` starts, with all its files in `folder`, which is created.

    `can_be_slow`: events will slow its store down, which needs a proxy in front of it. Raises TargetError.
    """
    if name not in STARTABLE:
        raise TargetError(f"--start {name}: what can be started is {', '.join(STARTABLE)} and minio")
    if needs.tier is Tier.MINIO and name != "ottla":
        raise TargetError(
            f"--start {name}: {STARTABLE[name]} has no storage manager for MinIO; use --store directory"
        )
    if needs.tier is Tier.MINIO:
        store: Store | None = MinioStore(folder / "store", can_be_slow=can_be_slow)
    else:
        store = DirectoryStore(folder / "tier") if needs.tier is Tier.DIRECTORY else None
    properties = {**SETTINGS["default"], **_tier_properties(store, needs.brokers), **needs.properties}
    if needs.brokers == 1:
        server = SERVERS[name](folder / "nodes", properties)
        nodes: Nodes = server
        address = Address("127.0.0.1", server.port)
        brokers = [Broker(broker_id=NODE_ID, address=address, rack=None)]
    else:
        nodes = cluster = CLUSTERS[name](
            folder / "nodes",
            {**_internal_topics(needs.brokers), **properties},
            brokers=needs.brokers,
            controllers=1,
        )
        for broker, own in needs.broker_properties.items():
            with cluster.node(int(broker)).properties_file.open("a") as lines:
                lines.writelines(f"{key}={value}\n" for key, value in own.items())
        brokers = _brokers_of(cluster)
    return StartedTarget(name, nodes, brokers, store)


def _tier_properties(store: Store | None, brokers: int) -> Mapping[str, str]:
    return {} if store is None else {**TIER_PROPERTIES, **metadata_topic(brokers), **store.properties()}


def _internal_topics(brokers: int) -> Mapping[str, str]:
    """Return the replication of internal topics for fewer than three brokers, as Kafka's defaults want three."""
    factor, in_sync = str(min(3, brokers)), str(min(2, brokers))
    return {
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _brokers_of(cluster: Cluster) -> list[Broker]:
    return [
        Broker(broker_id=node.node_id, address=Address("127.0.0.1", node.port), rack=node.rack)
        for node in cluster.brokers
    ]


class StartedTarget:
    """A cluster that the bench starts on this machine, as a target, with the store behind it."""

    def __init__(self, name: str, nodes: Nodes, brokers: Sequence[Broker], store: Store | None) -> None:
        self.name = name
        self.version = STARTABLE[name]
        self.has_tier = store is not None
        self.nodes: Nodes | None = nodes
        self.store = store
        self.down: set[int] = set()
        self._nodes = nodes
        self._brokers = brokers

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as a client's `bootstrap.servers`."""
        return ",".join(str(broker.address) for broker in self._brokers)

    @property
    def brokers(self) -> Sequence[Broker]:
        """All brokers of the cluster, by their ids."""
        return self._brokers

    def start(self) -> None:
        """Start the store and the nodes, and wait until all brokers serve. Raises TargetError."""
        try:
            if self.store is not None:
                self.store.start()
            self._nodes.start()
        except (StartFailed, OSError) as error:
            self.kill()
            raise TargetError(f"--start {self.name}: {error}") from error

    def kill(self) -> None:
        """Kill the nodes and the store (SIGKILL)."""
        self._nodes.kill()
        if self.store is not None:
            self.store.kill()

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers that run."""
        return self._nodes.broker_pids()

    def node_pids(self) -> Mapping[str, int]:
        """Return the processes that run by their part in the cluster: `broker-1`, `controller-101`, `store`."""
        of_store = {} if self.store is None else self.store.pids()
        return {**self._nodes.node_pids(), **of_store}

    def ports(self) -> Mapping[str, int]:
        """Return the ports on which brokers and the store listen, by the names of `node_pids`."""
        of_store = {} if self.store is None else self.store.ports()
        return {**{f"broker-{each.broker_id}": each.address.port for each in self._brokers}, **of_store}

    def addresses(self) -> Mapping[int, Address]:
        """Return the addresses of the brokers that run, by broker id."""
        return self._nodes.addresses()

    def restore(self) -> None:
        """Undo the effects of events: all nodes run, and the store is as quick as it can be.

        Raises TargetError if a broker has ended by itself.
        """
        if self.store is not None and self.store.can_be_slow:
            self.store.slow_down(delay_s=0, bytes_per_s=0)
        for broker_id in self.down - self.addresses().keys():
            try:
                self._nodes.start_node(broker_id)
            except StartFailed as error:
                raise TargetError(f"{self.name}: broker {broker_id} does not start again: {error}") from error
        self.down.clear()
        for broker in self._brokers:
            if broker.broker_id not in self.addresses():
                raise TargetError(self._end_of(broker.broker_id))

    def _end_of(self, broker_id: int) -> str:
        log = self._nodes.log_file(broker_id)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        return f"{self.name}: broker {broker_id} has ended by itself; its log ends with: {last}"
