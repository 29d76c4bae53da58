"""Coordinator partition writer: a coordinator's internal topic on this broker (CoordinatorPartitionWriter).

Coordinators append their state to a topic that this broker leads, under the rules of acks=all, and replay it when they
begin to lead a partition.

Source: Kafka's CoordinatorPartitionWriter and CoordinatorLoaderImpl.
"""

from asyncio import Future

from ottla.broker.replicas.leading.delayed_produce import ProducePartitionStatus
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.replicas.role_listeners import LeadershipListener
from ottla.protocol.types import TopicPartition
from ottla.storage.appending import AppendOrigin
from ottla.storage.log import AppendInfo, Log


class CoordinatorPartitionWriter:
    """Appends a coordinator's records to the internal topic that this broker leads, with acks=all."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def append_as_coordinator(
        self, topic_partition: TopicPartition, batch: bytes | bytearray | memoryview
    ) -> AppendInfo:
        """Append one record batch to a partition that this broker leads.

        Raises NotLeaderOrFollower, NotEnoughReplicas, UnknownTopicOrPartition, MessageTooLarge, KafkaStorageError.
        """
        replicas = self._replicas
        return (
            replicas.partition(topic_partition)
            .as_leader()
            .append_records(
                batch, required_acks=-1, now_ms=replicas.runtime.now_ms(), origin=AppendOrigin.COORDINATOR
            )
        )

    def committed(
        self, topic_partition: TopicPartition, end_offset: int, *, timeout_ms: int
    ) -> "Future[None] | None":
        """Return None if every record before `end_offset` is on the whole ISR; else a future that completes then.

        Precondition: the caller has not awaited anything since the append, so the records are of the present
        leadership. Raises what `ReplicaManager.partition` and `PartitionLeader.is_committed` raise; so does
        the future, and RequestTimedOut. Cancel the future to stop waiting.
        """
        status = ProducePartitionStatus(self._replicas.partition(topic_partition), end_offset)

        def respond() -> None:
            if status.error is not None:
                raise status.error

        delayed = self._replicas.respond_when_complete([status], timeout_ms=timeout_ms, respond=respond)
        return None if delayed is None else delayed.as_future()

    def replica_log(self, topic_partition: TopicPartition) -> Log:
        """The log of a hosted partition, to be replayed. Raises what `ReplicaManager.partition` raises."""
        return self._replicas.partition(topic_partition).log

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Notify `listener` of leadership changes of all partitions; at once of those that are led already."""
        self._replicas.add_leadership_listener(listener)
