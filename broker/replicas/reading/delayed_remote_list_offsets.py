"""Delayed remote ListOffsets (Kafka's DelayedRemoteListOffsets): it waits for look-ups by timestamp in the remote tier.

It completes when all of its look-ups have ended, when the partition of each other one is deleted, led
elsewhere or in another leader epoch, or at its timeout: timeout_ms of the request (KIP-1075), else
remote.list.offsets.request.timeout.ms. Rows without a result get REQUEST_TIMED_OUT then, and their look-ups
are cancelled: what a thread has begun ends after the range of bytes that it reads.

Source: KIP-1075; Kafka's DelayedRemoteListOffsets and RemoteLogOffsetReader.
"""

from asyncio import AbstractEventLoop, Task
from collections.abc import Hashable, Sequence

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.protocol.errors import KafkaError, RequestTimedOut, UnknownServerError
from ottla.storage.index import TimestampOffset


class OffsetLookUp:
    """The search for one row's timestamp; its partition's role is that of its beginning, or the result is void."""

    __slots__ = (
        "_task",
        "error",
        "found",
        "is_cancelled",
        "is_done",
        "is_waiting",
        "leader_epoch",
        "partition",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        #: Whether `found` or `error` is the result.
        self.is_done = False
        self.found: TimestampOffset | None = None
        self.error: Exception | None = None
        #: The result is not wanted any more.
        self.is_cancelled = False
        #: It waits for a slot.
        self.is_waiting = True
        self._task: Task[None] | None = None

    def begin(self, task: "Task[None]") -> None:
        """Keep the task that carries the look-up out."""
        self._task = task

    @property
    def is_void(self) -> bool:
        """Whether the partition is not what it was: then the row is refused, whatever is found."""
        partition = self.partition
        return partition.is_deleted or partition.leader_epoch != self.leader_epoch

    def result(self) -> TimestampOffset | None:
        """The timestamp and offset that the look-up found; None: it found none. Raises the row's error."""
        if not self.is_done:
            raise RequestTimedOut(f"{self.partition}: the search for a timestamp is not complete")
        if self.error is not None:
            if isinstance(self.error, KafkaError):
                raise self.error
            raise UnknownServerError(str(self.error)) from self.error
        return self.found

    def cancel(self) -> None:
        """Cancel the look-up, since its result is not wanted any more."""
        self.is_cancelled = True
        if self.is_waiting and self._task is not None:
            self._task.cancel()


class DelayedRemoteListOffsets(DelayedResponse[None]):
    """A ListOffsets request that waits for its look-ups in the remote tier, or its timeout.

    `expired_count` is the number of look-ups that were not complete in time.
    """

    __slots__ = ("_look_ups", "expired_count")

    def __init__(self, loop: AbstractEventLoop, look_ups: Sequence[OffsetLookUp]) -> None:
        super().__init__(loop)
        self._look_ups = look_ups
        self.expired_count = 0

    def watch_keys(self) -> tuple[Hashable, ...]:
        """The keys under which the request waits: its look-ups and their partitions."""
        return (*self._look_ups, *dict.fromkeys(look_up.partition for look_up in self._look_ups))

    def can_complete(self) -> bool:
        """Whether each row has its result or its error."""
        return all(look_up.is_done or look_up.is_void for look_up in self._look_ups)

    def expire(self) -> None:
        """Count the look-ups that are not complete, and respond: the timeout has passed."""
        self.expired_count = sum(not (each.is_done or each.is_void) for each in self._look_ups)
        super().expire()

    def cancel(self) -> None:
        """Cancel the look-ups: the client's connection is closed."""
        self._cancel_look_ups()
        super().cancel()

    def respond(self) -> None:
        """The rows are filled in by the handler."""
        self._cancel_look_ups()

    def _cancel_look_ups(self) -> None:
        for look_up in self._look_ups:
            if not look_up.is_done:
                look_up.cancel()
