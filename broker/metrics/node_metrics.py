"""Metrics of a node beside its logs and groups: requests, waits, sessions, connections, threads, turns of the loop.

Kafka has no metric of a failed task or a blocked loop; the names of these begin with `ottla_`. Fetch is shown three
times among the requests, as in Kafka: of consumers, of followers, and of both.

Source: RequestMetrics, DelayedOperationPurgatory, DelayedFetchMetrics, FetchSessionCache, SocketServer, KafkaServer
and BrokerServerMetrics of Kafka 4.3.1.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ottla import VERSION
from ottla.broker.metrics.families import NO_LABELS, Family, Read, Reading, kafka, one, own
from ottla.broker.metrics.names import Kind
from ottla.broker.network import NetworkServer
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.topic_stats import BrokerTopicStats
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory
from ottla.broker.request_stats import RequestCounter, RequestStats, kafka_name
from ottla.protocol.api_keys import ApiKey
from ottla.runtime import Pool, Runtime
from ottla.runtime.histogram import Histogram
from ottla.runtime.processor_times import disk_usage
from ottla.runtime.windows import IdleRatio

#: Kinds of delayed operations that are shown also while none has waited yet, as in Kafka.
_KINDS: Final = ("Produce", "Fetch", "DeleteRecords", "RemoteFetch", "RemoteListOffsets")
#: (Kafka's type, the kind under which the purgatory counts an expiry)
_EXPIRIES: Final = (
    ("DelayedProduceMetrics", "Produce"),
    ("DelayedDeleteRecordsMetrics", "DeleteRecords"),
    ("DelayedRemoteFetchMetrics", "RemoteFetch"),
    ("DelayedRemoteListOffsetsMetrics", "RemoteListOffsets"),
)


#: The counters of Fetch by Kafka's name of its sender.
Fetches = Callable[[], Mapping[str, RequestCounter]]


def fetches_of(stats: BrokerTopicStats) -> Fetches:
    """Return the reader of a broker's counters of Fetch: of consumers, and of followers."""
    return lambda: {"FetchConsumer": stats.consumer_fetches, "FetchFollower": stats.follower_fetches}


def request_families(
    dispatchers: Callable[[], Iterable[RequestStats]], fetches: Fetches = dict
) -> Sequence[Family]:
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

    def times_of(*phases: str) -> Read:
        """The sums over these phases: "times" of responses at once, "waits" of others."""

        def read() -> Iterable[Reading]:
            by_name: defaultdict[str, Histogram] = defaultdict(Histogram)
            for phase in phases:
                for stats in dispatchers():
                    for key, times in getattr(stats, phase).items():
                        by_name[kafka_name(key)].add(times)
                for name, counter in fetches().items():
                    by_name[kafka_name(ApiKey.FETCH)].add(getattr(counter, phase))
                    by_name[name].add(getattr(counter, phase))
            return [({"request": name}, times) for name, times in sorted(by_name.items()) if times.count]

        return read

    mbean = "kafka.network:type=RequestMetrics,name="
    return [
        kafka(f"{mbean}RequestsPerSec", "Requests received.", requests, attribute="Count"),
        kafka(f"{mbean}TotalTimeMs", "Milliseconds from a request to its response, waits included; of the Produce "
              "and Fetch requests that are answered at once one in 64 is timed, and counts as 64.",
              times_of("times", "waits"), attribute="Count"),
        kafka(f"{mbean}LocalTimeMs", "The same, of the requests that are answered at once only.",
              times_of("times"), attribute="Count"),
        kafka(f"{mbean}RemoteTimeMs", "The same, of the requests that wait only: for records, other brokers, members "
              "of a group, the controller or a disk.", times_of("waits"), attribute="Count"),
    ]  # fmt: skip


def purgatory_families(purgatories: Callable[[], Iterable[DelayedOperationPurgatory]]) -> Sequence[Family]:
    """Return the metrics of requests that wait in a purgatory, and of those that have waited until their deadline."""

    def waiting() -> Iterable[Reading]:
        every = list(purgatories())
        kinds = dict.fromkeys([*_KINDS, *(kind for each in every for kind in each.delayed_by_kind)])
        return [
            ({"delayedOperation": kind}, sum(each.delayed_by_kind[kind] for each in every)) for kind in kinds
        ]

    def expired(*kinds: str) -> int:
        return sum(each.expired_by_kind[kind] for each in purgatories() for kind in kinds)

    def expired_fetches() -> Iterable[Reading]:
        return [({"fetcherType": kind}, expired(kind)) for kind in ("consumer", "follower")]

    def expiries(kind: str) -> Read:
        return one(lambda: expired(kind))

    purgatory = "kafka.server:type=DelayedOperationPurgatory,name="
    return [
        kafka(f"{purgatory}PurgatorySize", "Requests that wait, each one once.", waiting),
        kafka(f"{purgatory}NumDelayedOperations", "The same: an operation that has ended leaves at once.", waiting),
        kafka("kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec", "Fetches that have waited until their "
              "deadline.", expired_fetches, attribute="Count"),
        *(
            kafka(f"kafka.server:type={kafka_type},name=ExpiresPerSec",
                  f"Delayed {kind} operations that have waited until their deadline.", expiries(kind),
                  attribute="Count")
            for kafka_type, kind in _EXPIRIES
        ),
    ]  # fmt: skip


def session_families(sessions: FetchSessionCache) -> Sequence[Family]:
    """Return the metrics of the fetch sessions (KIP-227)."""
    cache = "kafka.server:type=FetchSessionCache,name="
    return [
        kafka(f"{cache}NumIncrementalFetchSessions", "Fetch sessions.", one(lambda: len(sessions))),
        kafka(f"{cache}NumIncrementalFetchPartitionsCached", "Partitions in fetch sessions.",
              one(lambda: sessions.partition_count)),
        kafka(f"{cache}IncrementalFetchSessionEvictionsPerSec", "Fetch sessions evicted for other ones.",
              one(lambda: sessions.evictions_count), attribute="Count"),
    ]  # fmt: skip


def connection_families(servers: Callable[[], Iterable[NetworkServer]]) -> Sequence[Family]:
    """Return the metrics of the connections of all listeners, the controller's included."""

    def count(attribute: str) -> Read:
        def read() -> Iterable[Reading]:
            return [
                ({"listener": listener}, number)
                for server in servers()
                for listener, number in sorted(getattr(server.limits, attribute).items())
            ]

        return read

    mbean = "kafka.server:type=socket-server-metrics"
    return [
        kafka(mbean, "Open connections.", count("by_listener"), attribute="connection-count"),
        kafka(mbean, "Connections accepted.", count("accepted_by_listener"), attribute="connection-creation-total"),
    ]  # fmt: skip


def state_family(state: Callable[[], int]) -> Family:
    """Return the metric of the broker's state: starting, joining the cluster, serving, or stopping."""
    return kafka(
        "kafka.server:type=KafkaServer,name=BrokerState",
        "1 while the broker starts, 2 while its logs are opened and it joins the cluster, 3 while it serves clients, "
        "6 while it stops.",
        one(state),
    )


def flush_family(times: Histogram) -> Family:
    """Return the metric of the flushes of files."""
    return kafka(
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
        "Milliseconds that each flush of a file or directory took, of the metadata log, too; Kafka times those of all "
        "files of a log together.",
        lambda: [(NO_LABELS, times)],
        attribute="Count",
    )


def runtime_families(runtime: Runtime) -> Sequence[Family]:
    """Return the metrics of the node that Kafka does not have."""

    def task_failures() -> Iterable[Reading]:
        return [({"task": name}, count) for name, count in list(runtime.task_failures.items())]

    def usages(at: int) -> Read:
        return lambda: [({"pool": pool.value}, runtime.pool_usage(pool)[at]) for pool in Pool]

    stalls = runtime.loop_stalls
    idle = None if stalls is None else IdleRatio(runtime.monotonic, stalls.running_s)
    idle_ratio = one(lambda: None if idle is None else idle.read())

    def disk(field: str) -> Read:
        # In a simulation the process is that of a test.
        return one(lambda: getattr(disk_usage(), field, None) if stalls is not None else None)

    server = "kafka.server:type=KafkaServer,name="
    build = {"version": VERSION, "python": ".".join(map(str, sys.version_info[:3]))}
    return [
        kafka("kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
              "The idle part of the last minute, from 0 to 1, of the event loop's thread, which handles all requests.",
              idle_ratio, attribute="MeanRate"),
        kafka("kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
              "The same: the same thread reads and writes all connections.", idle_ratio),
        kafka(f"{server}linux-disk-read-bytes", "Bytes that this process has had read from disks.", disk("read_bytes")),
        kafka(f"{server}linux-disk-write-bytes", "Bytes that this process has had written to disks.",
              disk("written_bytes")),
        own("loop_running_seconds_total", Kind.COUNTER, "Processor time of the event loop's thread.",
            one(lambda: None if stalls is None else stalls.running_s())),
        own("build_info", Kind.GAUGE, "Always 1; the versions of Ottla and of Python are labels.",
            lambda: [(build, 1)]),
        own("task_failures_total", Kind.COUNTER, "Failures of background tasks; services are started again.",
            task_failures),
        own("loop_stalls_total", Kind.COUNTER, "Turns of the event loop that took longer than 100 ms.",
            one(lambda: None if runtime.loop_stalls is None else runtime.loop_stalls.count)),
        own("loop_longest_stall_seconds", Kind.GAUGE, "The longest of these turns.",
            one(lambda: None if runtime.loop_stalls is None else runtime.loop_stalls.longest_s)),
        own("thread_pool_threads", Kind.GAUGE, "Threads that a pool may have.", usages(0)),
        own("thread_pool_busy_threads", Kind.GAUGE, "Threads of a pool that work.", usages(1)),
        own("thread_pool_waiting_tasks", Kind.GAUGE, "Work that waits for a thread of a pool.", usages(2)),
    ]  # fmt: skip
