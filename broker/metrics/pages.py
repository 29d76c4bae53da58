"""Pages of the HTTP server: /metrics for Prometheus, /healthz and /readyz for supervisors and load balancers.

    /metrics   all metrics as text; OpenMetrics if the Accept header names it
    /healthz   200 while the loop runs: a response is the proof
    /readyz    200 while clients are served; else 503 and a sentence that says why not

A page of metrics is written in turns of the loop, and once for all who ask meanwhile, so that scrapers cost the same
however many they are.
"""

import asyncio
from collections.abc import Callable
from itertools import chain

from prometheus_client.registry import CollectorRegistry

from ottla.broker.metrics.collector import NodeCollector
from ottla.broker.metrics.exposition import TextFormat, chosen_format, pieces
from ottla.broker.metrics.http_connection import HttpResponse
from ottla.broker.metrics.http_request import HttpRequest
from ottla.runtime import Runtime
from ottla.runtime.turns import in_turns

_INDEX = b"Ottla. Pages: /metrics, /healthz, /readyz\n"


class Pages:
    """Answers the requests for the pages of the HTTP server: /metrics, /healthz, /readyz, and an index."""

    def __init__(
        self,
        runtime: Runtime,
        collector: NodeCollector,
        *,
        process: CollectorRegistry,
        unreadiness: Callable[[], str | None],
    ) -> None:
        """`process` has the metrics of the process, `unreadiness` says why no clients are served; None: they are."""
        self._runtime = runtime
        self._collector = collector
        self._process = process
        self._unreadiness = unreadiness
        #: Pages that are being written; at most one for each format.
        self._writing: dict[TextFormat, asyncio.Task[HttpResponse]] = {}

    def respond(self, request: HttpRequest) -> "HttpResponse | asyncio.Future[HttpResponse]":
        """The response to one request, or a future of it."""
        match request.path:
            case "/metrics":
                return self._metrics(chosen_format(request.accept))
            case "/healthz":
                return HttpResponse(body=b"ok\n")
            case "/readyz":
                reason = self._unreadiness()
                if reason is None:
                    return HttpResponse(body=b"ready\n")
                return HttpResponse(status=503, body=f"{reason}\n".encode())
            case "/":
                return HttpResponse(body=_INDEX)
            case _:
                return HttpResponse(status=404, body=_INDEX)

    def _metrics(self, text_format: TextFormat) -> "asyncio.Future[HttpResponse]":
        writing = self._writing.get(text_format)
        if writing is None:
            writing = self._runtime.create_task(self._write(text_format), name="metrics-page")
            self._writing[text_format] = writing
            writing.add_done_callback(lambda _: self._writing.pop(text_format))
        return writing

    async def _write(self, text_format: TextFormat) -> HttpResponse:
        collector = self._collector
        await in_turns(self._runtime, collector.prepare())
        every = chain(collector.metrics(), self._process.collect())
        written: list[str] = []
        await in_turns(self._runtime, map(written.append, pieces(every, text_format)))
        return HttpResponse(body="".join(written).encode(), content_type=text_format.value)
