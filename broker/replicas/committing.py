"""Waiting for followers: until appended records are on the whole ISR (acks=all), or deleted ones gone everywhere.

    append -> [committed already] -> answer
    append -> park -> the high watermark passes, leadership ends, the ISR shrinks, or time is over -> answer

    delete -> [gone everywhere already] -> answer
    delete -> park -> the low watermark passes, leadership ends, or time is over -> answer

Source: Kafka's DelayedProduce and DelayedDeleteRecords. With one replica nothing ever waits.
"""

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from protocol.errors import KafkaError, RequestTimedOut

T = TypeVar("T")


class Awaited(Protocol):
    """One partition's part of what a request waits for."""

    partition: Partition

    def is_settled(self) -> bool:
        """Whether there is nothing to wait for any more."""

    def time_out(self) -> None:
        """Nobody waits longer."""


class Deletion:
    """Records before `offset` of one partition, which no live replica shall serve any more."""

    __slots__ = ("error", "low_watermark", "offset", "partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        #: Where all live replicas begin at least; None until settled, or with an error.
        self.low_watermark: int | None = None
        self.error: KafkaError | None = None

    def is_settled(self) -> bool:
        """Whether all live replicas begin at `offset`, or `error` says why that will not be known."""
        try:
            low_watermark = self.partition.low_watermark()
        except KafkaError as error:
            self.error = error
            return True
        if low_watermark < self.offset:
            return False
        self.low_watermark = low_watermark
        return True

    def time_out(self) -> None:
        """The leader has deleted them; others have yet to hear of it."""
        self.error = RequestTimedOut(f"{self.partition}: not every replica begins at {self.offset} yet")


class Commitment:
    """Records before `end_offset` of one partition, and how it ended with them."""

    __slots__ = ("end_offset", "error", "partition")

    def __init__(self, partition: Partition, end_offset: int) -> None:
        self.partition = partition
        self.end_offset = end_offset
        #: Why the records count as not committed; None if they are committed, or not settled yet.
        self.error: KafkaError | None = None

    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: committed, or `error` says why it will not be."""
        try:
            return self.partition.is_committed(self.end_offset)
        except KafkaError as error:
            self.error = error
            return True

    def time_out(self) -> None:
        """Nobody waits longer. The records stay in the log, and may be committed later."""
        self.error = RequestTimedOut(
            f"{self.partition}: offset {self.end_offset} is not on the whole ISR yet"
        )


def when_settled(
    awaited: Sequence[Awaited],
    *,
    timeout_ms: int,
    purgatory: Purgatory,
    loop: AbstractEventLoop,
    respond: Callable[[], T],
) -> "Future[T]":
    """A future of `respond()`, called when everything awaited is settled or the time is over.

    None of them is settled yet. What `respond` raises is the future's exception. A cancelled future waits
    no more.
    """
    future: Future[T] = loop.create_future()
    unsettled = list(awaited)

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
        except Exception as error:  # noqa: BLE001 - whoever awaits the answer hears of it
            future.set_exception(error)

    delayed = purgatory.watch(
        [each.partition for each in awaited],
        timeout_ms=timeout_ms,
        is_satisfied=is_satisfied,
        complete=complete,
    )
    future.add_done_callback(lambda _: delayed.abandon())
    return future
