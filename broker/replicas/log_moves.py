"""Moving replicas to other log directories of their broker, while they are written and read (KIP-113, KIP-858).

    (asked for) --a future log is made----------------------> COPYING
    COPYING     --it has all that the log has---------------> TELLING the controller of its directory
    TELLING     --the metadata log says so, and it has all--> it takes the log's place
    any         --another directory, or the replica goes----> given up, and what was told is taken back

A future log follows the partition's log as a follower its leader: the same machine (`broker.replication.follower`)
asks the log for what comes next, and truncates where the log has been truncated, also if that happened before a restart.
The controller hears of the new directory before the log moves: if the old one fails in between, nothing is lost; if the new
one fails, the controller knows that the replica is offline.

Moves share replica.alter.log.dirs.io.max.bytes.per.second, and take their turns: one read each of at most 1 MiB.

Source: ReplicaAlterLogDirsThread of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

from broker.replicas.copying import append_copy, take_over_offsets
from broker.replicas.partition import Partition
from broker.replicas.truncating import truncate
from broker.replication.follower import (
    Action,
    Append,
    AskBounds,
    Bounds,
    Divergence,
    FetchRecords,
    Follower,
    Records,
    ReplicaState,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from broker.replication.throttles import ReplicationQuota
from broker.runtime import Pool, Runtime
from protocol.errors import (
    InvalidReplicaAssignment,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
    OffsetOutOfRange,
)
from protocol.metadata.features import DIRECTORIES_3_7_IV2
from protocol.metadata.image import MetadataImage
from protocol.types import TopicPartition
from storage import file_names
from storage.flushing import flush_job
from storage.log import Log, WouldBlock
from storage.log_manager import LogManager

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
#: How long everybody rests where nothing is to be copied, or the rate is exceeded.
_REST_S: Final = 0.1
#: How long a move is left alone in which something went wrong that never should.
_BACKOFF_MS: Final = 10_000


class _Move:
    """One partition that moves, from one log object to another."""

    __slots__ = (
        "current",
        "follower",
        "future",
        "is_caught_up",
        "is_flushed",
        "partition",
        "resumes_at_ms",
    )

    def __init__(self, partition: Partition, future: Log) -> None:
        self.partition = partition
        self.current = partition.log
        self.future = future
        self.follower = Follower(future)
        #: It had everything at one time: the controller is told of its directory.
        self.is_caught_up = False
        #: Nearly all of it, since it had everything: what the promotion waits for is little.
        self.is_flushed = False
        self.resumes_at_ms = 0

    @property
    def must_flush(self) -> bool:
        """Whether the promotion would wait for the disk: what the log has flushed is flushed in the copy before."""
        return not self.is_flushed or self.future.recovery_point < self.current.recovery_point

    @property
    def has_all(self) -> bool:
        """Whether the copy is what the log is, now.

        The log may have been truncated and have grown to the same end since the last read: two logs of one end are the
        same only if the last epoch of the one ends there in the other.
        """
        epoch, end = self.future.latest_epoch, self.current.log_end_offset
        return (
            self.follower.state is ReplicaState.FETCHING
            and self.future.log_end_offset == end
            and (epoch is None or self.current.end_offset_for_epoch(epoch) == (epoch, end))
        )


class LogMoves:
    """See the module. Everything belongs to the loop's thread."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        logs: LogManager,
        node_id: int,
        image: Callable[[], MetadataImage],
        quota: ReplicationQuota,
        on_promoted: Callable[[Partition], None],
    ) -> None:
        """`on_promoted` is told of partitions that have another log."""
        self._runtime = runtime
        self._logs = logs
        self._node_id = node_id
        self._image = image
        self._quota = quota
        self._on_promoted = on_promoted
        #: Called where `directory_of` a partition changes, with (topic id, index); the broker tells the controller.
        self.on_directory: Callable[[tuple[UUID, int]], None] = lambda place: None
        self._moves: dict[Partition, _Move] = {}
        self._task: asyncio.Task[None] | None = None

    # -- what moves, and where to ----------------------------------------------------------------------

    def destination(self, topic_partition: TopicPartition, path: Path) -> Path:
        """The log directory of this path as the configuration names it, if a replica may move there.

        Raises InvalidTopic (its name leaves no room for that of a future log), LogDirNotFound, KafkaStorageError
        (the directory is offline), InvalidReplicaAssignment (it is cordoned).
        """
        try:
            file_names.future_directory(topic_partition, unique="0" * 32)
        except KafkaStorageError as error:
            raise InvalidTopic(str(error)) from error
        known = {each.absolute(): each for each in (*self._logs.directory_ids, *self._logs.offline_dirs)}
        if path not in known:
            raise LogDirNotFound(f"{path} is not a log directory of broker {self._node_id}")
        path = known[path]
        if path in self._logs.offline_dirs:
            raise KafkaStorageError(f"{path} is offline")
        if path in self._logs.cordoned_dirs:
            raise InvalidReplicaAssignment(f"{path} is cordoned")
        return path

    def move(self, partition: Partition, path: Path) -> None:
        """Begin to move a replica to another directory, a `destination`; to the one that it is in: end its move.

        Raises KafkaStorageError, also where another directory is offline.
        """
        future = self._logs.future_logs.get(partition.topic_partition)
        if future is not None and future.directory.parent != path:
            self.cancel(partition)
        if partition.log.directory.parent == path:
            return
        if self._logs.offline_dirs:
            # There may be a future log in one of them, and two are one too many.
            raise KafkaStorageError(f"{[*self._logs.offline_dirs]} is offline: nothing moves")
        self._logs.moving.create(
            partition.topic_partition, path, topic_id=partition.topic_id, now_ms=self._runtime.now_ms()
        )
        self.begin(partition)

    def begin(self, partition: Partition) -> None:
        """Copy into the partition's future log, which is there; not into one of an older topic of that name."""
        future = self._logs.future_logs[partition.topic_partition]
        if partition in self._moves and self._moves[partition].future is future:
            return
        self.forget(partition)
        try:
            future.assign_topic_id(partition.topic_id)
        except KafkaError as error:
            logger.error("%s does not move: %s", partition, error)
            return
        logger.info("%s moves to %s", partition, future.directory.parent)
        self._moves[partition] = _Move(partition, future)
        if self._task is None or self._task.done():
            self._task = self._runtime.supervise(self._run, name="log-moves")

    def cancel(self, partition: Partition) -> None:
        """The replica stays where it is. Raises KafkaStorageError if the future log cannot be removed."""
        self.forget(partition)
        self._logs.moving.delete(partition.topic_partition, now_ms=self._runtime.now_ms())

    def forget(self, partition: Partition) -> None:
        """Copy no more; the future log is somebody else's affair."""
        move = self._moves.pop(partition, None)
        if move is not None and move.is_caught_up:
            self._tell_directory(partition)

    def directory_of(self, partition: Partition) -> Path:
        """Where the controller should know the replica to be: where it is, or where it will be in a moment."""
        move = self._moves.get(partition)
        return (move.future if move is not None and move.is_caught_up else partition.log).directory.parent

    async def stop(self) -> None:
        """Copy nothing any more, once a thread that truncates has ended; the next start goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    # -- copying ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._moves:
            has_copied = False
            for move in list(self._moves.values()):
                now_ms = self._runtime.now_ms()
                if self._quota.is_exceeded(now_ms=now_ms):
                    break
                if self._moves.get(move.partition) is move and move.resumes_at_ms <= now_ms:
                    # To the end: where the rate ends this round, the next one begins with those that have waited.
                    self._moves[move.partition] = self._moves.pop(move.partition)
                    has_copied |= await self._take_turn(move)
            if not has_copied:
                await asyncio.sleep(_REST_S)

    async def _take_turn(self, move: _Move) -> bool:
        """A step and what follows from it; whether something was copied. What goes wrong ends this move alone."""
        has_copied = False
        try:
            has_copied = await self._step(move)
            if move.has_all and move.must_flush:
                await self._flush(move)
            # Others have their turn, and can give the move up.
            await asyncio.sleep(0)
            if self._moves.get(move.partition) is move:
                self._settle(move)
        except KafkaError as error:
            # A failing disk takes its directory offline; damage stays until somebody mends it.
            logger.error("%s moves no further: %s", move.partition, error)
            move.follower.on_failure()
        except Exception:
            logger.exception("%s moves no further", move.partition)
            move.follower.on_failure()
            move.resumes_at_ms = self._runtime.now_ms() + _BACKOFF_MS
        return has_copied

    async def _step(self, move: _Move) -> bool:
        """One question to the log, and what its answer means; whether something was copied."""
        partition, follower = move.partition, move.follower
        if partition.leader_epoch < 0:
            return False
        await self._carry_out(move, follower.follow(partition.leader_epoch))
        match follower.question():
            case FetchRecords() as asked:
                try:
                    answer = await self._read(move, asked)
                except OffsetOutOfRange:
                    follower.on_out_of_range(asked)
                    return True
                if isinstance(answer, Divergence):
                    await self._carry_out(move, follower.on_divergence(asked, answer))
                    return True
                await self._carry_out(move, follower.on_records(asked, answer))
                self._quota.record(len(answer.records), now_ms=self._runtime.now_ms())
                return bool(answer.records)
            case AskBounds() as asked_bounds:
                log = move.current
                bounds = Bounds(log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset)
                await self._carry_out(move, follower.on_bounds(asked_bounds, bounds))
                return True
            case None:
                return False

    async def _read(self, move: _Move, asked: FetchRecords) -> Records | Divergence:
        """As a leader answers a Fetch. Raises OffsetOutOfRange, CorruptMessage, KafkaStorageError."""
        log = move.current
        try:
            return self._read_now(move, asked, may_block=False)
        except WouldBlock:
            # Brings it into memory; then it is read again, since the log may be another by then.
            await self._runtime.run_blocking(
                lambda: log.warm_up(asked.fetch_offset, max_bytes=_READ_BYTES),
                pool=Pool.UPKEEP,
            )
        return self._read_now(move, asked, may_block=True)

    def _read_now(self, move: _Move, asked: FetchRecords, *, may_block: bool) -> Records | Divergence:
        log = move.current
        if asked.last_fetched_epoch is not None:
            diverging = move.partition.diverging_epoch(
                last_fetched_epoch=asked.last_fetched_epoch, fetch_offset=asked.fetch_offset
            )
            if diverging is not None:
                return Divergence(epoch=diverging[0], end_offset=diverging[1])
        read = log.read(asked.fetch_offset, max_bytes=_READ_BYTES, min_one_message=True, may_block=may_block)
        return Records(
            records=memoryview(read.records),
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
        )

    async def _carry_out(self, move: _Move, action: Action | None) -> None:
        future, follower, now_ms = move.future, move.follower, self._runtime.now_ms()
        match action:
            case Append():
                if len(action.records):
                    append_copy(future, action.records, leader_epoch=action.leader_epoch, now_ms=now_ms)
                take_over_offsets(
                    future,
                    high_watermark=action.high_watermark,
                    log_start_offset=action.log_start_offset,
                    reason="the log's that it replaces",
                )
                follower.on_appended(action)
            case TruncateTo() | TruncateFullyAndStartAt():
                if await truncate(
                    self._runtime,
                    future,
                    future,
                    action,
                    pool=Pool.UPKEEP,
                    is_wanted=lambda: self._moves.get(move.partition) is move,
                ):
                    follower.on_truncated()

    async def _flush(self, move: _Move) -> None:
        move.is_flushed = True
        job = flush_job(move.future, move.future.log_end_offset, self._runtime.now_ms())
        await self._runtime.run_blocking(job.run, pool=Pool.UPKEEP)
        job.finish()

    # -- taking the log's place --------------------------------------------------------------------------

    def _settle(self, move: _Move) -> None:
        """What follows from how far the copy is."""
        partition = move.partition
        at = partition.topic_partition
        if self._logs.get(at) is not move.current or self._logs.future_logs.get(at) is not move.future:
            # One of the two directories has failed.
            logger.warning("%s moves no more to %s", partition, move.future.directory.parent)
            self.forget(partition)
        elif move.has_all:
            if self._is_known(move):
                self._promote(move)
            elif not move.is_caught_up:
                move.is_caught_up = True
                self._tell_directory(partition)

    def _is_known(self, move: _Move) -> bool:
        """Whether the metadata says that the replica is in its future directory, if it says such things."""
        image, partition = self._image(), move.partition
        if (image.metadata_version or 0) < DIRECTORIES_3_7_IV2:
            return True
        topic = image.topics_by_id.get(partition.topic_id)
        known = topic.partitions.get(partition.topic_partition.partition) if topic is not None else None
        if known is None or self._node_id not in known.replicas:
            return False
        directory = known.directories[known.replicas.index(self._node_id)]
        return directory == self._logs.directory_ids[move.future.directory.parent]

    def _promote(self, move: _Move) -> None:
        partition = move.partition
        future = self._logs.moving.promote(partition.topic_partition, now_ms=self._runtime.now_ms())
        del self._moves[partition]
        logger.info("%s is in %s now", partition, future.directory.parent)
        partition.replace_log(future)
        self._on_promoted(partition)

    def _tell_directory(self, partition: Partition) -> None:
        self.on_directory((partition.topic_id, partition.topic_partition.partition))
