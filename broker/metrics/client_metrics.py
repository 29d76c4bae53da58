"""Metrics of client metrics (KIP-714): what clients have pushed, under names of their own, and what became of it.

    ottla_client_metrics_...           this broker's counts: instances, responses by error, series, points left out
    ottla_client_instance_info         the properties of each client whose series are shown
    kafka_client_...                   the series of clients (`ottla.broker.telemetry.series`)

Source: ClientMetricsStats of Kafka 4.3.1, whose counts for each instance are sums here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ottla.broker.metrics.families import Family, Read, Reading, kafka, one, own
from ottla.broker.metrics.names import Kind
from ottla.broker.telemetry.client_metrics import ClientMetrics
from ottla.broker.telemetry.series import ClientSeries, SeriesOfName
from ottla.protocol.errors import ErrorCode

_REASONS = ("bound", "kind", "text")


class ClientMetricsTable:
    """The metrics of clients that push to this broker, and the broker's own counts of that."""

    def __init__(
        self, clients: ClientMetrics, series: ClientSeries | None, now_ms: Callable[[], int]
    ) -> None:
        """`series` is None if this broker does not show what clients push."""
        self._clients = clients
        self._series = series
        self._now_ms = now_ms

    def prepare(self) -> Iterator[None]:
        """Remove the series of clients that are gone."""
        return iter(()) if self._series is None else self._series.expire(self._now_ms())

    def families(self) -> Sequence[Family]:
        """Return the broker's own counts."""
        clients, series = self._clients, self._series
        every = [
            kafka("kafka.server:type=client-metrics", "Instances of clients that this broker knows.",
                  one(lambda: clients.count(self._now_ms())), attribute="instance-count"),
            own("client_metrics_subscription_requests_total", Kind.COUNTER,
                "Responses to GetTelemetrySubscriptions, by error.", _by_error(clients.asked)),
            own("client_metrics_pushes_total", Kind.COUNTER, "Responses to PushTelemetry, by error.",
                _by_error(clients.pushed)),
        ]  # fmt: skip
        if series is None:
            return every

        def left_out() -> Iterable[Reading]:
            return [({"reason": reason}, series.left_out[reason]) for reason in _REASONS]

        def instances() -> Iterable[Reading]:
            return ((each.labels, 1) for each in list(series.instances.values()))

        return [
            *every,
            own("client_metrics_series", Kind.GAUGE, "Series of clients on this page.", one(lambda: series.count)),
            own("client_metrics_max_series", Kind.GAUGE, "The bound of these series, metrics.clients.max.series.",
                one(lambda: series.max_series)),
            own("client_metrics_points_left_out_total", Kind.COUNTER,
                "Values that clients have pushed and that are not shown: beyond the bound of series, of another kind "
                "than gauge and sum or than the other series of their name, or with too long or too many texts.",
                left_out),
            own("client_instance_info", Kind.GAUGE, "The clients whose series are on this page.", instances),
        ]  # fmt: skip

    def of_clients(self) -> Iterable[Family]:
        """Return the metrics that clients have pushed."""
        if self._series is None:
            return ()
        return [_family(name, of_name) for name, of_name in self._series.by_name.items()]


def _by_error(counts: Counter[ErrorCode]) -> Read:
    def read() -> Iterable[Reading]:
        return [({"error": error.name.upper()}, count) for error, count in sorted(counts.items())]

    return read


def _family(name: str, of_name: SeriesOfName) -> Family:
    return Family(
        name=name,
        kind=Kind.COUNTER if of_name.is_counter else Kind.GAUGE,
        documentation=of_name.documentation,
        read=lambda: ((series.labels, series.value) for series in list(of_name.series.values())),
    )
