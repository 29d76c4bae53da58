"""Endings of a connection: by its client, by a request that fails, by a handler that closes it."""

import asyncio
import logging

import pytest
from network_support import Parked, frame

from ottla.broker.network.connection import ReplyOfReads


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
