"""The HTTP server of a node (`metrics.listeners`): the page, /metrics, /healthz and /readyz.

    /metrics   for Prometheus; needs prometheus-client, and says so where it is missing
    /healthz   200 while the loop runs: a response is the proof
    /readyz    200 while clients are served; else 503 and a sentence that says why not
    others     the page for people (`ottla.broker.page`), which needs no library

It starts before the roles, so that /healthz answers while logs are recovered and /readyz says what is missing; it is
stopped after them.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.broker.http.request import HttpRequest
from ottla.broker.http.server import HttpResponse, HttpServer, Response
from ottla.broker.page.page import Page
from ottla.broker.roles.broker import BrokerRole
from ottla.broker.roles.controller import ControllerRole, cannot_listen
from ottla.broker.roles.directories import CannotStart
from ottla.broker.roles.quorum import QuorumRole
from ottla.config.broker_config import BrokerConfig
from ottla.config.extras import missing_extra
from ottla.runtime import Runtime
from ottla.runtime.histogram import Histogram

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.roles.metrics import MetricsRole

logger = logging.getLogger(__name__)


class HttpRole:
    """The HTTP server of a node; the roles of the node add what it shows of them."""

    def __init__(
        self, runtime: Runtime, config: BrokerConfig, *, unreadiness: Callable[[], str | None]
    ) -> None:
        """`unreadiness` says why the node serves no clients; None: it does."""
        self._config = config
        self._unreadiness = unreadiness
        #: None: prometheus-client is not installed.
        self.metrics: MetricsRole | None = None
        self._no_metrics = ""
        try:
            from ottla.broker.roles import metrics  # imported here: prometheus-client may be missing
        except ModuleNotFoundError as error:
            self._no_metrics = f"/metrics {missing_extra('metrics', error)}."
            logger.warning("metrics.listeners serves the page, but %s", self._no_metrics)
        else:
            self.metrics = metrics.MetricsRole(runtime, config)
        self._page = Page(runtime, config)
        self._server = HttpServer(runtime, self._respond)
        #: The bound addresses, as URLs.
        self.addresses: Sequence[str] = ()

    async def start(self) -> None:
        """Open the listeners. Raises CannotStart."""
        addresses = []
        for host, port in self._config.metrics_listeners:
            try:
                listening = await self._server.listen(host, port)
            except OSError as error:
                address = f"http://{host}:{port}"
                raise CannotStart(cannot_listen(address, error, keys="metrics.listeners")) from error
            addresses.append(f"http://{f'[{host}]' if ':' in host else host}:{listening.port}")
        self.addresses = addresses

    def show_flushes(self, times: Histogram) -> None:
        """Show the times of the flushes of files."""
        if self.metrics is not None:
            self.metrics.show_flushes(times)

    def show_quorum(self, role: QuorumRole, controller: ControllerRole | None) -> None:
        """Show the metadata quorum, and the controller if this node is one."""
        if self.metrics is not None:
            self.metrics.show_quorum(role, controller)

    def show_broker(self, role: BrokerRole) -> None:
        """Show the broker from now on."""
        if self.metrics is not None:
            self.metrics.show_broker(role)
        self._page.show_broker(role.broker, role.request_stats)

    def _respond(self, request: HttpRequest) -> "Response | asyncio.Future[HttpResponse]":
        match request.path:
            case "/healthz":
                return HttpResponse(body=b"ok\n")
            case "/readyz":
                reason = self._unreadiness()
                if reason is None:
                    return HttpResponse(body=b"ready\n")
                return HttpResponse(status=503, body=f"{reason}\n".encode())
            case "/metrics":
                if self.metrics is None:
                    return HttpResponse(status=503, body=f"{self._no_metrics}\n".encode())
                return self.metrics.page.respond(request)
            case _:
                return self._page.respond(request)

    def break_connections(self) -> None:
        """Break all connections, as the end of the process does."""
        self._server.break_connections()

    async def stop(self) -> None:
        """Close the listeners and all connections."""
        await self._server.stop()
        await self._page.stop()
        if self.metrics is not None:
            await self.metrics.stop()
