"""Coordinator runtime of one shard: loads it, executes its groups' actions, runs their timers, and closes it.

    loading --loaded--> active --resigned--> closed
    loading --resigned, or the log cannot be read--> closed

Source: CoordinatorRuntime.CoordinatorContext of Kafka 4.3.
"""

import logging
from asyncio import Future
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, assert_never
from uuid import UUID

from ottla.broker.groups.actions import (
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
from ottla.broker.groups.answers import error_of
from ottla.broker.groups.cleanup import Cleanup
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.coordinator_log import CoordinatorLog
from ottla.broker.groups.delayed_join import DelayedGroupResponse
from ottla.broker.groups.errors import client_error_code
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.loader import load, restore_groups
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.offset_commits import OffsetCommits
from ottla.broker.groups.offset_manager import Topics
from ottla.broker.groups.record_writer import Appendable, RecordWriter
from ottla.broker.groups.resuming import Resumable, resumable
from ottla.broker.groups.sessions import on_loaded, on_timer
from ottla.broker.groups.shard import Shard
from ottla.broker.groups.storing import end_group, on_stored
from ottla.broker.groups.timers import Timers
from ottla.protocol.coordinator.group_records import GroupMetadataKey
from ottla.protocol.coordinator.record_codec import GroupRecord
from ottla.protocol.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError, NotCoordinator
from ottla.runtime import Runtime
from ottla.runtime.turns import in_turns

logger = logging.getLogger(__name__)

#: The number of session timers that are set in one step.
_ACTIONS_A_STEP: Final = 100
#: How long after the load this broker's metadata may lack a topic that the former leader knew, in seconds.
#:
#: Every offset that was loaded was committed while another broker, or this one, led in an earlier epoch; its
#: metadata was then older than what this broker has applied, except that a leader may resign some turns after
#: its metadata says so. What is not in the metadata by then was deleted.
METADATA_LAG_S: Final = 60
#: The number of members that are answered in one turn: each response is converted, encoded and sent, some 20
#: us in all.
ANSWERS_OF_TURN: Final = 20


class ShardRuntime:
    """Runs one shard while this broker leads its partition: loads it, executes its groups' actions and timers."""

    def __init__(
        self,
        state: LogState,
        *,
        config: GroupConfig,
        log: CoordinatorLog,
        runtime: Runtime,
        topics: Topics,
    ) -> None:
        self.topic_partition = state.topic_partition
        self._config = config
        self._log = log
        self._runtime = runtime
        #: The replayed state of the log; the shard shares its offsets.
        self.state = state
        self._shard = Shard(config, topics, state.offsets)
        self.writer = RecordWriter(state, config=config, log=log, runtime=runtime, replay=self._replay)
        self._cleanup = Cleanup(self._shard, self.writer, self.topic_partition)
        self._timers = Timers(runtime)
        self._is_loaded = False
        #: The monotonic time, in seconds, when the partition was loaded.
        self._loaded_at = 0.0
        #: Whether another broker leads the partition, or its log could not be read.
        self.is_closed = False
        #: Topics that were deleted while the partition was loading.
        self._deleted_topics: list[tuple[UUID, str]] = []
        #: Responses that are sent in later turns, the next one first; at most one for each request that
        #: waits.
        self._answers: deque[AnswerJoin | AnswerSync] = deque()
        #: The number of responses that this turn may still send; that of a whole turn if it has sent none
        #: yet.
        self._answers_left = ANSWERS_OF_TURN
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

    @property
    def is_loading(self) -> bool:
        """Whether the groups are being loaded: then `shard` raises CoordinatorLoadInProgress."""
        return not (self._is_loaded or self.is_closed)

    def loaded_groups(self) -> list[ClassicGroup]:
        """The loaded groups; none while they are being loaded, or after the leadership has ended."""
        return list(self._shard.groups.values()) if self._is_loaded else []

    async def load(self) -> None:
        """Replay the partition; until that is done, `shard` raises CoordinatorLoadInProgress."""
        assert not self._is_loaded, str(self.topic_partition)
        started, resumed_at = self._runtime.monotonic(), self.state.next_offset
        try:
            records_count = await load(
                self.state,
                lambda: self._log.replica_log(self.topic_partition),
                is_wanted=self._is_open,
                buffer_bytes=self._config.offsets_load_buffer_bytes,
                runtime=self._runtime,
            )
            await restore_groups(
                self._shard,
                self.state,
                config=self._config,
                runtime=self._runtime,
                is_wanted=self._is_open,
            )
            self.writer.on_loaded()
            await self._in_turns(self._begin_sessions())
        except Exception as error:
            if self.is_closed:
                return  # Another broker leads by now.
            # Without closing it would stay in the state "loading", and ListGroups would fail for all other groups, too.
            if isinstance(error, KafkaError):
                logger.warning("%s: groups and offsets could not be loaded: %s", self.topic_partition, error)
            else:
                logger.exception("%s: groups and offsets could not be loaded", self.topic_partition)
            self.is_closed = True
            return
        if self.is_closed:
            return
        self._is_loaded = True
        self._loaded_at = self._runtime.monotonic()
        if records_count or resumed_at is not None:
            took_ms = (self._runtime.monotonic() - started) * 1000
            logger.info(
                "%s: %d records loaded from offset %d on in %.0f ms",
                self.topic_partition,
                records_count,
                resumed_at or 0,
                took_ms,
            )
        await self.delete_topics(())

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
        """End the leadership. The iterator answers delayed requests with NOT_COORDINATOR, one group per step."""
        self._is_loaded = False
        self.is_closed = True
        self.writer.close()
        return self._end_groups()

    def _end_groups(self) -> Iterator[None]:
        groups = self._shard.groups
        while groups:
            _, group = groups.popitem()
            now_ms = self._runtime.now_ms()
            self.carry_out(group, end_group(group, ErrorCode.not_coordinator, now_ms=now_ms))
            yield
        yield from self._timers.cancel_each()

    def resumable(self) -> Resumable | None:
        """Return the present replay for the next leadership of this broker; to be called right after `close`."""
        try:
            return resumable(self.state, self._log.replica_log(self.topic_partition))
        except KafkaError:
            return None  # The replica was removed, or its disk has failed.

    # Actions

    def carry_out(self, group: ClassicGroup, actions: Sequence[Action]) -> None:
        """Execute the group's actions, and those that follow from them; most of many responses are sent in
        later turns.

        The group has changed as a whole before: a member that is answered later gets the generation that it
        has joined, also if the group is in a later one by then, as if its response had been delayed in the
        network.
        """
        queue = deque(actions)  # at most the actions of one event, and those that follow from them
        while queue:
            action = queue.popleft()
            match action:
                case AnswerJoin() | AnswerSync():
                    self._answer(action)
                case SetTimer():
                    self._set_timer(group, action)
                case CancelTimer():
                    self._timers.cancel((group.group_id, action.slot))
                case Store():
                    queue.extend(self._store(group, action))
                case _:
                    assert_never(action)

    def _answer(self, action: AnswerJoin | AnswerSync) -> None:
        if self._answers_left == ANSWERS_OF_TURN:
            self._runtime.loop.call_soon(self._answer_in_next_turn)
        if self._answers_left:
            self._answers_left -= 1
            _complete(action)
        else:
            self._answers.append(action)

    def _answer_in_next_turn(self) -> None:
        self._answers_left = ANSWERS_OF_TURN
        for _ in range(min(ANSWERS_OF_TURN, len(self._answers))):
            self._answer(self._answers.popleft())

    def answering(self) -> Iterator[None]:
        """Yield while responses of later turns are left."""
        while self._answers:
            yield

    def answer_at_once(self) -> None:
        """Send all responses of later turns now, if there are any."""
        while self._answers:
            _complete(self._answers.popleft())

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
            _, pending = self.writer.append([record])
        except KafkaError as error:
            if group.group_id not in self._refused:
                self._refused.add(group.group_id)
                logger.warning(
                    "%s: the record of group %s is not written: %s",
                    self.topic_partition,
                    group.group_id,
                    error,
                )
            return self._after_store(group, store.then, error)
        self._refused.discard(group.group_id)
        if pending is None:
            return self._after_store(group, store.then, None)
        pending.add_done_callback(lambda done: self._on_append_completed(group, store.then, done))
        return []

    def _on_append_completed(self, group: ClassicGroup, stored: Stored, done: "Future[None]") -> None:
        error = error_of(done)
        if self._is_current(group):
            self.carry_out(group, self._after_store(group, stored, error))

    def _after_store(self, group: ClassicGroup, stored: Stored, error: KafkaError | None) -> list[Action]:
        code = None if error is None else client_error_code(error)
        actions = on_stored(group, stored, code, now_ms=self._runtime.now_ms())
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

    def _replay(self, records: Appendable, *, first_offset: int) -> None:
        """Apply records that were appended in this leadership; a deleted group loses its timers."""
        shard = self._shard
        if isinstance(records, OffsetCommits):
            shard.replay_commits(records, first_offset=first_offset, now_ms=self._runtime.now_ms())
            return
        for record in records:
            key = record.key
            if isinstance(key, GroupMetadataKey) and key.group in shard.groups:
                self._forget(shard.groups[key.group])
            shard.replay(record)

    # Cleanup

    async def expire(self) -> None:
        """Delete offsets of topics that are gone, expired offsets, and groups that are empty without them."""
        if not self._is_loaded:
            return
        if self._runtime.monotonic() - self._loaded_at >= METADATA_LAG_S:
            await self._in_turns(self._cleanup.delete_lost_topics())
        await self._in_turns(self._cleanup.expire(now_ms=self._runtime.now_ms()))

    async def delete_topics(self, topics: Iterable[tuple[UUID, str]]) -> None:
        """Delete the offsets of these deleted topics (id, name); while the partition is loading, after it."""
        if self.is_closed:
            return
        self._deleted_topics += topics
        if not self._is_loaded or not self._deleted_topics:
            return
        deleted, self._deleted_topics = self._deleted_topics, []
        await self._in_turns(self._cleanup.delete_topics(deleted))


def _complete(action: AnswerJoin | AnswerSync) -> None:
    assert isinstance(action.waiter, DelayedGroupResponse), action.waiter
    action.waiter.complete_with(action.response)
