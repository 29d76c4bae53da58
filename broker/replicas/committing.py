"""Waiting for followers: until appended records are on the whole ISR (acks=all), or deleted ones gone everywhere.

    append -> [committed already] -> answer
    append -> park -> the high watermark passes, leadership ends, the ISR shrinks, or time is over -> answer

    delete -> [gone everywhere already] -> answer
    delete -> park -> the low watermark passes, leadership ends, or time is over -> answer

An offset names records within one leadership only: a leader that follows another one for a moment may lose them, and
hold others' at the same offset when it leads again. What waits therefore keeps the leader epoch it began in, and fails
with NOT_LEADER_OR_FOLLOWER once the broker has not led without interruption since, however late it is asked.

Source: Kafka's DelayedProduce and DelayedDeleteRecords, which keep no epoch: Kafka asks them as soon as a partition
becomes a follower, and they wait from the append on. Here a request may wait for a thread in between, and one turn of
the loop may bring two changes of role. With one replica nothing ever waits.
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
    """One partition's part of what a request waits for: that `offset` is reached, in the present leadership.

    Made in the turn of the loop in which the records were appended or deleted.
    """

    __slots__ = ("error", "leader_epoch", "offset", "partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.leader_epoch = partition.leader_epoch
        #: Why it will not be known whether the offset is reached; None if it is, or not settled yet.
        self.error: KafkaError | None = None

    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: the offset is reached, or `error` says why it will not be."""
        try:
            return self._is_reached()
        except KafkaError as error:
            self.error = error
            return True

    def time_out(self) -> None:
        """The request waits no longer. What it has done stays done."""
        self.error = RequestTimedOut(
            f"{self.partition}: not every replica has reached offset {self.offset} yet"
        )

    @abstractmethod
    def _is_reached(self) -> bool:
        """Raises KafkaError if that will not be known."""


class Commitment(Awaited):
    """Records before `offset` of one partition are to be on the whole ISR."""

    __slots__ = ()

    def _is_reached(self) -> bool:
        return self.partition.is_committed(self.offset, leader_epoch=self.leader_epoch)


class Flush(Awaited):
    """Records before `offset` of one partition are to be on this broker's disk (acks=1 with flush.messages)."""

    __slots__ = ()

    def _is_reached(self) -> bool:
        return self.partition.is_flushed(self.offset, leader_epoch=self.leader_epoch)


class Deletion(Awaited):
    """Records before `offset` of one partition, which no live replica shall serve any more."""

    __slots__ = ("low_watermark",)

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(partition, offset)
        #: Where all live replicas begin at least; None until settled, or with an error.
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
    """`respond()` if everything awaited is settled; else a future of it, for when it is, or the time is over.

    Looks before it waits: nothing is signalled again that has happened already, and the request may have waited for a
    thread since the append. What `respond` raises later is the future's exception. A cancelled future waits no more.
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
        except Exception as error:  # noqa: BLE001 - the future's owner gets it
            future.set_exception(error)

    delayed = purgatory.watch(
        [each.partition for each in unsettled],
        timeout_ms=timeout_ms,
        is_satisfied=is_satisfied,
        complete=complete,
    )
    future.add_done_callback(lambda _: delayed.abandon())
    return future
