"""Metrics of the remote tier (KIP-405, "New metrics"; KIP-956): copies, reads, deletions and their backlog.

    store is down --> RemoteCopyErrors grow, RemoteCopyLagBytes and kafka_log_log_size grow: the disk fills
    store is back --> the lag shrinks to 0

Source: RemoteStorageMetrics, BrokerTopicMetrics, RLMQuotaMetrics of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Final

from ottla.broker.metrics.families import NO_LABELS, Family, Read, Reading, kafka, one, own
from ottla.broker.metrics.names import Kind
from ottla.remote.metrics import RemotePartitionGauges, RemoteStorageMetrics, ThrottleTime
from ottla.remote.reading.read_slots import ReadSlots

_TOPICS: Final = "kafka.server:type=BrokerTopicMetrics,name="
_MANAGER: Final = "kafka.log.remote:type=RemoteLogManager,name="
_READERS: Final = "kafka.log.remote:type=RemoteStorageThreadPool,name="

#: (Kafka's name, the attribute of RemoteTopicCounters, what it counts)
_COUNTERS: Final = (
    ("RemoteCopyBytesPerSec", "remote_copy_bytes", "Bytes of segments copied to the remote tier."),
    ("RemoteCopyRequestsPerSec", "remote_copy_requests", "Copies of segments that were begun."),
    ("RemoteCopyErrorsPerSec", "remote_copy_errors", "Copies of segments that have failed."),
    ("RemoteFetchBytesPerSec", "remote_fetch_bytes", "Bytes of records read from the remote tier for consumers."),
    ("RemoteFetchRequestsPerSec", "remote_fetch_requests", "Reads from the remote tier for consumers."),
    ("RemoteFetchErrorsPerSec", "remote_fetch_errors", "Reads from the remote tier that have failed."),
    ("RemoteDeleteRequestsPerSec", "remote_delete_requests", "Deletions in the remote tier that were begun."),
    ("RemoteDeleteErrorsPerSec", "remote_delete_errors", "Deletions in the remote tier that have failed."),
    ("BuildRemoteLogAuxStateRequestsPerSec", "build_remote_log_aux_state_requests",
     "Epochs and producers that followers have begun to read from the remote tier."),
    ("BuildRemoteLogAuxStateErrorsPerSec", "build_remote_log_aux_state_errors",
     "Epochs and producers that followers could not read from the remote tier."),
)  # fmt: skip
#: (Kafka's name, the attribute of RemotePartitionGauges, the documentation): of a topic and of all, the sum
#: over partitions
_GAUGES: Final = (
    ("RemoteCopyLagBytes", "remote_copy_lag_bytes", "Bytes of closed segments that are in the local tier only."),
    ("RemoteCopyLagSegments", "remote_copy_lag_segments", "Closed segments that are in the local tier only."),
    ("RemoteDeleteLagBytes", "remote_delete_lag_bytes", "Bytes of copies that are to be deleted."),
    ("RemoteDeleteLagSegments", "remote_delete_lag_segments",
     "Copies that are to be deleted; at most 500 expire at a time."),
    ("RemoteLogMetadataCount", "remote_log_metadata_count", "Copies in any state."),
    ("RemoteLogSizeBytes", "remote_log_size_bytes", "Bytes of finished copies, and of those that are being deleted."),
    ("RemoteLogSizeComputationTime", "remote_log_size_computation_ms",
     "Milliseconds that the last computations of these sizes took."),
)  # fmt: skip
#: (Kafka's name, the attribute of RemotePartitionGauges, the documentation): of each partition
_PARTITION_GAUGES: Final = (
    ("RetentionSizeInPercent", "retention_size_in_percent", "The log's size in percent of retention.bytes."),
    ("LocalRetentionSizeInPercent", "local_retention_size_in_percent",
     "The local part's size in percent of local.retention.bytes."),
)  # fmt: skip


class RemoteTable:
    """The metrics of the remote tier, and the sums that they show."""

    def __init__(
        self, metrics: RemoteStorageMetrics, reads: ReadSlots, *, is_up: Callable[[], bool | None]
    ) -> None:
        """`is_up`: whether the last call of the store has succeeded; None: there was none yet."""
        self._metrics = metrics
        self._is_up = is_up
        self._reads = reads
        self._by_topic: dict[str, RemotePartitionGauges] = {}
        self._all = RemotePartitionGauges()

    def prepare(self) -> Iterator[None]:
        """Sum the gauges of partitions up by topic."""
        yield from self._metrics.update_gauges()
        by_topic: dict[str, RemotePartitionGauges] = {}
        every = RemotePartitionGauges()
        for (topic, _), gauges in list(self._metrics.partitions.items()):
            _add(by_topic.setdefault(topic, RemotePartitionGauges()), gauges)
            _add(every, gauges)
            yield
        self._by_topic, self._all = by_topic, every

    def families(self) -> Sequence[Family]:
        """Return the metrics of the remote tier."""
        metrics = self._metrics
        return [
            *(
                kafka(f"{_TOPICS}{name}", documentation, self._counter(attribute), attribute="Count")
                for name, attribute, documentation in _COUNTERS
            ),
            *(
                kafka(f"{_TOPICS}{name}", documentation, self._gauge(attribute))
                for name, attribute, documentation in _GAUGES
            ),
            *(
                kafka(f"{_MANAGER}{name}", documentation, self._partition_gauge(attribute))
                for name, attribute, documentation in _PARTITION_GAUGES
            ),
            kafka(f"{_MANAGER}RemoteLogManagerTasksAvgIdlePercent", "The idle part of the copy tasks, from 0 to 1.",
                  one(lambda: metrics.tasks_idle_ratio())),
            kafka(f"{_MANAGER}RemoteLogReaderFetchRateAndTimeMs",
                  "Milliseconds of reads from the remote tier for consumers.",
                  lambda: [(NO_LABELS, metrics.fetch_times)], attribute="Count"),
            kafka(f"{_READERS}RemoteLogReaderTaskQueueSize",
                  "Reads from the remote tier that wait for a slot (remote.log.reader.threads).",
                  one(lambda: self._reads.waiting_count)),
            kafka(f"{_READERS}RemoteLogReaderAvgIdlePercent",
                  "The idle part of these slots, from 0 to 1, at this moment.",
                  one(lambda: self._reads.idle_ratio)),
            own("remote_tier_up", Kind.GAUGE,
                "1 if the last call of the remote store, or its check at the start, has succeeded, else 0; "
                "0 also while a call has no answer for 90 s, or three of the store's request timeouts.",
                one(self._is_up)),
            *_throttle("copy", lambda: metrics.copy_throttle),
            *_throttle("fetch", lambda: metrics.fetch_throttle),
        ]  # fmt: skip

    def _counter(self, attribute: str) -> Read:
        value_of: Callable[[object], int] = attrgetter(attribute)

        def read() -> Iterable[Reading]:
            yield NO_LABELS, value_of(self._metrics.all_topics)
            for topic, counters in list(self._metrics.topics.items()):
                yield {"topic": topic}, value_of(counters)

        return read

    def _gauge(self, attribute: str) -> Read:
        value_of: Callable[[object], int] = attrgetter(attribute)

        def read() -> Iterable[Reading]:
            yield NO_LABELS, value_of(self._all)
            for topic, gauges in self._by_topic.items():
                yield {"topic": topic}, value_of(gauges)

        return read

    def _partition_gauge(self, attribute: str) -> Read:
        value_of: Callable[[object], int] = attrgetter(attribute)

        def read() -> Iterable[Reading]:
            for (topic, index), gauges in list(self._metrics.partitions.items()):
                yield {"topic": topic, "partition": str(index)}, value_of(gauges)

        return read


def _throttle(what: str, time: Callable[[], ThrottleTime]) -> Sequence[Family]:
    mbean = "kafka.server:type=RemoteLogManager"
    return [
        kafka(mbean, f"Milliseconds that a remote {what} has waited for its quota, on average since the start.",
              one(lambda: time().total_ms / time().count if time().count else 0.0),
              attribute=f"remote-{what}-throttle-time-avg"),
        kafka(mbean,
              f"The longest time that a remote {what} has waited for its quota in the last 30 to 60 seconds, in "
              "milliseconds.",
              one(lambda: time().max_ms.read()), attribute=f"remote-{what}-throttle-time-max"),
        own(f"remote_{what}_throttle_milliseconds_total", Kind.COUNTER,
            f"Milliseconds that remote {what} transfers have waited for their quota.", one(lambda: time().total_ms)),
    ]  # fmt: skip


_GAUGE_NAMES: Final = tuple(each.name for each in fields(RemotePartitionGauges))


def _add(sums: RemotePartitionGauges, gauges: RemotePartitionGauges) -> None:
    for name in _GAUGE_NAMES:
        setattr(sums, name, getattr(sums, name) + getattr(gauges, name))
