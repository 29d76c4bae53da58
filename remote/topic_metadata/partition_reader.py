"""MetadataPartitionReader: reads one partition of `__remote_log_metadata` for all its subscribers.

    the tail       one long poll after the other, for all subscribers that are up to date
    catching up    a second reader, while there are subscribers that need older records; it ends where the tail is

So a user partition that is assigned later gets its records from the beginning, or from its snapshot on, and all others
see new records meanwhile. Errors stop neither of the two: they back off, with jitter, and continue.

Leader epochs decide whether the log still has the records that were applied, as for a follower: a
subscriber's state is compared with the epochs of the leader before it is used, and each read of the tail
names the epoch of the last record. A log that was truncated is read again from its beginning: a state cannot
be taken back.

A client may have written any bytes, and any number of records: each turn is bounded, a record without a meaning is
skipped, and the broker's log gets one line a minute about that.

Source: ConsumerTask of Kafka 4.3.1. Differs: it seeks back to the beginning for all user partitions of a metadata
partition whenever one is assigned; and an unexpected error ends it for good.
"""

import asyncio
from collections.abc import Iterator, Mapping
from logging import DEBUG, INFO, WARNING, getLogger
from typing import Final
from uuid import UUID

from ottla.protocol.errors import KafkaError, MalformedMessage
from ottla.protocol.remote.record_codec import UnknownRemoteLogMetadata
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.topic_metadata.records import Change, from_value, user_partition_of
from ottla.remote.topic_metadata.subscriber import Subscriber, UserPartition
from ottla.remote.topic_metadata.topic import (
    TOPIC,
    MetadataDiverged,
    MetadataOffsetOutOfRange,
    MetadataRecords,
    MetadataTopic,
    Position,
)
from ottla.replication.replica_rules import has_diverged
from ottla.runtime import Runtime
from ottla.runtime.jitter import jittered
from ottla.runtime.rate_limited_log import RateLimitedLog
from ottla.runtime.turns import in_turns

_LOG: Final = getLogger(__name__)

_POLL_MS: Final = 500
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
#: Failures in a row after which they are reported once: elections of a leader take less.
_REPORTED_FAILURES: Final = 10
#: The least time between two lines about records that are skipped.
_SKIPPED_LOG_S: Final = 60.0


class MetadataPartitionReader:
    """Applies the records of one metadata partition to its subscribers, in order.

    Runs from the first subscription on until `stop`.
    """

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

        `applying` is shared by the readers of several partitions: one of them applies what it has read, the
        others wait. Each ends its turn after some milliseconds; together they would take all of them in one
        round of the loop.
        """
        self._applying = applying or asyncio.Lock()
        self._runtime = runtime
        self._topic = topic
        self.partition = partition
        self._first_offset = first_offset
        self._topic_id: UUID | None = None
        #: The position at which the tail continues; None: it has not begun.
        self.position: Position | None = None
        #: Increases when everything is read again: records that were read before are dropped.
        self._generation = 0
        #: The number of records that both readers have read.
        self.read_count = 0
        self._user_partitions: dict[TopicIdPartition, UserPartition] = {}
        self._overview: Subscriber | None = None
        self._has_newcomers = asyncio.Event()
        #: Subscribers that were refreshed since the end was last requested.
        self._refreshed: set[Subscriber] = set()
        self._has_begun = asyncio.Event()
        self._progress: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._skipped = RateLimitedLog(_LOG, monotonic=runtime.monotonic, interval_s=_SKIPPED_LOG_S)

    def __bool__(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._user_partitions) or self._overview is not None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Apply the partition's records to a subscriber from now on, those from its `next_offset` on first."""
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
        """Make a subscriber not current, until everything that is stored now is applied to it."""
        subscriber.is_current = False
        subscriber.ready_at = None
        self._refreshed.add(subscriber)
        self._has_newcomers.set()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Apply nothing more to a subscriber; `until_applied` raises RemoteStorageError for it."""
        if isinstance(subscriber, UserPartition):
            self._user_partitions.pop(subscriber.partition, None)
        else:
            self._overview = None
        self._refreshed.discard(subscriber)
        self._notify()

    async def stop(self) -> None:
        """End both readers, that of the tail and that of the newcomers."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def applied(self, subscriber: Subscriber) -> Position:
        """Return the position before which everything is applied to a subscriber."""
        own = Position(subscriber.next_offset, subscriber.last_epoch)
        if not subscriber.is_at_tail or self.position is None or self.position.offset < own.offset:
            return own
        return self.position

    async def until_applied(self, subscriber: Subscriber, offset: int) -> None:
        """Wait until the record at `offset` is applied. Without a time-out. Raises RemoteStorageError."""
        while self._is_subscribed(subscriber) and self.applied(subscriber).offset <= offset:
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
        except MetadataDiverged as error:
            if generation == self._generation:
                self._restart(str(error))
            return
        except MetadataOffsetOutOfRange as error:
            if generation != self._generation:
                return
            if position.offset < error.start_offset:
                self._skip(position.offset, error.start_offset)
                self.position = Position(error.start_offset)
                self._advance()
            else:
                self._restart(f"the end of the partition is {error.end_offset}, before {position.offset}")
            return
        async with self._applying:
            await in_turns(self._runtime, self._apply_to_tail(found, generation))
        self._advance()
        if generation == self._generation and found.next == position:
            self._ask_again()

    def _ask_again(self) -> None:
        """Request the end again: the log has no more records before it.

        It was truncated, or is not replicated yet.
        """
        for each in self._subscribers:
            if each.ready_at is not None and self.applied(each).offset < each.ready_at and each.is_at_tail:
                each.ready_at = None
                self._has_newcomers.set()

    def _apply_to_tail(self, found: MetadataRecords, generation: int) -> Iterator[None]:
        for offset, epoch, value in found.records:
            if generation != self._generation:
                return
            assert self.position is not None, self.partition
            if offset < self.position.offset:
                continue
            if epoch != self.position.last_epoch and self._has_diverged_ahead(offset, epoch):
                return  # and continue there, without those that have
            self.read_count += 1
            if (change := self._decoded(offset, value)) is not None:
                for subscriber in self._subscribers_of(change):
                    if subscriber.is_at_tail and offset >= subscriber.next_offset:
                        self._apply(subscriber, change, offset)
            self.position = Position(offset + 1, epoch)
            yield
        if generation == self._generation and self.position is not None:
            self.position = max(self.position, found.next, key=lambda each: each.offset)

    def _has_diverged_ahead(self, offset: int, epoch: int) -> bool:
        """Restart the subscribers of another branch, and return whether there are any.

        `epoch` has records from `offset` on: a state that is ahead of the tail in an older epoch is of
        another branch.
        """
        diverged = [
            each
            for each in self._subscribers
            if each.is_at_tail
            and each.next_offset > offset
            and each.last_epoch is not None
            and each.last_epoch < epoch
        ]
        for each in diverged:
            each.restart()
        if diverged:
            self._generation += 1
            self._has_newcomers.set()
        return bool(diverged)

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
        """Carry out one step for the subscribers that are not up to date; return False if there are none."""
        unknown = [each for each in self._subscribers if each.ready_at is None]
        if unknown:
            self._refreshed.clear()
            topic_id = self._topic.topic_id
            ends = await self._ends_of_epochs(unknown)
            end = await self._topic.end_offset(
                self.partition
            )  # the last wait: it must not be of before a restart
            lost = self._lost(unknown, ends, end)
            for each in unknown:
                if each in lost and not each.is_at_tail:
                    each.restart()
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

    async def _ends_of_epochs(self, subscribers: list[Subscriber]) -> dict[int, tuple[int, int] | None]:
        """Return the ends, in the leader's log, of the epochs of the subscribers' last records.

        Requests: one for each epoch.
        """
        epochs = {each.last_epoch for each in subscribers if not each.is_at_tail}
        return {
            epoch: await self._topic.end_of_epoch(self.partition, epoch=epoch)
            for epoch in epochs
            if epoch is not None
        }

    def _lost(
        self, subscribers: list[Subscriber], ends: Mapping[int, tuple[int, int] | None], end: int
    ) -> set[Subscriber]:
        """Return the subscribers whose state has records that the leader's log does not have."""
        lost = set()
        for each in subscribers:
            if (epoch := each.last_epoch) is not None and (known := ends.get(epoch)) is not None:
                if has_diverged(known, last_fetched_epoch=epoch, fetch_offset=each.next_offset):
                    lost.add(each)
            elif each.next_offset > max(end, 0 if self.position is None else self.position.offset):
                lost.add(each)
        return lost

    def _begin(self, end: int, topic_id: UUID) -> None:
        """Begin the tail where the furthest subscriber continues: it waits for none of the others."""
        self._topic_id = topic_id
        known = max(
            (Position(each.next_offset, each.last_epoch) for each in self._subscribers),
            key=lambda each: each.offset,
            default=Position(0),
        )
        offset = min(max(known.offset, self._first_offset), end)
        self.position = known if known.offset == offset else Position(offset)
        self._has_begun.set()

    async def _catch_up(self, start: int, behind: list[Subscriber]) -> None:
        generation = self._generation
        last_epoch = next((each.last_epoch for each in behind if each.next_offset == start), None)
        try:
            found = await self._topic.read(self.partition, Position(start, last_epoch), max_wait_ms=0)
        except MetadataDiverged as error:
            if generation == self._generation:
                self._restart(str(error))
            return
        except MetadataOffsetOutOfRange as error:
            if generation != self._generation:
                return
            if start > error.start_offset:
                self._restart(f"the end of the partition is {error.end_offset}, before {start}")
                return
            self._skip(start, error.start_offset)
            found = MetadataRecords(records=(), next=Position(error.start_offset))
        # Only those of before the read: one that subscribes while records are applied has missed the first of them.
        async with self._applying:
            await in_turns(self._runtime, self._apply_to_newcomers(found, set(behind), generation))
        if generation != self._generation:
            return
        for each in behind:
            if not each.is_at_tail and each.next_offset < found.next.offset:
                each.next_offset, each.last_epoch = found.next
        self._advance()
        if found.next.offset == start:  # the leader's high watermark is behind the tail, for a moment
            await self._back_off(None, 1)

    def _apply_to_newcomers(
        self, found: MetadataRecords, behind: set[Subscriber], generation: int
    ) -> Iterator[None]:
        for offset, epoch, value in found.records:
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
                        self._apply(subscriber, change, offset)
                        # The rest of the records may be damaged.
                        subscriber.next_offset, subscriber.last_epoch = offset + 1, epoch
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
        """Move subscribers to the tail after a change of positions, and wake up the callers that wait for them."""
        position = self.position
        if position is not None:
            for each in self._subscribers:
                if not each.is_at_tail and each.ready_at is not None and each.next_offset >= position.offset:
                    each.is_at_tail = True
                if each.ready_at is not None and self.applied(each).offset >= each.ready_at:
                    each.is_ready = each.is_current = True
        self._notify()

    def _notify(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    def _restart(self, reason: str) -> None:
        """Build all states again from the beginning: the topic has lost records that were applied."""
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

    def _apply(self, subscriber: Subscriber, change: Change, offset: int) -> None:
        if (refusal := subscriber.apply(change, offset=offset)) is not None:
            self._skipped.write(
                WARNING, "offset %d of %s-%d is ignored: %s", offset, TOPIC, self.partition, refusal
            )

    def _decoded(self, offset: int, value: bytes | KafkaError | None) -> Change | None:
        """Return the record's meaning; None, and logged, if it has none."""
        try:
            return from_value(value)
        except (MalformedMessage, UnknownRemoteLogMetadata) as error:
            self._skipped.write(
                WARNING, "offset %d of %s-%d is skipped: %s", offset, TOPIC, self.partition, error
            )
            return None

    async def _back_off(self, error: RemoteStorageError | None, failures: int) -> None:
        if error is not None:
            # In each election, and at each stop, all partitions have no leader for a moment.
            level = (
                DEBUG
                if failures < _REPORTED_FAILURES
                else WARNING
                if failures == _REPORTED_FAILURES
                else INFO
            )
            _LOG.log(level, "%s-%d cannot be read, attempt %d: %s", TOPIC, self.partition, failures, error)
        pause_s = min(_FIRST_BACKOFF_S * 2 ** min(failures - 1, 20), _MAX_BACKOFF_S)
        await asyncio.sleep(jittered(pause_s, self._runtime.random))
