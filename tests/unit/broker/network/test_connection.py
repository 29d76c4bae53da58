"""Frames, order, bounds and endings of one connection, on the simulated runtime."""

import asyncio
import logging

import pytest
from network_support import PREFIX, Parked, frame

from ottla.broker.network import connection as connection_module
from ottla.broker.network.connection import (
    PIPELINED_BYTES,
    REQUESTS_PER_TURN,
    WRITE_HIGH_WATER_BYTES,
    ReplyOfReads,
)
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


def test_the_last_request_of_a_closing_client_is_handled(world):
    """acks=0: the producer sends and closes; what it sent counts, also behind a parked request."""

    async def scenario():
        client = await world.connect()
        client.send(b"none", b"park a", b"none", b"park b", b"none")
        client.transport.close()
        await asyncio.sleep(1)
        assert len(world.handler.seen) == 2
        world.handler.parked[b"a"].complete(None)
        await asyncio.sleep(1)
        assert len(world.handler.seen) == 4
        world.handler.parked[b"b"].complete(None)
        await asyncio.sleep(1)
        assert len(world.handler.seen) == 5
        assert not world.server.connections

    world.run(scenario())


def test_half_a_frame_and_then_the_end(world):
    async def scenario():
        client = await world.connect()
        client.transport.write(frame(b"park a") + frame(b"x" * 100)[:50])
        client.transport.write_eof()
        await asyncio.sleep(1)
        world.handler.release(b"a")
        await asyncio.sleep(1)
        assert not world.server.connections
        assert client.replies == [b"released a"]

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


@pytest.mark.parametrize("request_body", [b"raise", b"later-raise"])
def test_a_failing_request_closes_its_connection_and_no_other(world, caplog, request_body):
    async def scenario():
        client, other = await world.connect(), await world.connect()
        client.send(b"before", request_body, b"after")
        other.send(b"x")
        await asyncio.sleep(2)
        assert client.lost.done()
        assert client.replies == [b"before"]
        assert b"after" not in world.handler.seen
        other.send(b"y")
        await asyncio.sleep(1)
        assert other.replies == [b"x", b"y"]

    world.run(scenario())
    failures = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(failures) == 1
    assert "client" in failures[0].getMessage()
    assert failures[0].exc_info


def test_a_malformed_request_is_closed_without_alarm(world, caplog):
    async def scenario():
        client = await world.connect()
        client.send(b"before", b"bad", b"after")
        await client.lost
        assert client.replies == [b"before"]

    world.run(scenario())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_dispatch_may_close_after_its_answer(world):
    async def scenario():
        client = await world.connect()
        client.send(b"before", b"close", b"after")
        await client.lost
        assert client.replies == [b"before", b"close"]

    world.run(scenario())


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


def test_what_a_task_leaves_waiting_is_given_up_if_the_connection_was_lost_meanwhile(world):
    parked = Parked(world.runtime.loop)

    async def work(connection):
        asyncio.get_running_loop().call_soon(connection.abort)
        await asyncio.sleep(0)
        return parked

    async def scenario():
        world.server.dispatch = lambda view, connection: work(connection)
        client = await world.connect()
        client.send(b"x")
        await asyncio.sleep(1)
        assert not world.server.connections
        assert parked.is_done

    world.run(scenario())


@pytest.mark.parametrize("only_reads", [True, False])
@pytest.mark.parametrize("ending", ["close", "abort"])
def test_work_that_only_reads_ends_with_the_connection(world, ending, only_reads):
    ends = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            ends.append(world.runtime.monotonic())
        return [b"done"]

    async def scenario():
        world.server.dispatch = lambda view, connection: ReplyOfReads(work()) if only_reads else work()
        client = await world.connect()
        client.send(b"x")
        await asyncio.sleep(1)
        getattr(client.transport, ending)()
        await asyncio.sleep(1)
        assert bool(ends) == only_reads
        await asyncio.sleep(60)
        assert len(ends) == 1

    world.run(scenario())


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_what_dispatch_keeps_is_closed_with_the_connection(world, ending):
    class Kept:
        is_closed = False

        def close(self):
            self.is_closed = True

    kept = Kept()

    def dispatch(view, connection):
        connection.session = kept
        return [bytes(view)]

    async def scenario():
        world.server.dispatch = dispatch
        client = await world.connect()
        client.send(b"x")
        await asyncio.sleep(1)
        assert not kept.is_closed
        getattr(client.transport, ending)()
        await asyncio.sleep(1)
        assert kept.is_closed

    world.run(scenario())
