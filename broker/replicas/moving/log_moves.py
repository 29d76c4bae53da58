"""Log directory moves: replicas move to other log directories of their broker while they are in use (KIP-113, KIP-858).

    (requested) --a future log is created-------------------> COPYING
    COPYING     --it is a complete copy of the log----------> REPORTING its directory to the controller
    REPORTING   --the metadata log has it, still complete---> the future log replaces the current log
    any         --another directory, or replica removed-----> cancelled; a reported directory is reported back

A future log follows the partition's current log as a follower its leader, with the same state machine
(`ottla.replication.follower`): it reads the next records from the log, and truncates where the log was truncated, also
if that happened before a restart. The controller knows the new directory before the log moves (KIP-858): if the old one
fails in between, nothing is lost; if the new one fails, the controller knows that the replica is offline.

Moves share replica.alter.log.dirs.io.max.bytes.per.second, in turns of one read of at most 1 MiB.

Source: ReplicaAlterLogDirsManager, ReplicaAlterLogDirsThread of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.broker.replicas.moving.log_move import LogMove
from ottla.broker.replicas.partition import Partition
from ottla.metadata.features import DIRECTORIES_3_7_IV2
from ottla.metadata.image import MetadataImage
from ottla.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
)
from ottla.protocol.types import TopicPartition
from ottla.replication.replication_quota import ReplicationQuota
from ottla.runtime import Runtime
from ottla.storage import file_names
from ottla.storage.log_availability import TooManyOpenFiles
from ottla.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

#: Pause of all moves when there is nothing to copy, or the rate is exceeded.
_REST_S: Final = 0.1
#: Pause of a move after a bug (an unexpected exception), and while no descriptor is free.
_BACKOFF_S: Final = 10.0


class LogMoves:
    """Moves replicas to other log directories of this broker while they are in use (KIP-113, KIP-858).

    Everything belongs to the loop's thread.
    """

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
        #: Called when `directory_of` a partition changes, with (topic id, index); the broker reports to the controller.
        self.on_directory: Callable[[tuple[UUID, int]], None] = lambda place: None
        self._moves: dict[Partition, LogMove] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

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
        self._moves[partition] = LogMove(partition, future, runtime=self._runtime, quota=self._quota)
        if not self._is_stopped and (self._task is None or self._task.done()):
            self._task = self._runtime.supervise(self._run, name="log-moves")

    def cancel(self, partition: Partition) -> None:
        """The replica stays where it is. Raises KafkaStorageError if the future log cannot be removed."""
        self.forget(partition)
        self._logs.moving.delete(partition.topic_partition, now_ms=self._runtime.now_ms())

    def forget(self, partition: Partition) -> None:
        """Stop copying; the caller decides about the future log."""
        move = self._moves.pop(partition, None)
        if move is not None:
            move.is_cancelled = True
            if move.is_caught_up:
                self._report_directory(partition)

    def directory_of(self, partition: Partition) -> Path:
        """The directory to report to the controller: the future log's once it was complete, else the current log's."""
        move = self._moves.get(partition)
        return (move.future if move is not None and move.is_caught_up else partition.log).directory.parent

    async def stop(self) -> None:
        """Stop copying, once a thread that truncates has ended.

        Moves, also later ones, resume at the next start of the broker: requests are answered until all have
        stopped, and the logs are closed then.
        """
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    # -- copying ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._moves:
            has_copied = False
            for move in list(self._moves.values()):
                now_s = self._runtime.monotonic()
                if self._quota.is_exceeded(now_ms=round(now_s * 1000)):
                    break
                if not move.is_cancelled and move.resumes_at_s <= now_s:
                    # To the end: if the rate limit ends this round, the next one begins with the moves that waited.
                    self._moves[move.partition] = self._moves.pop(move.partition)
                    has_copied |= await self._take_turn(move)
            if not has_copied:
                await asyncio.sleep(_REST_S)

    async def _take_turn(self, move: LogMove) -> bool:
        """Execute one step of a move; whether something was copied. An error stops this move only."""
        has_copied = False
        try:
            has_copied = await move.step()
            if move.has_all and move.must_flush:
                await move.flush()
            # Other tasks run, and may cancel the move.
            await asyncio.sleep(0)
            if not move.is_cancelled:
                self._complete(move)
        except TooManyOpenFiles as error:
            logger.warning("%s: the log directory move waits: %s", move.partition, error)
            move.resumes_at_s = self._runtime.monotonic() + _BACKOFF_S
        except KafkaError as error:
            # A failing disk takes its directory offline; a damaged log stays until an operator repairs it.
            logger.error("%s: the log directory move has failed: %s", move.partition, error)
            move.follower.on_failure()
        except Exception:
            logger.exception("%s: the log directory move has failed", move.partition)
            move.follower.on_failure()
            move.resumes_at_s = self._runtime.monotonic() + _BACKOFF_S
        return has_copied

    # -- promotion ---------------------------------------------------------------------------------------

    def _complete(self, move: LogMove) -> None:
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

    def _is_known(self, move: LogMove) -> bool:
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

    def _promote(self, move: LogMove) -> None:
        partition = move.partition
        future = self._logs.moving.promote(partition.topic_partition, now_ms=self._runtime.now_ms())
        assert future is move.future, (str(partition), future.directory)
        assert partition.log is move.current, (str(partition), partition.log.directory)
        del self._moves[partition]
        move.is_cancelled = True
        logger.info("%s: moved to log directory %s", partition, future.directory.parent)
        partition.replace_log(future)
        self._on_promoted(partition)

    def _report_directory(self, partition: Partition) -> None:
        self.on_directory((partition.topic_id, partition.topic_partition.partition))
