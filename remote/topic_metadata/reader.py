"""Reads one partition of `__remote_log_metadata` for all its subscribers.

    the tail       one long poll after the other, for all subscribers that are up to date
    catching up    a second reader, while there are subscribers that need older records; it ends where the tail is

So a user partition that is assigned later gets its records from the beginning, or from its snapshot on, and all others
see new records meanwhile. Errors stop neither of the two: they back off, with jitter, and continue.

Source: ConsumerTask of Kafka 4.3.1. Differs: it seeks back to the beginning for all user partitions of a metadata
partition whenever one is assigned; and an unexpected error ends it for good.
"""

import asyncio
from collections.abc import Iterator
from logging import getLogger
from typing import Final
from uuid import UUID

from protocol.errors import MalformedMessage
from protocol.remote.record_codec import UnknownRemoteLogMetadata
from remote.errors import RemoteStorageError, RetriableRemoteStorageError
from remote.segment_metadata import TopicIdPartition
from remote.topic_metadata.records import Change, from_value, user_partition_of
from remote.topic_metadata.subscriber import Subscriber, UserPartition
from remote.topic_metadata.topic import TOPIC, MetadataOffsetOutOfRange, MetadataRecords, MetadataTopic
from runtime import Runtime
from runtime.jitter import jittered
from runtime.turns import in_turns

_LOG: Final = getLogger(__name__)

_POLL_MS: Final = 500
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
#: Failures in a row after which they are reported once: elections of a leader take less.
_REPORTED_FAILURES: Final = 10


class MetadataPartitionReader:
    """See the module. Runs from the first subscription on until `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        topic: MetadataTopic,
        partition: int,
        *,
        first_offset: int = 0,
        applying: asyncio.Lock | None = None,
    ) -> None:
        """`first_offset`: the tail begins there, or where the first subscriber continues if that is later.

        `applying` is shared by the readers of several partitions: one of them applies what it has read, the others wait.
        Each ends its turn after some milliseconds; together they would take all of them in one round of the loop.
        """
        self._applying = applying or asyncio.Lock()
        self._runtime = runtime
        self._topic = topic
        self.partition = partition
        self._first_offset = first_offset
        self._topic_id: UUID | None = None
        #: The next offset of the tail; None: it has not begun.
        self.position: int | None = None
        #: Increases when everything is read again: records that were read before are dropped.
        self._generation = 0
        #: Records read, by both readers.
        self.read_count = 0
        self._user_partitions: dict[TopicIdPartition, UserPartition] = {}
        self._overview: Subscriber | None = None
        self._has_newcomers = asyncio.Event()
        #: Those of `refresh` since the end was last asked for.
        self._refreshed: set[Subscriber] = set()
        self._has_begun = asyncio.Event()
        self._progress: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __bool__(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._user_partitions) or self._overview is not None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Apply the partition's records to it from now on, those from its `next_offset` on first."""
        if isinstance(subscriber, UserPartition):
            assert subscriber.partition not in self._user_partitions, subscriber.partition
            self._user_partitions[subscriber.partition] = subscriber
        else:
            assert self._overview is None, self.partition
            self._overview = subscriber
        if not self._tasks:
            self._tasks = [
                self._runtime.supervise(self._follow, name=f"{TOPIC}-{self.partition}-tail"),
                self._runtime.supervise(self._serve_newcomers, name=f"{TOPIC}-{self.partition}-catch-up"),
            ]
        self._has_newcomers.set()

    def refresh(self, subscriber: Subscriber) -> None:
        """It is not current until everything that is stored now is applied."""
        subscriber.is_current = False
        subscriber.ready_at = None
        self._refreshed.add(subscriber)
        self._has_newcomers.set()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Apply nothing more to it; `until_applied` raises."""
        if isinstance(subscriber, UserPartition):
            self._user_partitions.pop(subscriber.partition, None)
        else:
            self._overview = None
        self._refreshed.discard(subscriber)
        self._notify()

    async def stop(self) -> None:
        """End both readers."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def applied_offset(self, subscriber: Subscriber) -> int:
        """Everything before this offset is applied to a subscriber."""
        if not subscriber.is_at_tail or self.position is None:
            return subscriber.next_offset
        return max(subscriber.next_offset, self.position)

    async def until_applied(self, subscriber: Subscriber, offset: int) -> None:
        """Wait until the record at `offset` is applied. Without a time-out. Raises RemoteStorageError."""
        while self._is_subscribed(subscriber) and self.applied_offset(subscriber) <= offset:
            if self._progress is None:
                self._progress = self._runtime.loop.create_future()
            await asyncio.shield(self._progress)
        if not self._is_subscribed(subscriber):
            raise RemoteStorageError("the partition is not assigned to this broker any more")

    # -- the tail

    async def _follow(self) -> None:
        failures = 0
        while True:
            await self._has_begun.wait()
            try:
                await self._follow_once()
                failures = 0
            except RetriableRemoteStorageError as error:
                failures += 1
                await self._back_off(error, failures)

    async def _follow_once(self) -> None:
        if self._topic.topic_id != self._topic_id:
            self._restart(f"{TOPIC} was created again")
            return
        position, generation = self.position, self._generation
        assert position is not None, self.partition
        try:
            found = await self._topic.read(self.partition, position, max_wait_ms=_POLL_MS)
        except MetadataOffsetOutOfRange as error:
            if generation != self._generation:
                return
            if position < error.start_offset:
                self._skip(position, error.start_offset)
                self.position = error.start_offset
                self._advance()
            else:
                self._restart(f"the end of the partition is {error.end_offset}, before {position}")
            return
        async with self._applying:
            await in_turns(self._runtime, self._apply_to_tail(found, generation))
        self._advance()

    def _apply_to_tail(self, found: MetadataRecords, generation: int) -> Iterator[None]:
        for offset, value in found.records:
            if generation != self._generation:
                return
            assert self.position is not None, self.partition
            if offset < self.position:
                continue
            self.read_count += 1
            if (change := self._decoded(offset, value)) is not None:
                for subscriber in self._subscribers_of(change):
                    if subscriber.is_at_tail and offset >= subscriber.next_offset:
                        subscriber.apply(change, offset=offset)
            self.position = offset + 1
            yield
        if generation == self._generation and self.position is not None:
            self.position = max(self.position, found.next_offset)

    # -- catching up

    async def _serve_newcomers(self) -> None:
        failures = 0
        while True:
            await self._has_newcomers.wait()
            try:
                if not await self._serve_newcomers_once():
                    self._has_newcomers.clear()
                failures = 0
            except RetriableRemoteStorageError as error:
                failures += 1
                await self._back_off(error, failures)

    async def _serve_newcomers_once(self) -> bool:
        """One step for the subscribers that are not up to date; False: there are none."""
        unknown = [each for each in self._subscribers if each.ready_at is None]
        if unknown:
            self._refreshed.clear()
            topic_id = self._topic.topic_id
            end = await self._topic.end_offset(self.partition)
            for each in unknown:
                if not each.is_at_tail and each.next_offset > max(end, self.position or 0):
                    each.restart()  # what its snapshot has read is lost
                if each not in self._refreshed:  # else the end may have been asked for before
                    each.ready_at = end
            if self.position is None:
                self._begin(end, topic_id)
            self._advance()
            return True
        behind = [each for each in self._subscribers if not each.is_at_tail]
        if not behind:
            return False
        await self._catch_up(min(each.next_offset for each in behind), behind)
        return True

    def _begin(self, end: int, topic_id: UUID) -> None:
        """The tail begins where the furthest subscriber continues: it waits for none of the others."""
        self._topic_id = topic_id
        known = max((each.next_offset for each in self._subscribers), default=0)
        self.position = min(max(known, self._first_offset), end)
        self._has_begun.set()

    async def _catch_up(self, start: int, behind: list[Subscriber]) -> None:
        generation = self._generation
        try:
            found = await self._topic.read(self.partition, start, max_wait_ms=0)
        except MetadataOffsetOutOfRange as error:
            if generation != self._generation:
                return
            if start > error.start_offset:
                self._restart(f"the end of the partition is {error.end_offset}, before {start}")
                return
            self._skip(start, error.start_offset)
            found = MetadataRecords(records=(), next_offset=error.start_offset)
        # Only those of before the read: one that subscribes while records are applied has missed the first of them.
        async with self._applying:
            await in_turns(self._runtime, self._apply_to_newcomers(found, set(behind), generation))
        if generation != self._generation:
            return
        for each in behind:
            if not each.is_at_tail:
                each.next_offset = max(each.next_offset, found.next_offset)
        self._advance()
        if found.next_offset == start:  # the leader's high watermark is behind the tail, for a moment
            await self._back_off(None, 1)

    def _apply_to_newcomers(
        self, found: MetadataRecords, behind: set[Subscriber], generation: int
    ) -> Iterator[None]:
        for offset, value in found.records:
            if generation != self._generation:
                return
            self.read_count += 1
            if (change := self._decoded(offset, value)) is not None:
                for subscriber in self._subscribers_of(change):
                    if (
                        subscriber in behind
                        and not subscriber.is_at_tail  # it may have reached the tail in between
                        and offset >= subscriber.next_offset
                    ):
                        subscriber.apply(change, offset=offset)
                        subscriber.next_offset = offset + 1  # the rest of the records may be damaged
            yield

    # -- both

    @property
    def _subscribers(self) -> list[Subscriber]:
        others = [] if self._overview is None else [self._overview]
        return [*self._user_partitions.values(), *others]

    def _subscribers_of(self, change: Change) -> Iterator[Subscriber]:
        if (found := self._user_partitions.get(user_partition_of(change))) is not None:
            yield found
        if self._overview is not None:
            yield self._overview

    def _is_subscribed(self, subscriber: Subscriber) -> bool:
        if isinstance(subscriber, UserPartition):
            return self._user_partitions.get(subscriber.partition) is subscriber
        return self._overview is subscriber

    def _advance(self) -> None:
        """Positions have changed: move subscribers to the tail, and wake up what waits for them."""
        position = self.position
        if position is not None:
            for each in self._subscribers:
                if not each.is_at_tail and each.ready_at is not None and each.next_offset >= position:
                    each.is_at_tail = True
                if each.ready_at is not None and self.applied_offset(each) >= each.ready_at:
                    each.is_ready = each.is_current = True
        self._notify()

    def _notify(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    def _restart(self, reason: str) -> None:
        """The topic has lost what was applied: build everything again, from the beginning."""
        _LOG.warning(
            "the metadata of %s-%d is read again from the beginning: %s", TOPIC, self.partition, reason
        )
        self._generation += 1
        self.position = None
        self._first_offset = 0
        self._has_begun.clear()
        for each in self._subscribers:
            each.restart()
        self._has_newcomers.set()

    def _skip(self, start: int, end: int) -> None:
        if start:
            _LOG.warning(
                "%s-%d: records [%d, %d) were removed before this broker has read them",
                TOPIC, self.partition, start, end,
            )  # fmt: skip

    def _decoded(self, offset: int, value: bytes | None) -> Change | None:
        """The record's meaning; None, and logged, if it has none."""
        try:
            return from_value(value)
        except (MalformedMessage, UnknownRemoteLogMetadata) as error:
            _LOG.warning("offset %d of %s-%d is skipped: %s", offset, TOPIC, self.partition, error)
            return None

    async def _back_off(self, error: RemoteStorageError | None, failures: int) -> None:
        if error is not None:
            report = _LOG.warning if failures == _REPORTED_FAILURES else _LOG.info
            report("%s-%d cannot be read, attempt %d: %s", TOPIC, self.partition, failures, error)
        pause_s = min(_FIRST_BACKOFF_S * 2 ** min(failures - 1, 20), _MAX_BACKOFF_S)
        await asyncio.sleep(jittered(pause_s, self._runtime.random))
