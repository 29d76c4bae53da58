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
    """The processes of a cluster that the bench has started. Nodes are named by the id that they have in the cluster."""

    def start(self) -> object:
        """Start all nodes and wait until the brokers serve."""

    def kill(self) -> None:
        """SIGKILL to all that run."""

    def broker_pids(self) -> Sequence[int]:
        """The processes of the brokers that run."""

    def node_pids(self) -> Mapping[str, int]:
        """The processes of all nodes that run, by role and id: `broker-1`, `controller-101`."""

    def addresses(self) -> Mapping[int, Address]:
        """Of the brokers that run."""

    def start_node(self, node_id: int) -> None:
        """Start it and wait until it answers."""

    def stop_node(self, node_id: int) -> None:
        """SIGTERM, and wait."""

    def kill_node(self, node_id: int) -> None:
        """SIGKILL."""

    def data_dir(self, node_id: int) -> Path:
        """Where the node has its logs."""

    def log_file(self, node_id: int) -> Path:
        """Where its process writes what it logs."""


class Target(Protocol):
    """A subject of `ottla.bench.measures`, and what workloads need beyond that."""

    #: How it is called in results.
    name: str
    #: Name and version, or what a running cluster reports.
    version: str
    #: Whether topics may be tiered.
    has_tier: bool
    #: None for a cluster that the bench has not started.
    nodes: Nodes | None
    #: The remote tier's store, if the bench has started it.
    store: Store | None
    #: Brokers that events have stopped or killed. Others run, or have crashed.
    down: set[int]

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""

    @property
    def brokers(self) -> Sequence[Broker]:
        """All brokers, by their ids."""

    def start(self) -> object:
        """Start what the bench has to start, and wait until all brokers serve. Raises TargetError."""

    def kill(self) -> None:
        """SIGKILL to all that the bench has started."""

    def broker_pids(self) -> Sequence[int]:
        """The processes of the brokers that run on this machine."""

    def node_pids(self) -> Mapping[str, int]:
        """The processes on this machine by their part in the cluster: `broker-1`, `controller-101`, `store`."""

    def ports(self) -> Mapping[str, int]:
        """Where brokers and the store listen on this machine, by the same names."""

    def addresses(self) -> Mapping[int, Address]:
        """Of the brokers that run."""

    def restore(self) -> None:
        """Undo what events have left: all nodes run, and the store is as quick as it can be.

        Raises TargetError if a broker has ended by itself.
        """
