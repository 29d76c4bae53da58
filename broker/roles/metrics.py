"""The metrics of a node: the HTTP server of `metrics.listeners`, and the tables of the node's roles.

It starts before the roles, so that /healthz answers while logs are recovered and /readyz says what is missing; it is
stopped after them. Without `metrics.listeners` nothing of it exists, and prometheus-client is not imported.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from broker.config import BrokerConfig
from broker.metrics import node_metrics
from broker.metrics.collector import NodeCollector
from broker.metrics.families import Family
from broker.metrics.http_server import HttpServer
from broker.metrics.pages import Pages
from broker.metrics.replica_metrics import ReplicaTable
from broker.metrics.topic_metrics import TopicTable
from broker.roles.broker import BrokerRole
from broker.roles.directories import CannotStart
from runtime import Runtime


class MetricsRole:
    """See the module."""

    def __init__(
        self, runtime: Runtime, config: BrokerConfig, *, unreadiness: Callable[[], str | None]
    ) -> None:
        """`unreadiness` says why the node serves no clients; None: it does."""
        self._config = config
        #: All metrics, in the order of the page.
        self.families: list[Family] = [*node_metrics.families(runtime)]
        self._preparations: list[Callable[[], Iterator[None]]] = []
        registry = CollectorRegistry()
        if runtime.loop_stalls is not None:  # else time is virtual, and the process is that of a test
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=registry)
        pages = Pages(
            runtime, NodeCollector(self.families, self._prepare), process=registry, unreadiness=unreadiness
        )
        self._server = HttpServer(runtime, pages.respond)
        #: The bound addresses, as URLs.
        self.addresses: Sequence[str] = ()

    async def start(self) -> None:
        """Open the listeners. Raises CannotStart."""
        addresses = []
        for host, port in self._config.metrics_listeners:
            try:
                listening = await self._server.listen(host, port)
            except OSError as error:
                raise CannotStart(
                    f"Cannot serve metrics at {host}:{port}: {error.strerror or error}."
                ) from error
            addresses.append(f"http://{f'[{host}]' if ':' in host else host}:{listening.port}")
        self.addresses = addresses

    def show_broker(self, role: BrokerRole) -> None:
        """Show the metrics of the broker from now on."""
        broker = role.broker
        for table in (
            TopicTable(broker.replicas.topic_stats),
            ReplicaTable(broker.replicas, role.fetchers.lag),
        ):
            self.families += table.families()
            self._preparations.append(table.prepare)

    async def stop(self) -> None:
        """Close the listeners and all connections."""
        await self._server.stop()

    def _prepare(self) -> Iterator[None]:
        for prepare in list(self._preparations):
            yield from prepare()
