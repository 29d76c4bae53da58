"""BrokerTopicStats: what was appended and fetched here, by topic, as plain integers; and how long fetches took.

All partitions of a topic share one `TopicStats`, and their code adds to it: an append costs three additions,
0.1 µs. The sums over all topics include topics that are deleted by now, since a counter must not decrease.

Source: BrokerTopicStats and BrokerTopicMetrics of Kafka 4.3.1, whose names these are in snake case.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from ottla.broker.request_stats import RequestCounter
from ottla.runtime.histogram import Histogram


@dataclass(slots=True, eq=False)
class TopicStats:
    """Events of one topic since the start of this broker; they only grow."""

    #: Records and bytes of the batches that clients and coordinators have appended here; not those copied as
    #: a follower.
    messages_in: int = 0
    bytes_in: int = 0
    #: Batches that were to be appended, and those among them that failed unexpectedly.
    total_produce_requests: int = 0
    failed_produce_requests: int = 0
    #: Bytes of batches that were refused because of their size.
    bytes_rejected: int = 0
    #: Bytes of the records that were sent to consumers.
    bytes_out: int = 0
    #: Partitions that were read by a Fetch when it arrived, and those among them that failed unexpectedly.
    total_fetch_requests: int = 0
    failed_fetch_requests: int = 0
    #: Bytes of the records that were copied from leaders, and sent to followers.
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    #: Changes of an ISR that this broker has proposed as the leader and that are in effect; and refused ones.
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0

    def add(self, other: "TopicStats") -> None:
        """Add the counts of another topic to these."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NAMES = tuple(each.name for each in fields(TopicStats))


class BrokerTopicStats:
    """The counts of appended and fetched records and bytes, of each topic that this broker hosts."""

    __slots__ = ("_of_deleted", "_of_topics", "consumer_fetches", "follower_fetches")

    def __init__(self) -> None:
        #: Fetch requests by their sender.
        self.consumer_fetches = RequestCounter(Histogram(), is_sampled=True)
        self.follower_fetches = RequestCounter(Histogram(), is_sampled=True)
        self._of_topics: dict[str, TopicStats] = {}
        self._of_deleted = TopicStats()

    def topic(self, name: str) -> TopicStats:
        """Return the counts of a topic, which begin at 0."""
        stats = self._of_topics.get(name)
        if stats is None:
            stats = self._of_topics[name] = TopicStats()
        return stats

    def remove(self, name: str) -> None:
        """Remove a topic of which this broker hosts no partition any more. Its numbers stay in the sums."""
        stats = self._of_topics.pop(name, None)
        if stats is not None:
            self._of_deleted.add(stats)

    def topics(self) -> Iterator[tuple[str, TopicStats]]:
        """Iterate over the topics, each with its counts."""
        return iter(list(self._of_topics.items()))

    def known(self, name: str) -> TopicStats | None:
        """The counts of a topic, if this broker hosts or has hosted a partition of it."""
        return self._of_topics.get(name)

    def all_topics(self) -> TopicStats:
        """The sums over all topics. Cost: 2 µs for each topic."""
        sums = TopicStats()
        for _ in self.add_up(sums):
            pass
        return sums

    def add_up(self, sums: TopicStats) -> Iterator[None]:
        """Add the counts of all topics to `sums`, in steps."""
        sums.add(self._of_deleted)
        for _, stats in self.topics():
            sums.add(stats)
            yield
