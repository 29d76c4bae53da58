"""Connections of the HTTP server, in a simulation: bounds, deadlines, and what one peer cannot do to others."""

import asyncio

import pytest

from ottla.broker.http.request import MAX_HEAD_BYTES
from ottla.broker.http.server import (
    ANSWER_S,
    HEAD_S,
    IDLE_S,
    MAX_CONNECTIONS,
    STOP_S,
    WRITE_S,
    HttpResponse,
    HttpServer,
)
from ottla.runtime.simulated import Simulation
from tests.harness.http_client import HttpClient

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class World:
    """A server that answers with the path, or as `answers` says."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.runtime = simulation.runtime("server")
        self.server = HttpServer(self.runtime, self.respond)
        self.answers = {}
        self.asked = []

    def respond(self, request):
        self.asked.append(request.path)
        return self.answers.get(request.path) or HttpResponse(body=request.path.encode())

    async def connect(self):
        _, client = await self.simulation.runtime("client").connect("server", self.port, HttpClient)
        return client

    def run(self, scenario):
        async def main():
            self.port = (await self.server.listen("server", 0)).port
            await scenario()
            await self.server.stop()
            assert self.server.connection_count == 0

        self.simulation.run(main())


@pytest.fixture
def world():
    with Simulation(seed=7) as simulation:
        yield World(simulation)


def test_requests_one_after_the_other(world):
    async def scenario():
        client = await world.connect()
        found = await client.get("/a")
        assert (found.status, found.body, found.headers["Connection"]) == (200, b"/a", "keep-alive")
        assert found.headers["Date"] == "Thu, 01 Jan 2026 00:00:00 GMT"
        found = await client.get("/bc", method="HEAD")
        assert (found.status, found.body, found.headers["Content-Length"]) == (200, b"", "3")
        found = await client.get("/d", "Connection: close")
        assert (found.body, found.headers["Connection"]) == (b"/d", "close")
        await client.lost

    world.run(scenario)


def test_requests_that_arrive_together_are_answered_in_order(world):
    async def scenario():
        client = await world.connect()
        client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % at for at in range(50)))
        assert [(await client.response()).body for _ in range(50)] == [b"/%d" % at for at in range(50)]

    world.run(scenario)


@pytest.mark.parametrize(("sent", "status"), [
    (b"nonsense\r\n\r\n",                                    400),
    (b"POST / HTTP/1.1\r\nHost: h\r\n\r\n",                  405),
    (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\nA: " + b"x" * 2 * MAX_HEAD_BYTES,   431),
    (b"GET / HTTP/1.1\r\nA: " + b"x" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
])  # fmt: skip
def test_a_refused_request_is_the_last_one(world, sent, status):
    async def scenario():
        client = await world.connect()
        client.send(sent + GET)
        found = await client.response()
        assert (found.status, found.headers["Connection"]) == (status, "close")
        assert (found.headers.get("Allow") == "GET, HEAD") == (status == 405)
        assert await client.response() is None
        assert world.asked == []

    world.run(scenario)


@pytest.mark.parametrize(("sent", "deadline_s"), [
    (b"", HEAD_S), (b"G", HEAD_S), (GET[:-1], HEAD_S), (GET, IDLE_S),
])  # fmt: skip
def test_a_silent_peer_is_disconnected(world, sent, deadline_s):
    async def scenario():
        client = await world.connect()
        begun = world.runtime.monotonic()
        client.send(sent)
        await client.lost
        assert deadline_s <= world.runtime.monotonic() - begun < deadline_s + 1

    world.run(scenario)


def test_a_peer_that_sends_byte_by_byte_does_not_move_the_deadline(world):
    async def scenario():
        client = await world.connect()
        begun = world.runtime.monotonic()
        while not client.lost.done():
            client.send(b"x")
            await asyncio.sleep(0.5)
        assert world.runtime.monotonic() - begun < HEAD_S + 1

    world.run(scenario)


def test_a_peer_that_does_not_read_is_disconnected(world):
    async def scenario():
        world.answers["/"] = HttpResponse(body=bytes(10_000_000))
        client = await world.connect()
        client.transport.pause_reading()
        client.send(GET * 3)
        await asyncio.sleep(WRITE_S + 1)
        assert world.asked == ["/"], "the next response waits until this one is read"
        assert world.server.connection_count == 0

    world.run(scenario)


def test_a_peer_that_reads_slowly_gets_everything(world):
    async def scenario():
        world.answers["/"] = HttpResponse(body=bytes(10_000_000))
        client = await world.connect()
        client.send(GET * 2)
        for _ in range(2):
            client.transport.pause_reading()
            await asyncio.sleep(WRITE_S / 2)
            client.transport.resume_reading()
            assert len((await client.response()).body) == 10_000_000

    world.run(scenario)


@pytest.mark.logs("metrics: a page could not be written")
def test_an_answer_that_takes_too_long_or_fails(world):
    async def scenario():
        world.answers = {path: world.runtime.loop.create_future() for path in ("/never", "/fails", "/later")}
        clients = [await world.connect() for _ in range(3)]
        for client, path in zip(clients, world.answers, strict=True):
            client.send(GET.replace(b"/ ", path.encode() + b" "))
        await asyncio.sleep(1)
        world.answers["/fails"].set_exception(OSError("no"))
        world.answers["/later"].set_result(HttpResponse(body=b"now"))
        assert (await clients[1].response()).status == 500
        assert (await clients[2].response()).body == b"now"
        await clients[0].lost
        assert world.runtime.monotonic() == pytest.approx(ANSWER_S, abs=1)
        assert world.answers["/never"].cancelled(), "its connection is closed"

    world.run(scenario)


def test_a_response_whose_connection_is_lost_is_not_computed_further(world):
    async def scenario():
        world.answers["/"] = world.runtime.loop.create_future()
        client = await world.connect()
        client.send(GET)
        await asyncio.sleep(1)
        world.server.break_connections()
        await client.lost
        assert world.answers["/"].cancelled()

    world.run(scenario)


def test_idle_peers_do_not_keep_others_out(world):
    async def scenario():
        scraper = await world.connect()
        await scraper.get("/")
        idle = [await world.connect() for _ in range(3 * MAX_CONNECTIONS)]
        newcomer = await world.connect()
        assert (await newcomer.get("/")).status == 200
        assert sum(not each.lost.done() for each in [scraper, *idle]) == MAX_CONNECTIONS - 1
        assert scraper.lost.done(), "it has been idle longest"

    world.run(scenario)


def test_no_more_connections_than_may_be_answered(world):
    async def scenario():
        world.answers["/"] = world.runtime.loop.create_future()
        busy = [await world.connect() for _ in range(MAX_CONNECTIONS)]
        for client in busy:
            client.send(GET)
        await asyncio.sleep(1)
        refused = await world.connect()
        await refused.lost
        world.answers["/"].set_result(HttpResponse(body=b"x"))
        assert [(await client.response()).body for client in busy] == [b"x"] * MAX_CONNECTIONS

    world.run(scenario)


def test_a_stop_waits_for_answers_but_not_long(world):
    async def scenario():
        world.answers = {path: world.runtime.loop.create_future() for path in ("/soon", "/never")}
        soon, never, idle = [await world.connect() for _ in range(3)]
        soon.send(GET.replace(b"/ ", b"/soon "))
        never.send(GET.replace(b"/ ", b"/never "))
        await asyncio.sleep(1)
        begun = world.runtime.monotonic()
        stopping = asyncio.ensure_future(world.server.stop())
        await asyncio.sleep(STOP_S / 2)
        assert idle.lost.done()
        world.answers["/soon"].set_result(HttpResponse(body=b"x"))
        assert (await soon.response()).body == b"x"
        await stopping
        assert world.runtime.monotonic() - begun == pytest.approx(STOP_S, abs=0.1)
        assert await never.response() is None

    world.run(scenario)


def test_a_stop_takes_no_longer_than_the_peer_reads_the_last_response(world):
    async def scenario():
        world.answers["/"] = HttpResponse(body=bytes(10_000_000))
        client = await world.connect()
        client.transport.pause_reading()
        client.send(GET)
        await asyncio.sleep(STOP_S)
        begun = world.runtime.monotonic()
        stopping = asyncio.ensure_future(world.server.stop())
        await asyncio.sleep(STOP_S / 10)
        client.transport.resume_reading()
        assert len((await client.response()).body) == 10_000_000
        await stopping
        assert await client.lost is None, "closed, not aborted"
        assert world.runtime.monotonic() - begun < STOP_S / 2

    world.run(scenario)
