"""Collector: the tables of this node as metrics of prometheus-client, for its registry and its text formats.

A metric's samples are an iterable that reads the node as it is consumed, so that `exposition` can write a
page in turns of the loop. The registry adds what prometheus-client itself knows of the process: CPU, memory,
descriptors, collections.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import cast

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ottla.broker.metrics.families import Family
from ottla.broker.metrics.names import Kind
from ottla.runtime.histogram import BOUNDS_MS, Histogram

_BOUNDS = (*(str(bound) for bound in BOUNDS_MS), "+Inf")


class FamilyMetric(Metric):
    """A metric of a family, without samples of its own."""

    def __init__(self, family: Family) -> None:
        # Prometheus-client adds _total to a counter's name itself.
        is_counter = family.kind is Kind.COUNTER
        name = family.name.removesuffix("_total") if is_counter else family.name
        super().__init__(name, family.documentation, family.kind.value)
        self.samples = cast("list[Sample]", _Samples(family))


class _Samples:
    """Reads a family's samples each time it is iterated over."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def __iter__(self) -> Iterator[Sample]:
        family = self._family
        fixed = dict(family.labels)
        for labels, value in family.read():
            every = {**fixed, **labels} if fixed else labels if isinstance(labels, dict) else dict(labels)
            if isinstance(value, Histogram):
                yield from _histogram_samples(family.name, every, value)
            else:
                yield Sample(family.name, every, value)


def _histogram_samples(name: str, labels: dict[str, str], histogram: Histogram) -> Iterator[Sample]:
    count = 0
    for bound, in_bucket in zip(_BOUNDS, histogram.bucket_counts, strict=True):
        count += in_bucket
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{name}_count", labels, count)
    yield Sample(f"{name}_sum", labels, histogram.sum_ms)


async def _nothing() -> None:
    """Ask no other broker."""


class NodeCollector(Collector):
    """The tables of one node; may be registered in any registry of prometheus-client."""

    def __init__(
        self,
        families: Sequence[Family],
        prepare: Callable[[], Iterable[object]] = tuple,
        *,
        refresh: Callable[[], Awaitable[None]] = _nothing,
        of_clients: Callable[[], Iterable[Family]] = tuple,
    ) -> None:
        """`prepare` is consumed before the families are read: what several of them show is computed once.

        `refresh` asks other brokers before that; `collect` does without. `of_clients` returns the metrics that clients
        have pushed, by names of their own; they come last.
        """
        self.families = families
        self.prepare = prepare
        self.refresh = refresh
        self.of_clients = of_clients

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Their samples are read when they are iterated over."""
        for _ in self.prepare():
            pass
        yield from self.metrics()

    def metrics(self) -> Iterator[Metric]:
        """Yield all metrics without preparing them, for a caller that has consumed `prepare`."""
        yield from map(FamilyMetric, self.families)
        yield from map(FamilyMetric, self.of_clients())
