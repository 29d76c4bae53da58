"""Executor of a follower's actions (`ottla.replication.follower`), for replica fetchers and log directory moves.

    append                           --> at once; to a log that begins within the batch: after a truncation
    truncate, no disk work is needed --> at once
    truncate                         --> a coroutine: each disk operation runs in a thread, then the loop continues
    restart after the remote tier    --> a coroutine: reads leader epochs and producer state there, then as a truncation

What can be done at once is done at once, so that a fetcher appends a response without a task; what has to wait is
returned as a coroutine, so that the fetcher's other partitions continue meanwhile. The follower sends no request until
its action is complete.

Invariant: the log is consistent between the steps of a truncation. Its partition may begin another leader epoch in
between; then the truncation is abandoned. Until everything that comes from the remote tier is read and
checked, the log is unchanged.

Source: Kafka's AbstractFetcherThread (doTruncate, truncateFullyAndStartAt), TierStateMachine and LogManager.truncateTo,
which block the fetcher thread, for the remote tier, too (KAFKA-13560).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import assert_never

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.protocol.errors import KafkaError
from ottla.remote.auxiliary_state import AuxiliaryStates, Found, Unconfirmed
from ottla.remote.errors import RemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.replication.follower import Action, Append, Follower, TruncateFullyAndStartAt, TruncateTo
from ottla.replication.remote_log_aux import BuildRemoteLogAux
from ottla.runtime import Pool, Runtime
from ottla.storage.background import BackgroundJob
from ottla.storage.log import Log, UnexpectedAppendOffset
from ottla.storage.log_availability import DESCRIPTORS_RETRY_S, TooManyOpenFiles
from ottla.storage.remote_restart import RemoteState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RestartFromRemote:
    """The second half of BuildRemoteLogAux, after epochs and producer state were read from the copy."""

    asked: BuildRemoteLogAux
    state: RemoteState


@dataclass(frozen=True, slots=True, kw_only=True)
class _RestartAtBatch:
    """An Append to an empty log that starts within the first batch: the log restarts where that batch begins."""

    offset: int
    append: Append


_Truncation = TruncateTo | TruncateFullyAndStartAt | _RestartFromRemote | _RestartAtBatch


class FollowerActions:
    """Executes a follower's actions on its log: at once where possible, else in a coroutine."""

    def __init__(self, runtime: Runtime, *, pool: Pool, auxiliary: AuxiliaryStates | None = None) -> None:
        """`pool` runs the disk operations. `auxiliary` None: this broker has no remote tier."""
        self._runtime = runtime
        self._pool = pool
        self._auxiliary = auxiliary

    @property
    def has_remote_tier(self) -> bool:
        """Whether BuildRemoteLogAux can be executed."""
        return self._auxiliary is not None

    def execute(
        self,
        action: Action | None,
        follower: Follower,
        replica: FollowerReplica,
        *,
        is_wanted: Callable[[], bool],
    ) -> Coroutine[None, None, None] | None:
        """Execute the action and notify the follower; what has to wait is returned, None if that is nothing.

        `is_wanted` becomes False when the replica is not to be changed any more: an action that has waited is
        abandoned. Raises CorruptMessage, UnexpectedAppendOffset, KafkaStorageError, RemoteStorageError; so does the
        coroutine.
        """
        match action:
            case None:
                return None
            case Append():
                return self.append(action, follower, replica, is_wanted=is_wanted)
            case TruncateTo() | TruncateFullyAndStartAt():
                if not is_wanted():
                    return None
                return self._truncate_or_wait(action, follower, replica, is_wanted)
            case BuildRemoteLogAux():
                if not is_wanted():
                    return None
                return self._build_remote_log_aux(action, follower, replica, is_wanted)
            case _:
                assert_never(action)

    def append(
        self, action: Append, follower: Follower, replica: FollowerReplica, *, is_wanted: Callable[[], bool]
    ) -> Coroutine[None, None, None] | None:
        """Append records to the replica and notify the follower, as `execute` does.

        Raises CorruptMessage, UnexpectedAppendOffset, KafkaStorageError.
        """
        try:
            self._append(action, follower, replica)
        except UnexpectedAppendOffset as error:
            # The other log starts within a batch (DeleteRecords): an empty log takes the whole batch.
            log = replica.log
            is_empty = log.log_end_offset == log.log_start_offset
            if not (is_empty and error.first_offset < log.log_end_offset <= error.last_offset):
                raise
            # A wait outlives the response buffer.
            kept = action._replace(records=memoryview(bytes(action.records)))
            follower.on_batch_before_start()
            restart = _RestartAtBatch(offset=error.first_offset, append=kept)
            return self._truncate_or_wait(restart, follower, replica, is_wanted)
        return None

    def _append(self, action: Append, follower: Follower, replica: FollowerReplica) -> None:
        leader_epoch, records, high_watermark, log_start_offset = action
        replica.append(
            records,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            now_ms=self._runtime.now_ms(),
        )
        follower.on_appended(action)

    # -- the remote tier ---------------------------------------------------------------------------

    def _build_remote_log_aux(
        self,
        action: BuildRemoteLogAux,
        follower: Follower,
        replica: FollowerReplica,
        is_wanted: Callable[[], bool],
    ) -> Coroutine[None, None, None] | None:
        """Find the copy, after its metadata has been read; what has to wait is returned. Raises RemoteStorageError."""
        log, auxiliary = replica.log, self._auxiliary
        assert auxiliary is not None, str(replica)
        assert log.topic_id is not None, str(replica)
        partition = TopicIdPartition(log.topic_id, log.topic_partition)
        if not action.leader_ends:
            auxiliary.metrics.on_aux_state_requested(log.topic_partition.topic)
        if auxiliary.is_ready(partition):
            return self._find_and_restart(action, partition, auxiliary, follower, replica, is_wanted)
        return self._restart_when_ready(action, partition, auxiliary, follower, replica, is_wanted)

    async def _restart_when_ready(
        self,
        action: BuildRemoteLogAux,
        partition: TopicIdPartition,
        auxiliary: AuxiliaryStates,
        follower: Follower,
        replica: FollowerReplica,
        is_wanted: Callable[[], bool],
    ) -> None:
        log = replica.log
        await auxiliary.until_ready(partition, is_wanted=is_wanted)
        if replica.log is log and is_wanted():
            rest = self._find_and_restart(action, partition, auxiliary, follower, replica, is_wanted)
            if rest is not None:
                await rest

    def _find_and_restart(
        self,
        action: BuildRemoteLogAux,
        partition: TopicIdPartition,
        auxiliary: AuxiliaryStates,
        follower: Follower,
        replica: FollowerReplica,
        is_wanted: Callable[[], bool],
    ) -> Coroutine[None, None, None] | None:
        """Find the copy and return the coroutine that restarts the log after it.

        None: the leader has to be asked for one of its epochs first.
        """
        try:
            found = auxiliary.find(
                partition,
                end_offset=action.end_offset,
                previous_epoch=action.previous_epoch,
                leader_ends=action.leader_ends,
            )
        except RemoteStorageError:
            auxiliary.metrics.on_aux_state_failed(partition.topic_partition.topic)
            raise
        if isinstance(found, Unconfirmed):
            follower.on_unconfirmed_copy(action, epoch=found.epoch)
            return None
        return self._read_and_restart(action, found, auxiliary, follower, replica, is_wanted)

    async def _read_and_restart(
        self,
        action: BuildRemoteLogAux,
        found: Found,
        auxiliary: AuxiliaryStates,
        follower: Follower,
        replica: FollowerReplica,
        is_wanted: Callable[[], bool],
    ) -> None:
        try:
            state = await auxiliary.read(found, log_start_offset=action.log_start_offset)
        except RemoteStorageError:
            auxiliary.metrics.on_aux_state_failed(replica.log.topic_partition.topic)
            raise
        await self.restart_from_remote(action, state, follower, replica, is_wanted=is_wanted)

    async def restart_from_remote(
        self,
        action: BuildRemoteLogAux,
        state: RemoteState,
        follower: Follower,
        replica: FollowerReplica,
        *,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Restart the log after a copy, whose `state` has been read: the second half of BuildRemoteLogAux.

        `is_wanted` and the errors are those of `execute`.
        """
        rest = _RestartFromRemote(asked=action, state=state)
        await self._truncate_in_steps(rest, follower, replica, is_wanted)

    # -- truncations -------------------------------------------------------------------------------

    def _next_job(self, log: Log, action: _Truncation) -> BackgroundJob | None:
        """The disk work that `_truncate` would block for; None: none. Raises KafkaStorageError."""
        match action:
            case TruncateTo():
                return log.truncation.next_job(action.offset, now_ms=self._runtime.now_ms())
            case TruncateFullyAndStartAt() | _RestartAtBatch():
                return log.truncation.restart_job(action.offset)
            case _RestartFromRemote():
                return log.remote_restart.next_job(action.state)
            case _:
                assert_never(action)

    def _truncate(self, replica: FollowerReplica, action: _Truncation, follower: Follower) -> None:
        """Truncate synchronously, and notify the follower. Raises KafkaStorageError."""
        now_ms = self._runtime.now_ms()
        match action:
            case TruncateTo():
                replica.truncate_to(action.offset, now_ms=now_ms)
                follower.on_truncated()
            case TruncateFullyAndStartAt():
                replica.truncate_fully_and_start_at(action.offset, now_ms=now_ms)
                follower.on_truncated()
            case _RestartFromRemote():
                replica.restart_from_remote(action.state, now_ms=now_ms)
                follower.on_remote_log_aux_built(action.asked)
            case _RestartAtBatch():
                replica.truncate_fully_and_start_at(action.offset, now_ms=now_ms)
                follower.on_truncated()
                self._append(action.append, follower, replica)
            case _:
                assert_never(action)

    def _truncate_or_wait(
        self,
        action: _Truncation,
        follower: Follower,
        replica: FollowerReplica,
        is_wanted: Callable[[], bool],
    ) -> Coroutine[None, None, None] | None:
        if self._next_job(replica.log, action) is None:
            self._truncate(replica, action, follower)
            return None
        return self._truncate_in_steps(action, follower, replica, is_wanted)

    async def _truncate_in_steps(
        self,
        action: _Truncation,
        follower: Follower,
        replica: FollowerReplica,
        is_wanted: Callable[[], bool],
    ) -> None:
        log = replica.log

        def is_valid() -> bool:
            return replica.log is log and is_wanted()

        try:
            # Checked before each step, also the first: another leader epoch may have begun since the decision.
            while is_valid():
                job = self._next_job(log, action)
                if job is None:
                    self._truncate(replica, action, follower)
                    return
                segments = log.segments
                try:
                    await self._run(job)
                except TooManyOpenFiles as error:
                    logger.warning("%s: the log cannot be truncated now: %s", replica, error)
                    await asyncio.sleep(DESCRIPTORS_RETRY_S)
                except KafkaError:
                    # An error is ignored where another epoch has truncated the log, or removed files under the thread.
                    if is_valid() and log.segments is segments:
                        raise
        finally:
            if isinstance(action, _RestartFromRemote):
                log.remote_restart.discard()
            else:
                log.truncation.discard()

    async def _run(self, job: BackgroundJob) -> None:
        """Run both halves of the job, even if cancelled: the loop's half adopts or removes the thread's files."""
        running = asyncio.ensure_future(self._runtime.run_blocking(job.run, pool=self._pool))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if not running.cancelled() and running.exception() is None:
                job.finish()
            raise
        job.finish()
