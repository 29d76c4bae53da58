"""The two clusters that are compared: three controllers and three brokers each, as processes on this machine.

    node-1, node-2, node-3         brokers, in the racks a, b and c
    node-101, node-102, node-103   controllers

Both get the very same files: server.properties, and directories formatted by this project, whose format is Kafka's.
Apache Kafka's processes run with the flags of its own start script (G1, 1 GB of heap each).
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ottla.bench.components.processes import Child, StartFailed
from ottla.bench.environment import REPOSITORY
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.servers import Usage, kafka_command, ottla_environment, usage_of
from ottla.bench.targets.wire import Address, WireClient

_START_TIMEOUT_S: Final = 120
_STOP_TIMEOUT_S: Final = 60
_RACKS: Final = ("a", "b", "c")
#: The properties of all nodes; like those of `ottla.bench.targets.servers`, they delete old topics quickly,
#: so that the next load has the page cache for itself.
_SETTINGS: Final = {
    "min.insync.replicas": "2",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.num.partitions": "5",
    "log.segment.delete.delay.ms": "500",
    # Six JVMs that start at once on few cores may take longer than a minute.
    "initial.broker.registration.timeout.ms": "180000",
}


class Node:
    """The place of a node of a cluster: its id, role, rack, port, and files."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Take one node of the description that `ottla.bench.internals.cluster_folders` prints."""
        self.node_id: int = fields["node_id"]
        self.is_broker: bool = fields["is_broker"]
        self.rack: str | None = fields["rack"]
        self.port: int = fields["port"]
        self.properties_file = Path(fields["properties_file"])
        self.data_dir = Path(fields["data_dir"])
        self.log_file = Path(fields["log_file"])


def _make_folders(
    folder: Path, settings: Mapping[str, str], *, brokers: int, controllers: int
) -> Sequence[Node]:
    command = [sys.executable, "-m", "ottla.bench.internals.cluster_folders"]
    command += [str(folder), str(brokers), str(controllers), ",".join(_RACKS)]
    command += [f"{key}={value}" for key, value in settings.items()]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    return [Node(fields) for fields in json.loads(done.stdout)]


class Cluster:
    """A cluster of nodes of one kind; a node can be killed and started again."""

    #: The name of the cluster in tables and results.
    name: str
    #: The replicas of a topic.
    replication_factor = 3

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        brokers: int = 3,
        controllers: int = 3,
    ) -> None:
        """Write and format the directories of the nodes."""
        self.folder = folder
        self.settings: Mapping[str, str] = {**_SETTINGS, **settings}
        #: The nodes in the order in which they are started: controllers first.
        self.nodes = self._make_nodes(brokers=brokers, controllers=controllers)
        self._children: dict[int, Child] = {}

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as a client's `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{port}" for port in self.broker_ports.values())

    @property
    def brokers(self) -> Sequence[Node]:
        """The nodes to which clients connect."""
        return [node for node in self.nodes if node.is_broker]

    @property
    def broker_ports(self) -> dict[int, int]:
        """The port of each broker, by broker id."""
        return {node.node_id: node.port for node in self.brokers}

    def addresses(self) -> Mapping[int, Address]:
        """Return the addresses of the brokers that run, by broker id."""
        return {
            node_id: Address("127.0.0.1", port)
            for node_id, port in self.broker_ports.items()
            if self._is_running(node_id)
        }

    def client(self) -> ClusterClient:
        """Return connections to all brokers that run, as a context manager."""
        return ClusterClient(self.addresses())

    def node(self, node_id: int) -> Node:
        """Return the node of this id."""
        return next(node for node in self.nodes if node.node_id == node_id)

    def data_dir(self, node_id: int) -> Path:
        """Return the directory in which the node has its logs."""
        return self.node(node_id).data_dir

    def log_file(self, node_id: int) -> Path:
        """Return the file to which the node's process writes its log lines."""
        return self.node(node_id).log_file

    def start(self) -> float:
        """Start all nodes and wait until every broker knows of all brokers; seconds."""
        began = time.perf_counter()
        for node in self.nodes:
            self.spawn(node.node_id)
        for node in self.nodes:
            self.wait_until_answering(node.node_id)
        deadline = time.monotonic() + _START_TIMEOUT_S
        with self.client() as client:
            while not client.is_complete():
                if time.monotonic() > deadline:
                    raise StartFailed(f"{self.name}: not all brokers have joined after {_START_TIMEOUT_S} s")
                time.sleep(0.05)
        return time.perf_counter() - began

    def spawn(self, node_id: int) -> None:
        """Start a node's process."""
        node = self.node(node_id)
        self._children[node_id] = Child(self._command(node), log=node.log_file, env=ottla_environment())

    def wait_until_answering(self, node_id: int) -> None:
        """Wait until the node answers ApiVersions."""
        port = self.node(node_id).port
        self._children[node_id].wait_until(
            lambda: WireClient.answers(port), timeout_s=_START_TIMEOUT_S, interval_s=0.005
        )

    def start_node(self, node_id: int) -> None:
        """Start a node and wait until it answers."""
        self.spawn(node_id)
        self.wait_until_answering(node_id)

    def kill_node(self, node_id: int) -> None:
        """Kill the node's process (SIGKILL)."""
        self._children[node_id].kill()

    def stop_node(self, node_id: int) -> None:
        """Stop the node's process (SIGTERM), and wait until it has ended."""
        self._children[node_id].stop(timeout_s=_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the processes of all nodes that run (SIGKILL)."""
        for node_id, child in self._children.items():
            if self._is_running(node_id):
                child.kill()

    def usage(self) -> Usage:
        """Return the usage of all brokers that run. A difference across a start has no meaning."""
        return usage_of(*self._brokers())

    def broker_pids(self) -> Sequence[int]:
        """The processes of the brokers that run."""
        return [child.pid for child in self._brokers()]

    def node_pids(self) -> Mapping[str, int]:
        """The processes of all nodes that run, by role and id."""
        return {
            f"{'broker' if node.is_broker else 'controller'}-{node.node_id}": self._children[node.node_id].pid
            for node in self.nodes
            if self._is_running(node.node_id)
        }

    def _brokers(self) -> list[Child]:
        return [self._children[each] for each in self.broker_ports if self._is_running(each)]

    def _is_running(self, node_id: int) -> bool:
        return node_id in self._children and self._children[node_id].is_running

    def _make_nodes(self, *, brokers: int, controllers: int) -> Sequence[Node]:
        return _make_folders(self.folder.absolute(), self.settings, brokers=brokers, controllers=controllers)

    def _command(self, node: Node) -> list[str]:
        raise NotImplementedError


class KafkaCluster(Cluster):
    """A cluster of Apache Kafka, run from its jars."""

    name = "kafka"

    def _command(self, node: Node) -> list[str]:
        return kafka_command(node.properties_file)


class OttlaCluster(Cluster):
    """A cluster of this project's brokers and controllers."""

    name = "ottla"

    def _command(self, node: Node) -> list[str]:
        return [sys.executable, "-m", *self._program(), "broker", str(node.properties_file)]

    def _program(self) -> list[str]:
        """The program that `python -m` runs, with its arguments."""
        return ["ottla"]


CLUSTERS: Final[dict[str, type[Cluster]]] = {"kafka": KafkaCluster, "ottla": OttlaCluster}


def wipe(data_dir: Path) -> None:
    """Remove all that a stopped broker has on its disk, the identity of the directory aside."""
    for path in data_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "meta.properties":
            path.unlink()
