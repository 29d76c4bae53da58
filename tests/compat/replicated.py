"""Topics with several replicas, through librdkafka's admin client and, for what it cannot do, the protocol itself."""

from collections.abc import Iterable, Sequence

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.compat.admin import PATIENCE_S, wait_until
from tests.harness.blocking_wire import BlockingWire


class Topic:
    """A topic as one admin client sees it."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    @classmethod
    def create(cls, bootstrap: str, name: str, *replicas: Sequence[int]) -> "Topic":
        """With these replicas of its partitions; each is led by its first when this returns."""
        topic = cls(bootstrap, name)
        new = NewTopic(name, len(replicas), replica_assignment=[list(row) for row in replicas])
        topic._admin.create_topics([new])[name].result(PATIENCE_S)
        wait_until(lambda: topic.leaders == [first for first, *_ in replicas], told=lambda: topic.leaders)
        return topic

    def wait_known_to(self, listener: str) -> None:
        """Until the broker behind `listener` knows all leaders that this client knows."""
        wanted, there = self.leaders, Topic(listener, self.name)
        wait_until(lambda: there.leaders == wanted, told=lambda: there.leaders)

    @property
    def leaders(self) -> list[int]:
        """By partition; -1 where nobody leads."""
        return [partition.leader for partition in self._partitions()]

    @property
    def in_sync(self) -> list[set[int]]:
        """By partition."""
        return [set(partition.isrs) for partition in self._partitions()]

    def _partitions(self) -> list:
        found = self._admin.list_topics(self.name, timeout=PATIENCE_S).topics[self.name].partitions
        return [partition for _, partition in sorted(found.items())]

    def elect(self, kind: ElectionType, partition: int = 0) -> None:
        """Raises KafkaException."""
        wanted = TopicPartition(self.name, partition)
        answer = self._admin.elect_leaders(kind, [wanted]).result(PATIENCE_S)
        if answer[wanted] is not None:
            raise answer[wanted]

    def reassign(self, port: int, *replicas: Sequence[int]) -> None:
        """Begin to move the partitions to these replicas, by any broker's port."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=30_000,
            topics=[
                ReassignableTopic(
                    name=self.name,
                    partitions=[
                        ReassignablePartition(partition_index=index, replicas=list(row))
                        for index, row in enumerate(replicas)
                    ],
                )
            ],
        )
        with BlockingWire(port) as wire:
            answer = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        rows = [answer, *(row for topic in answer.responses for row in topic.partitions)]
        assert all(row.error_code == ErrorCode.none for row in rows), answer


def wait_in_sync(topic: Topic, replicas: Iterable[int], *, timeout_s: float = 60) -> None:
    """Until all partitions have exactly these replicas in sync."""
    wanted = set(replicas)
    wait_until(
        lambda: all(found == wanted for found in topic.in_sync),
        timeout_s=timeout_s,
        told=lambda: topic.in_sync,
    )
