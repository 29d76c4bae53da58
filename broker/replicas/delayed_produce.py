"""Delayed produce and delayed DeleteRecords: wait until records are on the whole ISR, or deleted from all replicas.

    append -> [committed already] -> respond
    append -> park -> the high watermark passes, leadership ends, the ISR shrinks, or a timeout -> respond

    delete -> [deleted everywhere already] -> respond
    delete -> park -> the low watermark passes, leadership ends, or a timeout -> respond

An offset identifies records within one leadership only: a leader that becomes a follower may truncate them, and have
other records at the same offset when it leads again. A delayed operation therefore keeps the leader epoch in which it
started. It fails with NOT_LEADER_OR_FOLLOWER if the broker has not led without interruption since, also if it is
checked only after the broker leads again.

Source: Kafka's DelayedProduce and DelayedDeleteRecords. They keep no epoch: Kafka checks them as soon as a partition
becomes a follower, and they wait from the append on. Here a request may wait for a thread in between, and the role may
change twice within one turn of the loop. With one replica an operation never waits for followers.
"""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from protocol.errors import KafkaError, RequestTimedOut

T = TypeVar("T")


class Awaited(ABC):
    """One partition's condition of a delayed operation: `offset` is reached, in the present leadership.

    Created in the same turn of the loop in which the records were appended or deleted: the partition's leader epoch
    is still that of the append.
    """

    __slots__ = ("error", "leader_epoch", "offset", "partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.leader_epoch = partition.leader_epoch
        #: Why the offset will not be reached, or not known to be; None if it is reached, or while it is unsettled.
        self.error: KafkaError | None = None

    def is_settled(self) -> bool:
        """Whether the wait is over: the offset is reached, or `error` says why it will not be."""
        try:
            return self._is_reached()
        except KafkaError as error:
            self.error = error
            return True

    def time_out(self) -> None:
        """The request times out. Its records stay appended or deleted."""
        self.error = RequestTimedOut(
            f"{self.partition}: not every replica has reached offset {self.offset} yet"
        )

    @abstractmethod
    def _is_reached(self) -> bool:
        """Raises KafkaError if the offset will not be reached, or not known to be."""


class Commitment(Awaited):
    """Waits until all records before `offset` of one partition are on the whole ISR (acks=all)."""

    __slots__ = ()

    def _is_reached(self) -> bool:
        return self.partition.is_committed(self.offset, leader_epoch=self.leader_epoch)


class Flush(Awaited):
    """Waits until all records before `offset` of one partition are on this broker's disk (acks=1, flush.messages)."""

    __slots__ = ()

    def _is_reached(self) -> bool:
        return self.partition.is_flushed(self.offset, leader_epoch=self.leader_epoch)


class Deletion(Awaited):
    """Waits until no live replica serves records before `offset` of one partition (DeleteRecords)."""

    __slots__ = ("low_watermark",)

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(partition, offset)
        #: The smallest log start offset of all live replicas; None until settled, or with an error.
        self.low_watermark: int | None = None

    def _is_reached(self) -> bool:
        low_watermark = self.partition.low_watermark(leader_epoch=self.leader_epoch)
        if low_watermark < self.offset:
            return False
        self.low_watermark = low_watermark
        return True


def when_settled(
    awaited: Sequence[Awaited],
    *,
    timeout_ms: int,
    purgatory: Purgatory,
    loop: AbstractEventLoop,
    respond: Callable[[], T],
) -> "T | Future[T]":
    """`respond()` if everything awaited is settled; else a future of it, completed when it is, or after `timeout_ms`.

    It checks before it waits: a signal that was sent earlier is not repeated, and the request may have waited for a
    thread since the append. An exception that `respond` raises later becomes the future's. A cancelled future stops
    waiting.
    """
    unsettled = [each for each in awaited if not each.is_settled()]
    if not unsettled:
        return respond()
    future: Future[T] = loop.create_future()

    def is_satisfied() -> bool:
        unsettled[:] = [each for each in unsettled if not each.is_settled()]
        return not unsettled

    def complete(is_timed_out: bool) -> None:
        if is_timed_out and not is_satisfied():
            for each in unsettled:
                each.time_out()
        if future.done():
            return
        try:
            future.set_result(respond())
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)

    delayed = purgatory.watch(
        [each.partition for each in unsettled],
        timeout_ms=timeout_ms,
        is_satisfied=is_satisfied,
        complete=complete,
    )
    future.add_done_callback(lambda _: delayed.abandon())
    return future
