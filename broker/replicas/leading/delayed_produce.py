"""Delayed Produce and DeleteRecords: wait until the records are on the whole ISR, or deleted on all replicas.

    append -> [committed already] -> respond
    append -> watch -> the high watermark passes, leadership ends, the ISR shrinks, or a timeout -> respond

    delete -> [deleted everywhere already] -> respond
    delete -> watch -> the low watermark passes, leadership ends, or a timeout -> respond

An offset identifies records within one leadership only: a leader that becomes a follower may truncate them, and have
other records at the same offset when it leads again. Each partition's status therefore keeps the leader epoch in which
it began. It fails with NOT_LEADER_OR_FOLLOWER if the broker has not led without interruption since, also if it is
checked only after the broker leads again.

Source: Kafka's DelayedProduce and DelayedDeleteRecords, with their ProducePartitionStatus and
DeleteRecordsPartitionStatus. They keep no epoch: Kafka checks them as soon as a partition becomes a follower, and they
wait from the append on. Here a request may wait for a thread in between, and the role may change twice within one turn
of the loop. With one replica an operation never waits for followers.
"""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.protocol.errors import KafkaError, RequestTimedOut

T = TypeVar("T")


class PartitionStatus(ABC):
    """One partition's part of a delayed operation: it waits for `offset`, in the present leadership.

    Created in the same turn of the loop in which the records were appended or deleted: the partition's leader epoch
    is still that of the append.
    """

    __slots__ = ("error", "leader_epoch", "offset", "partition")

    #: Kafka's name of the purgatory in which its operation waits.
    purgatory = "Produce"

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.leader_epoch = partition.leader_epoch
        #: Why the offset will not be reached, or not known to be; None if it is reached, or while it is pending.
        self.error: KafkaError | None = None

    def is_complete(self) -> bool:
        """Whether the wait is over: the offset is reached, or `error` says why it will not be."""
        try:
            return self._is_reached()
        except KafkaError as error:
            self.error = error
            return True

    def time_out(self) -> None:
        """Time the request out; its records stay appended or deleted."""
        self.error = RequestTimedOut(
            f"{self.partition}: not every replica has reached offset {self.offset} yet"
        )

    @abstractmethod
    def _is_reached(self) -> bool:
        """Whether the offset is reached. Raises KafkaError if it will not be, or will not be known to be."""


class ProducePartitionStatus(PartitionStatus):
    """Waits until all records before `offset` of one partition are on the whole ISR (acks=all)."""

    __slots__ = ()

    def _is_reached(self) -> bool:
        return self.partition.leader_since(self.leader_epoch).is_committed(self.offset)


class FlushPartitionStatus(PartitionStatus):
    """Waits until all records before `offset` of one partition are on this broker's disk (acks=1, flush.messages)."""

    __slots__ = ()

    def _is_reached(self) -> bool:
        return self.partition.leader_since(self.leader_epoch).is_flushed(self.offset)


class DeleteRecordsPartitionStatus(PartitionStatus):
    """Waits until no live replica serves records before `offset` of one partition (DeleteRecords)."""

    __slots__ = ("low_watermark",)

    purgatory = "DeleteRecords"

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(partition, offset)
        #: The smallest log start offset of all live replicas; None while pending, or with an error.
        self.low_watermark: int | None = None

    def _is_reached(self) -> bool:
        low_watermark = self.partition.leader_since(self.leader_epoch).low_watermark()
        if low_watermark < self.offset:
            return False
        self.low_watermark = low_watermark
        return True


class DelayedAcknowledgement(DelayedResponse[T]):
    """The response to a Produce or DeleteRecords, when the statuses of all its partitions are complete."""

    __slots__ = ("_pending", "_respond", "kind")

    def __init__(
        self, loop: AbstractEventLoop, statuses: Sequence[PartitionStatus], respond: Callable[[], T]
    ) -> None:
        super().__init__(loop)
        self._pending = statuses
        # Without partitions it is complete at once.
        self.kind = statuses[0].purgatory if statuses else "Produce"
        self._respond = respond

    def watch_keys(self) -> tuple[Hashable, ...]:
        """The partitions that are not complete."""
        if len(self._pending) == 1:
            return (self._pending[0].partition,)
        return tuple({status.partition: None for status in self._pending})

    def can_complete(self) -> bool:
        """Whether every partition is complete."""
        self._pending = pending = [status for status in self._pending if not status.is_complete()]
        return not pending

    def respond(self) -> T:
        """Return the response; at the deadline, partitions that are not complete get REQUEST_TIMED_OUT."""
        if self._pending and not self.can_complete():
            for status in self._pending:
                status.time_out()
        return self._respond()
