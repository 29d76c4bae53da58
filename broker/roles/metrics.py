"""The metrics of a node: the tables of its roles, and /metrics, which shows them.

Without `metrics.listeners` nothing of it exists, and prometheus-client is not imported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from ottla.broker.metrics import node_metrics, quorum_metrics
from ottla.broker.metrics.client_metrics import ClientMetricsTable
from ottla.broker.metrics.collector import NodeCollector
from ottla.broker.metrics.end_offsets import EndOffsets
from ottla.broker.metrics.families import Family, with_strimzis_name
from ottla.broker.metrics.group_metrics import GroupTable
from ottla.broker.metrics.pages import Pages
from ottla.broker.metrics.remote_metrics import RemoteTable
from ottla.broker.metrics.replica_metrics import ReplicaTable, TopicTable, cleaner_families
from ottla.broker.network import NetworkServer
from ottla.broker.network.client import Address, ClientSettings, NodeClient
from ottla.broker.request_stats import RequestStats
from ottla.broker.roles.broker import BrokerRole
from ottla.broker.roles.controller import ControllerRole
from ottla.broker.roles.quorum import QuorumRole
from ottla.config.broker_config import BrokerConfig
from ottla.runtime import Runtime
from ottla.runtime.histogram import Histogram


class Table(Protocol):
    """A part of the page of metrics: metrics, and the counts that are made before a page is written."""

    def prepare(self) -> Iterator[None]:
        """Make the counts that the metrics show, in steps."""

    def families(self) -> Sequence[Family]:
        """Return the metrics of the table."""


class MetricsRole:
    """The metrics of a node; its roles add their tables."""

    def __init__(self, runtime: Runtime, config: BrokerConfig) -> None:
        self._config = config
        #: The network servers of the node's roles, at most two.
        self._servers: list[NetworkServer] = []
        self._request_stats: list[RequestStats] = []
        self._fetches: node_metrics.Fetches = dict
        self._runtime = runtime
        #: The ends of the partitions that groups read; None before there is a broker.
        self._end_offsets: EndOffsets | None = None
        self._has_strimzis_names = config.get("metrics.names") == "strimzi"
        #: All metrics, in the order of the page.
        self.families: list[Family] = []
        self._show(node_metrics.runtime_families(runtime))
        self._show(node_metrics.connection_families(lambda: self._servers))
        self._show(node_metrics.request_families(lambda: self._request_stats, lambda: self._fetches()))
        self._preparations: list[Callable[[], Iterator[None]]] = []
        #: The series of clients; None before there is a broker.
        self._client_metrics: ClientMetricsTable | None = None
        registry = CollectorRegistry()
        if runtime.loop_stalls is not None:  # else time is virtual, and the process is that of a test
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=registry)
        #: /metrics.
        self.page = Pages(
            runtime,
            NodeCollector(self.families, self._prepare, refresh=self._refresh, of_clients=self._of_clients),
            process=registry,
        )

    def show_flushes(self, times: Histogram) -> None:
        """Show the times of the flushes of files."""
        self._show([node_metrics.flush_family(times)])

    def show_quorum(self, role: QuorumRole, controller: ControllerRole | None) -> None:
        """Show the metrics of the metadata quorum, and those of the controller if this node is one."""
        self._show(quorum_metrics.quorum_families(role.quorum))
        if controller is not None:
            self._servers.append(controller.server)
            self._request_stats.append(controller.request_stats)
        if role.controller is not None:
            table = quorum_metrics.ControllerTable(role.quorum, role.controller)
            role.metadata.on_change(table.on_metadata)
            self._add(table)

    def show_broker(self, role: BrokerRole) -> None:
        """Show the metrics of the broker from now on."""
        broker = role.broker
        stats = broker.replicas.topic_stats
        self._servers.append(role.server)
        self._request_stats.append(role.request_stats)
        self._fetches = node_metrics.fetches_of(stats)
        self._add(TopicTable(stats))
        self._add(ReplicaTable(broker.replicas, role.fetchers.lag))
        self._add(
            GroupTable(
                broker.runtime,
                broker.groups,
                self._end_offsets_of(role).get,
                max_rows=self._config.get("metrics.groups.max.rows"),
            )
        )
        self._client_metrics = ClientMetricsTable(
            broker.client_metrics, broker.client_series, broker.runtime.now_ms
        )
        self._add(self._client_metrics)
        purgatories = [broker.replicas.purgatory]
        self._show(node_metrics.purgatory_families(lambda: purgatories))
        self._show(node_metrics.session_families(broker.fetch_sessions))
        self._show([node_metrics.state_family(lambda: role.state)])
        self._show(cleaner_families(role.maintenance, broker.replicas.logs, broker.runtime.monotonic))
        if broker.remote is not None:
            remote = broker.remote
            reads = remote.reads
            purgatories += [reads.fetch_purgatory, reads.list_offsets_purgatory]
            self._add(RemoteTable(broker.remote.metrics, reads.slots, is_up=lambda: remote.store.is_up))

    def _end_offsets_of(self, role: BrokerRole) -> EndOffsets:
        config, metadata = self._config, role.broker.metadata

        def address_of(broker_id: int) -> Address | None:
            endpoint = metadata.endpoint(broker_id, config.inter_broker_listener_name)
            return None if endpoint is None else (endpoint.host, endpoint.port)

        client = NodeClient(
            self._runtime,
            client_id=f"broker-{config.node_id}-metrics",
            settings=ClientSettings.from_config(config),
        )
        self._end_offsets = EndOffsets(self._runtime, role.broker.replicas, client, address_of=address_of)
        return self._end_offsets

    def _show(self, families: Iterable[Family]) -> None:
        self.families += map(with_strimzis_name, families) if self._has_strimzis_names else families

    def _add(self, table: Table) -> None:
        self._show(table.families())
        self._preparations.append(table.prepare)

    async def stop(self) -> None:
        """Close the connections to other brokers."""
        if self._end_offsets is not None:
            await self._end_offsets.close()

    def _of_clients(self) -> Iterable[Family]:
        return () if self._client_metrics is None else self._client_metrics.of_clients()

    async def _refresh(self) -> None:
        if self._end_offsets is not None:
            await self._end_offsets.refresh()

    def _prepare(self) -> Iterator[None]:
        for prepare in list(self._preparations):
            yield from prepare()
