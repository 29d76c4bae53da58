"""`ottla` as a user runs it: how it starts, what it refuses and with what words, and how it ends."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.bench.components.processes import PATIENCE_S, Child
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.compat.admin import create_topic, produce, read, wait_until
from tests.compat.members import ConfluentMember
from tests.harness.blocking_wire import BlockingWire
from tests.harness.ottla import OttlaServer

_OTTLA = [sys.executable, "-m", "ottla"]


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """A command that is expected to end by itself."""
    command = [*_OTTLA, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture
def ottla(tmp_path):
    server = OttlaServer(tmp_path / "server")
    yield server.start()
    if server.child.is_running:
        server.kill()


def test_version():
    done = run("version")
    assert done.returncode == 0
    assert re.fullmatch(r"ottla \d+\.\d+\.\d+\S*\n", done.stdout)


def test_the_ready_line_says_how_to_connect(ottla):
    (ready,) = [line for line in ottla.child.output().splitlines() if line.startswith("READY")]
    assert re.fullmatch(
        rf"READY bootstrap=127\.0\.0\.1:{ottla.port} cluster\.id=\S{{22}} node\.id=1 "
        rf"data={re.escape(str(ottla.data_dir))} connect: .*bootstrap\.servers=127\.0\.0\.1:{ottla.port} .*",
        ready,
    )


def test_a_folder_in_use_is_refused(ottla):
    done = run("broker", "--port", 0, "--data-dir", ottla.data_dir)
    assert done.returncode == 1
    assert f"Log directory {ottla.data_dir} is in use by another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_refused(ottla, tmp_path):
    done = run("broker", "--port", ottla.port, "--data-dir", tmp_path / "other")
    assert done.returncode == 1
    assert f"Cannot listen at PLAINTEXT://127.0.0.1:{ottla.port}: Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        # key, value and what is allowed
        ("log.cleanup.policy=keep", ["log.cleanup.policy", "'keep'", "compact, delete"]),
        ("num.partitions=0", ["num.partitions", "'0'", "at least 1"]),
        ("num.partitions=many", ["num.partitions", "'many'", "integer"]),
        ("auto.create.topics.enable=maybe", ["auto.create.topics.enable", "'maybe'", "true"]),
        ("listeners=nonsense", ["listeners", "nonsense"]),
        ("process.roles=emperor", ["process.roles", "emperor", "broker", "controller"]),
        ("nonsense", ["nonsense", "KEY=VALUE"]),
    ],
)
def test_a_bad_value_is_refused(tmp_path, setting, words):
    done = run("broker", "--port", 0, "--data-dir", tmp_path, "--set", setting)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert [word for word in words if word not in done.stderr] == []
    assert not (tmp_path / "meta.properties").exists()


def test_a_folder_that_cannot_be_written_is_refused():
    done = run("broker", "--port", 0, "--data-dir", "/proc/ottla")  # not even by root
    assert done.returncode == 1
    assert "Cannot use the log directories /proc/ottla" in done.stderr
    assert "Traceback" not in done.stderr


def test_folders_of_two_clusters_or_another_node_are_refused(ottla, tmp_path):
    assert ottla.stop() == 0
    done = run("broker", "--port", 0, "--data-dir", ottla.data_dir, "--set", "node.id=7")
    assert done.returncode == 1
    assert f"{ottla.data_dir} belongs to node 1, but node.id is 7" in done.stderr
    other = tmp_path / "other"
    other.mkdir()
    meta = (ottla.data_dir / "meta.properties").read_text()
    other_id = "q1Sh-9_ISia_zwGINzRvyQ"
    (other / "meta.properties").write_text(re.sub("cluster.id=.*", f"cluster.id={other_id}", meta))
    done = run("broker", "--port", 0, "--set", f"log.dirs={ottla.data_dir},{other}")
    assert done.returncode == 1
    assert f"{other} belongs to cluster {other_id}" in done.stderr


def test_the_log_in_json_begins_with_the_version_and_ends_with_the_stop(tmp_path):
    settings = {"num.partitions": "7", "log.segment.bytes": str(1 << 30), "rsm.config.secret.key": "hush"}
    options = ("--log-format", "json", "--log-level", "debug")
    server = OttlaServer(tmp_path, settings=settings, options=options).start()
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.child.output().splitlines() if not line.startswith("READY ")]
    first, last = lines[0], lines[-1]
    assert first["logger"] == "ottla.broker.node"
    assert re.match(r"Ottla \d\S* starts node 1 \(broker and controller\); ", first["message"])
    assert ", num.partitions=7, " in first["message"]
    assert "rsm.config.secret.key=[hidden]" in first["message"]
    assert "log.segment.bytes" not in first["message"], "it is the default"
    assert "DEBUG" in {line["level"] for line in lines}
    assert re.fullmatch(r"node 1 has stopped cleanly in \d+\.\d s", last["message"])


def test_an_unknown_key_warns(tmp_path):
    server = OttlaServer(tmp_path, settings={"some.unknown.key": "7"}).start()
    assert server.stop() == 0
    assert re.search(r"WARNING .*some\.unknown\.key", server.child.output())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly(ottla, number):
    create_topic(ottla.bootstrap, "t")
    produce(ottla.bootstrap, "t", [b"kept"])
    ottla.child.send_signal(number)
    assert ottla.child.wait() == 0
    assert (ottla.data_dir / ".kafka_cleanshutdown").exists()
    ottla.start()
    assert read(ottla.bootstrap, "t", 1)[0].value() == b"kept"
    assert "recovering" not in ottla.child.output()


def test_a_second_signal_ends_at_once(ottla):
    """The first one waits for requests in flight; here, a fetch that never completes."""
    create_topic(ottla.bootstrap, "t")
    produce(ottla.bootstrap, "t", [b"all that there is"])
    partition = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
    asked = FetchRequest(
        max_wait_ms=600_000,
        min_bytes=1,
        max_bytes=1000,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    with BlockingWire(ottla.port) as wire:
        wire.send(ApiKey.FETCH, 12, asked)
        ottla.child.send_signal(signal.SIGSTOP)  # so that both signals are there before it can end
        ottla.child.send_signal(signal.SIGTERM)
        ottla.child.send_signal(signal.SIGINT)
        ottla.child.send_signal(signal.SIGCONT)
        assert ottla.child.wait() == 130
    assert not (ottla.data_dir / ".kafka_cleanshutdown").exists()
    ottla.start()  # as after a crash
    create_topic(ottla.bootstrap, "t2")


def test_a_file_as_kafka_ships_it(tmp_path: Path):
    """The keys of Kafka's own config/server.properties; only ports, folders and the cluster's size are ours."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"""# The role of this server. Setting this puts us in KRaft mode
process.roles=broker,controller
node.id=3
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:0
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={tmp_path}/logs
num.partitions=2
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
    )
    settings = [
        "num.partitions=4",
        "broker.session.timeout.ms=600000",
    ]  # never fenced, which would be a warning
    child = Child(
        [*_OTTLA, "broker", str(properties), *(part for each in settings for part in ("--set", each))],
        log=tmp_path / "log",
    )
    try:
        child.wait_until(lambda: "READY" in child.output())
        found = re.search(r"READY bootstrap=(\S+) .*node\.id=3", child.output())
        assert found is not None
        create_topic(found[1], "t", 4)
        produce(found[1], "t", [b"1"], partition=3)
        warnings = child.warnings()
        assert len(warnings) == 2, warnings  # one for each feature that is not served
        assert (
            "does not serve share groups (KIP-932) yet: share.coordinator.state.topic.min.isr" in warnings[0]
        )
        assert "does not serve transactions (KIP-98) yet: transaction.state.log.min.isr" in warnings[1]
        assert child.output().count("have no meaning for this broker") == 1
        assert child.stop() == 0
    finally:
        child.kill()
    shutil.rmtree(tmp_path / "logs")


def test_clients_that_wait_do_not_hold_up_the_end(ottla, topic, group):
    """A group's member and a consumer with a long poll are there when the signal comes."""
    create_topic(ottla.bootstrap, topic)
    member = ConfluentMember(ottla.bootstrap, group, topic).start()
    wait_until(lambda: member.assigned)
    ottla.child.send_signal(signal.SIGTERM)
    assert ottla.child.wait() == 0
    ottla.start()
    member.stop()


def test_a_broker_with_a_remote_tier(tmp_path):
    """`--tier` alone makes topics with remote.storage.enable=true possible (KIP-405)."""
    server = OttlaServer(tmp_path / "server", tier=tmp_path / "tier").start()
    create_topic(
        server.bootstrap, "t", config={"remote.storage.enable": "true", "local.retention.ms": "1000"}
    )
    assert (tmp_path / "tier" / "kafka-tiered-storage").is_dir()
    assert server.stop() == 0


@pytest.mark.parametrize(("tier", "sentence"), [
    ("s3://",                  "names no bucket"),
    ("s3://b?secret.kye=x",    "unknown parameters, secret.kye"),
    ("{data}/tier",            "is inside of the log directory"),
    ("/dev/null/tier",         "which cannot be created"),
])  # fmt: skip
def test_a_remote_tier_that_cannot_be(tier, sentence, tmp_path):
    done = run("broker", "--port", 0, "--data-dir", tmp_path, "--tier", tier.format(data=tmp_path))
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
