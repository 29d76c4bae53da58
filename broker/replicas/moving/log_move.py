"""One log directory move: copies a partition's current log to its future log, as a follower copies its leader.

    step --the follower's next request--> read of the current log --the follower's action--> future log
     '---------- as long as it is not cancelled, also when there is nothing to copy ----------'

Of a tiered log the local segments are copied. The future log begins where they begin, with the current log's
leader epochs, its log start offset, and its producer snapshot at that offset: nothing is read from the remote
tier, as Kafka's does.

Source: ReplicaAlterLogDirsThread, LocalLeaderEndPoint of Kafka 4.3.1.
"""

import logging
from typing import Final, assert_never

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.following.follower_actions import FollowerActions
from ottla.broker.replicas.partition import Partition
from ottla.protocol.errors import OffsetMovedToTieredStorage, OffsetOutOfRange
from ottla.protocol.hot.fetch import Records
from ottla.replication.follower import Action, Bounds, Divergence, FetchBounds, FetchRecords, Follower
from ottla.replication.follower_states import ReplicaState
from ottla.replication.remote_log_aux import (
    BuildRemoteLogAux,
    FetchEpochEnd,
    FetchLeaderOffsets,
    LeaderOffsets,
)
from ottla.replication.replication_quota import ReplicationQuota
from ottla.runtime import Pool, Runtime
from ottla.storage import producer_snapshot
from ottla.storage.log import Log, WouldBlock
from ottla.storage.remote_restart import RemoteState

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20


class LogMove:
    """Copies a partition's current log to its future log in another log directory, as a follower would.

    `has_all` and `must_flush` decide when the future log may replace the current one.
    """

    __slots__ = (
        "_actions",
        "_quota",
        "_runtime",
        "current",
        "follower",
        "future",
        "is_cancelled",
        "is_caught_up",
        "is_flushed",
        "partition",
        "replica",
        "resumes_at_s",
    )

    def __init__(
        self, partition: Partition, future: Log, *, runtime: Runtime, quota: ReplicationQuota
    ) -> None:
        self._runtime = runtime
        self._quota = quota
        self._actions = FollowerActions(runtime, pool=Pool.UPKEEP)
        self.partition = partition
        assert future is not partition.log, str(partition)
        assert future.topic_id == partition.topic_id, (str(partition), future.topic_id)
        self.current = partition.log
        self.future = future
        self.replica = FollowerReplica(future, source="the log that it replaces")
        self.follower = Follower(future)
        #: The future log was complete at one time: its directory is reported to the controller.
        self.is_caught_up = False
        #: The future log was flushed when it was complete: only little is left for the promotion to flush.
        self.is_flushed = False
        #: Nothing more is copied: the move was cancelled, or is complete.
        self.is_cancelled = False
        self.resumes_at_s = 0.0

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

    async def step(self) -> bool:
        """Send one request to the current log and execute the follower's action; whether something was copied."""
        partition, follower = self.partition, self.follower
        if partition.leader_epoch < 0:
            return False
        self.replica.follow(partition.leader_epoch)
        await self._execute(follower.follow(partition.leader_epoch))
        match follower.next_request():
            case FetchRecords() as asked:
                try:
                    answer = await self._read(asked)
                except OffsetMovedToTieredStorage:
                    follower.on_offset_moved(asked)
                    return True
                except OffsetOutOfRange:
                    follower.on_out_of_range(asked)
                    return True
                if isinstance(answer, Divergence):
                    await self._execute(follower.on_divergence(asked, answer))
                    return True
                await self._execute(follower.on_records(asked, answer))
                self._quota.record(len(answer.records), now_ms=round(self._runtime.monotonic() * 1000))
                return bool(answer.records)
            case FetchBounds() as asked_bounds:
                log = self.current
                bounds = Bounds(log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset)
                await self._execute(follower.on_bounds(asked_bounds, bounds))
                return True
            case FetchLeaderOffsets() as asked_offsets:
                await self._execute(follower.on_leader_offsets(asked_offsets, self._current_offsets()))
                return True
            case FetchEpochEnd() | None:
                return False  # no copy has to be confirmed: none is looked for
            case unknown:
                assert_never(unknown)

    def _current_offsets(self) -> LeaderOffsets:
        log = self.current
        epoch = log.epoch_for_offset(log.local_log_start_offset - 1)
        return LeaderOffsets(
            log_start_offset=log.log_start_offset,
            local_log_start_offset=log.local_log_start_offset,
            bootstrap_offset=log.local_log_start_offset,
            previous_epoch=-1 if epoch is None else epoch,
        )

    async def _read(self, asked: FetchRecords) -> Records | Divergence:
        """Read as a leader does for a Fetch.

        Raises OffsetMovedToTieredStorage, OffsetOutOfRange, CorruptMessage, KafkaStorageError.
        """
        log = self.current
        try:
            return self._read_now(asked, may_block=False)
        except WouldBlock:
            # Brings the data into memory; then it is read again, since the log may have changed by then.
            await self._runtime.run_blocking(
                lambda: log.reader.warm_up(asked.fetch_offset, max_bytes=_READ_BYTES),
                pool=Pool.UPKEEP,
            )
        return self._read_now(asked, may_block=True)

    def _read_now(self, asked: FetchRecords, *, may_block: bool) -> Records | Divergence:
        log = self.current
        if asked.last_fetched_epoch is not None:
            diverging = self.partition.diverging_epoch(
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

    async def _execute(self, action: Action | None) -> None:
        if isinstance(action, BuildRemoteLogAux):
            await self._begin_after_tiered_records(action)
            return
        rest = self._actions.execute(
            action,
            self.follower,
            self.replica,
            is_wanted=lambda: not self.is_cancelled,
        )
        if rest is not None:
            await rest

    async def _begin_after_tiered_records(self, action: BuildRemoteLogAux) -> None:
        """Restart the future log where the current log's local segments begin."""
        current, offset = self.current, action.end_offset
        snapshot = await self._runtime.run_blocking(_snapshot_at, current, offset, pool=Pool.UPKEEP)
        if current.local_log_start_offset != offset:
            # Retention has removed more of them meanwhile.
            self.follower.on_remote_log_aux_failed()
            return
        state = RemoteState.of(
            offset=offset,
            log_start_offset=current.log_start_offset,
            leader_epochs=current.leader_epochs.entries,
            producer_snapshot=snapshot,
        )
        await self._actions.restart_from_remote(
            action, state, self.follower, self.replica, is_wanted=lambda: not self.is_cancelled
        )

    async def flush(self) -> None:
        """Flush the future log."""
        self.is_flushed = True
        job = self.future.flusher.job(self.future.log_end_offset, now_ms=self._runtime.now_ms())
        await self._runtime.run_blocking(job.run, pool=Pool.UPKEEP)
        job.finish()


def _snapshot_at(log: Log, offset: int) -> bytes:
    """The producer snapshot at the base offset of the first segment. Raises KafkaStorageError. [any thread]

    Without a valid one there are no producers, as after a start of this log.
    """
    try:
        data = log.files.file_system.read(log.files.snapshots.path_of(offset))
        producer_snapshot.decode(data)
    except (FileNotFoundError, producer_snapshot.CorruptSnapshot) as error:
        logger.info("%s: no producer snapshot at offset %d: %s", log.directory, offset, error)
        return producer_snapshot.encode({})
    except OSError as error:
        raise log.availability.read_failed(error) from error
    return data
