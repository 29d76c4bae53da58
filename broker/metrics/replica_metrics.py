"""BrokerTopicMetrics, ReplicaManager, ReplicaFetcherManager and Log: the topics and partitions that this broker hosts.

What clients and followers have appended and fetched is counted of each topic; as in Kafka the sum over all topics has
the same name, without the label `topic`. Message conversions are counted as 0 in Kafka, too: no client of its
supported versions needs one.

A partition's own metrics under the names of kafka_exporter are those of its leader: of all brokers together, each
partition has them once.

Partitions are counted by one pass over all of them, in turns of the loop, before the page is written: the numbers of a
page belong together as far as the loop has let other work in between.

Source: BrokerTopicMetrics, the gauges of ReplicaManager, AbstractFetcherManager, LogManager and UnifiedLog of
Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from ottla.broker.metrics.families import (
    NO_LABELS,
    Family,
    Read,
    Reading,
    RenderedLabels,
    exporter,
    kafka,
    one,
)
from ottla.broker.replicas.log_maintenance import LogMaintenance
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.replicas.topic_stats import BrokerTopicStats, TopicStats
from ottla.runtime.turns import FreedInTurns, HasTurns
from ottla.storage.manager.log_manager import LogManager

#: (Kafka's name, the attribute of TopicStats, what it counts)
_OF_EACH_TOPIC: Final = (
    ("MessagesInPerSec", "messages_in", "Records appended by clients and coordinators."),
    ("BytesInPerSec", "bytes_in", "Bytes of the batches appended by clients and coordinators."),
    ("BytesOutPerSec", "bytes_out", "Bytes of the records sent to consumers."),
    ("BytesRejectedPerSec", "bytes_rejected", "Bytes of batches refused because of their size."),
    ("TotalProduceRequestsPerSec", "total_produce_requests", "Batches to be appended."),
    ("FailedProduceRequestsPerSec", "failed_produce_requests", "Batches whose append has failed unexpectedly."),
    ("TotalFetchRequestsPerSec", "total_fetch_requests", "Reads of partitions by Fetch requests."),
    ("FailedFetchRequestsPerSec", "failed_fetch_requests", "Reads of partitions that have failed unexpectedly."),
)  # fmt: skip
_OF_ALL_TOPICS: Final = (
    ("ReplicationBytesInPerSec", "replication_bytes_in", "Bytes of the records copied from leaders."),
    ("ReplicationBytesOutPerSec", "replication_bytes_out", "Bytes of the records sent to followers."),
)
#: (Kafka's name in kafka.server:type=ReplicaManager, the attribute of TopicStats, the documentation)
_ISR_CHANGES: Final = (
    (
        "IsrShrinksPerSec",
        "isr_shrinks",
        "ISRs of led partitions that became smaller, as this broker has proposed.",
    ),
    (
        "IsrExpandsPerSec",
        "isr_expands",
        "ISRs of led partitions that became larger, as this broker has proposed.",
    ),
    ("FailedIsrUpdatesPerSec", "failed_isr_updates", "Proposed ISRs that the controller has refused."),
)
#: (Kafka's name in kafka.cluster:type=Partition, the field of LedPartition, the documentation)
_OF_LED_PARTITIONS: Final = (
    (
        "UnderMinIsr",
        "is_under_min_isr",
        "1 if the ISR of this led partition is smaller than min.insync.replicas.",
    ),
    ("AtMinIsr", "is_at_min_isr", "1 if the ISR of this led partition has exactly min.insync.replicas."),
    ("ReplicasCount", "replica_count", "Replicas of this led partition."),
)
#: (the name of kafka_exporter after kafka_topic_partition_, the field of LedPartition, the documentation)
_OF_EXPORTER: Final = (
    (
        "current_offset",
        "current_offset",
        "The high watermark of a led partition, up to which consumers read.",
    ),
    ("oldest_offset", "oldest_offset", "The earliest readable offset of a led partition, in either tier."),
    ("leader", "leader", "The leader's id."),
    ("leader_is_preferred", "is_preferred", "1 if the preferred replica leads."),
    ("replicas", "replica_count", "Replicas of a led partition."),
    ("in_sync_replica", "in_sync_count", "Replicas in the ISR of a led partition."),
    (
        "under_replicated_partition",
        "is_under_replicated",
        "1 if replicas of a led partition are not in its ISR.",
    ),
)


class TopicTable:
    """The metrics of topics, and the sums over all topics that they show."""

    def __init__(self, stats: BrokerTopicStats) -> None:
        self._stats = stats
        self._all = TopicStats()

    def prepare(self) -> Iterator[None]:
        """Sum up the counters of all topics."""
        self._all = self._stats.all_topics()
        yield

    def families(self) -> Sequence[Family]:
        """Return the metrics of topics and of ISR changes."""
        mbean = "kafka.server:type=BrokerTopicMetrics,name="
        return [
            *(
                kafka(f"{mbean}{name}", documentation, self._of_each(attribute), attribute="Count")
                for name, attribute, documentation in _OF_EACH_TOPIC
            ),
            *(
                kafka(f"{mbean}{name}", documentation, self._of_all(attribute), attribute="Count")
                for name, attribute, documentation in _OF_ALL_TOPICS
            ),
            *(
                kafka(
                    f"kafka.server:type=ReplicaManager,name={name}",
                    documentation,
                    self._of_all(attribute),
                    attribute="Count",
                )
                for name, attribute, documentation in _ISR_CHANGES
            ),
        ]

    def _of_all(self, attribute: str) -> Read:
        return lambda: [(NO_LABELS, getattr(self._all, attribute))]

    def _of_each(self, attribute: str) -> Read:
        def read() -> Iterable[Reading]:
            yield NO_LABELS, getattr(self._all, attribute)
            for topic, stats in self._stats.topics():
                yield {"topic": topic}, getattr(stats, attribute)

        return read


class LogSizes(NamedTuple):
    """One partition's log at the time of the pass."""

    labels: RenderedLabels
    size_bytes: int
    segment_count: int
    log_start_offset: int
    log_end_offset: int


class LedPartition(NamedTuple):
    """One partition that this broker leads, at the time of the pass."""

    labels: RenderedLabels
    #: The high watermark, up to which consumers read.
    current_offset: int
    oldest_offset: int
    leader: int
    is_preferred: bool
    replica_count: int
    in_sync_count: int
    is_under_replicated: bool
    is_under_min_isr: bool
    is_at_min_isr: bool


class PartitionPass:
    """The counts that one pass over all hosted partitions has made."""

    __slots__ = (
        "_parts", "at_min_isr", "leaders", "led", "logs", "max_lag", "online", "producer_ids", "reassigning",
        "under_min_isr", "under_replicated",
    )  # fmt: skip

    def __init__(self, runtime: HasTurns) -> None:
        self.online = self.leaders = self.under_replicated = self.under_min_isr = self.at_min_isr = 0
        self.reassigning = self.max_lag = self.producer_ids = 0
        self.logs: list[LogSizes] = []
        self.led: list[LedPartition] = []
        self._parts = FreedInTurns(runtime)
        self._parts += self.logs, self.led


class ReplicaTable:
    """The metrics of replicas and logs, and the pass over the partitions that they show."""

    def __init__(self, replicas: ReplicaManager, lag_of: Callable[[Partition], int | None]) -> None:
        """`lag_of` returns how many offsets a followed partition is behind its leader; None: unknown."""
        self._replicas = replicas
        self._lag_of = lag_of
        self.found = PartitionPass(replicas.runtime)

    def prepare(self) -> Iterator[None]:
        """Pass over all partitions, in steps, and count."""
        found = PartitionPass(self._replicas.runtime)
        for partition in list(self._replicas.partitions()):
            if not partition.is_deleted:
                self._count(partition, found)
            yield
        self.found = found

    def _count(self, partition: Partition, found: PartitionPass) -> None:
        log = partition.log
        segments, offsets = log.segments, log.offsets
        found.online += 1
        found.producer_ids += len(log.producers.producers)
        topic, index = partition.topic_partition
        labels = RenderedLabels(topic=topic, partition=str(index))
        found.logs.append(
            LogSizes(
                labels,
                segments.size_bytes,
                len(segments),
                offsets.log_start_offset,
                offsets.log_end_offset,
            )
        )
        if (leader := partition.leader) is None:
            found.max_lag = max(found.max_lag, self._lag_of(partition) or 0)
            return
        found.leaders += 1
        image = self._replicas.metadata.image.partition(partition.topic_id, index)
        adding = image.adding_replicas if image is not None else ()
        found.reassigning += image is not None and bool(adding or image.removing_replicas)
        in_sync, replicas = len(partition.isr), partition.replicas
        led = LedPartition(
            labels,
            current_offset=offsets.high_watermark,
            oldest_offset=offsets.log_start_offset,
            leader=partition.node_id,
            is_preferred=bool(replicas) and replicas[0] == partition.node_id,
            replica_count=len(replicas),
            in_sync_count=in_sync,
            is_under_replicated=in_sync < len(replicas) - len(adding),
            is_under_min_isr=in_sync < leader.effective_min_isr,
            is_at_min_isr=in_sync == leader.effective_min_isr,
        )
        found.led.append(led)
        found.under_replicated += led.is_under_replicated
        found.under_min_isr += led.is_under_min_isr
        found.at_min_isr += led.is_at_min_isr

    def families(self) -> Sequence[Family]:
        """Return the metrics of replicas, replica fetchers and logs."""
        manager = "kafka.server:type=ReplicaManager,name="
        log = "kafka.log:type=Log,name="
        replicas = self._replicas

        def gauge(name: str, documentation: str, read: Callable[[], float]) -> Family:
            return kafka(f"{manager}{name}", documentation, one(read))

        def of_log(name: str, documentation: str, field: str) -> Family:
            return kafka(f"{log}{name}", documentation, self._logs(field))

        return [
            gauge("PartitionCount", "Replicas on this broker, offline ones included.",
                  lambda: self.found.online + replicas.hosted.offline_count),
            gauge("LeaderCount", "Replicas on this broker that lead.", lambda: self.found.leaders),
            gauge("OfflineReplicaCount", "Replicas on this broker whose log directory has failed.",
                  lambda: replicas.hosted.offline_count),
            gauge("UnderReplicatedPartitions", "Led partitions with replicas outside of the ISR.",
                  lambda: self.found.under_replicated),
            gauge("UnderMinIsrPartitionCount", "Led partitions with an ISR smaller than min.insync.replicas.",
                  lambda: self.found.under_min_isr),
            gauge("AtMinIsrPartitionCount", "Led partitions with an ISR of exactly min.insync.replicas.",
                  lambda: self.found.at_min_isr),
            gauge("ReassigningPartitions", "Led partitions that are being reassigned.",
                  lambda: self.found.reassigning),
            gauge("ProducerIdCount", "Producer ids that the logs of this broker remember.",
                  lambda: self.found.producer_ids),
            kafka("kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
                  "The largest number of offsets that a follower on this broker is behind its leader.",
                  one(lambda: self.found.max_lag)),
            kafka("kafka.log:type=LogManager,name=OfflineLogDirectoryCount", "Log directories that have failed.",
                  one(lambda: len(replicas.logs.offline_dirs))),
            of_log("Size", "Bytes of the local segments.", "size_bytes"),
            of_log("NumLogSegments", "Local segments.", "segment_count"),
            of_log("LogStartOffset", "The earliest readable offset, in either tier.", "log_start_offset"),
            of_log("LogEndOffset", "The offset of the next record.", "log_end_offset"),
            *(
                kafka(f"kafka.cluster:type=Partition,name={name}", documentation, self._led(field))
                for name, field, documentation in _OF_LED_PARTITIONS
            ),
            *(
                exporter(f"topic_partition_{name}", documentation, self._led(field))
                for name, field, documentation in _OF_EXPORTER
            ),
        ]  # fmt: skip

    def _led(self, field: str) -> Read:
        value_of: Callable[[LedPartition], int] = attrgetter(field)
        return lambda: ((row.labels, value_of(row)) for row in self.found.led)

    def _logs(self, field: str) -> Read:
        value_of: Callable[[LogSizes], int] = attrgetter(field)

        def read() -> Iterable[Reading]:
            return ((row.labels, value_of(row)) for row in self.found.logs)

        return read


def cleaner_families(
    maintenance: LogMaintenance, logs: LogManager, monotonic: Callable[[], float]
) -> Sequence[Family]:
    """Return the metrics of the log cleaner."""
    mbean = "kafka.log:type=LogCleanerManager,name="

    def uncleanable() -> Iterable[Reading]:
        counts = Counter(log.directory.parent for log in logs.uncleanable)
        return [({"logDirectory": str(path)}, counts[path]) for path in sorted(logs.directory_ids)]

    return [
        kafka(f"{mbean}time-since-last-run-ms", "Milliseconds since the cleaner has looked for a log to compact.",
              one(lambda: round((monotonic() - maintenance.chose_to_clean_at_s) * 1000))),
        kafka(f"{mbean}uncleanable-partitions-count", "Logs that cannot be compacted, until the next start.",
              uncleanable),
        kafka("kafka.log:type=LogCleaner,name=max-clean-time-secs", "Seconds that the last compaction of a log took.",
              one(lambda: maintenance.last_clean_s)),
    ]  # fmt: skip
