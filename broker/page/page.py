"""Page: the routes of the page: its files, its views as JSON, and watched views as server-sent events.

    /                       the page
    /NAME.js, /NAME.css     its files (`ottla.web`)
    /view/NAME?PARAMETERS   a snapshot of a view as JSON; a stream of snapshots if Accept is text/event-stream

Requests come from any site that a browser of the network shows, so a request whose Host is neither an address nor a
name of this node is refused: a foreign name that resolves to this address (DNS rebinding) reads nothing here.
Views are refused to the pages of other sites as well: these could not read them, but could take all streams.

A snapshot is cancelled when its connection is lost. A few are made at a time, those of streams among them; others wait.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from ottla import web
from ottla.broker.http.request import HttpRequest
from ottla.broker.http.server import EVENTS, HttpResponse, Response
from ottla.broker.page.groups import group, groups
from ottla.broker.page.overview import overview
from ottla.broker.page.query import CannotShow, Query
from ottla.broker.page.records import records
from ottla.broker.page.segments import partition
from ottla.broker.page.sources import Sources
from ottla.broker.page.streams import WatchedViews
from ottla.broker.page.topics import topic, topics
from ottla.broker.request_stats import RequestStats
from ottla.broker.services import BrokerServices
from ottla.config.broker_config import BrokerConfig
from ottla.runtime import Runtime

logger = logging.getLogger(__name__)

_VIEWS: Final = "/view/"
_JSON: Final = "application/json"
_FIRST_FILE: Final = "live.html"
#: The names of the files begin with these; the others are the player's, whose traces are not here.
_SERVED: Final = ("live", "draw.js", "ottla.css")
#: Snapshots that are made at the same time; others wait.
_AT_ONCE: Final = 4
#: Requests for a snapshot that wait; a further one is refused.
_MOST_WAITING: Final = 32
_NOT_FOUND: Final = b"Ottla. Pages: /, /metrics, /healthz, /readyz\n"
#: Scripts, styles and data come from this node only; no other site shows the page in a frame, or reads it.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class View(NamedTuple):
    """A view: the function that makes its snapshot, and how often that is done while it is watched."""

    make: Callable[[Sources, Query], Awaitable[dict[str, Any]]]
    #: None: it is not watched.
    interval_s: float | None


VIEWS: Final[Mapping[str, View]] = {
    "overview": View(overview, 1.0),
    "topics": View(topics, 2.0),
    "topic": View(topic, 1.0),
    "partition": View(partition, 2.0),
    "groups": View(groups, 2.0),
    "group": View(group, 2.0),
    "records": View(records, None),
}


class Page:
    """Responds to the requests of a browser; what it shows of the broker is added when there is one."""

    def __init__(self, runtime: Runtime, config: BrokerConfig) -> None:
        self._runtime = runtime
        self._names = _own_names(config)
        self._sources: Sources | None = None
        self._files: dict[str, tuple[str, bytes]] | None = None
        self._watched = WatchedViews(runtime, on_unwatched=self._forget)
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        #: The snapshots that are made or wait for requests: at most `_AT_ONCE` + `_MOST_WAITING`.
        self._snapshots: set[asyncio.Task[HttpResponse]] = set()

    def show_broker(self, broker: BrokerServices, request_stats: RequestStats) -> None:
        """Show the broker from now on."""
        self._sources = Sources(broker, request_stats)

    async def stop(self) -> None:
        """Cancel the snapshots, and close the connections to other brokers."""
        for snapshot in self._snapshots:
            snapshot.cancel()
        await asyncio.gather(*self._snapshots, return_exceptions=True)
        await self._watched.stop()
        if self._sources is not None:
            await self._sources.close()

    def respond(self, request: HttpRequest) -> "Response | asyncio.Future[HttpResponse]":
        """The response to a request that is for no other part of the HTTP server."""
        if not self._is_own_name(request.host):
            return _refusal(
                421,
                "The page is not served under this name. Open it by the address of the node, by a name in "
                "metrics.listeners or advertised.listeners, or through localhost.",
            )
        if request.path.startswith(_VIEWS):
            if _is_of_other_site(request):
                return _refusal(
                    403, "Views are shown to the node's own page only, not to those of other sites."
                )
            return self._view(request)
        if request.path == "/favicon.ico":  # asked for by every browser
            return HttpResponse(status=204, body=b"", headers=_HEADERS)
        return self._file(request.path.removeprefix("/") or _FIRST_FILE)

    def _is_own_name(self, host: str) -> bool:
        """Whether a Host header names this node; an HTTP/1.0 client, which sends none, is no browser."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.lower().removesuffix(".")
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return not host or name in self._names
        return True

    def _file(self, name: str) -> HttpResponse:
        if self._files is None:
            self._files = {
                each: (content_type, content)
                for each, content_type, content in web.files()
                if each.startswith(_SERVED)
            }
        found = self._files.get(name)
        if found is None:
            return HttpResponse(status=404, body=_NOT_FOUND, headers=_HEADERS)
        content_type, content = found
        return HttpResponse(body=content, content_type=content_type, headers=_HEADERS)

    def _view(self, request: HttpRequest) -> "Response | asyncio.Future[HttpResponse]":
        view = VIEWS.get(request.path.removeprefix(_VIEWS))
        if view is None:
            return _refusal(404, f"The views are {', '.join(VIEWS)}.")
        sources = self._sources
        if sources is None:
            return _refusal(503, "This node is no broker, or its broker has not started yet.")

        async def make() -> tuple[bool, bytes]:
            async with self._at_once:
                try:
                    return False, _json(await view.make(sources, Query(request.query)))
                except CannotShow as error:
                    return True, _json({"error": str(error), "status": error.status})

        if request.accept.strip().lower() != EVENTS:
            if len(self._snapshots) >= _AT_ONCE + _MOST_WAITING:
                return _refusal(
                    503, f"{_MOST_WAITING} requests for views wait, which is the limit. Try again."
                )
            snapshot = self._runtime.create_task(self._snapshot(make), name="page-view")
            self._snapshots.add(snapshot)
            snapshot.add_done_callback(self._snapshots.discard)
            return snapshot
        if view.interval_s is None:
            return _refusal(406, "This view is not sent as events.")
        address = f"{request.path}?{request.query}"
        return self._watched.stream(address, make, interval_s=view.interval_s, headers=_HEADERS)

    async def _snapshot(self, make: Callable[[], Awaitable[tuple[bool, bytes]]]) -> HttpResponse:
        is_problem, snapshot = await make()
        status = json.loads(snapshot)["status"] if is_problem else 200
        return HttpResponse(status=status, body=snapshot, content_type=_JSON, headers=_HEADERS)

    def _forget(self) -> None:
        if self._sources is not None:
            self._sources.forget()


def _own_names(config: BrokerConfig) -> frozenset[str]:
    """The names under which this node is known by its configuration."""
    names = {"localhost", *(host for host, _ in config.metrics_listeners)}
    names |= {listener.host for listener in config.advertised_listeners if listener.host}
    return frozenset(name.lower() for name in names)


def _is_of_other_site(request: HttpRequest) -> bool:
    """Whether the page of another site asks: another port of this machine is another site, too."""
    if request.fetch_site.lower() not in ("", "same-origin", "none"):
        return True
    return bool(request.origin) and request.origin.partition("://")[2].lower() != request.host.lower()


def _refusal(status: int, sentence: str) -> HttpResponse:
    return HttpResponse(
        status=status, body=_json({"error": sentence, "status": status}), content_type=_JSON, headers=_HEADERS
    )


def _json(value: Mapping[str, Any]) -> bytes:
    """One line of JSON, in ASCII: no character of a record or a name can end it or be taken for markup."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
