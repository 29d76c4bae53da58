"""Requests whose replies are completed later: their order, their bounds, and a connection that ends meanwhile."""

import asyncio

import pytest

from ottla.broker.network import connection as connection_module
from ottla.broker.network.connection import PIPELINED_BYTES, WRITE_HIGH_WATER_BYTES


def written(monkeypatch):
    """The replies that connections pass to their transports, as they do."""
    replies = []
    original = connection_module.Connection._send

    def send(self, pieces, size):
        replies.append(b"".join(pieces[1:]))
        original(self, pieces, size)

    monkeypatch.setattr(connection_module.Connection, "_send", send)
    return replies


def test_the_reply_of_a_parked_request_is_sent_by_its_completion_and_the_next_request_has_a_turn_of_its_own(
    world, monkeypatch
):
    sent = written(monkeypatch)

    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"second", b"third")
        await asyncio.sleep(1)
        world.handler.release(b"a")
        assert sent == [b"released a"]
        assert world.handler.seen == [b"park a"]
        await asyncio.sleep(0)
        assert world.handler.seen == [b"park a", b"second", b"third"]
        await asyncio.sleep(1)
        assert client.replies == [b"released a", b"second", b"third"]

    world.run(scenario())


def test_what_completes_many_requests_answers_all_of_them_before_the_next_of_any(world, monkeypatch):
    """A follower's Fetch that advances the high watermark is an example."""
    sent = written(monkeypatch)

    async def scenario():
        for number in range(20):
            client = await world.connect()
            client.send(b"park %d" % number, b"park again %d" % number)
        await asyncio.sleep(1)
        for number in range(20):
            world.handler.release(b"%d" % number)
        assert len(sent) == len(world.handler.seen) == 20
        await asyncio.sleep(1)
        assert len(world.handler.seen) == 40

    world.run(scenario())


def test_a_request_may_be_completed_while_another_ones_is_dispatched(world):
    """The other one's connection is in the middle of its own requests."""
    real = world.handler

    def dispatch(view, connection):
        if bytes(view) == b"release a":
            real.release(b"a")
        return real(view, connection)

    async def scenario():
        world.server.dispatch = dispatch
        parked, other = await world.connect(), await world.connect()
        parked.send(b"park a", b"behind")
        await asyncio.sleep(1)
        other.send(b"before", b"release a", b"after")
        await asyncio.sleep(1)
        assert parked.replies == [b"released a", b"behind"]
        assert other.replies == [b"before", b"release a", b"after"]
        assert real.seen == [b"park a", b"before", b"release a", b"after", b"behind"]

    world.run(scenario())


def test_a_reply_is_sent_to_a_slow_reader_but_the_next_request_waits(world):
    async def scenario():
        client = await world.connect()
        client.transport.pause_reading()
        client.send(b"park a", b"second")
        await asyncio.sleep(1)
        world.handler.release(b"a", [bytes(WRITE_HIGH_WATER_BYTES * 3)])
        await asyncio.sleep(1)
        assert world.handler.seen == [b"park a"]
        client.transport.resume_reading()
        await asyncio.sleep(1)
        assert client.replies[1:] == [b"second"]

    world.run(scenario())


def test_a_transport_that_calls_back_from_within_write_has_nothing_dispatched(world):
    """uvloop may do so when a pending write completes, while the response is not in the socket yet."""

    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"second")
        await asyncio.sleep(1)
        (connection,) = world.handler.connections
        write = connection._transport.write

        def write_and_call_back(data):
            connection.pause_writing()
            connection.resume_writing()
            write(data)

        connection._transport.write = write_and_call_back
        world.handler.release(b"a")
        del connection._transport.write
        assert world.handler.seen == [b"park a"]
        await asyncio.sleep(1)
        assert client.replies == [b"released a", b"second"]

    world.run(scenario())


@pytest.mark.parametrize("ending", ["finish", "close", "abort"])
def test_between_a_reply_and_the_next_request_the_connection_may_end(world, ending):
    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"second")
        await asyncio.sleep(1)
        (connection,) = world.handler.connections
        world.handler.release(b"a")
        getattr(connection, ending)()
        await asyncio.sleep(1)
        assert world.handler.seen == [b"park a"]
        assert client.replies == ([] if ending == "abort" else [b"released a"])
        assert not world.server.connections

    world.run(scenario())


@pytest.mark.parametrize("ending", ["finish", "close", "abort"])
def test_a_reply_may_complete_while_the_connection_ends(world, ending):
    """A request in progress has its response after `finish`, and none after the others."""

    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"second")
        await asyncio.sleep(1)
        (connection,) = world.handler.connections
        getattr(connection, ending)()
        world.handler.release(b"a")
        await asyncio.sleep(1)
        assert world.handler.seen == [b"park a"]
        assert client.replies == ([b"released a"] if ending == "finish" else [])
        assert not world.server.connections
        assert world.server.pool.owned_bytes == 0

    world.run(scenario())


def test_a_parked_request_that_fails_closes_its_connection_and_is_logged_once(world, caplog):
    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"second")
        await asyncio.sleep(1)
        world.handler.release(b"a", ValueError("a late bug"))
        await asyncio.sleep(1)
        assert client.lost.done()
        assert world.handler.seen == [b"park a"]

    world.run(scenario())
    assert len([record for record in caplog.records if "a late bug" in str(record.exc_info)]) == 1


def test_a_reply_that_cannot_be_sent_closes_its_connection(world, monkeypatch, caplog):
    async def scenario():
        client = await world.connect()
        client.send(b"park a", b"second")
        await asyncio.sleep(1)

        def out_of_memory(self, pieces, size_bytes):
            raise MemoryError("no memory to join the reply")

        monkeypatch.setattr(connection_module.Connection, "_send", out_of_memory)
        world.handler.release(b"a")
        await asyncio.sleep(1)
        assert client.lost.done()
        assert not world.server.connections
        assert world.handler.seen == [b"park a"]

    world.run(scenario())
    assert "no memory to join the reply" in str([record.exc_info for record in caplog.records])


@pytest.mark.parametrize("request_body", [b"park a", b"work a"])
def test_a_parked_request_that_is_cancelled_closes_its_connection_without_a_reply(world, request_body):
    async def scenario():
        client = await world.connect()
        client.send(request_body, b"second")
        await asyncio.sleep(1)
        world.handler.parked[b"a"].cancel()
        await asyncio.sleep(1)
        assert client.lost.done()
        assert client.replies == []
        assert world.handler.seen == [request_body]

    world.run(scenario())


def test_a_reply_that_was_known_before_it_was_awaited(world):
    def dispatch(view, connection):
        reply = world.handler(view, connection)
        if bytes(view) == b"park a":
            world.handler.release(b"a")
        return reply

    async def scenario():
        world.server.dispatch = dispatch
        client = await world.connect()
        client.send(b"first", b"park a", b"second")
        await asyncio.sleep(1)
        assert client.replies == [b"first", b"released a", b"second"]

    world.run(scenario())


def test_a_parked_connection_leaves_others_alone(world):
    async def scenario():
        parked, other = await world.connect(), await world.connect()
        parked.send(b"park a")
        other.send(b"x")
        await asyncio.sleep(1)
        assert (parked.replies, other.replies) == ([], [b"x"])

    world.run(scenario())


def test_behind_a_parked_request_reading_stops_at_a_bound(world):
    body = b"x" * 1000
    count = 3000

    async def scenario():
        client = await world.connect()
        client.send(b"park a", *[body] * count)
        await asyncio.sleep(1)
        # Beyond this the bytes wait in the sender's buffer and in the network between the two.
        waiting = client.transport.get_write_buffer_size() + world.simulation.network.conditions.window_bytes
        assert count * 1004 - waiting <= 2 * PIPELINED_BYTES
        assert world.server.pool.owned_bytes <= 2 * PIPELINED_BYTES
        assert len(world.handler.seen) == 1
        world.handler.release(b"a")
        await asyncio.sleep(1)
        assert client.replies == [b"released a"] + [body] * count

    world.run(scenario())


def test_the_peers_leaving_is_noticed_while_a_request_is_parked(world):
    """A request that only waits is given up, one that is being processed is not."""

    async def scenario():
        client, other = await world.connect(), await world.connect()
        client.send(b"park a")
        other.send(b"work b")
        await asyncio.sleep(1)
        client.transport.close()
        other.transport.close()
        await asyncio.sleep(1)
        assert not world.server.connections
        assert world.handler.parked[b"a"].is_done
        assert not world.handler.parked[b"b"].cancelled()
        world.handler.parked[b"b"].set_result([b"late"])  # sent nowhere, without an error
        await asyncio.sleep(1)

    world.run(scenario())


@pytest.mark.parametrize("result", ["value", "error", "cancelled"])
def test_abrupt_close_in_the_middle_of_a_parked_request(world, caplog, result):
    async def scenario():
        client, other = await world.connect(), await world.connect()
        client.send(b"work a", b"x" * 100)
        await asyncio.sleep(1)
        client.transport.abort()
        await asyncio.sleep(1)
        assert list(world.server.connections) != []
        future = world.handler.parked[b"a"]
        if result == "value":
            future.set_result([b"late"])
        elif result == "error":
            future.set_exception(ValueError("late"))
        else:
            future.cancel()
        other.send(b"y")
        await asyncio.sleep(1)
        assert other.replies == [b"y"]
        assert len(world.server.connections) == 1
        assert world.server.pool.owned_bytes == 0

    world.run(scenario())
    # A bug of ours is logged although the client is gone.
    assert ("late" in caplog.text) == (result == "error")
