"""Counters of requests: exact numbers, and times of a sample that stand for all."""

import pytest

from ottla.broker.request_stats import RequestCounter, RequestStats, kafka_name
from ottla.runtime.histogram import BOUNDS_MS, Histogram


def receive(counter, count, time_s=0.001):
    """Record a request as the dispatchers do."""
    for _ in range(count):
        counter.left -= 1
        if not counter.left:
            counter.begin_round()
            counter.observe(time_s)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 640, 1000])
@pytest.mark.parametrize("is_sampled", [True, False])
def test_every_request_is_counted_and_some_are_timed(count, is_sampled):
    counter = RequestCounter(Histogram(), is_sampled=is_sampled)
    receive(counter, count)
    assert counter.count == count
    assert counter.times.count == (count // 64 * 64 if is_sampled else count)
    assert counter.times.sum_ms == pytest.approx(counter.times.count)


def test_a_dispatcher_counts_by_version():
    stats = RequestStats()
    stats.serve({0: range(3, 14), 1: range(4, 19), 3: range(14)}, is_broker=True)
    receive(stats.counters[0, 9], 2)
    receive(stats.counters[0, 13], 70)
    receive(stats.counters[3, 0], 1)
    assert stats.by_version() == {("Produce", 9): 2, ("Produce", 13): 70, ("Metadata", 0): 1}
    assert {kafka_name(key): times.count for key, times in stats.times.items()} == {
        "Produce": 64,
        "Metadata": 1,
    }


@pytest.mark.parametrize(("time_ms", "bound_ms"), [
    (0, 0.1), (0.1, 0.1), (0.11, 0.25), (3, 5), (5000, 5000), (5000.1, float("inf")),
])  # fmt: skip
def test_a_time_is_in_the_bucket_of_the_next_bound(time_ms, bound_ms):
    histogram = Histogram()
    histogram.observe(time_ms, 3)
    [at] = [at for at, count in enumerate(histogram.bucket_counts) if count]
    assert [*BOUNDS_MS, float("inf")][at] == bound_ms
    assert (histogram.count, histogram.sum_ms) == (3, time_ms * 3)
    histogram.add(histogram)
    assert (histogram.count, histogram.sum_ms) == (6, time_ms * 6)
