"""A cluster under measurement, whether the bench has started it (`started.py`) or it runs already (`running.py`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ottla.bench.targets.stores import Store
from ottla.bench.targets.wire import Address


class TargetError(Exception):
    """A target that cannot be reached, or cannot do what a workload asks for; one sentence says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker of a target, running or not."""

    broker_id: int
    address: Address
    rack: str | None


class Nodes(Protocol):
    """The processes of a cluster that the bench has started. A node is named by its id in the cluster."""

    def start(self) -> object:
        """Start all nodes and wait until the brokers serve."""

    def kill(self) -> None:
        """Kill the processes of all nodes that run (SIGKILL)."""

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers that run."""

    def node_pids(self) -> Mapping[str, int]:
        """Return the processes of all nodes that run, by role and id: `broker-1`, `controller-101`."""

    def addresses(self) -> Mapping[int, Address]:
        """Return the addresses of the brokers that run, by broker id."""

    def start_node(self, node_id: int) -> None:
        """Start the node and wait until it answers."""

    def stop_node(self, node_id: int) -> None:
        """Stop the node's process (SIGTERM), and wait until it has ended."""

    def kill_node(self, node_id: int) -> None:
        """Kill the node's process (SIGKILL)."""

    def data_dir(self, node_id: int) -> Path:
        """Return the directory in which the node has its logs."""

    def log_file(self, node_id: int) -> Path:
        """Return the file to which the node's process writes its log lines."""


class Target(Protocol):
    """A cluster that `ottla.bench.harness` measures and on which workloads run."""

    #: The name of the target in results.
    name: str
    #: Name and version, or what a running cluster reports.
    version: str
    #: Whether topics may be tiered.
    has_tier: bool
    #: The nodes that the bench has started; None for a cluster that it has not started.
    nodes: Nodes | None
    #: The remote tier's store, if the bench has started it.
    store: Store | None
    #: Brokers that events have stopped or killed. Others run, or have crashed.
    down: set[int]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as a client's `bootstrap.servers`."""

    @property
    def brokers(self) -> Sequence[Broker]:
        """All brokers, by their ids."""

    def start(self) -> object:
        """Start the nodes that the bench has to start, and wait until all brokers serve. Raises TargetError."""

    def kill(self) -> None:
        """Kill all processes that the bench has started (SIGKILL)."""

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers that run on this machine."""

    def node_pids(self) -> Mapping[str, int]:
        """Return the processes on this machine by their part in the cluster: `broker-1`, `controller-101`, `store`."""

    def ports(self) -> Mapping[str, int]:
        """Return the ports on which brokers and the store listen on this machine, by the names of `node_pids`."""

    def addresses(self) -> Mapping[int, Address]:
        """Return the addresses of the brokers that run, by broker id."""

    def restore(self) -> None:
        """Undo the effects of events: all nodes run, and the store is as quick as it can be.

        Raises TargetError if a broker has ended by itself.
        """
