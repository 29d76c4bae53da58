"""Nodes of a cluster one by one, Ottla's and Kafka's in any mixture: the same properties, files and commands for both.

OttlaNode(folder, controller(101, port, voters="101@127.0.0.1:..."), cluster_id=...).start()
KafkaNode(folder, broker(3, port, bootstrap=cluster.bootstrap_controllers), cluster_id=...).start()
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.bench.components.processes import Child, answers
from ottla.broker.cli.storage import format_directories
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from tests.harness.kafka import server_command, tool
from tests.harness.release import RELEASE

_READY = re.compile(r"^READY ", re.MULTILINE)


def controller(node_id: int, port: int, *, voters: str = "", bootstrap: str = "") -> dict[str, str]:
    """The properties of a controller in a quorum of static voters, or one that is found at `bootstrap`."""
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        **_quorum(voters, bootstrap),
    }


def broker(node_id: int, port: int, *, voters: str = "", bootstrap: str = "") -> dict[str, str]:
    """The properties of a broker under such a quorum."""
    return {
        "process.roles": "broker",
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "group.initial.rebalance.delay.ms": "0",
        "initial.broker.registration.timeout.ms": "600000",  # six processes may have to start beside it
        **_quorum(voters, bootstrap),
    }


def _quorum(voters: str, bootstrap: str) -> dict[str, str]:
    if voters:
        where = {"controller.quorum.voters": voters}
    else:
        where = {"controller.quorum.bootstrap.servers": bootstrap}
    return {"controller.listener.names": "CONTROLLER", **where}


class Node:
    """One process with a folder and a server.properties of its own."""

    is_kafka: bool

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str],
        *,
        cluster_id: str,
        format_with: Sequence[str] = (),
        more_dirs: Sequence[Path] = (),
    ) -> None:
        """`format_with` are further arguments of the command that formats, as `--no-initial-controllers`.

        `more_dirs` are log directories beside `data_dir`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_dirs = [self.data_dir, *more_dirs]
        self.properties_file = folder / "server.properties"
        self.node_id = int(properties["node.id"])
        self.port = int(properties["listeners"].rpartition(":")[2])
        self._is_controller = "controller" in properties["process.roles"]
        self._cluster_id = cluster_id
        self._format_with = format_with
        self._starts = 0
        self._child: Child | None = None
        every = {**properties, "log.dirs": ",".join(map(str, self.log_dirs))}
        self.properties_file.write_text("".join(f"{key}={value}\n" for key, value in every.items()))

    @property
    def listener(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def directory_id(self) -> str:
        """The id of its directory, once that is formatted."""
        found = re.search(
            r"^directory.id=(.*)$", (self.data_dir / "meta.properties").read_text(), re.MULTILINE
        )
        assert found is not None
        return found[1]

    def format(self) -> None:
        """Format the directory, if it is new."""
        if meta_properties.read(self.data_dir, Files()) is None:
            given = ["-t", self._cluster_id, "-c", str(self.properties_file), *self._format_with]
            self._format(given if "-r" in given else [*given, "-r", RELEASE])

    def spawn(self) -> None:
        """Start, without waiting; the output is in a file of its own."""
        self.format()
        self._starts += 1
        self._child = Child(self._command(), log=self.folder / f"node-{self._starts}.log")

    def start(self) -> None:
        """Start and wait until requests are served."""
        self.spawn()
        self.wait_ready()

    def wait_ready(self) -> None:
        self.child.wait_until(self._is_ready, interval_s=0.05)

    def stop(self) -> int:
        """Stop the node cleanly, and return its exit status."""
        return self.child.stop()

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self.child.kill()

    def end(self) -> None:
        """Kill the process if it runs."""
        if self._child is not None and self._child.is_running:
            self._child.kill()

    def _format(self, arguments: list[str]) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError


class OttlaNode(Node):
    """A node that runs `ottla broker server.properties`."""

    is_kafka = False

    def _format(self, arguments: list[str]) -> None:
        format_directories.main(arguments, standalone_mode=False)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "ottla", "broker", str(self.properties_file)]

    def _is_ready(self) -> bool:
        return _READY.search(self.child.output()) is not None


class KafkaNode(Node):
    """Apache Kafka with the same file. A controller is formatted by Kafka, with all of its features; a broker by us."""

    is_kafka = True

    def _format(self, arguments: list[str]) -> None:
        if self._is_controller:
            tool("kafka-storage", "format", *arguments)
        else:
            format_directories.main(arguments, standalone_mode=False)

    def _command(self) -> list[str]:
        return server_command(self.properties_file)

    def _is_ready(self) -> bool:
        return answers(self.port)
