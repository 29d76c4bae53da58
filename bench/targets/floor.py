"""The floor of a load: a process that does only the necessary part of a broker's work
(`ottla.bench.internals.floor`).

It takes the loads that one broker takes, with the same socket buffers and its files in the same place. With
replicas it is three processes: a leader, which clients know, and two followers.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.bench.components.processes import Child, steady_ports
from ottla.bench.figures import FLOOR
from ottla.bench.targets.clusters import Cluster, Node
from ottla.bench.targets.servers import Server, ottla_environment

_LEADER: Final = 1
_REPLICAS: Final = 3


def _command(
    port: int, folder: Path, receive_buffer: str, send_buffer: str, followers: Sequence[int] = ()
) -> list[str]:
    command = [sys.executable, "-m", "ottla.bench.internals.floor", str(port), str(folder)]
    return [*command, receive_buffer, send_buffer, *map(str, followers)]


class FloorServer(Server):
    """One process that does only the necessary part of a broker's work: the floor of its figures."""

    name = FLOOR

    def _command(self) -> list[str]:
        receive, send = (self.settings[f"socket.{each}.buffer.bytes"] for each in ("receive", "send"))
        return _command(self.port, self.data_dir(), receive, send)

    def _environment(self) -> dict[str, str]:
        return ottla_environment()


class FloorCluster(Cluster):
    """Three processes that do only the necessary part of replication with acks=all: a cluster's floor."""

    name = FLOOR

    def _make_nodes(self, *, brokers: int, controllers: int) -> Sequence[Node]:
        """Return nodes without a file; only the leader is a broker to clients."""
        self.folder.mkdir(parents=True)
        return [
            Node(
                {
                    "node_id": node_id,
                    "is_broker": node_id == _LEADER,
                    "rack": None,
                    "port": port,
                    "properties_file": "",
                    "data_dir": self.folder / f"node-{node_id}",
                    "log_file": self.folder / f"node-{node_id}.log",
                }
            )
            for node_id, port in enumerate(steady_ports(_REPLICAS), _LEADER)
        ]

    def _brokers(self) -> list[Child]:
        """Return the processes that are measured: all of them."""
        return list(self._children.values())

    def _command(self, node: Node) -> list[str]:
        settings = self.settings
        if node.is_broker:
            followers = [each.port for each in self.nodes if not each.is_broker]
            receive = settings["socket.receive.buffer.bytes"]
        else:  # where it receives what it copies
            followers, receive = [], settings["replica.socket.receive.buffer.bytes"]
        return _command(node.port, node.data_dir, receive, settings["socket.send.buffer.bytes"], followers)
