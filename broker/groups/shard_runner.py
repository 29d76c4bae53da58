"""One led partition of the offsets topic: carries out what its groups want, and appends their records."""

import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, assert_never

from broker.groups.actions import (
    Action,
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    SetTimer,
    Store,
    Stored,
    Timer,
    TimerSlot,
)
from broker.groups.answers import Answer, error_of
from broker.groups.config import GroupConfig
from broker.groups.errors import told_to_members
from broker.groups.group import ClassicGroup, GroupState
from broker.groups.loader import load
from broker.groups.sessions import on_loaded, on_timer
from broker.groups.shard import Shard
from broker.groups.storing import end, on_stored
from broker.groups.timers import Timers
from broker.runtime import Runtime
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
from protocol.records.batch import BatchHeader
from protocol.records.builder import build_batch, simple_records
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

A = TypeVar("A")

#: Tombstones that nobody needs together are appended in batches of at most so many.
MAX_TOMBSTONES_A_BATCH = 1_000
#: How a topic refuses a batch for its size: its own bound, or that of a segment.
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


class Appended(Protocol):
    """Where a batch came to lie."""

    @property
    def first_offset(self) -> int:
        """Of its first record."""

    @property
    def last_offset(self) -> int:
        """Of its last record, included."""


class CoordinatorLog(Protocol):
    """The offsets topic, as this broker's replicas hold it (`broker.replicas.replica_manager`)."""

    def append_as_coordinator(
        self, topic_partition: TopicPartition, batch: bytes | bytearray | memoryview
    ) -> Appended:
        """Append a batch to a partition that is led here. Raises KafkaError: nothing was written."""

    def committed(
        self, topic_partition: TopicPartition, end_offset: int, *, timeout_ms: int
    ) -> "Future[None] | None":
        """Done when the high watermark is at `end_offset`; None if it is already. Fails with KafkaError."""

    def records_since(
        self, topic_partition: TopicPartition, offset: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Whole batches from the one that holds `offset` (None: the log's start) to the log's end."""

    def listen(self, topic: str, listener: "LeadershipListener") -> None:
        """Tell of partitions that are led here, and no more."""


class LeadershipListener(Protocol):
    """Who wants to know what is led here."""

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition, in this epoch."""

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """Another broker leads the partition, or it is gone."""


class ShardRunner:
    """A shard with its log and its timers, from the moment it is led here until it is not."""

    def __init__(
        self, topic_partition: TopicPartition, *, config: GroupConfig, log: CoordinatorLog, runtime: Runtime
    ) -> None:
        self.topic_partition = topic_partition
        self._config = config
        self._log = log
        self._runtime = runtime
        self._shard = Shard(config)
        self._timers = Timers(runtime)
        self._is_loaded = False
        #: Led elsewhere, or it could not be read.
        self.is_closed = False
        #: Where the log ended when it was read; None once that is known to be committed. Kafka reads to the log's
        #: end, too, and shows what it has read when the high watermark has passed it (CoordinatorRuntime).
        self._read_end: int | None = None
        #: Group -> the end of its last append of offsets, unless that is known to be committed.
        self._unsettled: dict[str, int] = {}
        #: Groups whose last record was refused. Their members try again at once, hundreds of times a second.
        self._refused: set[str] = set()

    @property
    def shard(self) -> Shard:
        """The groups and offsets. Raises while they are being read, and when they are led elsewhere."""
        if self._is_loaded:
            return self._shard
        if self.is_closed:
            raise NotCoordinator(f"{self.topic_partition} is not led here")
        raise CoordinatorLoadInProgress(f"{self.topic_partition} is being read")

    async def load(self) -> None:
        """Read the partition; until then `shard` raises CoordinatorLoadInProgress."""
        started = self._runtime.monotonic()
        try:
            loaded = await load(
                self._shard,
                self._log,
                self.topic_partition,
                is_wanted=lambda: not self.is_closed,
                now_ms=self._runtime.now_ms,
            )
        except KafkaError as error:
            # Led elsewhere meanwhile, or the disk failed: another leader is told to the clients in due time.
            logger.warning("%s cannot be read: %s", self.topic_partition, error)
            self.is_closed = True
            return
        except Exception:
            # Else it would be "being read" for ever, and ListGroups of all other groups fail with it.
            logger.exception("%s cannot be read", self.topic_partition)
            self.is_closed = True
            return
        if self.is_closed:
            return
        self._is_loaded = True
        self._read_end = loaded.end_offset
        if loaded.records_count:
            took_ms = (self._runtime.monotonic() - started) * 1000
            logger.info("%s: %d records read in %.0f ms", self.topic_partition, loaded.records_count, took_ms)
        for group in list(self._shard.groups.values()):
            self.carry_out(group, on_loaded(group, now_ms=self._runtime.now_ms()))

    def close(self) -> None:
        """The partition is led elsewhere: whoever waits is sent there."""
        self._timers.cancel_all()
        for group in list(self._shard.groups.values()):
            now_ms = self._runtime.now_ms()
            self.carry_out(group, end(group, ErrorCode.not_coordinator, now_ms=now_ms))
        self._is_loaded = False
        self.is_closed = True

    # Actions

    def carry_out(self, group: ClassicGroup, actions: Sequence[Action]) -> None:
        """Do what the group wants, and what it wants in consequence."""
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case AnswerJoin() | AnswerSync():
                    assert isinstance(action.waiter, Future), action.waiter
                    if not action.waiter.done():  # Its connection may have gone meanwhile.
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
        """Append the group's record; what follows at once, if it is committed or refused at once."""
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
            self._forget(group.group_id)
        return actions

    def _is_current(self, group: ClassicGroup) -> bool:
        """Whether this is still the group of its name, here."""
        return self._is_loaded and self._shard.groups.get(group.group_id) is group

    def _forget(self, group_id: str) -> None:
        self._shard.groups.pop(group_id, None)
        self._refused.discard(group_id)
        self._timers.cancel_where(lambda name: isinstance(name, tuple) and name[0] == group_id)

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

    def write_tombstones(self, records: list[GroupRecord]) -> None:
        """Append and replay what nobody waits for.

        A batch that is too large for the topic is halved. Any other refusal ends it: the next batch would fare
        no better, and what expires is found again.
        """
        batches = deque(
            records[at : at + MAX_TOMBSTONES_A_BATCH] for at in range(0, len(records), MAX_TOMBSTONES_A_BATCH)
        )
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
                return
            self._replay(batch, first_offset)
            if pending is not None:  # Nobody waits, but a failure must not be reported as forgotten.
                pending.add_done_callback(error_of)

    def when_settled(self, group_id: str, answer: Callable[[KafkaError | None], A]) -> Answer[A]:
        """Answer when all that was read or written for the group is committed: what it says then stays true."""
        end_offset = self._unsettled.get(group_id, self._read_end)
        if end_offset is None:
            return answer(None)
        try:
            pending = self._committed(end_offset)
        except NotEnoughReplicasAfterAppend:
            pending = None  # The high watermark is there. Of what is read, that is all one can ask.
        except KafkaError as error:
            return answer(error)
        return self._when(pending, group_id, end_offset, answer)

    def _append(self, records: Sequence[GroupRecord]) -> tuple[int, "Future[None] | None"]:
        """Raises KafkaError: nothing was written. Also where no record can hold what it is to say."""
        try:
            pairs = [encode(record) for record in records]
        except ValueError as error:
            raise UnknownServerError(str(error)) from error
        batch = build_batch(
            simple_records(pairs, timestamp=self._runtime.now_ms()),
            compression=self._config.offsets_topic_compression,
        )
        appended = self._log.append_as_coordinator(self.topic_partition, batch)
        return appended.first_offset, self._committed(appended.last_offset + 1)

    def _committed(self, end_offset: int) -> "Future[None] | None":
        return self._log.committed(
            self.topic_partition, end_offset, timeout_ms=self._config.offsets_commit_timeout_ms
        )

    def _replay(self, records: Sequence[GroupRecord], first_offset: int) -> None:
        now_ms = self._runtime.now_ms()
        for record_offset, record in enumerate(records, start=first_offset):
            self._shard.replay(record, record_offset=record_offset, producer_id=None, now_ms=now_ms)
            if isinstance(record.key, GroupMetadataKey) and record.value is None:
                self._forget(record.key.group)

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
            error = error_of(done)  # asked for in any case: a failure must not be reported as forgotten
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
