"""ClusterTally: all partitions of the cluster, counted in turns of the loop; again only when the metadata has changed.

The same pass makes a short row of each topic, which the list of topics is found and sorted by.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ottla.broker.metadata_cache import ListenerBrokers
from ottla.broker.reports.health import (
    LEADERLESS,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    PartitionTally,
    partition_state,
)
from ottla.broker.services import BrokerServices
from ottla.metadata.image import TopicImage
from ottla.protocol.types import TopicPartition
from ottla.runtime.turns import FreedInTurns, in_turns

_PARTITIONS_OF_STEP: Final = 25
_MIN_ISR: Final = "min.insync.replicas"


class TopicRow(NamedTuple):
    """One topic, as the list of topics shows it."""

    name: str
    partition_count: int
    replication_factor: int
    leaderless: int
    under_min_isr: int
    under_replicated: int

    @property
    def severity(self) -> tuple[int, int, int]:
        """The order by state: what is worse is larger."""
        return self.leaderless, self.under_min_isr, self.under_replicated


class Tallied:
    """The counts of one pass."""

    def __init__(self, broker: BrokerServices) -> None:
        self.partitions = PartitionTally()
        #: The partitions that each broker leads.
        self.leaders: Counter[int] = Counter()
        #: By name, in the order of the names.
        self.topics: dict[str, TopicRow] = {}
        self._parts = FreedInTurns(broker.runtime)
        self._parts.append(self.topics)


class ClusterTally:
    """The counts over all partitions, as of the metadata that this broker has replayed."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._lock = asyncio.Lock()
        self._of_offset: int | None = None
        self._found: Tallied | None = None

    def forget(self) -> None:
        """Release the counts of the last pass."""
        self._found = self._of_offset = None

    async def current(self) -> Tallied:
        """The counts as of now; those that ask meanwhile share one pass."""
        async with self._lock:
            offset = self._broker.metadata.last_applied_offset
            if self._found is None or self._of_offset != offset:
                found = Tallied(self._broker)
                await in_turns(self._broker.runtime, self._pass(found))
                # What has changed during the pass is noticed by the next one.
                self._found, self._of_offset = found, offset
            return self._found

    def _pass(self, found: Tallied) -> Iterator[None]:
        metadata = self._broker.metadata
        brokers = metadata.brokers_for(self._broker.config.inter_broker_listener_name)
        for name in sorted(metadata.image.topics_by_name):
            topic = metadata.topic(name)
            if topic is not None:
                yield from self._pass_topic(topic, found, brokers)

    def _pass_topic(self, topic: TopicImage, found: Tallied, brokers: ListenerBrokers) -> Iterator[None]:
        overrides = self._broker.metadata.image.topic_config(topic.name)
        min_isr = min_isr_of(self._broker, overrides)
        states: Counter[str] = Counter()
        replication_factor = 0
        for number, (index, partition) in enumerate(list(topic.partitions.items()), start=1):
            state = partition_state(
                has_leader=partition.leader is not None,
                replica_count=len(partition.replicas),
                isr_count=len(partition.isr),
                min_isr=min_isr,
            )
            states[state] += 1
            found.partitions.add(
                TopicPartition(topic.name, index),
                state,
                replicas=partition.replicas,
                offline=brokers.offline_replicas(partition),
            )
            if partition.leader is not None:
                found.leaders[partition.leader] += 1
            replication_factor = max(replication_factor, len(partition.replicas))
            if number % _PARTITIONS_OF_STEP == 0:
                yield
        found.topics[topic.name] = TopicRow(
            topic.name,
            states.total(),
            replication_factor,
            states[LEADERLESS],
            states[UNDER_MIN_ISR],
            states[UNDER_REPLICATED],
        )
        yield


def min_isr_of(broker: BrokerServices, overrides: Mapping[str, str]) -> int:
    """min.insync.replicas of a topic with these configurations of its own."""
    return int(overrides.get(_MIN_ISR) or broker.config.get(_MIN_ISR))
