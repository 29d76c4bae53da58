"""A target that runs already is found by what it answers; what is no Kafka broker, or is not there, is one sentence."""

import os
import re
import socket
import threading
from contextlib import contextmanager

import pytest

from ottla.bench.components.processes import free_port
from ottla.bench.targets.fit import check_fit
from ottla.bench.targets.running import running
from ottla.bench.targets.started import started
from ottla.bench.targets.target import TargetError
from ottla.bench.workloads.model import Action, ClusterNeeds, Event, Phase, Tier, Workload


@contextmanager
def silent():
    """A server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def tls():
    """A server that wants TLS: it answers with an alert."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(bytes.fromhex("15030300020246"))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@contextmanager
def nothing():
    yield free_port()


@pytest.mark.parametrize(
    ("bootstrap", "words"),
    [
        ("127.0.0.1", "--target x=127.0.0.1: 127.0.0.1 is not HOST:PORT"),
        ("a:1,,b:2", "nothing is not HOST:PORT"),
        ("a:99999", "a:99999 is not HOST:PORT"),
        (":9092", ":9092 is not HOST:PORT"),
        ("no-such-host.invalid:9092", "no Kafka broker answers (no-such-host.invalid:9092: "),
    ],
)
def test_what_is_no_address(bootstrap, words):
    with pytest.raises(TargetError, match=re.escape(words)):
        running("x", bootstrap)


@pytest.mark.parametrize(
    ("server", "reason"),
    [(nothing, "Connection refused"), (silent, "timed out"), (tls, "a frame of 3 bytes")],
)
def test_no_kafka_broker(server, reason, monkeypatch):
    monkeypatch.setattr("ottla.bench.targets.running._TIMEOUT_S", 0.3)
    with server() as port, pytest.raises(TargetError) as refused:
        running("x", f"127.0.0.1:{port}")
    assert re.fullmatch(
        rf"--target x: no Kafka broker answers \(127.0.0.1:{port}: {reason}\)", str(refused.value)
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One broker with a tier."""
    target = started("ottla", ClusterNeeds(tier=Tier.DIRECTORY), tmp_path_factory.mktemp("running") / "ottla")
    target.start()
    yield target
    target.kill()


def test_a_cluster_is_known_by_its_answers(cluster):
    target = running("mine", f"127.0.0.1:{free_port()},{cluster.bootstrap}")
    assert target.name == "mine"
    assert target.has_tier
    assert re.fullmatch(r"cluster \S{22}, metadata.version \d+", target.version)
    assert target.brokers == cluster.brokers
    assert target.addresses() == cluster.addresses()
    # It is on this machine: its process is measured.
    assert target.node_pids() == cluster.node_pids()
    assert target.ports() == cluster.ports()


def test_it_is_left_running_and_may_not_be_disturbed(cluster):
    target = running("mine", cluster.bootstrap)
    target.kill()
    os.kill(target.broker_pids()[0], 0)
    kill = Event(at_s=0, action=Action.KILL, name="it", broker=1)
    workload = Workload(
        name="w",
        title="",
        about="",
        cluster=ClusterNeeds(),
        topics=[],
        phases=[Phase(name="p", events=[kill])],
    )
    with pytest.raises(TargetError, match="only brokers that were started by --start may be disturbed"):
        check_fit(workload, target)


def test_a_broker_that_its_cluster_knows_at_another_address_is_reported(cluster, monkeypatch):
    """A forwarded port is an example: clients would connect to the address that Metadata returns."""
    broker = cluster.brokers[0]
    other = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=forward, args=[listening, broker.address, other], daemon=True).start()
        port = listening.getsockname()[1]
        with pytest.raises(TargetError, match=f"broker 1 does not answer at 127.0.0.1:{other}, where"):
            running("x", f"127.0.0.1:{port}")


def forward(listening, address, other):
    """One connection to the broker, in whose answers its port is another one."""
    accepted, _ = listening.accept()
    real, fake = (port.to_bytes(4) for port in (address.port, other))
    with accepted, socket.create_connection(address) as broker:
        while request := accepted.recv(65536):
            broker.sendall(request)
            accepted.sendall(broker.recv(65536).replace(real, fake))
