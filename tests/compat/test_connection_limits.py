"""Connections are accepted or refused alike by Ottla and Kafka when `max.connections` is reached."""

import select

import pytest

from ottla.bench.components.processes import PATIENCE_S, answers, steady_ports
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.harness.blocking_wire import BlockingWire
from tests.harness.kafka import KafkaServer
from tests.harness.ottla import OttlaServer

REQUEST = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.mark.parametrize("server_class", [OttlaServer, KafkaServer])
def test_clients_wait_and_other_brokers_displace_the_least_recently_used(server_class, tmp_path):
    outside, inside, controller = steady_ports(3)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{outside},INSIDE://127.0.0.1:{inside},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{outside},INSIDE://127.0.0.1:{inside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "max.connections": "2",
        "listener.name.inside.max.connections": "5",
    }
    server = server_class(tmp_path / "server", settings=settings)
    server.port = outside
    server.start()
    server.child.wait_until(lambda: answers(inside))  # Kafka opens its listeners one after the other
    opened = []

    def connect(port, *, is_answered=True):
        """A connection that has sent a request; whether that was answered is what is expected."""
        wire = BlockingWire(port)
        opened.append(wire)
        wire.send(ApiKey.API_VERSIONS, 3, REQUEST)
        is_readable = bool(select.select([wire._socket], [], [], PATIENCE_S if is_answered else 1.5)[0])
        assert is_readable == is_answered
        return wire

    try:
        first, second = connect(inside), connect(outside)
        waiting = connect(outside, is_answered=False)
        third = connect(inside)
        while second._socket.recv(1 << 16):  # what was answered before it was closed
            pass
        assert not select.select([waiting._socket], [], [], 1.5)[0]
        first._socket.close()
        third._socket.close()
        assert select.select([waiting._socket], [], [], PATIENCE_S)[0]
    finally:
        for wire in opened:
            wire._socket.close()
        server.stop()
