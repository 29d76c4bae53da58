"""Coordinator runtime of one led partition of the offsets topic: executes groups' actions, appends their records.

Source: CoordinatorRuntime.CoordinatorContext of Kafka 4.3.
"""

import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar, assert_never
from uuid import UUID

from broker.groups.actions import (
    JOIN_SLOT,
    SYNC_SLOT,
    Action,
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    SetTimer,
    Store,
    Stored,
    Timer,
    TimerSlot,
    session_slot,
)
from broker.groups.answers import Answer, error_of
from broker.groups.config import GroupConfig
from broker.groups.coordinator_log import CoordinatorLog
from broker.groups.errors import told_to_members
from broker.groups.group import ClassicGroup, GroupState
from broker.groups.loader import load
from broker.groups.log_state import LogState
from broker.groups.resuming import Resumable, resumable
from broker.groups.reviving import revive
from broker.groups.sessions import on_loaded, on_timer
from broker.groups.shard import Shard
from broker.groups.storing import end, on_stored
from broker.groups.timers import Timers
from protocol.coordinator.group_records import GroupMetadataKey
from protocol.coordinator.record_codec import GroupRecord, encode
from protocol.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    UnknownServerError,
)
from protocol.records.builder import build_batch, simple_records
from runtime import Runtime
from runtime.turns import in_turns

logger = logging.getLogger(__name__)

A = TypeVar("A")

#: Maximum tombstones of a batch, if they need not be in one batch: two milliseconds of the loop.
MAX_TOMBSTONES_A_BATCH: Final = 200
#: Groups examined in one step if no tombstone is found: less than a millisecond.
_GROUPS_A_STEP: Final = 50
#: Session timers set in one step.
_ACTIONS_A_STEP: Final = 100
#: The errors of a batch that exceeds the topic's maximum message size, or its segment size.
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


class ShardRunner:
    """A shard with its log and its timers, for the time that this broker leads its partition."""

    def __init__(
        self, state: LogState, *, config: GroupConfig, log: CoordinatorLog, runtime: Runtime
    ) -> None:
        self.topic_partition = state.topic_partition
        self._config = config
        self._log = log
        self._runtime = runtime
        #: The replayed state of the log; the shard shares its offsets.
        self.state = state
        self._shard = Shard(config, state.offsets)
        self._timers = Timers(runtime)
        self._is_loaded = False
        #: Led by another broker, or the log could not be read.
        self.is_closed = False
        #: The log end at loading; None once it is known to be committed. Kafka also reads to the log end, and
        #: returns what it has read after the high watermark has passed it (CoordinatorRuntime).
        self._read_end: int | None = None
        #: Group -> the end offset of its last append of offsets, unless that is known to be committed.
        self._unsettled: dict[str, int] = {}
        #: Topics that were deleted while the partition was loading.
        self._deleted_topics: list[tuple[UUID, str]] = []
        #: Groups whose last append was refused: logged once, since members retry at once, hundreds of times a second.
        self._refused: set[str] = set()

    @property
    def shard(self) -> Shard:
        """The groups and offsets. Raises CoordinatorLoadInProgress while loading, NotCoordinator when closed."""
        if self._is_loaded:
            return self._shard
        if self.is_closed:
            raise NotCoordinator(f"{self.topic_partition} is not led here")
        raise CoordinatorLoadInProgress(f"{self.topic_partition} is being read")

    async def load(self) -> None:
        """Replay the partition; until then `shard` raises CoordinatorLoadInProgress."""
        started, resumed_at = self._runtime.monotonic(), self.state.next_offset
        try:
            records_count = await load(
                self.state,
                lambda: self._log.replica_log(self.topic_partition),
                is_wanted=self._is_open,
                buffer_bytes=self._config.offsets_load_buffer_bytes,
                runtime=self._runtime,
            )
            await revive(
                self._shard,
                self.state,
                config=self._config,
                runtime=self._runtime,
                is_wanted=self._is_open,
            )
            self._read_end = self.state.next_offset
            await self._in_turns(self._begin_sessions())
        except Exception as error:
            if self.is_closed:
                return  # Another broker leads by now.
            # Without closing it would stay in the state "loading", and ListGroups would fail for all other groups, too.
            if isinstance(error, KafkaError):
                logger.warning("%s cannot be read: %s", self.topic_partition, error)
            else:
                logger.exception("%s cannot be read", self.topic_partition)
            self.is_closed = True
            return
        if self.is_closed:
            return
        self._is_loaded = True
        if records_count or resumed_at is not None:
            took_ms = (self._runtime.monotonic() - started) * 1000
            logger.info(
                "%s: %d records read from offset %d on in %.0f ms",
                self.topic_partition,
                records_count,
                resumed_at or 0,
                took_ms,
            )
        await self.forget_topics(())

    def _begin_sessions(self) -> Iterator[None]:
        for group in list(self._shard.groups.values()):
            actions = on_loaded(group, now_ms=self._runtime.now_ms())
            for at in range(0, len(actions), _ACTIONS_A_STEP):
                self.carry_out(group, actions[at : at + _ACTIONS_A_STEP])
                yield

    def _is_open(self) -> bool:
        return not self.is_closed

    async def _in_turns(self, steps: Iterator[object]) -> None:
        """Run the steps while the partition is led by this broker."""

        def while_open() -> Iterator[None]:
            while not self.is_closed and next(steps, self) is not self:
                yield

        await in_turns(self._runtime, while_open())

    def close(self) -> Iterator[None]:
        """The leadership has ended. The iterator answers parked requests with NOT_COORDINATOR, one group per step."""
        self._is_loaded = False
        self.is_closed = True
        return self._end_groups()

    def _end_groups(self) -> Iterator[None]:
        groups = self._shard.groups
        while groups:
            _, group = groups.popitem()
            now_ms = self._runtime.now_ms()
            self.carry_out(group, end(group, ErrorCode.not_coordinator, now_ms=now_ms))
            yield
        yield from self._timers.cancel_each()

    def resumable(self) -> Resumable | None:
        """The present replay, for the next leadership of this broker; to be called right after `close`."""
        try:
            return resumable(self.state, self._log.replica_log(self.topic_partition))
        except KafkaError:
            return None  # The replica was removed, or its disk has failed.

    # Actions

    def carry_out(self, group: ClassicGroup, actions: Sequence[Action]) -> None:
        """Execute the group's actions, and those that follow from them."""
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case AnswerJoin() | AnswerSync():
                    assert isinstance(action.waiter, Future), action.waiter
                    if not action.waiter.done():  # Cancelled if its connection has been closed.
                        action.waiter.set_result(action.response)
                case SetTimer():
                    self._set_timer(group, action)
                case CancelTimer():
                    self._timers.cancel((group.group_id, action.slot))
                case Store():
                    queue.extend(self._store(group, action))
                case _:
                    assert_never(action)

    def _set_timer(self, group: ClassicGroup, action: SetTimer) -> None:
        timer = action.timer
        name: tuple[str, TimerSlot] = (group.group_id, timer.slot)
        self._timers.set(name, action.delay_ms, lambda: self._on_timer(group, timer))

    def _on_timer(self, group: ClassicGroup, timer: Timer) -> None:
        if self._is_current(group):
            self.carry_out(group, on_timer(group, timer, now_ms=self._runtime.now_ms()))

    def _store(self, group: ClassicGroup, store: Store) -> list[Action]:
        """Append the group's record; returns the next actions if it is committed or refused at once."""
        record = GroupRecord(GroupMetadataKey(group=group.group_id), store.value)
        try:
            _, pending = self._append([record])
        except KafkaError as error:
            if group.group_id not in self._refused:
                self._refused.add(group.group_id)
                logger.warning("group %s is not written: %s", group.group_id, error)
            return self._after_store(group, store.then, error)
        self._refused.discard(group.group_id)
        if pending is None:
            return self._after_store(group, store.then, None)
        pending.add_done_callback(lambda done: self._on_settled(group, store.then, done))
        return []

    def _on_settled(self, group: ClassicGroup, stored: Stored, done: "Future[None]") -> None:
        error = error_of(done)
        if self._is_current(group):
            self.carry_out(group, self._after_store(group, stored, error))

    def _after_store(self, group: ClassicGroup, stored: Stored, error: KafkaError | None) -> list[Action]:
        told = None if error is None else told_to_members(error)
        actions = on_stored(group, stored, told, now_ms=self._runtime.now_ms())
        if group.state is GroupState.DEAD:
            self._forget(group)
        return actions

    def _is_current(self, group: ClassicGroup) -> bool:
        """Whether this object is still the group of its id, on this broker."""
        return not self.is_closed and self._shard.groups.get(group.group_id) is group

    def _forget(self, group: ClassicGroup) -> None:
        self._shard.groups.pop(group.group_id, None)
        self._refused.discard(group.group_id)
        sessions = map(session_slot, [*group.members, *group.pending_join])
        for slot in (JOIN_SLOT, SYNC_SLOT, *sessions):
            self._timers.cancel((group.group_id, slot))

    # Records

    def write(
        self, records: list[GroupRecord], group_id: str, answer: Callable[[KafkaError | None], A]
    ) -> Answer[A]:
        """Append these records in one batch, replay them, and answer when they are committed."""
        if not records:
            return answer(None)
        try:
            first_offset, pending = self._append(records)
        except KafkaError as error:
            return answer(error)
        self._replay(records, first_offset)
        end_offset = first_offset + len(records)
        self._unsettled[group_id] = end_offset
        return self._when(pending, group_id, end_offset, answer)

    async def expire(self) -> None:
        """Delete expired offsets, and groups that are empty without them."""
        now_ms = self._runtime.now_ms()

        def expired(group_id: str, limit: int) -> list[GroupRecord]:
            group = self._shard.groups.get(group_id)
            return [] if group is None else self._shard.expire(group, now_ms=now_ms, limit=limit)

        if self._is_loaded:
            await self._in_turns(self._take_away(list(self._shard.groups), expired))

    async def forget_topics(self, topics: Iterable[tuple[UUID, str]]) -> None:
        """Delete the offsets of these deleted topics (id, name); while the partition is loading, after it."""
        if self.is_closed:
            return
        self._deleted_topics += topics
        if not self._is_loaded or not self._deleted_topics:
            return
        deleted, self._deleted_topics = self._deleted_topics, []

        def gone(group_id: str, limit: int) -> list[GroupRecord]:
            return self._shard.forget_topics(group_id, deleted, limit=limit)

        await self._in_turns(self._take_away(self._shard.offsets.group_ids, gone))

    def _take_away(
        self, group_ids: list[str], find: Callable[[str, int], list[GroupRecord]]
    ) -> Iterator[None]:
        """Append the tombstones that `find` returns for each group, in batches of bounded size.

        Tombstones are appended in the step that found them: no commit comes in between.
        """
        records: list[GroupRecord] = []
        for number, group_id in enumerate(group_ids, start=1):
            records += find(group_id, MAX_TOMBSTONES_A_BATCH)
            while len(records) >= MAX_TOMBSTONES_A_BATCH:
                if not self._write_tombstones(records):
                    return
                yield
                written, records = records, find(group_id, MAX_TOMBSTONES_A_BATCH)
                if records and records[0] in written:
                    records = []  # Too large for any batch.
            if number % _GROUPS_A_STEP == 0:
                if not self._write_tombstones(records):
                    return
                records = []
                yield
        self._write_tombstones(records)

    def _write_tombstones(self, records: list[GroupRecord]) -> bool:
        """Append and replay records without waiting for followers; whether the log accepts more.

        A batch that is too large for the topic is halved. Any other error ends the loop: the next batch would probably
        fail, too, and expired offsets are found again by the next run.
        """
        batches = deque([records] if records else [])
        while batches:
            batch = batches.popleft()
            try:
                first_offset, pending = self._append(batch)
            except KafkaError as error:
                is_too_large = error.code in _TOO_LARGE
                if is_too_large and len(batch) > 1:
                    half = len(batch) // 2
                    batches.extendleft((batch[half:], batch[:half]))
                    continue
                logger.warning("%s: tombstones were not written: %s", self.topic_partition, error)
                if is_too_large:
                    continue
                return False
            self._replay(batch, first_offset)
            if pending is not None:  # Not awaited, but its exception must be retrieved, or asyncio logs it.
                pending.add_done_callback(error_of)
        return True

    def when_settled(self, group_id: str, answer: Callable[[KafkaError | None], A]) -> Answer[A]:
        """Answer when all that was loaded or appended for the group is committed: then it cannot be lost any more."""
        end_offset = self._unsettled.get(group_id, self._read_end)
        if end_offset is None:
            return answer(None)
        try:
            pending = self._committed(end_offset)
        except NotEnoughReplicasAfterAppend:
            pending = None  # The high watermark has passed it, which is enough for a read.
        except KafkaError as error:
            return answer(error)
        return self._when(pending, group_id, end_offset, answer)

    def _append(self, records: Sequence[GroupRecord]) -> tuple[int, "Future[None] | None"]:
        """Append the records in one batch: (first offset, a future of the commit or None if committed).

        Raises KafkaError; then nothing was written. Also if a value does not fit into a record.
        """
        try:
            pairs = [encode(record) for record in records]
        except ValueError as error:
            raise UnknownServerError(str(error)) from error
        batch = build_batch(
            simple_records(pairs, timestamp=self._runtime.now_ms()),
            compression=self._config.offsets_topic_compression,
        )
        appended = self._log.append_as_coordinator(self.topic_partition, batch)
        pending = self._committed(appended.last_offset + 1)
        self.state.note_appended(first_offset=appended.first_offset, last_offset=appended.last_offset)
        for record, (_, value) in zip(records, pairs, strict=True):
            if isinstance(record.key, GroupMetadataKey):
                self.state.note_group(record.key.group, value)
        return appended.first_offset, pending

    def _committed(self, end_offset: int) -> "Future[None] | None":
        return self._log.committed(
            self.topic_partition, end_offset, timeout_ms=self._config.offsets_commit_timeout_ms
        )

    def _replay(self, records: Sequence[GroupRecord], first_offset: int) -> None:
        now_ms = self._runtime.now_ms()
        for record_offset, record in enumerate(records, start=first_offset):
            if isinstance(record.key, GroupMetadataKey) and record.key.group in self._shard.groups:
                self._forget(self._shard.groups[record.key.group])
            self._shard.replay(record, record_offset=record_offset, producer_id=None, now_ms=now_ms)

    def _when(
        self,
        pending: "Future[None] | None",
        group_id: str,
        end_offset: int,
        answer: Callable[[KafkaError | None], A],
    ) -> Answer[A]:
        if pending is None:
            self._note_committed(group_id, end_offset)
            return answer(None)
        answered: Future[A] = self._runtime.loop.create_future()

        def settle(done: "Future[None]") -> None:
            error = error_of(done)  # in any case: an exception that is not retrieved is logged by asyncio
            if self.is_closed:
                error = NotCoordinator()
            elif error is None:
                self._note_committed(group_id, end_offset)
            if not answered.done():
                answered.set_result(answer(error))

        pending.add_done_callback(settle)
        return answered

    def _note_committed(self, group_id: str, end_offset: int) -> None:
        if self._unsettled.get(group_id) == end_offset:
            del self._unsettled[group_id]
        if self._read_end is not None and end_offset >= self._read_end:
            self._read_end = None
