"""Reads of a cluster by the driver, before and after a load: partitions and end offsets."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata

from ottla.bench.generators.assignment import Cluster

_TIMEOUT_S: Final = 10.0
#: How long the partitions of a killed broker may be without a leader.
_PATIENCE_S: Final = 60.0
#: How long followers, or the broker itself, may need for records that are acknowledged.
_COMMIT_S: Final = 5.0
_COMMIT_POLL_S: Final = 0.1


class ClusterDoesNotAnswer(Exception):
    """A cluster does not answer, or not as expected; the message is one sentence."""


class ClusterReader:
    """Reads the partitions, end offsets and brokers of one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connect()

    def _connect(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})

    def read(self, topics: Collection[str], *, with_ends_of: Collection[str] | None = None) -> Cluster:
        """Read the partitions of these topics, and the ends of some of them, or all. Raises ClusterDoesNotAnswer."""
        known = self._metadata().topics
        partitions: dict[str, int] = {}
        for topic in set(topics):
            if topic not in known:
                raise ClusterDoesNotAnswer(f"{self._bootstrap} has no topic {topic}")
            partitions[topic] = len(known[topic].partitions)
        ends = self.ends(
            {topic: partitions[topic] for topic in (topics if with_ends_of is None else with_ends_of)}
        )
        return Cluster(bootstrap=self._bootstrap, partitions=partitions, ends=ends)

    def brokers(self) -> list[tuple[str, int]]:
        """Return host and port of each broker, in the order of their ids. Raises ClusterDoesNotAnswer."""
        brokers = self._metadata().brokers
        return [(str(brokers[each].host), brokers[each].port) for each in sorted(brokers)]

    def ends_with(
        self, partitions: Mapping[str, int], least: Mapping[str, int], *, is_cancelled: Callable[[], bool]
    ) -> dict[str, dict[int, int]]:
        """Return the end offsets once their sum is at least `least` for each topic, or after a while.

        With acks 0 or 1 records are acknowledged before they are committed. Those that are still not there
        after a while are lost. Raises ClusterDoesNotAnswer.
        """
        deadline = time.monotonic() + _COMMIT_S
        while True:
            ends = self.ends(partitions, is_cancelled=is_cancelled)
            if all(sum(ends[topic].values()) >= least.get(topic, 0) for topic in partitions):
                return ends
            if is_cancelled() or time.monotonic() > deadline:
                return ends
            time.sleep(_COMMIT_POLL_S)

    def ends(
        self, partitions: Mapping[str, int], *, is_cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, dict[int, int]]:
        """Return topic -> partition -> the offset after the last committed record. Raises ClusterDoesNotAnswer."""
        if not partitions:
            return {}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._ends(partitions)
            except KafkaException as error:
                if is_cancelled() or time.monotonic() > deadline:
                    raise self._failure("no end offsets", error) from error
                time.sleep(0.5)
                # A handle asks for offsets with the leader epochs that it has seen first, whatever the error.
                self._connect()

    def _ends(self, partitions: Mapping[str, int]) -> dict[str, dict[int, int]]:
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = [TopicPartition(topic, each) for topic, count in partitions.items() for each in range(count)]
        futures = self._admin.list_offsets(
            dict.fromkeys(asked, latest),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_TIMEOUT_S,
        )
        ends: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        for at, future in futures.items():
            ends[at.topic][at.partition] = future.result().offset
        return ends

    def _metadata(self) -> ClusterMetadata:
        try:
            # Of all topics: a broker may create one that is asked for by its name.
            return self._admin.list_topics(timeout=_TIMEOUT_S)
        except KafkaException as error:
            raise self._failure("no metadata", error) from error

    def _failure(self, what: str, error: KafkaException) -> ClusterDoesNotAnswer:
        cause = error.args[0]
        text = cause.str() if isinstance(cause, KafkaError) else str(error)
        return ClusterDoesNotAnswer(f"{self._bootstrap}: {what}: {text}")
