"""Bytes on the connections of a port, as the kernel counts them: of open, ended and short connections, and of
no other port.
"""

import socket
import sys
import threading
from contextlib import closing

import pytest

from ottla.bench.components.processes import comes_true
from ottla.bench.targets.connections import Carried, Connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sock_diag is Linux's")
#: TCP counts the end of a connection as a byte, in each direction.
END = 1


@pytest.fixture
def echo():
    """The port of a server that returns everything twice, on either IP version."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=[connection]).start()

        def answer(connection):
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data * 2)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def exchange(connection, size):
    connection.sendall(b"x" * size)
    left = 2 * size
    while left:
        left -= len(connection.recv(65536))


def settled(connections, port, expected):
    """The counted bytes, added up until they are as expected, since acknowledgements arrive a little later."""
    total = Carried(0, 0)

    def is_complete():
        nonlocal total
        more = connections.carried()[port]
        total = Carried(total.received + more.received, total.sent + more.sent)
        return total == expected

    comes_true(is_complete, timeout_s=30)
    return total


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_open_and_ended_connections_count_what_they_have_carried_since(echo, host):
    with socket.create_connection((host, echo)) as client:
        with closing(Connections([echo])) as earlier:
            exchange(client, 700)  # before: not counted
            settled(earlier, echo, Carried(700, 1400))
        with closing(Connections([echo])) as connections:
            exchange(client, 1000)
            assert settled(connections, echo, Carried(1000, 2000)) == (1000, 2000)
            exchange(client, 50)
            client.close()
            assert settled(connections, echo, Carried(50 + END, 100 + END)) == (50 + END, 100 + END)
            assert connections.carried() == {echo: (0, 0)}


def test_connections_that_live_between_two_samples_only_are_counted(echo):
    with closing(Connections([echo])) as connections:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", echo)) as client:
                exchange(client, 10)
        expected = Carried(20 * (10 + END), 20 * (20 + END))
        assert settled(connections, echo, expected) == expected


def test_other_ports_are_not_counted(echo):
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        closing(Connections([echo])) as connections,
        socket.create_connection(other.getsockname()) as client,
    ):
        client.sendall(b"x" * 1000)
        with other.accept()[0] as accepted:
            assert accepted.recv(1000)
            assert connections.carried() == {echo: (0, 0)}
