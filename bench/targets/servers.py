"""The two brokers that are compared: processes of their own, with the same settings.

Apache Kafka runs with the flags of its own start script (G1, 1 GB of heap); Ottla runs with none.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from ottla.bench.components import fetch
from ottla.bench.components.processes import Child, StartFailed, free_port
from ottla.bench.environment import REPOSITORY
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.memory import memory_of
from ottla.bench.targets.settings import SETTINGS
from ottla.bench.targets.wire import Address, WireClient

#: The JVM's options: KAFKA_JVM_PERFORMANCE_OPTS of kafka-run-class.sh, KAFKA_HEAP_OPTS of
#: kafka-server-start.sh.
_JVM_FLAGS: Final = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Xmx1G",
    "-Xms1G",
]

#: The properties that both get beside the chosen settings: internal topics of one replica on one node, no
#: wait for more members of a group, and deleted files gone quickly, so that the next load has the page cache
#: for itself.
_COMMON: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "500",
}
_STOP_TIMEOUT_S: Final = 30
#: The id of the only broker.
NODE_ID: Final = 1


class Usage(NamedTuple):
    """The use of resources by a process: CPU so far, memory now."""

    cpu_s: float
    resident_bytes: int
    #: The resident memory without pages shared with files: the broker's own memory, page cache aside.
    private_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """The duration of a start, until a first ApiVersions was answered."""

    #: The duration of writing the files of a new data folder, where that is a command of its own.
    format_s: float
    start_s: float


def usage_of(*roots: Child) -> Usage:
    """Return the usage of these processes and their children, all together."""
    cpu_s = 0.0
    resident = private = 0
    for child in roots:
        root = psutil.Process(child.pid)
        for process in (root, *root.children(recursive=True)):
            try:
                times, memory = process.cpu_times(), memory_of(process.pid)
            except (psutil.NoSuchProcess, OSError):
                continue  # a child that has just ended
            cpu_s += times.user + times.system
            resident += memory[0]
            private += memory[1]
    return Usage(cpu_s, resident, private)


def kafka_command(properties: Path) -> list[str]:
    """Return the command that starts a node of Apache Kafka as its own script does."""
    return [fetch.java(), *_JVM_FLAGS, "-cp", f"{fetch.kafka_jars()}/*", "kafka.Kafka", str(properties)]


def ottla_environment() -> dict[str, str]:
    """Return the environment for processes of this repository."""
    # Compiled modules are kept, as they are for users: a start that compiles everything is another figure.
    path = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{path}".rstrip(os.pathsep),
    }


class Server:
    """One broker, which is all of its cluster: `Nodes` of `target.py`; measured through its process."""

    #: The name of the broker in tables and results.
    name: str
    #: The replicas of a topic.
    replication_factor = 1

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS["default"]) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        #: The whole configuration but for its listeners and folders.
        self.settings: Mapping[str, str] = {**_COMMON, **settings}
        self._child: Child | None = None

    def data_dir(self, node_id: int = NODE_ID) -> Path:
        """Return the directory in which the broker has its logs."""
        return self.folder / "data"

    def log_file(self, node_id: int = NODE_ID) -> Path:
        """Return the file to which the broker's process writes its log lines."""
        return self.folder / "broker.log"

    @property
    def bootstrap(self) -> str:
        """The address of the broker, as a client's `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def addresses(self) -> Mapping[int, Address]:
        """Return the broker's address, if it runs, by its id."""
        return {NODE_ID: Address("127.0.0.1", self.port)} if self.is_running else {}

    def client(self) -> ClusterClient:
        """Return a connection to the broker, as a context manager."""
        return ClusterClient(self.addresses())

    def start(self) -> StartUp:
        """Format the data folder if need be, start, and wait for the first ApiVersions answer."""
        began = time.perf_counter()
        self._format()
        formatted = time.perf_counter()
        self._child = Child(self._command(), log=self.log_file(), env=self._environment())
        self._child.wait_until(lambda: WireClient.answers(self.port), timeout_s=60, interval_s=0.002)
        return StartUp(format_s=formatted - began, start_s=time.perf_counter() - formatted)

    def stop(self) -> None:
        """Stop the broker's process (SIGTERM), and wait until it has ended."""
        assert self._child is not None
        self._child.stop(timeout_s=_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the broker's process (SIGKILL), if it runs."""
        if self.is_running:
            assert self._child is not None
            self._child.kill()

    @property
    def is_running(self) -> bool:
        """Whether the broker's process runs."""
        return self._child is not None and self._child.is_running

    def usage(self) -> Usage:
        """Return the usage of the broker's process and its children."""
        assert self._child is not None
        return usage_of(self._child)

    def start_node(self, node_id: int) -> None:
        """Start the broker and wait until it answers."""
        self.start()

    def stop_node(self, node_id: int) -> None:
        """Stop the broker's process (SIGTERM), and wait until it has ended."""
        self.stop()

    def kill_node(self, node_id: int) -> None:
        """Kill the broker's process (SIGKILL)."""
        self.kill()

    def node_pids(self) -> Mapping[str, int]:
        """Return the broker's process, if it runs, as `broker-1`."""
        return {f"broker-{NODE_ID}": pid for pid in self.broker_pids()}

    def broker_pids(self) -> Sequence[int]:
        """Return the broker's process, if it runs."""
        return [self._child.pid] if self._child is not None and self._child.is_running else []

    def _format(self) -> None:
        """Prepare a new data folder, where the broker does not do it itself."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {}


class Kafka(Server):
    """Apache Kafka from its jars, broker and controller in one process."""

    name = "kafka"

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS["default"]) -> None:
        super().__init__(folder, settings)
        controller_port = free_port()
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(NODE_ID),
            "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_dir()),
            **self.settings,
        }
        self.properties_file = folder / "server.properties"
        self.properties_file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def _format(self) -> None:
        if not self.data_dir().exists():
            command = [fetch.java(), "-Xmx256m", "-cp", f"{fetch.kafka_jars()}/*", "kafka.tools.StorageTool"]
            arguments = ["format", "-t", "q1Sh-9_ISia_zwGINzRvyQ", "-c", str(self.properties_file)]
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                raise StartFailed(f"{done.stdout}\n{done.stderr}")

    def _command(self) -> list[str]:
        return kafka_command(self.properties_file)


class Ottla(Server):
    """This project's broker, as `ottla broker` starts it: it formats its folder itself."""

    name = "ottla"

    @property
    def overrides(self) -> list[str]:
        """The arguments of `--set`: all settings, since those of a broker without a file are not Kafka's defaults."""
        return [f"{key}={value}" for key, value in self.settings.items()]

    def _program(self) -> list[str]:
        """The program that `python -m` runs, with its arguments."""
        return ["ottla"]

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", *self._program(), "--port", str(self.port)]
        command += ["--data-dir", str(self.data_dir())]
        for override in self.overrides:
            command += ["--set", override]
        return command

    def _environment(self) -> dict[str, str]:
        return ottla_environment()


SERVERS: Final[dict[str, type[Server]]] = {"kafka": Kafka, "ottla": Ottla}


def end_on_signals() -> None:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that no broker outlives its benchmark."""

    def on_signal(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_signal)
