"""Waiting until appended records are on the whole ISR: what acks=all means.

    append -> [committed already] -> answer
    append -> park -> the high watermark passes, leadership ends, the ISR shrinks, or time is over -> answer

Source: Kafka's DelayedProduce. With one replica nothing ever waits: the leader's own log is the ISR's.
"""

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from protocol.errors import KafkaError, RequestTimedOut

T = TypeVar("T")


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
    commitments: Sequence[Commitment],
    *,
    timeout_ms: int,
    purgatory: Purgatory,
    loop: AbstractEventLoop,
    respond: Callable[[], T],
) -> "Future[T]":
    """A future of `respond()`, called when every commitment is settled or the time is over.

    None of them is settled yet. What `respond` raises is the future's exception. A cancelled future waits
    no more.
    """
    future: Future[T] = loop.create_future()
    unsettled = list(commitments)

    def is_satisfied() -> bool:
        unsettled[:] = [commitment for commitment in unsettled if not commitment.is_settled()]
        return not unsettled

    def complete(is_timed_out: bool) -> None:
        if is_timed_out and not is_satisfied():
            for commitment in unsettled:
                commitment.time_out()
        if future.done():
            return
        try:
            future.set_result(respond())
        except Exception as error:  # noqa: BLE001 - whoever awaits the answer hears of it
            future.set_exception(error)

    delayed = purgatory.watch(
        [commitment.partition for commitment in commitments],
        timeout_ms=timeout_ms,
        is_satisfied=is_satisfied,
        complete=complete,
    )
    future.add_done_callback(lambda _: delayed.abandon())
    return future
