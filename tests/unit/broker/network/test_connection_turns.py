"""Long requests of all connections share a turn of the event loop with all else that is long."""

import asyncio

import pytest
from network_support import frame

from ottla.broker.network.connection import LARGE_FRAME_BYTES, MANY_ROWS_BYTES
from ottla.runtime.turns import MAX_STEPS


@pytest.mark.parametrize("size", [MANY_ROWS_BYTES - 1, MANY_ROWS_BYTES, LARGE_FRAME_BYTES])
def test_a_frame_that_may_be_long_waits_for_its_turn_where_long_work_has_taken_this_one(world, size):
    """Behind the work of others that arrived before, and once."""
    seen, turns = world.handler.seen, world.runtime.turns
    body = b"x" * size
    is_long = size >= MANY_ROWS_BYTES

    def others():
        turns.charge(MAX_STEPS)
        seen.append(b"others")

    async def scenario():
        client = await world.connect()
        client.transport.write(frame(body)[:-1])
        await asyncio.sleep(1)
        turns.charge(MAX_STEPS)
        for _ in range(3):
            turns.later(others)
        (connection,) = world.server.connections
        receive(connection, frame(body)[-1:])
        assert bool(seen) is not is_long
        await asyncio.sleep(1)
        assert client.replies == [body]
        assert seen.index(body) == (3 if is_long else 0)

    world.run(scenario())


def test_the_requests_of_many_connections_share_a_turn(world):
    """Each is handled at once as long as there is room; what one connection has left over does not count for
    it alone.
    """
    turns, dispatched = world.runtime.turns, []

    def dispatch(view, connection):
        turns.charge(MAX_STEPS // 4)
        dispatched[-1] += 1
        return [bytes(view)]

    async def scenario():
        world.server.dispatch = dispatch
        clients = [await world.connect() for _ in range(20)]
        dispatched.append(0)
        for connection in world.server.connections:
            receive(connection, frame(b"x" * MANY_ROWS_BYTES) * 5)
        while sum(dispatched) < 100:
            dispatched.append(0)
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert all(len(client.replies) == 5 for client in clients)

    world.run(scenario())
    assert max(dispatched) <= 6


@pytest.mark.parametrize("waits", [False, True])
def test_a_frame_that_has_waited_and_is_parked_holds_no_place_in_the_queue(world, waits):
    world.settings.queued_max_requests = 2

    async def scenario():
        clients = [await world.connect(host=host) for host in "abc"]
        for client, body in zip(
            clients, (b"x" * LARGE_FRAME_BYTES, b"y" * LARGE_FRAME_BYTES, b"z"), strict=True
        ):
            await send_in_a_turn_that_is_spent(world, client, frame(b"park " + body), is_spent=waits)
            await asyncio.sleep(1)
        assert world.server.memory.queued_count == 0
        clients[2].transport.close()
        await asyncio.sleep(5)
        assert len(world.server.connections) == 2  # it is read, so that its end is noticed

    world.run(scenario())


def test_a_frame_that_waits_keeps_its_memory(world):
    world.settings.queued_max_request_bytes = 3 * LARGE_FRAME_BYTES
    memory = world.server.memory

    async def scenario():
        client = await world.connect()
        whole = frame(b"x" * 2 * LARGE_FRAME_BYTES)
        await send_in_a_turn_that_is_spent(world, client, whole)
        assert memory.reserved_bytes == len(whole)
        assert not world.handler.seen
        await asyncio.sleep(1)
        assert client.replies == [whole[4:]]
        assert memory.reserved_bytes == 0

    world.run(scenario())


async def send_in_a_turn_that_is_spent(world, client, whole, *, is_spent=True):
    """The end of the frame arrives in such a turn."""
    client.transport.write(whole[:-1])
    await asyncio.sleep(1)
    if is_spent:
        world.runtime.turns.charge(MAX_STEPS)
    receive(list(world.server.connections)[-1], whole[-1:])


def receive(connection, data):
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
