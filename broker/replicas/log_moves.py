"""Log directory moves: replicas move to other log directories of their broker while they are in use (KIP-113, KIP-858).

    (requested) --a future log is created-------------------> COPYING
    COPYING     --it is a complete copy of the log----------> REPORTING its directory to the controller
    REPORTING   --the metadata log has it, still complete---> the future log replaces the current log
    any         --another directory, or replica removed-----> cancelled; a reported directory is reported back

A future log follows the partition's current log as a follower its leader, with the same state machine
(`broker.replication.follower`): it reads the next records from the log, and truncates where the log was truncated, also
if that happened before a restart. The controller knows the new directory before the log moves (KIP-858): if the old one
fails in between, nothing is lost; if the new one fails, the controller knows that the replica is offline.

Moves share replica.alter.log.dirs.io.max.bytes.per.second, in turns of one read of at most 1 MiB.

Source: ReplicaAlterLogDirsThread of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never
from uuid import UUID

from broker.replicas.follower_actions import FollowerActions
from broker.replicas.follower_replica import FollowerReplica
from broker.replicas.partition import Partition
from broker.replication.follower import (
    Action,
    Bounds,
    Divergence,
    FetchBounds,
    FetchRecords,
    Follower,
    Records,
    ReplicaState,
)
from broker.replication.replication_quota import ReplicationQuota
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
from runtime import Pool, Runtime
from storage import file_names
from storage.log import Log, WouldBlock
from storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
#: Pause of all moves when there is nothing to copy, or the rate is exceeded.
_REST_S: Final = 0.1
#: Pause of a move after a bug (an unexpected exception).
_BACKOFF_MS: Final = 10_000


class _Move:
    """The move of one partition from its current log to its future log."""

    __slots__ = (
        "current",
        "follower",
        "future",
        "is_caught_up",
        "is_flushed",
        "partition",
        "replica",
        "resumes_at_ms",
    )

    def __init__(self, partition: Partition, future: Log) -> None:
        self.partition = partition
        self.current = partition.log
        self.future = future
        self.replica = FollowerReplica(future, source="the log that it replaces")
        self.follower = Follower(future)
        #: The future log was complete at one time: its directory is reported to the controller.
        self.is_caught_up = False
        #: The future log was flushed when it was complete: only little is left for the promotion to flush.
        self.is_flushed = False
        self.resumes_at_ms = 0

    @property
    def must_flush(self) -> bool:
        """Whether the future log has to be flushed first, so that the promotion does not wait for the disk.

        Everything that is flushed in the current log is flushed in the copy before it takes the log's place.
        """
        return not self.is_flushed or self.future.recovery_point < self.current.recovery_point

    @property
    def has_all(self) -> bool:
        """Whether the future log equals the current log now.

        The current log may have been truncated and have grown to the same end since the last read: two logs with the
        same end are equal only if the last epoch of the one ends there in the other, too.
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
        """`on_promoted` is called with each partition whose log was replaced."""
        self._runtime = runtime
        self._logs = logs
        self._node_id = node_id
        self._image = image
        self._quota = quota
        self._on_promoted = on_promoted
        self._actions = FollowerActions(runtime, pool=Pool.UPKEEP)
        #: Called when `directory_of` a partition changes, with (topic id, index); the broker reports to the controller.
        self.on_directory: Callable[[tuple[UUID, int]], None] = lambda place: None
        self._moves: dict[Partition, _Move] = {}
        self._task: asyncio.Task[None] | None = None

    # -- starting and cancelling moves -----------------------------------------------------------------

    def destination(self, topic_partition: TopicPartition, path: Path) -> Path:
        """The log directory with this path as the configuration names it, if a replica may move there.

        Raises InvalidTopic (its name is too long for the name of a future log), LogDirNotFound, KafkaStorageError
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
        """Start to move a replica to another directory, a `destination`; with its present directory: cancel its move.

        Raises KafkaStorageError, also where another directory is offline.
        """
        future = self._logs.future_logs.get(partition.topic_partition)
        if future is not None and future.directory.parent != path:
            self.cancel(partition)
        if partition.log.directory.parent == path:
            return
        if self._logs.offline_dirs:
            # One of them may contain a future log already, and a replica must not have two.
            raise KafkaStorageError(f"{[*self._logs.offline_dirs]} is offline: no replica can be moved")
        self._logs.moving.create(
            partition.topic_partition, path, topic_id=partition.topic_id, now_ms=self._runtime.now_ms()
        )
        self.begin(partition)

    def begin(self, partition: Partition) -> None:
        """Start to copy into the partition's existing future log; not into one of an older topic with that name."""
        future = self._logs.future_logs[partition.topic_partition]
        if partition in self._moves and self._moves[partition].future is future:
            return
        self.forget(partition)
        try:
            future.assign_topic_id(partition.topic_id)
        except KafkaError as error:
            logger.error("%s: the log directory move is not possible: %s", partition, error)
            return
        logger.info("%s: moving to log directory %s", partition, future.directory.parent)
        self._moves[partition] = _Move(partition, future)
        if self._task is None or self._task.done():
            self._task = self._runtime.supervise(self._run, name="log-moves")

    def cancel(self, partition: Partition) -> None:
        """The replica stays where it is. Raises KafkaStorageError if the future log cannot be removed."""
        self.forget(partition)
        self._logs.moving.delete(partition.topic_partition, now_ms=self._runtime.now_ms())

    def forget(self, partition: Partition) -> None:
        """Stop copying; the caller decides about the future log."""
        move = self._moves.pop(partition, None)
        if move is not None and move.is_caught_up:
            self._report_directory(partition)

    def directory_of(self, partition: Partition) -> Path:
        """The directory to report to the controller: the future log's once it was complete, else the current log's."""
        move = self._moves.get(partition)
        return (move.future if move is not None and move.is_caught_up else partition.log).directory.parent

    async def stop(self) -> None:
        """Stop copying, once a thread that truncates has ended; moves resume at the next start of the broker."""
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
                    # To the end: if the rate limit ends this round, the next one begins with the moves that waited.
                    self._moves[move.partition] = self._moves.pop(move.partition)
                    has_copied |= await self._take_turn(move)
            if not has_copied:
                await asyncio.sleep(_REST_S)

    async def _take_turn(self, move: _Move) -> bool:
        """One step of a move; whether something was copied. An error stops this move only."""
        has_copied = False
        try:
            has_copied = await self._step(move)
            if move.has_all and move.must_flush:
                await self._flush(move)
            # Other tasks run, and may cancel the move.
            await asyncio.sleep(0)
            if self._moves.get(move.partition) is move:
                self._complete(move)
        except KafkaError as error:
            # A failing disk takes its directory offline; a damaged log stays until an operator repairs it.
            logger.error("%s: the log directory move has failed: %s", move.partition, error)
            move.follower.on_failure()
        except Exception:
            logger.exception("%s: the log directory move has failed", move.partition)
            move.follower.on_failure()
            move.resumes_at_ms = self._runtime.now_ms() + _BACKOFF_MS
        return has_copied

    async def _step(self, move: _Move) -> bool:
        """One request to the current log, and the follower's action on the result; whether something was copied."""
        partition, follower = move.partition, move.follower
        if partition.leader_epoch < 0:
            return False
        move.replica.follow(partition.leader_epoch)
        await self._execute(move, follower.follow(partition.leader_epoch))
        match follower.next_request():
            case FetchRecords() as asked:
                try:
                    answer = await self._read(move, asked)
                except OffsetOutOfRange:
                    follower.on_out_of_range(asked)
                    return True
                if isinstance(answer, Divergence):
                    await self._execute(move, follower.on_divergence(asked, answer))
                    return True
                await self._execute(move, follower.on_records(asked, answer))
                self._quota.record(len(answer.records), now_ms=self._runtime.now_ms())
                return bool(answer.records)
            case FetchBounds() as asked_bounds:
                log = move.current
                bounds = Bounds(log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset)
                await self._execute(move, follower.on_bounds(asked_bounds, bounds))
                return True
            case None:
                return False
            case unknown:
                assert_never(unknown)

    async def _read(self, move: _Move, asked: FetchRecords) -> Records | Divergence:
        """Read as a leader does for a Fetch. Raises OffsetOutOfRange, CorruptMessage, KafkaStorageError."""
        log = move.current
        try:
            return self._read_now(move, asked, may_block=False)
        except WouldBlock:
            # Brings the data into memory; then it is read again, since the log may have changed by then.
            await self._runtime.run_blocking(
                lambda: log.reader.warm_up(asked.fetch_offset, max_bytes=_READ_BYTES),
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
        read = log.reader.read(
            asked.fetch_offset, max_bytes=_READ_BYTES, min_one_message=True, may_block=may_block
        )
        return Records(
            records=memoryview(read.records),
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
        )

    async def _execute(self, move: _Move, action: Action | None) -> None:
        rest = self._actions.execute(
            action,
            move.follower,
            move.replica,
            is_wanted=lambda: self._moves.get(move.partition) is move,
        )
        if rest is not None:
            await rest

    async def _flush(self, move: _Move) -> None:
        move.is_flushed = True
        job = move.future.flusher.job(move.future.log_end_offset, self._runtime.now_ms())
        await self._runtime.run_blocking(job.run, pool=Pool.UPKEEP)
        job.finish()

    # -- promotion ---------------------------------------------------------------------------------------

    def _complete(self, move: _Move) -> None:
        """Report a complete copy's directory to the controller, or promote it once the metadata log has that."""
        partition = move.partition
        at = partition.topic_partition
        if self._logs.get(at) is not move.current or self._logs.future_logs.get(at) is not move.future:
            # One of the two directories has failed.
            logger.warning(
                "%s: the move to log directory %s is cancelled, since a directory has failed",
                partition,
                move.future.directory.parent,
            )
            self.forget(partition)
        elif move.has_all:
            if self._is_known(move):
                self._promote(move)
            elif not move.is_caught_up:
                move.is_caught_up = True
                self._report_directory(partition)

    def _is_known(self, move: _Move) -> bool:
        """Whether the metadata image has the future log's directory; True below the version that has directories."""
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
        logger.info("%s: moved to log directory %s", partition, future.directory.parent)
        partition.replace_log(future)
        self._on_promoted(partition)

    def _report_directory(self, partition: Partition) -> None:
        self.on_directory((partition.topic_id, partition.topic_partition.partition))
