"""Frames, order and bounds of one connection, on the simulated runtime."""

import asyncio
import logging

import pytest
from network_support import PREFIX, frame

from ottla.broker.network import connection as connection_module
from ottla.broker.network.connection import PIPELINED_BYTES, REQUESTS_PER_TURN, WRITE_HIGH_WATER_BYTES
from ottla.broker.network.server import NOTES_PER_SWEEP
from ottla.protocol.errors import MalformedMessage


def test_a_frame_is_answered(world):
    async def scenario():
        client = await world.connect()
        client.send(b"hello")
        await asyncio.sleep(1)
        assert client.replies == [b"hello"]
        connection = world.handler.connections[0]
        assert (connection.client_host, connection.listener_name) == ("client", "PLAINTEXT")
        assert connection.client_port == client.transport.get_extra_info("sockname")[1]

    world.run(scenario())


def test_frames_cut_at_every_byte(world):
    bodies = [b"a", b"bb" * 10, b"none", b"ccc" * 7]
    stream = b"".join(map(frame, bodies))

    async def scenario():
        for cut in range(1, len(stream)):
            client = await world.connect()
            client.transport.write(stream[:cut])
            await asyncio.sleep(1)
            client.transport.write(stream[cut:])
            await asyncio.sleep(1)
            assert client.replies == [body for body in bodies if body != b"none"], cut
            client.transport.close()

    world.run(scenario())


@pytest.mark.parametrize("max_read_bytes", [1, 3, 100, 5000])
def test_any_pieces_give_the_same_frames(world, max_read_bytes):
    world.simulation.network.conditions.max_read_bytes = max_read_bytes
    chance = world.simulation.random
    sizes = [chance.choice((1, 5, 50, 500, 5_000 if max_read_bytes > 50 else 60)) for _ in range(60)]
    bodies = [chance.randbytes(size) for size in sizes]

    async def scenario():
        client = await world.connect()
        client.send(*bodies)
        await asyncio.sleep(10)
        assert world.handler.seen == bodies
        assert client.replies == bodies
        assert world.server.pool.owned_bytes <= 64 * 1024

    world.run(scenario())


@pytest.mark.parametrize("size", [65_530, 65_536, 100_000, 1_000_000, 3_000_000])
def test_large_frames_behind_each_other(world, size):
    async def scenario():
        client = await world.connect()
        bodies = [bytes([number]) * (size + number) for number in range(4)]
        client.send(*bodies)
        await asyncio.sleep(10)
        assert client.replies == bodies
        assert world.server.pool.owned_bytes <= 2 * (size + 100) + 64 * 1024

    world.run(scenario())


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1, 1001])
def test_a_frame_length_that_cannot_be_ends_the_connection_only(world, length):
    world.settings.request_max_bytes = 1000

    async def scenario():
        other = await world.connect()
        client = await world.connect()
        client.send(b"before")
        client.transport.write(PREFIX.pack(length) + b"x" * 100)
        await client.lost
        assert client.replies == [b"before"]
        other.send(b"y" * 1000)
        await asyncio.sleep(1)
        assert other.replies == [b"y" * 1000]
        assert len(world.server.connections) == 1

    world.run(scenario())


def test_a_claimed_length_allocates_nothing(world):
    async def scenario():
        clients = [await world.connect() for _ in range(50)]
        for client in clients:
            client.transport.write(PREFIX.pack(100 * 1024 * 1024) + b"x" * 1000)
        await asyncio.sleep(1)
        assert world.server.pool.owned_bytes == 50 * 4096
        clients[0].transport.write(b"x" * 100_000)
        await asyncio.sleep(1)
        assert world.server.pool.owned_bytes <= 49 * 4096 + 4 * 101_004

    world.run(scenario())


def test_replies_keep_the_order_of_requests(world):
    async def scenario():
        client = await world.connect()
        client.send(b"first", b"park a", b"second", b"none", b"park b", b"third")
        await asyncio.sleep(1)
        assert client.replies == [b"first"]
        assert world.handler.seen == [b"first", b"park a"]
        world.handler.release(b"a")
        await asyncio.sleep(1)
        assert client.replies == [b"first", b"released a", b"second"]
        world.handler.release(b"b")
        await asyncio.sleep(1)
        assert client.replies[3:] == [b"released b", b"third"]

    world.run(scenario())


def test_coroutines_and_futures_that_are_done_already(world):
    async def scenario():
        client = await world.connect()
        done = world.runtime.loop.create_future()
        done.set_result(None)
        world.server.dispatch = lambda view, _: done if bytes(view) == b"done" else world.handler(view, _)
        client = await world.connect()
        client.send(b"task", b"done", b"x")
        await asyncio.sleep(0.9)
        assert client.replies == []
        await asyncio.sleep(0.2)
        assert client.replies == [b"task", b"x"]

    world.run(scenario())


def test_a_slow_reader_is_not_worked_for(world):
    size = WRITE_HIGH_WATER_BYTES // 2
    count = 30

    async def scenario():
        client = await world.connect()
        client.transport.pause_reading()
        client.send(*[b"big %d" % size] * count)
        await asyncio.sleep(1)
        connection = world.handler.connections[0]
        held = connection._transport.get_write_buffer_size()
        assert size <= held <= WRITE_HIGH_WATER_BYTES + 2 * size
        answered = len(world.handler.seen)
        assert answered <= 8
        await asyncio.sleep(1)
        assert len(world.handler.seen) == answered
        client.transport.resume_reading()
        await asyncio.sleep(5)
        assert [len(reply) for reply in client.replies] == [size] * count

    world.run(scenario())


def test_a_slow_reader_that_keeps_sending_is_not_read(world):
    async def scenario():
        client = await world.connect()
        client.transport.pause_reading()
        client.send(*[b"big 600000"] * 3)
        client.send(*[b"z" * 1000] * 2000)
        await asyncio.sleep(1)
        assert world.server.pool.owned_bytes <= 2 * PIPELINED_BYTES
        assert client.transport.get_write_buffer_size() > 1_000_000
        client.transport.resume_reading()
        await asyncio.sleep(5)
        assert len(client.replies) == 2003

    world.run(scenario())


def test_all_replies_of_one_turn_leave_in_one_write(world, monkeypatch):
    writes = []
    original = connection_module.Connection._send
    monkeypatch.setattr(
        connection_module.Connection,
        "_send",
        lambda self, pieces, size: writes.append(size) or original(self, pieces, size),
    )

    async def scenario():
        client = await world.connect()
        client.send(*[b"x" * 10] * (REQUESTS_PER_TURN + 5))
        await asyncio.sleep(1)
        assert writes == [10 * REQUESTS_PER_TURN, 50]
        assert len(client.replies) == REQUESTS_PER_TURN + 5

    world.run(scenario())


def test_a_peer_that_sends_without_pause_is_not_the_only_one_served(world):
    """1,000 requests in one read, then one of another client: it waits for a turn, not for all of them."""
    world.simulation.network.conditions.latency_s = lambda _: 0.001

    async def scenario():
        greedy, other = await world.connect(), await world.connect()
        greedy.send(*[b"x" * 10] * 1000)
        other.send(b"y")
        await asyncio.sleep(1)
        assert world.handler.seen.index(b"y") <= 3 * REQUESTS_PER_TURN
        assert (len(greedy.replies), other.replies) == (1000, [b"y"])

    world.run(scenario())


def test_what_a_peer_did_is_noted_a_few_times_and_cannot_forge_lines(world, caplog):
    caplog.set_level(logging.INFO)
    world.settings.request_max_bytes = 100

    async def scenario():
        world.server.dispatch = refuse
        for _ in range(200):
            client = await world.connect()
            client.send(b"x")
        await asyncio.sleep(30)

    def refuse(view, connection):
        raise MalformedMessage("evil\n2026 ERROR all is lost\0" + "x" * 10_000)

    world.run(scenario())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == NOTES_PER_SWEEP + 1
    assert "180 more" in messages[-1]
    assert not any("\n" in message or "\0" in message or len(message) > 500 for message in messages)


def test_frames_are_views_and_not_copies(world):
    seen = []

    def dispatch(view, connection):
        seen.append((type(view), view.readonly, bytes(view[:3])))
        view[:3] = b"abc"  # as a produce patches offsets in place
        return [view[:3].tobytes()]

    async def scenario():
        world.server.dispatch = dispatch
        client = await world.connect()
        client.send(b"xyz123", b"uvw")
        await asyncio.sleep(1)
        assert client.replies == [b"abc", b"abc"]
        assert seen == [(memoryview, False, b"xyz"), (memoryview, False, b"uvw")]

    world.run(scenario())
