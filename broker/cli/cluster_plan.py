"""The plan of a cluster of processes on this machine: its nodes, their ports, and their server.properties.

    brokers      1, 2, 3, ...        at --port, --port + 1, ...
    controllers  101, 102, 103, ...  at the ports after the brokers'
    DATA/node-1/server.properties, DATA/node-1/data, DATA/node-1/node.log, ...

A node's server.properties is written once. Later changes by an operator stay, and so do its ports.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.broker.roles.formatting import FormatOptions, FormatterError, InitialController
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_config, properties_text
from ottla.protocol.kafka_uuid import to_text
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties

#: Ids of brokers are below this, ids of controllers begin with it.
FIRST_CONTROLLER_ID: Final = 101
MAX_NODES: Final = FIRST_CONTROLLER_ID - 1
_HOST: Final = "127.0.0.1"


class InvalidPlan(ValueError):
    """No such cluster is possible; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The plan of one node of the cluster: its id, role, rack, port and folder."""

    node_id: int
    role: str
    rack: str | None
    port: int
    folder: Path

    @property
    def properties_file(self) -> Path:
        """The path of the node's configuration file, server.properties."""
        return self.folder / "server.properties"

    @property
    def data_dir(self) -> Path:
        """The path of the node's log directory."""
        return self.folder / "data"

    @property
    def log_file(self) -> Path:
        """The file of the process's output."""
        return self.folder / "node.log"

    @property
    def listener(self) -> str:
        """The node's address, as "host:port"."""
        return f"{_HOST}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The plan of a cluster: all of its nodes; controllers first, as they are started."""

    nodes: tuple[NodePlan, ...]

    @property
    def controllers(self) -> tuple[NodePlan, ...]:
        """The controllers of the cluster, which are the voters of the metadata log."""
        return tuple(node for node in self.nodes if node.role == "controller")

    @property
    def brokers(self) -> tuple[NodePlan, ...]:
        """The nodes to which clients connect."""
        return tuple(node for node in self.nodes if node.role == "broker")

    @property
    def bootstrap_servers(self) -> str:
        """The value of bootstrap.servers for clients: all brokers' addresses."""
        return ",".join(node.listener for node in self.brokers)

    @property
    def bootstrap_controllers(self) -> str:
        """The value of bootstrap.controllers for tools, and of the nodes' controller.quorum.bootstrap.servers."""
        return ",".join(node.listener for node in self.controllers)


def make_plan(
    folder: Path,
    *,
    broker_count: int,
    controller_count: int,
    racks: Sequence[str] = (),
    port: int,
    free_ports: Callable[[int], list[int]],
) -> ClusterPlan:
    """The nodes of a cluster in `folder`; existing nodes keep their ports. Raises InvalidPlan.

    `port` is the first broker's; 0 means ports of `free_ports`. Racks are assigned to the brokers in turn.
    """
    if not (1 <= broker_count <= MAX_NODES and 1 <= controller_count <= MAX_NODES):
        raise InvalidPlan(f"A cluster has 1 to {MAX_NODES} brokers, and as many controllers.")
    count = broker_count + controller_count
    if port and port + count > 65536:
        raise InvalidPlan(f"There are no {count} ports from {port} on.")
    ports = list(range(port, port + count)) if port else free_ports(count)
    ids = [*range(1, broker_count + 1)]
    ids += range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controller_count)
    nodes = []
    for node_id, new_port in zip(ids, ports, strict=True):
        is_broker = node_id < FIRST_CONTROLLER_ID
        home = folder / f"node-{node_id}"
        nodes.append(
            NodePlan(
                node_id=node_id,
                role="broker" if is_broker else "controller",
                rack=racks[(node_id - 1) % len(racks)] if racks and is_broker else None,
                port=_known_port(home / "server.properties") or new_port,
                folder=home,
            )
        )
    plan = ClusterPlan(nodes=tuple(sorted(nodes, key=lambda node: (node.role != "controller", node.node_id))))
    known = {path.name for path in folder.glob("node-*")} if folder.exists() else set()
    if known and known != {node.folder.name for node in nodes}:
        raise InvalidPlan(
            f"{folder} holds a cluster of other nodes: {', '.join(sorted(known))}. "
            "Start the same nodes, or name another folder (--data-dir)."
        )
    return plan


def write_properties(plan: ClusterPlan, extra: Mapping[str, str] | None = None) -> list[NodePlan]:
    """Write the server.properties of nodes that have none; returns the other nodes. `extra` is added to all new ones.

    All are validated before the first one is written. Raises KafkaError for invalid configurations, and OSError.
    """
    known = [node for node in plan.nodes if node.properties_file.exists()]
    new = {node: _properties(node, plan) | dict(extra or {}) for node in plan.nodes if node not in known}
    for properties in new.values():
        BrokerConfig(properties)
    for node, properties in new.items():
        node.folder.mkdir(parents=True, exist_ok=True)
        node.properties_file.write_text(properties_text(properties), encoding="ascii")
    return known


def formatting(
    plan: ClusterPlan, new_uuid: Callable[[], UUID], *, release: str | None = None
) -> Iterator[tuple[NodePlan, FormatOptions]]:
    """The nodes to format, with their options; formatted nodes are skipped. Raises FormatterError.

    `release` is the one of Kafka with whose features a new cluster begins; None: the latest.
    """
    found = {node.node_id: meta_properties.read(node.data_dir, Files()) for node in plan.nodes}
    cluster_ids = {each.cluster_id for each in found.values() if each is not None}
    voters = [found[node.node_id] for node in plan.controllers]
    if any(voters) and not all(voters):
        raise FormatterError(
            "Some controllers have no data directory any more: `ottla cluster up` cannot restore the quorum."
        )
    cluster_id = cluster_ids.pop() if cluster_ids else to_text(new_uuid())
    initial = tuple(
        InitialController(node.node_id, _HOST, node.port, new_uuid()) for node in plan.controllers
    )
    for node in plan.nodes:
        if found[node.node_id] is None:
            is_voter = node.role == "controller"
            yield (
                node,
                FormatOptions(
                    cluster_id=cluster_id,
                    release_version=release,
                    initial_controllers=initial if is_voter else (),
                ),
            )


def _known_port(properties_file: Path) -> int | None:
    """The port in a node's existing server.properties, or None."""
    if not properties_file.exists():
        return None
    config = load_config(properties_file)
    return (config.listeners or config.controller_listeners)[0].port


def _properties(node: NodePlan, plan: ClusterPlan) -> dict[str, str]:
    name = "PLAINTEXT" if node.role == "broker" else "CONTROLLER"
    properties = {
        "process.roles": node.role,
        "node.id": str(node.node_id),
        "listeners": f"{name}://{node.listener}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": plan.bootstrap_controllers,
        "log.dirs": str(node.data_dir.resolve()),
        # The system's self-tuning buffers; Kafka's 100 KiB cost more processor time.
        "socket.send.buffer.bytes": "-1",
        "socket.receive.buffer.bytes": "-1",
    }
    if node.role == "broker":
        replicas = min(3, len(plan.brokers))
        properties |= {
            "inter.broker.listener.name": "PLAINTEXT",
            "replica.socket.receive.buffer.bytes": "-1",
            "offsets.topic.replication.factor": str(replicas),
            "group.initial.rebalance.delay.ms": "0",
        }
        if node.rack is not None:
            properties["broker.rack"] = node.rack
    return properties
