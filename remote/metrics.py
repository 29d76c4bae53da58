"""RemoteStorageMetrics: the events and the backlog of the remote tier, as plain numbers (KIP-405, "New metrics").

    counters   of each topic, and of all topics: also of those that are deleted by now
    gauges     of each partition that this broker leads; a topic's gauge is the sum over its partitions

Copies, fetches and deletions call one method for each event. Names are those of Kafka's metrics in snake case:
`remote_copy_bytes` is RemoteCopyBytesPerSec. Rates are derived where metrics are published.

Source: RemoteStorageMetrics and BrokerTopicMetrics of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType

from ottla.protocol.types import TopicPartition
from ottla.runtime.histogram import Histogram
from ottla.runtime.windows import WindowedMax


@dataclass(slots=True, kw_only=True)
class RemoteTopicCounters:
    """The counters of one topic's events since the start of this broker; they only grow."""

    remote_copy_bytes: int = 0
    remote_copy_requests: int = 0
    remote_copy_errors: int = 0
    remote_fetch_bytes: int = 0
    remote_fetch_requests: int = 0
    remote_fetch_errors: int = 0
    remote_delete_requests: int = 0
    remote_delete_errors: int = 0
    build_remote_log_aux_state_requests: int = 0
    build_remote_log_aux_state_errors: int = 0


@dataclass(slots=True, kw_only=True)
class RemotePartitionGauges:
    """The gauges of a partition, as its leader measured them last."""

    #: Closed segments that are in the local tier only; updated by `RemoteStorageMetrics.update_gauges`.
    remote_copy_lag_bytes: int = 0
    remote_copy_lag_segments: int = 0
    #: Copies that are to be deleted.
    remote_delete_lag_bytes: int = 0
    remote_delete_lag_segments: int = 0
    #: Copies in any state.
    remote_log_metadata_count: int = 0
    #: Finished copies, and those that are being deleted.
    remote_log_size_bytes: int = 0
    #: The duration of the last computation of the log's size.
    remote_log_size_computation_ms: int = 0
    #: The log's size in percent of retention.bytes, and its local part in percent of local.retention.bytes;
    #: 0: unlimited.
    retention_size_in_percent: int = 0
    local_retention_size_in_percent: int = 0


@dataclass(slots=True)
class ThrottleTime:
    """The time that transfers have waited for a quota.

    Source: KIP-956: remote-copy-throttle-time, remote-fetch-throttle-time.
    """

    #: The longest of the last waits.
    max_ms: WindowedMax
    count: int = 0
    total_ms: int = 0

    def record(self, waited_ms: int) -> None:
        """Record the wait of a transfer."""
        self.count += 1
        self.total_ms += waited_ms
        self.max_ms.record(waited_ms)


@dataclass(slots=True)
class RemoteStorageMetrics:
    """Counters of the remote tier by topic, and gauges by partition that this broker leads.

    Belongs to the event loop.
    """

    monotonic: InitVar[Callable[[], float]]
    copy_throttle: ThrottleTime = field(init=False)
    fetch_throttle: ThrottleTime = field(init=False)
    all_topics: RemoteTopicCounters = field(default_factory=RemoteTopicCounters)
    #: Times of consumers' reads from the remote tier (RemoteLogReaderFetchRateAndTimeMs).
    fetch_times: Histogram = field(default_factory=Histogram)
    #: RemoteLogManagerTasksAvgIdlePercent, from 0 to 1; set by the manager, and read when metrics are.
    tasks_idle_ratio: Callable[[], float] = lambda: 1.0
    #: Brings the gauges that change without a task up to date, in steps; set by the manager, and called
    #: before they are read.
    update_gauges: Callable[[], Iterable[None]] = tuple
    _topics: dict[str, RemoteTopicCounters] = field(default_factory=dict)
    _partitions: dict[TopicPartition, RemotePartitionGauges] = field(default_factory=dict)

    def __post_init__(self, monotonic: Callable[[], float]) -> None:
        """Create the times of throttling, whose maxima are of the last time on this clock."""
        self.copy_throttle = ThrottleTime(WindowedMax(monotonic))
        self.fetch_throttle = ThrottleTime(WindowedMax(monotonic))

    # -- events ------------------------------------------------------------------------------------

    def on_copy_requested(self, topic: str) -> None:
        """Count a copy of a segment that begins."""
        for counters in self._both(topic):
            counters.remote_copy_requests += 1

    def on_copied(self, topic: str, size_bytes: int) -> None:
        """Count a copy that is finished, with `size_bytes` of the segment."""
        for counters in self._both(topic):
            counters.remote_copy_bytes += size_bytes

    def on_copy_failed(self, topic: str) -> None:
        """Count a copy that has failed."""
        for counters in self._both(topic):
            counters.remote_copy_errors += 1

    def on_fetch_requested(self, topic: str) -> None:
        """Count a consumer's read from the remote tier that begins."""
        for counters in self._both(topic):
            counters.remote_fetch_requests += 1

    def on_fetched(self, topic: str, size_bytes: int) -> None:
        """Count `size_bytes` of records that a consumer's read has returned."""
        for counters in self._both(topic):
            counters.remote_fetch_bytes += size_bytes

    def on_fetch_failed(self, topic: str) -> None:
        """Count a consumer's read that has failed."""
        for counters in self._both(topic):
            counters.remote_fetch_errors += 1

    def on_delete_requested(self, topic: str) -> None:
        """Count a deletion of a copy that begins."""
        for counters in self._both(topic):
            counters.remote_delete_requests += 1

    def on_delete_failed(self, topic: str) -> None:
        """Count a deletion of a copy that has failed."""
        for counters in self._both(topic):
            counters.remote_delete_errors += 1

    def on_aux_state_requested(self, topic: str) -> None:
        """Count a follower that begins to build its epochs and producer state from the remote tier."""
        for counters in self._both(topic):
            counters.build_remote_log_aux_state_requests += 1

    def on_aux_state_failed(self, topic: str) -> None:
        """Count a follower that could not build its epochs and producer state from the remote tier."""
        for counters in self._both(topic):
            counters.build_remote_log_aux_state_errors += 1

    def _both(self, topic: str) -> tuple[RemoteTopicCounters, RemoteTopicCounters]:
        return self.all_topics, self.topic(topic)

    # -- what is there -----------------------------------------------------------------------------

    def topic(self, topic: str) -> RemoteTopicCounters:
        """Return the counters of one topic; new ones at its first event."""
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = RemoteTopicCounters()
        return counters

    def partition(self, partition: TopicPartition) -> RemotePartitionGauges:
        """Return the gauges of a partition that this broker leads."""
        gauges = self._partitions.get(partition)
        if gauges is None:
            gauges = self._partitions[partition] = RemotePartitionGauges()
        return gauges

    @property
    def topics(self) -> Mapping[str, RemoteTopicCounters]:
        """The counters of all topics with an event."""
        return MappingProxyType(self._topics)

    @property
    def partitions(self) -> Mapping[TopicPartition, RemotePartitionGauges]:
        """The gauges of all partitions that this broker leads."""
        return MappingProxyType(self._partitions)

    def remove_partition(self, partition: TopicPartition) -> None:
        """Remove the gauges of a partition that this broker does not lead any more: the next leader has them."""
        self._partitions.pop(partition, None)

    def remove_topic(self, topic: str) -> None:
        """Remove the counters of a topic that is deleted. Its events stay in `all_topics`."""
        self._topics.pop(topic, None)
