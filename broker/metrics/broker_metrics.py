"""The broker's other gauges: purgatories, fetch sessions, connections, its state, what it has applied of the metadata.

Source: DelayedOperationPurgatory, DelayedFetchMetrics, FetchSessionCache, SocketServer, KafkaServer and
BrokerServerMetrics of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ottla.broker.metrics.families import Family, Read, Reading, kafka, one
from ottla.broker.network import NetworkServer
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory

#: Kinds of delayed operations that are shown also while none has waited yet, as in Kafka.
_KINDS: Final = ("Produce", "Fetch", "DeleteRecords", "RemoteFetch", "RemoteListOffsets")
#: (Kafka's type, the kind under which the purgatory counts an expiry)
_EXPIRIES: Final = (
    ("DelayedProduceMetrics", "Produce"),
    ("DelayedDeleteRecordsMetrics", "DeleteRecords"),
    ("DelayedRemoteFetchMetrics", "RemoteFetch"),
    ("DelayedRemoteListOffsetsMetrics", "RemoteListOffsets"),
)


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
