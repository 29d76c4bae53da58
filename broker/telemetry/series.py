"""ClientSeries: the values that clients have pushed, as series for /metrics, in a bounded number.

    org.apache.kafka.producer.record.send.total  ->  kafka_client_producer_record_send_total{client_id=..., ...}

A series is one metric of one instance of a client, with the attributes of the point. Changes of counters are added up:
a series of a counter is what the instance has counted since its first push to this broker. The series of an instance
are shown until it has not pushed for three of its intervals (a minute at least), also after its last push: a page
that is read once a minute shows the end of a client that has ended.

Bounds: the number of series (`metrics.clients.max.series`) and the length of each text. What is beyond them is left out
and counted. The names begin with `kafka_client_`, whatever a client sends: no client can write a metric of the broker.
Source: KIP-714; OpenTelemetry's rules for names of Prometheus.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final
from uuid import UUID

from ottla.broker.telemetry.otlp import MAX_ATTRIBUTES, Attributes, Point, Pushed
from ottla.broker.telemetry.subscriptions import Client
from ottla.config.broker_config import BrokerConfig

#: The series of an instance are shown for so many of its intervals, and so many milliseconds, after its last push.
_SHOWN_INTERVALS: Final = 3
_SHOWN_MS: Final = 60_000
#: Longer names and texts are not shown: a topic's name has 249 characters at most.
MAX_TEXT: Final = 250
#: The points that become series in one step: some 100 µs.
_POINTS_OF_STEP: Final = 25

PREFIX: Final = "kafka_client_"
#: The beginning of the names of Kafka's own clients.
_OF_KAFKA: Final = "org.apache.kafka."
_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9_]+|__+")

#: The labels that say whose series it is, whatever the client sends.
_CLIENT_LABELS: Final = ("client_id", "client_instance_id")

Labels = dict[str, str]
_Key = tuple[str, UUID, Attributes]


class SeriesOfName:
    """All series of one name."""

    __slots__ = ("documentation", "is_counter", "series")

    def __init__(self, documentation: str, *, is_counter: bool) -> None:
        self.documentation = documentation
        self.is_counter = is_counter
        self.series: dict[_Key, Series] = {}


class Shown:
    """One instance of a client whose series are shown."""

    __slots__ = ("keys", "labels", "shown_until_ms")

    def __init__(self, labels: Labels) -> None:
        #: The properties of the client, for the metric that describes it.
        self.labels = labels
        self.keys: set[_Key] = set()
        self.shown_until_ms = 0


class Series:
    """One value of one instance."""

    __slots__ = ("labels", "owner", "value")

    def __init__(self, labels: Labels, owner: Shown) -> None:
        self.labels = labels
        #: Its expiry removes the series.
        self.owner = owner
        self.value: float = 0


class ClientSeries:
    """The series of all clients that have pushed to this broker; a function of pushes and time."""

    def __init__(self, *, max_series: int) -> None:
        self.max_series = max_series
        self.by_name: dict[str, SeriesOfName] = {}
        self.instances: dict[UUID, Shown] = {}
        self.count = 0
        #: The number of points that were left out, by the reason.
        self.left_out: Counter[str] = Counter()

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "ClientSeries | None":
        """Return the series of a broker that exports its clients' metrics; None: it does not."""
        if not config.shows_client_metrics:
            return None
        return cls(max_series=config.get("metrics.clients.max.series"))

    def add(self, client: Client, pushed: Pushed, *, interval_ms: int, now_ms: int) -> Iterator[None]:
        """Take over what a client has pushed, in steps."""
        yield from self.expire(now_ms)
        self.left_out["bound"] += pushed.beyond_bound
        self.left_out["kind"] += pushed.other_kinds
        shown = self.instances.get(client.instance_id)
        if shown is None:
            if len(self.instances) >= self.max_series:
                self.left_out["bound"] += len(pushed.points)
                return
            shown = self.instances[client.instance_id] = Shown(_client_labels(client, pushed.resource))
        shown.shown_until_ms = now_ms + max(_SHOWN_MS, _SHOWN_INTERVALS * interval_ms)
        for number, point in enumerate(pushed.points, start=1):
            if (reason := self._add_point(client, shown, point)) is not None:
                self.left_out[reason] += 1
            if number % _POINTS_OF_STEP == 0:
                yield

    def _add_point(self, client: Client, shown: Shown, point: Point) -> str | None:
        """Take over one value; returns the reason if it is left out."""
        name = metric_name(point.name, is_counter=point.is_counter)
        if len(name) > MAX_TEXT or len(point.attributes) > MAX_ATTRIBUTES:
            return "text"
        if any(len(key) + len(text) > MAX_TEXT for key, text in point.attributes):
            return "text"
        # Two attributes may become the same label: a series is identified by what is shown of it.
        texts = {_label(key): text for key, text in point.attributes}
        attributes = tuple(sorted(each for each in texts.items() if each[0] not in _CLIENT_LABELS))
        of_name = self.by_name.get(name)
        # A page on which one name has two types is refused; OpenMetrics names a counter without its _total.
        other = name.removesuffix("_total") if point.is_counter else f"{name}_total"
        clashing = self.by_name.get(other)
        if clashing is not None and clashing.is_counter is not point.is_counter:
            return "kind"
        if of_name is not None and of_name.is_counter is not point.is_counter:
            return "kind"
        key = (name, client.instance_id, attributes)
        series = None if of_name is None else of_name.series.get(key)
        if series is None or of_name is None or series.owner is not shown:
            # One whose owner expires at this moment is replaced: an instance that returns counts from its first push.
            if series is None and self.count >= self.max_series:
                return "bound"
            if of_name is None:
                documentation = (point.description or point.name)[:MAX_TEXT]
                of_name = self.by_name[name] = SeriesOfName(documentation, is_counter=point.is_counter)
            self.count += series is None
            series = of_name.series[key] = Series(_series_labels(client, attributes), shown)
            shown.keys.add(key)
        if point.is_delta:
            series.value += point.value
        else:
            series.value = point.value
        return None

    def expire(self, now_ms: int) -> Iterator[None]:
        """Remove the series of instances that have not pushed for long, in steps.

        Between two steps an instance may push: one whose removal has not begun stays; else it is a new one, and what
        it has pushed since stays.
        """
        over = [instance_id for instance_id, each in self.instances.items() if each.shown_until_ms <= now_ms]
        for instance_id in over:
            shown = self.instances.get(instance_id)
            if shown is None or shown.shown_until_ms > now_ms:
                continue
            del self.instances[instance_id]
            for number, key in enumerate(shown.keys, start=1):
                of_name = self.by_name.get(key[0])
                series = None if of_name is None else of_name.series.get(key)
                if of_name is not None and series is not None and series.owner is shown:
                    del of_name.series[key]
                    self.count -= 1
                    if not of_name.series:
                        del self.by_name[key[0]]
                if number % _POINTS_OF_STEP == 0:
                    yield


def _series_labels(client: Client, attributes: Attributes) -> Labels:
    properties = client.properties()
    return {**dict(attributes), **{name: properties[name] or "" for name in _CLIENT_LABELS}}


def _client_labels(client: Client, resource: Mapping[str, str]) -> Labels:
    short = ((key, text) for key, text in resource.items() if len(key) + len(text) <= MAX_TEXT)
    labels = {_label(key): text for key, text in islice(short, MAX_ATTRIBUTES)}
    return {**labels, **{name: text or "" for name, text in client.properties().items()}}


def metric_name(name: str, *, is_counter: bool) -> str:
    """Return the name of a client's metric for Prometheus.

    >>> metric_name("org.apache.kafka.consumer.fetch.manager.records.lag", is_counter=False)
    'kafka_client_consumer_fetch_manager_records_lag'
    >>> metric_name("a.b-c", is_counter=True)
    'kafka_client_a_b_c_total'
    """
    name = name[: MAX_TEXT + len(_OF_KAFKA)].removeprefix(_OF_KAFKA)
    safe = PREFIX + _NOT_ALLOWED.sub("_", name).strip("_").lower()
    return safe if not is_counter else f"{safe.removesuffix('_total')}_total"


def _label(key: str) -> str:
    safe = _NOT_ALLOWED.sub("_", key[:MAX_TEXT]).strip("_")
    return f"_{safe}" if not safe or safe[0].isdigit() else safe
