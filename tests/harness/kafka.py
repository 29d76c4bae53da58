"""Apache Kafka itself, from its jars: a standalone server as oracle, and its command-line tools."""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ottla.bench.components import fetch
from ottla.bench.components.processes import PATIENCE_S, Child, answers, free_port

#: Kafka's shell scripts, as the main classes that they start.
TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": (
        "kafka.admin.ConfigCommand"
        if fetch.KAFKA_VERSION == "4.3.1"
        else "org.apache.kafka.tools.ConfigCommand"
    ),
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
}


def java_command(*, heap: str = "256m", options: Sequence[str] = ()) -> list[str]:
    """`java` with Kafka's class path; with little output, and options for a short start."""
    return [
        fetch.java(),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        *options,
        "-cp",
        f"{fetch.kafka_jars()}/*",
    ]


def server_command(properties: Path, *, heap: str = "512m", options: Sequence[str] = ()) -> list[str]:
    """The command line of a server. `options` for java replace the archive of loaded classes."""
    options = options or [f"-XX:SharedArchiveFile={_server_archive()}"]
    return [*java_command(heap=heap, options=options), "kafka.Kafka", str(properties)]


def _server_archive() -> Path:
    """The loaded classes of a server that has run before: others start with them in half the CPU time."""
    archive = _archive("kafka-server")
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            new_archive = archive.with_suffix(".new")
            with TemporaryDirectory() as folder:
                KafkaServer(Path(folder), options=[f"-XX:ArchiveClassesAtExit={new_archive}"]).start().stop()
            new_archive.replace(archive)
    return archive


def _archive(name: str) -> Path:
    return fetch.kafka_jars() / f"{name}.jsa"


def tool_command(name: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's tools."""
    archive = _archive(name)
    options = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    return [*java_command(options=[*options, "-Xlog:disable"]), TOOLS[name], *arguments]


def run_tool(
    name: str, *arguments: str, input: str | None = None, timeout_s: float = 2 * PATIENCE_S
) -> "subprocess.CompletedProcess[str]":
    """Run one of Kafka's tools to its end; its exit status is not checked."""
    command = tool_command(name, *arguments)
    archive = _archive(name)
    new_archive = archive.with_suffix(f".{os.getpid()}")
    if not archive.exists():
        # The first run leaves its loaded classes for the next ones, which then start in half the CPU time.
        command.insert(1, f"-XX:ArchiveClassesAtExit={new_archive}")
    done = subprocess.run(
        command, input=input, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if new_archive.exists():
        new_archive.replace(archive)
    return done


def tool(name: str, *arguments: str, input: str | None = None, timeout_s: float = 2 * PATIENCE_S) -> str:
    """Run one of Kafka's tools to its end and return what it printed.

    Raises CalledProcessError, with the output in its notes, when the tool says it failed.
    """
    done = run_tool(name, *arguments, input=input, timeout_s=timeout_s)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, [name, *arguments], done.stdout, done.stderr)
        error.add_note(f"{done.stdout}\n{done.stderr}")
        raise error
    return done.stdout


def broker_api_versions(bootstrap: str, folder: Path) -> str:
    """The output of kafka-broker-api-versions, which waits for a request no longer than 5 s and asks once."""
    settings = folder / "patient.properties"
    settings.write_text("request.timeout.ms=60000\n")
    return tool(
        "kafka-broker-api-versions", "--bootstrap-server", bootstrap, "--command-config", str(settings)
    )


class KafkaServer:
    """A standalone Kafka (broker and controller in one process), on a free port and a folder of its own."""

    is_kafka = True

    def __init__(
        self,
        folder: Path,
        *,
        settings: dict[str, str] | None = None,
        data_dir: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`options` are those of `server_command`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.data_dir = data_dir or folder / "data"
        self._folder = folder
        self._options = options
        controller_port = free_port()
        self._properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **(settings or {}),
        }
        self._child: Child | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    def start(self) -> "KafkaServer":
        """Format the folder if it is new, start, and wait until clients are served."""
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        if not (self.data_dir / "meta.properties").exists():
            tool("kafka-storage", "format", "-t", "q1Sh-9_ISia_zwGINzRvyQ", "-c", str(properties))
        log = self._folder / "kafka.log"
        self._child = Child(self.command(properties), log=log)
        self._child.wait_until(lambda: answers(self.port), interval_s=0.05)
        return self

    def command(self, properties: Path) -> list[str]:
        """The command line of the server."""
        return server_command(properties, heap="1g", options=self._options)

    def stop(self) -> int:
        return self.child.stop()

    def kill(self) -> None:
        self.child.kill()
