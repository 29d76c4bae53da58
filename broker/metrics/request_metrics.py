"""RequestMetrics: requests of each API and version, and how long their responses took.

Fetch is shown three times, as in Kafka: of consumers, of followers, and of both.

Source: RequestChannel.Metrics and RequestMetrics of Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from broker.metrics.families import Family, Reading, kafka
from broker.replicas.topic_stats import BrokerTopicStats
from broker.request_stats import RequestStats, kafka_name
from protocol.api_keys import ApiKey
from runtime.histogram import Histogram

#: Reads the histograms of Fetch by Kafka's name of its sender.
FetchTimes = Callable[[], Mapping[str, Histogram]]


def fetch_times(stats: BrokerTopicStats) -> FetchTimes:
    """Those of a broker."""
    return lambda: {
        "FetchConsumer": stats.consumer_fetch_times,
        "FetchFollower": stats.follower_fetch_times,
    }


def families(
    dispatchers: Callable[[], Iterable[RequestStats]], fetches: FetchTimes = dict
) -> Sequence[Family]:
    """The rows of the table; `dispatchers` returns the broker's and the controller's, as far as the node is both."""

    def requests() -> Iterable[Reading]:
        counts: Counter[tuple[str, int]] = Counter()
        for stats in dispatchers():
            counts.update(stats.by_version())
        for (name, version), count in sorted(counts.items()):
            yield {"request": name, "version": str(version)}, count
        for name, times in fetches().items():
            yield {"request": name}, times.count

    def total_times() -> Iterable[Reading]:
        by_name: dict[str, Histogram] = {}
        for stats in dispatchers():
            for key, times in stats.times.items():
                by_name.setdefault(kafka_name(key), Histogram()).add(times)
        if senders := fetches():
            # A broker's: the dispatcher times only those that wait.
            by_name[kafka_name(ApiKey.FETCH)] = both = Histogram()
            for times in senders.values():
                both.add(times)
            by_name |= senders
        return [({"request": name}, times) for name, times in sorted(by_name.items()) if times.count]

    mbean = "kafka.network:type=RequestMetrics,name="
    return [
        kafka(f"{mbean}RequestsPerSec", "Requests received.", requests, attribute="Count"),
        kafka(f"{mbean}TotalTimeMs", "Milliseconds from a request to its response, waits included; of the Produce "
              "requests that are answered at once one in eight is timed, and counts as eight.",
              total_times, attribute="Count"),
    ]  # fmt: skip
