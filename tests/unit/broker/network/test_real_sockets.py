"""The same server on uvloop and real sockets: what a simulation cannot show."""

import asyncio
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from network_support import PREFIX, Client, Handler, frame

from ottla.bench.components.processes import PATIENCE_S
from ottla.broker.network import NetworkServer, NetworkSettings
from ottla.runtime.production import run
from tests.harness.waiting import until


class Serving:
    """A server with the tests' handler on a real port."""

    def __init__(self, runtime, **settings):
        self.handler = Handler(runtime)
        self.runtime = runtime
        self.clients = []
        self.server = NetworkServer(runtime, self.handler, NetworkSettings(**settings))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for client in self.clients:
            client.transport.resume_reading()
        await self.server.stop(grace_s=0.5)
        await asyncio.wait_for(asyncio.gather(*(client.lost for client in self.clients)), PATIENCE_S)

    async def connect(self):
        if not self.server._acceptors:
            self.port = (await self.server.listen("PLAINTEXT", "127.0.0.1", 0)).port
        _, client = await self.runtime.connect("127.0.0.1", self.port, Client)
        self.clients.append(client)
        return client

    async def until(self, condition):
        """Waits for the other end of a real socket; fails when it does nothing for too long."""
        await until(condition, within_s=PATIENCE_S)


def test_sizes_order_and_parking():
    async def main(runtime):
        async with Serving(runtime) as serving:
            client = await serving.connect()
            bodies = [b"x" * size for size in (1, 100, 65_536, 1_000_000, 1, 3_000_000, 70_000, 10)]
            client.send(*bodies, b"park a", b"big 10000000", *bodies)
            await serving.until(lambda: b"a" in serving.handler.parked and len(client.replies) == 8)
            assert client.replies == bodies
            serving.handler.release(b"a")
            await serving.until(lambda: len(client.replies) == 18)
            assert client.replies[8] == b"released a"
            assert len(client.replies[9]) == 10_000_000
            assert client.replies[10:] == bodies

    run(main)


def test_a_slow_reader_does_not_fill_memory():
    count = 200
    size = 300_000

    async def main(runtime):
        async with Serving(runtime, send_buffer_bytes=100_000) as serving:
            slow, other = await serving.connect(), await serving.connect()
            slow.transport.pause_reading()
            slow.send(*[b"big %d" % size] * count)
            slow.send(*[b"z" * 1000] * 2000)
            await serving.until(lambda: len(serving.handler.seen) >= 2)
            other.send(b"x")
            await serving.until(lambda: other.replies == [b"x"])
            assert len(serving.handler.seen) < 50
            slow.transport.resume_reading()
            await serving.until(lambda: len(slow.data) == count * (size + 4) + 2000 * 1004)

    run(main)


def test_abrupt_ends_leave_nothing_behind():
    """Resets at every state: idle, half a frame, parked, unread replies."""

    async def main(runtime):
        async with Serving(runtime) as serving:
            other = await serving.connect()
            beginnings = [
                b"",
                frame(b"x" * 1000)[:500],
                frame(b"work %d"),
                frame(b"big 5000000"),
                frame(b"task"),
            ]
            for number in range(50):
                client = await serving.connect()
                client.transport.pause_reading()
                client.transport.write(beginnings[number % 5].replace(b"%d", b"%02d" % number))
                await asyncio.sleep(0.002)
                inner = client.transport.get_extra_info("socket")
                inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
                client.transport.abort()
            for future in serving.handler.parked.values():
                future.set_result([b"late"])
            other.send(b"x")
            await serving.until(lambda: other.replies == [b"x"] and len(serving.server.connections) == 1)
            assert serving.server.pool.owned_bytes == 0
            assert serving.server.limits.total == 1

    run(main)


def test_limits_refuse_by_closing():
    async def main(runtime):
        async with Serving(runtime, max_connections_per_ip=2) as serving:
            clients = [await serving.connect() for _ in range(3)]
            await clients[2].lost
            clients[0].send(b"x")
            await serving.until(lambda: clients[0].replies == [b"x"])

    run(main)


def test_limits_of_addresses_may_be_given_by_host_names(caplog):
    overrides = {"localhost": 1, "fe80::1%nowhere": 5, "a..b": 5}  # none of them asks a name server

    async def main(runtime):
        async with Serving(runtime, max_connections_per_ip_overrides=overrides) as serving:
            clients = [await serving.connect() for _ in range(2)]
            await clients[1].lost
            serving.server.settings = NetworkSettings(max_connections_per_ip_overrides={"localhost": 2})
            await serving.until(lambda: serving.server.limits.overrides.get("127.0.0.1") == 2)
            third = await serving.connect()
            third.send(b"x")
            await serving.until(lambda: third.replies == [b"x"])

    run(main)
    assert "fe80::1%nowhere cannot be resolved" in caplog.text
    assert "a..b cannot be resolved" in caplog.text


def test_a_change_of_other_settings_leaves_the_limits_of_named_hosts():
    """They would not hold until the names are resolved again, and not at all if that fails then."""

    async def main(runtime):
        async with Serving(runtime, max_connections_per_ip_overrides={"localhost": 2}) as serving:
            await serving.connect()
            limits = dict(serving.server.limits.overrides)
            assert limits["127.0.0.1"] == 2
            serving.server.settings = replace(serving.server.settings, max_connections=100)
            assert serving.server.limits.overrides == limits

    run(main)


def test_idle_connections_are_closed():
    async def main(runtime):
        async with Serving(runtime, max_idle_ms=200) as serving:
            client = await serving.connect()
            await asyncio.wait_for(client.lost, PATIENCE_S)

    run(main)


def test_a_closing_connection_whose_peer_does_not_read_is_cut_off():
    """Its response cannot be sent, and it would count against max.connections as long as the peer likes."""

    async def main(runtime):
        async with Serving(runtime, max_idle_ms=400, send_buffer_bytes=4096) as serving:
            await serving.connect()
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.connect(("127.0.0.1", serving.port))
                for count in (1, 2):  # two turns: neither they nor both together clog the connection
                    peer.send(frame(b"big 60000"))
                    await serving.until(lambda count=count: len(serving.handler.seen) == count)
                (connection,) = serving.handler.connections
                peer.send(PREFIX.pack(-1))
                await serving.until(lambda: connection.is_closed)
                assert connection in serving.server.connections
                await serving.until(lambda: connection not in serving.server.connections)

    run(main)


def resident_bytes():
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_thousands_of_idle_connections_cost_little():
    """2,000 connections (or as many as may be open) that have sent something; both ends are in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2_000 if hard == resource.RLIM_INFINITY else min(2_000, hard // 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    class Small(asyncio.Protocol):
        __slots__ = ()

    async def main(runtime):
        async with Serving(runtime) as serving:
            await serving.connect()
            before = resident_bytes()
            transports = []
            for _ in range(count):
                transport, _ = await runtime.connect("127.0.0.1", serving.port, Small)
                transport.write(frame(b"none") + frame(b"x" * 100)[:3])
                transports.append(transport)
            await serving.until(lambda: len(serving.handler.seen) == count)
            partial = serving.server.pool.owned_bytes
            for transport in transports:
                transport.write(frame(b"none")[3:])
            await serving.until(lambda: len(serving.handler.seen) == 2 * count)
            each = (resident_bytes() - before) / count
            assert partial <= count * 4096
            assert serving.server.pool.owned_bytes == 0
            assert each < 16_000, each  # both ends, and what the allocator kept of 4 KB buffers
            for transport in transports:
                transport.close()
            await serving.until(lambda: len(serving.server.connections) == 1)

    run(main)


@pytest.mark.logs("new connections wait until others are closed: there are")
def test_a_full_server_leaves_clients_in_the_backlog_and_lets_other_brokers_in():
    """The reproduction of connections of other brokers that `max.connections` cuts off."""

    async def main(runtime):
        async with Serving(runtime, max_connections=2, inter_broker_listener="REPLICATION") as serving:
            inside = (await serving.server.listen("REPLICATION", "127.0.0.1", 0)).port
            serving.port = (await serving.server.listen("EXTERNAL", "127.0.0.1", 0)).port
            first, second, waiting = [await serving.connect() for _ in range(3)]
            for client in (first, second, waiting):
                client.send(b"x")
            await serving.until(lambda: second.replies == [b"x"])
            serving.port = inside
            broker = await serving.connect()
            broker.send(b"fetch")
            await asyncio.wait_for(first.lost, PATIENCE_S)  # used least recently
            await serving.until(lambda: broker.replies == [b"fetch"])
            assert waiting.replies == []
            assert serving.server.limits.total == 2
            second.transport.close()
            await serving.until(lambda: waiting.replies == [b"x"])

    run(main)


def test_a_process_without_descriptors_accepts_again_when_it_has_some(caplog):
    async def main(runtime):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with Serving(runtime) as serving:
            client = await serving.connect()
            waiting = socket.socket()
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
                waiting.connect(("127.0.0.1", serving.port))
                await serving.until(lambda: "no connection can be accepted" in caplog.text)
                client.send(b"x")
                await serving.until(lambda: client.replies == [b"x"])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await serving.until(lambda: len(serving.server.connections) == 2)
            waiting.close()

    run(main)
    assert caplog.text.count("no connection can be accepted") == 1
