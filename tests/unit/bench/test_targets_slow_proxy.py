"""The proxy in front of a store: a real server behind it answers later, and no faster than the rate, until
that is set back.
"""

import os
import socket
import threading
import time

import pytest

from ottla.bench.components.processes import free_port
from ottla.bench.targets.slow_proxy import Slowness, SlowProxy


@pytest.fixture
def server():
    """A port that answers each line `N` with N bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=[connection]).start()

        def answer(connection):
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    connection.sendall(bytes(int(line)))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def proxy(server):
    proxy = SlowProxy(f"127.0.0.1:{server}")
    yield proxy
    proxy.stop()


def ask(connection, size):
    """The seconds until so many bytes have arrived."""
    began = time.perf_counter()
    connection.sendall(b"%d\n" % size)
    while size:
        data = connection.recv(65536)
        assert data
        size -= len(data)
    return time.perf_counter() - began


def connect(proxy):
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)))


def test_answers_are_delayed_one_by_one_until_the_delay_is_taken_back(proxy):
    with connect(proxy) as connection:
        ask(connection, 10)
        proxy.slow_down(delay_s=0.3, bytes_per_s=0)
        assert [ask(connection, 10) >= 0.3 for _ in range(2)] == [True, True]
        assert 0.3 <= ask(connection, 1_000_000) < 3  # one delay for an answer in sixteen pieces
        proxy.slow_down(delay_s=0, bytes_per_s=0)
        assert min(ask(connection, 10) for _ in range(5)) < 0.3


def test_all_connections_share_the_rate(proxy):
    proxy.slow_down(delay_s=0, bytes_per_s=1e6)
    took_s = []
    with connect(proxy) as one, connect(proxy) as other:
        threads = [
            threading.Thread(target=lambda each=each: took_s.append(ask(each, 300_000)))
            for each in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 0.5 < max(took_s) < 5


@pytest.mark.parametrize(
    ("sent", "waits"),
    [
        # (at second, bytes) at 1,000 bytes a second; 50 ms' worth may be sent at once
        ([(10.0, 500)], [0.45]),
        ([(10.0, 500), (10.0, 500)], [0.45, 0.95]),
        ([(10.0, 20), (10.0, 20)], [0.0, 0.0]),
        ([(10.0, 500), (20.0, 500)], [0.45, 0.45]),  # what was not used before is gone
    ],
)
def test_how_long_bytes_wait(sent, waits):
    slowness = Slowness()
    slowness.set(delay_s=0, bytes_per_s=1000)
    waited = [slowness.wait_s("in", size, now_s=now_s) for now_s, size in sent]
    assert waited == pytest.approx(waits)
    assert slowness.wait_s("out", 10, now_s=10.0) == 0  # each direction has the whole rate


def test_a_server_that_does_not_listen_yet_closes_the_connection_and_is_found_later():
    port = free_port()
    proxy = SlowProxy(f"127.0.0.1:{port}")
    try:
        with connect(proxy) as connection:
            assert connection.recv(1) == b""
        with socket.create_server(("127.0.0.1", port)) as server, connect(proxy) as connection:
            connection.sendall(b"x")
            with server.accept()[0] as accepted:
                assert accepted.recv(1) == b"x"
    finally:
        proxy.stop()


def test_ctrl_c_is_not_for_the_proxy(proxy):
    """A terminal sends it to the whole group of processes."""
    assert os.getpgid(proxy._process.pid) != os.getpgrp()
