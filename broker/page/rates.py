"""Rates: what this node's counters have done since the last look, and the percentiles of its latest requests.

The counters run anyway, for metrics; a sample of them is taken when a view asks, at most one in a second, and the
last minutes are kept only while a view is watched. A percentile is the upper bound of the histogram's bucket.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ottla.broker.replicas.topic_stats import BrokerTopicStats, TopicStats
from ottla.broker.request_stats import RequestStats
from ottla.protocol.api_keys import ApiKey
from ottla.runtime import Runtime
from ottla.runtime.histogram import BOUNDS_MS, Histogram
from ottla.runtime.turns import in_turns

_SAMPLE_S: Final = 1.0
#: Samples that are kept: three minutes.
SAMPLES: Final = 180
#: Samples over which percentiles and rates are shown.
_WINDOW: Final = 10
_COUNTERS: Final = (
    "messages_in", "bytes_in", "bytes_out", "total_produce_requests", "total_fetch_requests",
    "replication_bytes_in", "replication_bytes_out",
)  # fmt: skip


class _Sample(NamedTuple):
    at_s: float
    counts: tuple[int, ...]
    #: Buckets of the times of Produce requests, and of Fetch requests of consumers and followers.
    times: Mapping[str, Sequence[int]]


class Rates:
    """The rates and percentiles of this node."""

    def __init__(self, runtime: Runtime, stats: BrokerTopicStats, requests: RequestStats) -> None:
        self._runtime = runtime
        self._stats = stats
        self._requests = requests
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        #: The records of a topic at two moments: (time, count) each.
        self._of_topics: dict[str, tuple[tuple[float, int], tuple[float, int]]] = {}

    def forget(self) -> None:
        """Release all samples that were taken."""
        self._samples.clear()
        self._of_topics.clear()

    async def current(self) -> dict[str, Any]:
        """The rates per second over the last seconds, percentiles in ms, and the rates of the last minutes."""
        await self._sample()
        samples = list(self._samples)
        latest = samples[-1]
        first = samples[max(0, len(samples) - 1 - _WINDOW)]
        return {
            "per_second": dict(zip(_COUNTERS, _per_second(first, latest), strict=True)),
            "p99_ms": {name: _p99(first.times[name], latest.times[name]) for name in latest.times},
            "bytes_in": [_per_second(*pair)[1] for pair in pairwise(samples)],
            "bytes_out": [_per_second(*pair)[2] for pair in pairwise(samples)],
        }

    def messages_in(self, topic: str) -> float | None:
        """The records a second that clients append here to a topic; None at the first look."""
        if (stats := self._stats.known(topic)) is None:
            return None
        now, count = self._runtime.monotonic(), stats.messages_in
        before, last = self._of_topics.get(topic, ((now, count), (now, count)))
        if now - last[0] >= _SAMPLE_S:
            before, last = last, (now, count)
        self._of_topics[topic] = before, last
        since_s = last[0] - before[0]
        return None if since_s <= 0 else round((last[1] - before[1]) / since_s, 1)

    async def _sample(self) -> None:
        now = self._runtime.monotonic()
        if self._samples and now - self._samples[-1].at_s < _SAMPLE_S:
            return
        sums = TopicStats()
        await in_turns(self._runtime, self._stats.add_up(sums))
        produce = Histogram()
        for times in (self._requests.times, self._requests.waits):
            if (known := times.get(ApiKey.PRODUCE)) is not None:
                produce.add(known)
        fetches = self._stats.consumer_fetches, self._stats.follower_fetches
        times_of = {"produce": produce.bucket_counts}
        for name, counter in zip(("fetch_consumer", "fetch_follower"), fetches, strict=True):
            times_of[name] = list(counter.times.bucket_counts) if counter.times is not None else []
        counts = tuple(getattr(sums, name) for name in _COUNTERS)
        self._samples.append(_Sample(now, counts, times_of))


def _per_second(first: _Sample, last: _Sample) -> list[float]:
    since_s = last.at_s - first.at_s
    if since_s <= 0:
        return [0.0] * len(_COUNTERS)
    return [
        round((after - before) / since_s, 1) for before, after in zip(first.counts, last.counts, strict=True)
    ]


def _p99(first: Sequence[int], last: Sequence[int]) -> float | None:
    """The bound of the bucket in which the 99th percentile of what was observed between two samples is.

    None: nothing was observed; infinite ones are shown as the largest bound.

    >>> _p99([0] * 15, [0, 98, 2] + [0] * 12)
    0.5
    """
    counts = [after - before for before, after in zip(first, last, strict=True)]
    total = sum(counts)
    if not total:
        return None
    seen = 0
    for bound, count in zip((*BOUNDS_MS, BOUNDS_MS[-1]), counts, strict=True):
        seen += count
        if seen >= total * 0.99:
            return bound
    return BOUNDS_MS[-1]
