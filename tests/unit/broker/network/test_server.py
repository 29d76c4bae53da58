"""Idle time, stopping: what concerns all connections of a server."""

import asyncio

import pytest
from network_support import Client

from ottla.broker.network.settings import NetworkSettings
from ottla.config.load import load_config


def test_settings_are_those_of_the_configuration():
    config = load_config(
        overrides=["max.connections.per.ip.overrides=10.0.0.1:5", "socket.send.buffer.bytes=-1"]
    )
    settings = NetworkSettings.from_config(config)
    assert settings.max_connections_per_ip_overrides == {"10.0.0.1": 5}
    assert (settings.send_buffer_bytes, settings.max_idle_ms) == (None, 600_000)
    assert settings.request_max_bytes == 104_857_600


@pytest.mark.parametrize("idle_ms", [800, 10_000, 600_000])
def test_idle_connections_are_closed_in_time(world, idle_ms):
    world.settings.max_idle_ms = idle_ms
    idle_s = idle_ms / 1000

    async def scenario():
        idle, busy, parked = [await world.connect() for _ in range(3)]
        parked.send(b"park a")
        began = world.runtime.monotonic()
        ended = idle.lost
        while not ended.done():
            busy.send(b"x")
            await asyncio.sleep(idle_s / 20)
        took = world.runtime.monotonic() - began
        assert idle_s * 0.99 <= took <= idle_s * 1.3 + 0.1
        await asyncio.sleep(idle_s / 2)
        assert not busy.lost.done()
        assert not parked.lost.done()
        world.handler.release(b"a")
        await asyncio.sleep(idle_s / 2)
        assert parked.replies == [b"released a"]
        await asyncio.sleep(2 * idle_s)
        assert busy.lost.done()
        assert parked.lost.done()
        assert not world.server.connections

    world.run(scenario())


def test_a_peer_that_takes_bytes_of_a_long_reply_is_not_idle(world):
    world.settings.max_idle_ms = 8_000
    size = 3_000_000

    class Sipping(Client):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    async def scenario():
        client = await world.connect(factory=Sipping)
        client.send(b"big %d" % size)
        for _ in range(30):  # 30 s; reads a little every second
            await asyncio.sleep(1)
            client.transport.resume_reading()
        assert not client.lost.done()
        await asyncio.sleep(10)
        client.transport.resume_reading()
        await asyncio.sleep(5)
        client.transport.write(b"no request at all")
        await asyncio.sleep(1)
        assert client.lost.done()  # it had stopped reading for too long
        assert len(client.data) < size

    world.simulation.network.conditions.max_read_bytes = 2000
    world.run(scenario())


def test_a_receive_buffer_in_use_is_kept(world):
    """Otherwise each connection with large requests would get another buffer after each sweep."""

    async def scenario():
        client = await world.connect()
        for _ in range(30):
            client.send(b"x" * 1_000_000)
            await asyncio.sleep(1)
            assert world.server.pool.owned_bytes >= 1_000_000

    world.run(scenario())


def test_unused_receive_buffers_are_given_back(world):
    async def scenario():
        client = await world.connect()
        client.send(b"x" * 1_000_000)
        await asyncio.sleep(1)
        assert world.server.pool.owned_bytes >= 1_000_000
        await asyncio.sleep(25)
        assert world.server.pool.owned_bytes == 0
        client.send(b"y")
        await asyncio.sleep(1)
        assert client.replies == [b"x" * 1_000_000, b"y"]

    world.run(scenario())


def test_stop_answers_what_is_in_progress_and_nothing_more(world):
    async def scenario():
        idle, parked = await world.connect(), await world.connect()
        parked.send(b"x", b"task", b"later")
        await asyncio.sleep(0.5)
        await world.server.stop(grace_s=5)
        assert world.runtime.monotonic() < 2
        await asyncio.sleep(1)
        assert idle.lost.done()
        assert parked.replies == [b"x", b"task"]
        assert parked.lost.done()
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    world.run(scenario())


def test_stop_cuts_off_after_its_grace(world):
    async def scenario():
        parked, slow = await world.connect(), await world.connect()
        slow.transport.pause_reading()
        slow.send(b"big 3000000")
        parked.send(b"park indefinitely")
        await asyncio.sleep(1)
        before = world.runtime.monotonic()
        await world.server.stop(grace_s=5)
        assert world.runtime.monotonic() - before == pytest.approx(5, abs=0.1)
        assert not world.server.connections
        assert world.server.limits.total == 0

    world.run(scenario())


def test_a_connection_that_arrives_while_stopping_is_refused(world):
    async def scenario():
        parked = await world.connect()
        parked.send(b"park a")
        await asyncio.sleep(1)
        late = asyncio.ensure_future(world.connect())
        stopping = asyncio.ensure_future(world.server.stop(grace_s=5))
        await asyncio.sleep(1)
        assert isinstance(late.exception(), ConnectionRefusedError) or late.result().lost.done()
        world.handler.release(b"a")
        await stopping
        await asyncio.sleep(1)
        assert parked.replies == [b"released a"]

    world.run(scenario())


def test_many_listeners_one_server(world):
    async def scenario():
        inside = await world.server.listen("INTERNAL", "server", 0)
        outside = await world.server.listen("EXTERNAL", "server", 0)
        for listening in (inside, outside):
            world.port = listening.port
            (await world.connect()).send(b"x")
        await asyncio.sleep(1)
        assert [c.listener_name for c in world.handler.connections] == ["INTERNAL", "EXTERNAL"]

    world.run(scenario())


@pytest.mark.parametrize("duration_s", [2, 60])
def test_a_stop_waits_for_the_tasks_of_connections_that_were_lost(world, duration_s):
    ended = []

    async def work():
        try:
            await asyncio.sleep(duration_s)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")

    async def scenario():
        world.server.dispatch = lambda frame, connection: work()
        client = await world.connect()
        client.send(b"x")
        await asyncio.sleep(1)
        client.transport.abort()
        await asyncio.sleep(0.5)
        assert not world.server.connections
        assert not ended
        await world.server.stop(grace_s=5)
        assert ended == ["done" if duration_s < 5 else "cancelled"]

    world.run(scenario())
