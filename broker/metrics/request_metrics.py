"""RequestMetrics: requests of each API and version, and how long their responses took.

Fetch is shown three times, as in Kafka: of consumers, of followers, and of both.

Source: RequestChannel.Metrics and RequestMetrics of Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ottla.broker.metrics.families import Family, Reading, kafka
from ottla.broker.replicas.topic_stats import BrokerTopicStats
from ottla.broker.request_stats import RequestCounter, RequestStats, kafka_name
from ottla.protocol.api_keys import ApiKey
from ottla.runtime.histogram import Histogram

#: The counters of Fetch by Kafka's name of its sender.
Fetches = Callable[[], Mapping[str, RequestCounter]]


def fetches_of(stats: BrokerTopicStats) -> Fetches:
    """Return the reader of a broker's counters of Fetch: of consumers, and of followers."""
    return lambda: {"FetchConsumer": stats.consumer_fetches, "FetchFollower": stats.follower_fetches}


def families(dispatchers: Callable[[], Iterable[RequestStats]], fetches: Fetches = dict) -> Sequence[Family]:
    """Return the metrics of requests.

    `dispatchers` returns the statistics of the broker and of the controller, as far as the node is both.
    """

    def requests() -> Iterable[Reading]:
        counts: Counter[tuple[str, int]] = Counter()
        for stats in dispatchers():
            counts.update(stats.by_version())
        for (name, version), count in sorted(counts.items()):
            yield {"request": name, "version": str(version)}, count
        for name, counter in fetches().items():
            yield {"request": name}, counter.count

    def total_times() -> Iterable[Reading]:
        by_name: dict[str, Histogram] = {}
        for stats in dispatchers():
            for key, times in stats.times.items():
                by_name.setdefault(kafka_name(key), Histogram()).add(times)
        both = by_name.setdefault(kafka_name(ApiKey.FETCH), Histogram())
        for name, counter in fetches().items():
            assert counter.times is not None, name
            both.add(counter.times)
            by_name[name] = counter.times
        return [({"request": name}, times) for name, times in sorted(by_name.items()) if times.count]

    mbean = "kafka.network:type=RequestMetrics,name="
    return [
        kafka(f"{mbean}RequestsPerSec", "Requests received.", requests, attribute="Count"),
        kafka(f"{mbean}TotalTimeMs", "Milliseconds from a request to its response, waits included; of the Produce "
              "and Fetch requests that are answered at once one in 64 is timed, and counts as 64.",
              total_times, attribute="Count"),
    ]  # fmt: skip
