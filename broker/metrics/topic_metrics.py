"""BrokerTopicMetrics: what clients and followers have appended and fetched, of each topic and of all.

As in Kafka the sum over all topics has the same name, without the label `topic`. Message conversions are
counted as 0 in Kafka, too: no client of its supported versions needs one.

Source: BrokerTopicMetrics of Kafka 4.3.1.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ottla.broker.metrics.families import NO_LABELS, Family, Read, Reading, kafka
from ottla.broker.replicas.topic_stats import BrokerTopicStats, TopicStats

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
