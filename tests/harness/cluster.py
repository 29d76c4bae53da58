"""A cluster of Ottla processes: controllers and brokers on free ports, started, killed and restarted one by one.

with OttlaCluster(folder, brokers=3, controllers=3, racks="abc") as cluster:
    AdminClient({"bootstrap.servers": cluster.bootstrap})
    cluster.kill(cluster.active_controller())
    cluster.start_node(101)
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ottla.bench.components.processes import Child, steady_ports
from ottla.broker.cli.cluster import prepare
from ottla.broker.cli.cluster_plan import ClusterPlan, NodePlan, make_plan
from ottla.config.tier_text import metadata_topic_properties, tier_properties
from tests.harness.listed_brokers import wait_until_listed
from tests.harness.release import begin_at_release

_READY = re.compile(r"^READY ", re.MULTILINE)
_LEADER = re.compile(r"node (\d+) leads epoch (\d+)")


#: On a machine that is blocked for some seconds no other active controller is elected, no broker is fenced (another one
#: would lead its partitions, for minutes), and no start is aborted.
_PATIENT = {
    "controller.quorum.fetch.timeout.ms": "5000",
    "broker.session.timeout.ms": "18000",
    "initial.broker.registration.timeout.ms": "600000",
}


class OttlaCluster:
    """All nodes run from `start` on; ids are those of `ottla cluster up`: brokers from 1, controllers from 101 on."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        controllers: int = 3,
        racks: Sequence[str] = (),
        settings: dict[str, str] | None = None,
        tier: str | Path | None = None,
    ) -> None:
        """`tier`: see `ottla cluster up --tier`."""
        self.plan: ClusterPlan = make_plan(
            folder,
            broker_count=brokers,
            controller_count=controllers,
            racks=list(racks),
            port=0,
            free_ports=steady_ports,
        )
        of_tier = {} if tier is None else tier_properties(str(tier)) | metadata_topic_properties(brokers)
        prepare(self.plan, {**_PATIENT, **of_tier, **(settings or {})})
        for node in self.plan.nodes:
            begin_at_release(node.data_dir)
        self._children: dict[int, Child] = {}
        self._starts = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The value of bootstrap.servers."""
        return self.plan.bootstrap_servers

    @property
    def bootstrap_controllers(self) -> str:
        """The value of bootstrap.controllers."""
        return self.plan.bootstrap_controllers

    def node(self, node_id: int) -> NodePlan:
        return next(node for node in self.plan.nodes if node.node_id == node_id)

    def child(self, node_id: int) -> Child:
        return self._children[node_id]

    @property
    def running(self) -> list[int]:
        """The ids of the nodes whose processes run."""
        return sorted(node_id for node_id, child in self._children.items() if child.is_running)

    def start(self) -> Self:
        """Start all nodes and wait until all are ready."""
        try:
            for node in self.plan.nodes:
                self.spawn(node.node_id)
            self._wait_all_ready()
        except BaseException:
            self.kill(*self.running)
            raise
        return self

    def spawn(self, node_id: int) -> Child:
        """Start a node, without waiting for it; its output is in a file of its own."""
        self._starts += 1
        node = self.node(node_id)
        command = [sys.executable, "-m", *self._module(node_id), "broker", str(node.properties_file)]
        child = Child(command, log=node.folder / f"node-{self._starts}.log")
        self._children[node_id] = child
        return child

    def _module(self, node_id: int) -> list[str]:
        """The module that a node's process runs, and the arguments before the command."""
        return ["ottla"]

    def wait_ready(self, node_id: int) -> None:
        child = self._children[node_id]
        child.wait_until(lambda: _READY.search(child.output()) is not None)

    def _wait_all_ready(self) -> None:
        for node in self.plan.nodes:
            self.wait_ready(node.node_id)
        self._wait_until_brokers_listed()

    def _wait_until_brokers_listed(self) -> None:
        """Wait until the brokers that run list each other; none is paused."""
        running = set(self.running)
        wait_until_listed({node.node_id: node.port for node in self.plan.brokers if node.node_id in running})

    def start_node(self, node_id: int) -> None:
        """Start a node that was stopped or killed, and wait for it."""
        self.spawn(node_id)
        self.wait_ready(node_id)
        self._wait_until_brokers_listed()

    def heal(self) -> None:
        """Start every node that was stopped, and wait until all are ready."""
        for node in self.plan.nodes:
            child = self._children[node.node_id]
            if child.is_running:
                child.resume()
            else:
                self.spawn(node.node_id)
        self._wait_all_ready()

    def kill(self, *node_ids: int) -> None:
        """Kill the process, as in a crash."""
        for node_id in node_ids:
            self._children[node_id].kill()

    def stop_node(self, node_id: int) -> int:
        """Stop the node cleanly, and return its exit status."""
        return self._children[node_id].stop()

    def stop(self) -> None:
        """All of them: brokers first, whose controlled shutdown needs a controller."""
        for node in (*self.plan.brokers, *self.plan.controllers):
            child = self._children.get(node.node_id)
            if child is not None and child.is_running:
                child.stop()

    def active_controller(self) -> int:
        """The leader of the quorum by the output of all processes so far: that of the latest epoch."""
        found = [
            (int(epoch), int(node_id))
            for node in self.plan.controllers
            for log in node.folder.glob("node-*.log")
            for node_id, epoch in _LEADER.findall(log.read_text(errors="replace"))
        ]
        return max(found)[1]
