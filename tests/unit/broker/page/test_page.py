"""The page of a node on virtual time: its routes, its views, and the streams of those that are watched."""

import asyncio
import json
import sys

import pytest

from ottla.broker import roles
from ottla.broker.http.request import HttpRequest
from ottla.broker.http.server import MAX_CONNECTIONS, MAX_STREAMS
from ottla.broker.page.page import VIEWS, View
from tests.unit.broker.page.conftest import PORT

EVENTS = "Accept: text/event-stream"


def test_the_files_and_their_headers(world):
    async def scenario():
        for path, content_type in (
            ("/", "text/html"),
            ("/live.js", "text/javascript"),
            ("/ottla.css", "text/css"),
        ):
            found = await world.get(path)
            assert (found.status, found.headers["Content-Type"].partition(";")[0]) == (200, content_type)
            assert found.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert found.headers["X-Content-Type-Options"] == "nosniff"
        for path in (
            "/live.html/",
            "/../pyproject.toml",
            "/__init__.py",
            "/README.md",
            "/play.html",
            "/%6cive.js",
        ):
            assert (await world.get(path)).status == 404, path

    world.run(scenario)


@pytest.mark.parametrize(("host", "is_own"), [
    ("127.0.0.1", True), ("127.0.0.1:9404", True), ("10.1.2.3:80", True), ("[::1]:9404", True),
    ("localhost", True), ("LOCALHOST.:9404", True), ("evil.example", False), ("evil.example:9404", False),
    ("127.0.0.1.evil.example", False), ("", True), ("localhost:x", False), ("127.0.0.1 evil", False),
])  # fmt: skip
def test_a_foreign_name_shows_nothing(world, host, is_own):
    """A page of another site, whose name resolves to this node, could read it otherwise (DNS rebinding)."""

    async def scenario():
        for path in ("/", "/view/overview"):
            assert (await world.get(path, host=host)).status == (200 if is_own else 421)
        assert (await world.get("/healthz", host=host)).status == 200

    world.run(scenario)


@pytest.mark.parametrize(("header", "is_own"), [
    ("Sec-Fetch-Site: same-origin", True), ("Sec-Fetch-Site: none", True), ("Origin: http://127.0.0.1:9404", True),
    ("Sec-Fetch-Site: cross-site", False), ("Sec-Fetch-Site: same-site", False), ("Origin: null", False),
    ("Origin: http://evil.example", False), ("Origin: http://127.0.0.1:8000", False),
    ("Origin: http://127.0.0.1:9404\r\nOrigin: http://evil.example", False),
])  # fmt: skip
def test_the_page_of_another_site_takes_no_view_and_no_stream(world, header, is_own):
    """Any page in the operator's browser could open all streams of events, although it cannot read them."""

    async def scenario():
        host = f"127.0.0.1:{PORT}"
        assert (await world.get("/view/overview", header, host=host)).status == (200 if is_own else 403)
        assert (await world.get("/healthz", header, host=host)).status == 200
        client = await world.http()
        found = await client.get("/view/overview", EVENTS, header, host=host)
        assert found.status == (200 if is_own else 403)

    world.run(scenario)


@pytest.fixture
def slow(monkeypatch):
    """The view `slow`, whose snapshots are made once `go` is set; at most `most` were made at a time."""

    class Slow:
        now = most = 0

        def __init__(self):
            self.go = asyncio.Event()

        async def make(self, sources, query):
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.go.wait()
            finally:
                self.now -= 1
            return {}

    slow = Slow()
    monkeypatch.setitem(VIEWS, "slow", View(slow.make, 1.0))
    return slow


def view_tasks():
    return [each for each in asyncio.all_tasks() if each.get_name().startswith("page-")]


def test_snapshots_of_lost_connections_are_cancelled(world, slow):
    async def scenario():
        for _ in range(3):
            clients = [await world.http() for _ in range(MAX_CONNECTIONS)]
            for client in clients:
                client.send(b"GET /view/slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(1)
            assert len(view_tasks()) == MAX_CONNECTIONS
            world.node.http.break_connections()
            await asyncio.sleep(1)
            assert (view_tasks(), slow.now) == ([], 0)

    world.run(scenario)


def test_no_more_snapshots_wait_than_are_allowed_and_none_outlives_the_page(world, slow):
    async def main():
        await world.start()
        page = world.node.http._page
        request = HttpRequest(path="/view/slow", is_head=False, accept="", is_persistent=True)
        found = [page.respond(request) for _ in range(100)]
        waiting, refused = found[:36], found[36:]
        assert {each.status for each in refused} == {503}
        await asyncio.sleep(0)
        await world.node.stop()
        assert all(each.cancelled() for each in waiting)
        assert view_tasks() == []

    world.runtime.run(main())


def test_snapshots_of_streams_are_made_a_few_at_a_time(world, slow):
    async def scenario():
        clients = [await world.watch(f"slow?{number}") for number in range(MAX_STREAMS)]
        await asyncio.sleep(1)
        assert (slow.now, slow.most) == (4, 4)
        slow.go.set()
        for client in clients:
            assert await client.event() == b"data: {}"
        assert slow.most == 4

    world.run(scenario)


def test_the_overview_and_the_topics(world):
    async def scenario():
        await world.create("orders", partitions=3)
        await world.create("payments")
        await world.produce("orders", b"one", b"two", partition=1)
        found = await world.view("overview")
        assert (found["level"], found["reasons"]) == ("healthy", [])
        assert found["sentence"] == (
            "Healthy: 1 broker is alive, controller 1 is active with 1 voter, "
            "and 4 partitions have all replicas in sync."
        )
        assert found["totals"] == {"topics": 2, "partitions": 4, "in_sync": 4}
        assert [(each["id"], each["state"], each["leaders"]) for each in found["brokers"]] == [
            (1, "alive", 4)
        ]
        assert [(each["id"], each["role"]) for each in found["controllers"]] == [(1, "active")]
        found = await world.view("topics?search=ORD")
        assert [(each["name"], each["partitions"]) for each in found["topics"]] == [("orders", 3)]
        found = await world.view("topics?order=partitions&page=1")
        assert (found["total"], found["topics"]) == (2, [])
        found = await world.view("topic?topic=orders")
        [replica] = found["partitions"][1]["replicas"]
        offsets = [replica[f"{name}_offset"] for name in ("log_start", "local_log_start", "log_end")]
        assert (offsets, replica["high_watermark"]) == ([0, 0, 2], 2)
        assert found["partitions"][1] | {"replicas": []} == {
            "partition": 1, "state": "in sync", "leader": 1, "leader_epoch": 0, "isr": [1], "elr": [],
            "last_known_elr": [], "replicas": [],
        }  # fmt: skip

    world.run(scenario)


@pytest.mark.parametrize(("view", "status", "sentence"), [
    ("nothing", 404, "The views are overview, "),
    ("topic?topic=t", 404, "The cluster has no topic t."),
    ("topic", 400, "The parameter topic is missing."),
    ("topics?page=x", 400, "page must be a number"),
    ("topics?order=x", 400, "order must be one of"),
    ("overview?x=1", 400, "The view has no parameter 'x'."),
])  # fmt: skip
def test_what_cannot_be_shown_is_said(world, view, status, sentence):
    async def scenario():
        found = await world.view(view, status=status)
        assert found["error"].startswith(sentence)

    world.run(scenario)


def test_a_watched_view_is_sent_when_it_changes(world):
    async def scenario():
        watching = await world.watch("topics")
        event = await watching.event()
        assert json.loads(event.removeprefix(b"data: "))["topics"] == []
        await world.create("orders")
        event = await watching.event()
        assert [each["name"] for each in json.loads(event.removeprefix(b"data: "))["topics"]] == ["orders"]
        failing = await world.watch("topic?topic=unknown")
        event = await failing.event()
        assert event.startswith(b'event: problem\ndata: {"error":"The cluster has no topic unknown."')

    world.run(scenario)


def test_a_view_is_made_once_for_all_who_watch_it_and_forgotten_after_the_last(world):
    async def scenario():
        page = world.node.http._page
        clients = [await world.watch("overview") for _ in range(MAX_STREAMS)]
        for client in clients:
            assert (await client.event()).startswith(b"data: ")
        assert page._watched.count == 1
        refused = await world.get("/view/overview", EVENTS)
        assert (refused.status, b"streams of events are open" in refused.body) == (503, True)
        assert (await world.view("overview"))["level"] == "healthy"
        for client in clients:
            client.transport.abort()
        await asyncio.sleep(1)
        assert page._watched.count == 0
        assert not page._sources.rates._samples
        assert page._sources.tally._found is None

    world.run(scenario)


@pytest.mark.logs("metrics.listeners serves the page, but ")
def test_the_page_needs_no_further_library(world, monkeypatch):
    """A plain install has no prometheus-client: the node starts, and /metrics says what is missing."""
    monkeypatch.setitem(sys.modules, "prometheus_client.gc_collector", None)
    monkeypatch.delitem(sys.modules, "ottla.broker.roles.metrics", raising=False)
    monkeypatch.delattr(roles, "metrics", raising=False)

    async def scenario():
        assert (await world.view("overview"))["level"] == "healthy"
        found = await world.get("/metrics")
        assert (found.status, b"pip install 'ottla[metrics]'" in found.body) == (503, True)
        assert (await world.get("/readyz")).status == 200

    world.run(scenario)


def test_a_node_that_is_no_broker_says_so(world):
    async def scenario():
        world.node.http._page._sources, sources = None, world.node.http._page._sources
        found = await world.view("overview", status=503)
        assert found["error"] == "This node is no broker, or its broker has not started yet."
        world.node.http._page._sources = sources

    world.run(scenario)


def test_a_stream_ends_when_the_node_stops(world):
    async def main():
        await world.start()
        client = await world.watch("overview")
        await world.node.stop()
        await client.lost

    world.runtime.run(main())
