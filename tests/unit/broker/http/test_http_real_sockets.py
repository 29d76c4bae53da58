"""The HTTP server on uvloop and real sockets: a response larger than the sockets' buffers, to a peer that
reads slowly.
"""

import asyncio

import pytest

from ottla.bench.components.processes import PATIENCE_S
from ottla.broker.http import server as http_server
from ottla.broker.http.server import HttpResponse, HttpServer
from ottla.runtime.production import run
from tests.harness.http_client import HttpClient
from tests.harness.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
SIZE = 20_000_000


async def is_asked(asked):
    """Wait for the first request, which comes by another connection."""
    await until(lambda: asked, within_s=PATIENCE_S)


async def serve(runtime, scenario):
    asked = []

    def respond(request):
        asked.append(request.path)
        return HttpResponse(body=bytes(SIZE))

    server = HttpServer(runtime, respond)
    port = (await server.listen("127.0.0.1", 0)).port
    _, client = await runtime.connect("127.0.0.1", port, HttpClient)
    await scenario(client, asked)
    client.transport.abort()
    await server.stop()
    assert server.connection_count == 0


def test_a_peer_that_pauses_gets_everything_in_order():
    async def scenario(client, asked):
        client.transport.pause_reading()
        client.send(GET * 2)
        await is_asked(asked)
        await asyncio.sleep(0.2)
        assert asked == ["/"], "the next response waits until this one is read"
        client.transport.resume_reading()
        for _ in range(2):
            assert len((await client.response()).body) == SIZE
        assert asked == ["/", "/"]

    run(lambda runtime: serve(runtime, scenario))


def test_a_peer_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    async def scenario(client, asked):
        client.transport.pause_reading()
        client.send(GET)
        await is_asked(asked)
        await asyncio.sleep(0.5)
        client.transport.resume_reading()
        assert await client.response() is None  # the connection was aborted before its end
        assert asked == ["/"]

    monkeypatch.setattr(http_server, "WRITE_S", 0.2)
    run(lambda runtime: serve(runtime, scenario))


def test_a_stop_does_not_wait_for_a_peer_that_does_not_read():
    async def scenario(client, asked):
        client.transport.pause_reading()
        client.send(GET)
        await is_asked(asked)

    run(lambda runtime: serve(runtime, scenario))
