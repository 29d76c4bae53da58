"""The requests of all connections that wait to be dispatched: their bounds, their order, and that all
complete."""

import asyncio
from dataclasses import replace

import pytest
from network_support import PREFIX, frame

from ottla.broker.network.receive_buffer import MIN_BYTES, SHARED_BYTES
from tests.harness.waiting import until

FRAME = 1_000_000


def bound(world, **settings):
    world.server.settings = replace(world.server.settings, **settings)


def test_frames_that_are_received_at_the_same_time_are_bounded(world):
    """Ten connections send a frame of 1 MB each, slowly; two and a half of them are let in at a time."""
    world.simulation.network.conditions.max_read_bytes = 20_000
    bound(world, queued_max_request_bytes=5 * FRAME // 2)
    seen = []

    async def scenario():
        clients = [await world.connect() for _ in range(10)]
        for number, client in enumerate(clients):
            client.send(bytes([number]) * FRAME)
        while len(seen) < 10:
            await asyncio.sleep(0.0005)
            memory = world.server.memory
            assert memory.reserved_bytes < 5 * FRAME // 2 + FRAME + 4
            seen[:] = [body[0] for body in world.handler.seen]
        await asyncio.sleep(1)
        assert all(len(client.replies[0]) == FRAME for client in clients)
        assert world.server.memory.reserved_bytes == 0

    world.run(scenario())
    assert sorted(seen) == list(range(10))


def test_a_sender_without_pause_does_not_keep_the_others_out(world):
    """One read has several frames; a connection that waits for memory is served between two of them."""
    world.simulation.network.conditions.max_read_bytes = 150_000
    bound(world, queued_max_request_bytes=100_000)

    async def scenario():
        busy, other = await world.connect(), await world.connect()
        busy.send(*[b"b" * 100_000] * 100)
        await asyncio.sleep(0.005)
        assert world.handler.seen
        other.send(b"o" * 100_000)
        await until(lambda: b"o" * 100_000 in world.handler.seen, pause_s=0.001)
        assert len(world.handler.seen) < 50
        await asyncio.sleep(10)
        assert len(busy.replies) == 100

    world.run(scenario())


async def connect_stuck(world):
    """Two connections that send most of a frame, and no more: one has all memory, the other one exceeds it."""
    stuck = [await world.connect() for _ in range(2)]
    for each in stuck:
        each.transport.write(PREFIX.pack(FRAME) + b"s" * (FRAME - 1000))
        await asyncio.sleep(1)
    return stuck


def test_the_length_that_a_frame_names_takes_no_memory_of_others(world):
    bound(world, queued_max_request_bytes=FRAME + PREFIX.size)

    async def scenario():
        for _ in range(3):
            (await world.connect()).transport.write(PREFIX.pack(FRAME) + b"s")
        await asyncio.sleep(1)
        assert world.server.memory.reserved_bytes == 3 * MIN_BYTES
        large = await world.connect()
        large.send(b"w" * FRAME)
        await asyncio.sleep(1)
        assert large.replies == [b"w" * FRAME]

    world.run(scenario())


def test_one_frame_at_a_time_may_exceed_the_bound_unless_requests_hold_memory_that_will_be_free(world):
    bound(world, queued_max_request_bytes=FRAME + PREFIX.size)

    async def scenario():
        (await world.connect()).transport.write(PREFIX.pack(FRAME) + b"s" * (FRAME - 1000))
        await asyncio.sleep(1)
        memory = world.server.memory
        memory.hold(1000)
        large = await world.connect()
        large.send(b"w" * FRAME)
        await asyncio.sleep(1)
        assert large.replies == []
        memory.let_go(1000)
        await asyncio.sleep(1)
        assert large.replies == [b"w" * FRAME]

    world.run(scenario())


def test_small_requests_continue_while_large_ones_wait(world):
    bound(world, queued_max_request_bytes=FRAME + PREFIX.size)

    async def scenario():
        stuck, _ = await connect_stuck(world)
        waiting, small = [await world.connect() for _ in range(2)]
        waiting.send(b"w" * FRAME)
        await asyncio.sleep(1)
        for _ in range(10):
            small.send(b"x")
            await asyncio.sleep(1)
        assert small.replies == [b"x"] * 10
        assert waiting.replies == []
        assert world.server.memory.reserved_bytes <= 2 * (FRAME + PREFIX.size)
        stuck.transport.abort()
        await asyncio.sleep(1)
        assert waiting.replies == [b"w" * FRAME]

    world.run(scenario())


def test_a_connection_that_waits_for_memory_is_not_idle_and_one_that_holds_it_is(world):
    bound(world, queued_max_request_bytes=FRAME + PREFIX.size, max_idle_ms=8_000)

    async def scenario():
        stuck = await connect_stuck(world)
        waiting = await world.connect()
        waiting.send(b"w" * FRAME)
        await asyncio.sleep(20)
        assert all(each.lost.done() for each in stuck)
        assert waiting.replies == [b"w" * FRAME]
        assert world.server.memory.reserved_bytes == 0

    world.run(scenario())


@pytest.mark.parametrize("ends", ["aborts", "sends no more"])
def test_who_goes_while_it_waits_leaves_the_queue(world, ends):
    bound(world, queued_max_request_bytes=FRAME + PREFIX.size)

    async def scenario():
        stuck, other = await connect_stuck(world)
        gone, last = [await world.connect() for _ in range(2)]
        gone.transport.write(frame(b"g" * FRAME)[:10_000])
        last.send(b"l" * FRAME)
        await asyncio.sleep(1)
        if ends == "aborts":
            gone.transport.abort()
        else:
            gone.transport.write_eof()
        await asyncio.sleep(1)
        assert last.replies == []
        for each in (stuck, other):
            each.transport.write(b"s" * 1000)
        await asyncio.sleep(2)
        assert last.replies == [b"l" * FRAME]
        assert world.server.memory.reserved_bytes == 0
        assert len(world.server.connections) == 3

    world.run(scenario())


def test_requests_behind_others_are_held_for_so_many_connections_only(world):
    bound(world, queued_max_requests=3)

    async def scenario():
        clients = [await world.connect() for _ in range(10)]
        for number, client in enumerate(clients):
            client.send(b"park %d" % number)
        await asyncio.sleep(1)
        for client in clients:
            client.send(*[b"z" * 1000] * 1000)
        await asyncio.sleep(1)
        assert world.server.memory.queued_count == 3
        assert world.server.pool.owned_bytes <= 3 * (SHARED_BYTES + 1)  # one read of each
        assert sorted(world.handler.seen) == [b"park %d" % number for number in range(10)]
        for number in reversed(range(10)):  # in no order that the server could want
            world.handler.release(b"%d" % number)
            await asyncio.sleep(1)
            assert len(clients[number].replies) == 1001
        assert world.server.memory.queued_count == 0

    world.run(scenario())


def test_a_place_in_the_queue_is_free_when_nothing_is_held_any_more(world):
    """It is free even if the last request held is parked itself, so that nothing is read in between."""
    bound(world, queued_max_requests=2)

    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"park b")
        await asyncio.sleep(1)
        assert world.server.memory.queued_count == 1
        world.handler.release(b"a")
        await asyncio.sleep(1)
        world.handler.release(b"b")
        await asyncio.sleep(1)
        assert world.server.memory.queued_count == 0

    world.run(scenario())


def test_while_the_queue_is_full_what_is_sent_behind_a_parked_request_is_not_read(world):
    bound(world, queued_max_requests=1)

    async def scenario():
        holder, client = await world.connect(), await world.connect()
        holder.send(b"park a", b"behind a")
        await asyncio.sleep(1)
        assert world.server.memory.is_queue_full
        client.send(b"park b")
        await asyncio.sleep(1)
        client.send(b"behind b")
        await asyncio.sleep(1)
        assert world.server.memory.queued_count == 1
        world.handler.release(b"b")
        await asyncio.sleep(1)
        assert client.replies == [b"released b", b"behind b"]
        world.handler.release(b"a")
        await asyncio.sleep(1)
        assert world.server.memory.queued_count == 0

    world.run(scenario())


def test_a_request_that_others_wait_for_is_dispatched_whatever_waits(world):
    """A JoinGroup that ends a rebalance is an example: all other connections hold requests behind one that
    waits for it."""
    bound(world, queued_max_requests=1, queued_max_request_bytes=1_000)

    async def scenario():
        members = [await world.connect() for _ in range(20)]
        for number, member in enumerate(members):
            member.send(b"park %d" % number, b"y" * 5000)
        await asyncio.sleep(1)
        last = await world.connect()
        last.send(b"z" * 5000)
        await asyncio.sleep(1)
        assert last.replies == [b"z" * 5000]
        for number in range(20):
            world.handler.release(b"%d" % number)
        await asyncio.sleep(1)
        assert all(member.replies[1] == b"y" * 5000 for member in members)

    world.run(scenario())
