"""Executor of a follower's actions (`broker.replication.follower`), for replica fetchers and log directory moves.

    append                           --> at once
    truncate, no disk work is needed --> at once
    truncate                         --> a coroutine: each disk operation runs in a thread, then the loop continues

What can be done at once is done at once, so that a fetcher appends a response without a task; what has to wait is
returned as a coroutine, so that the fetcher's other partitions continue meanwhile. The follower sends no request until
its action is complete.

Invariant: the log is consistent between the steps of a truncation. Its partition may begin another leader epoch in
between; then the truncation is abandoned.

Source: Kafka's AbstractFetcherThread (doTruncate, truncateFullyAndStartAt) and LogManager.truncateTo, which block the
fetcher thread.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import assert_never

from broker.replicas.follower_replica import FollowerReplica
from broker.replication.follower import Action, Append, Follower, TruncateFullyAndStartAt, TruncateTo
from protocol.errors import KafkaError
from runtime import Pool, Runtime
from storage.background import BackgroundJob
from storage.log import Log

_Truncation = TruncateTo | TruncateFullyAndStartAt


class FollowerActions:
    """See the module."""

    def __init__(self, runtime: Runtime, *, pool: Pool) -> None:
        """`pool` runs the disk operations."""
        self._runtime = runtime
        self._pool = pool

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
        abandoned. Raises CorruptMessage, UnexpectedAppendOffset, KafkaStorageError; so does the coroutine.
        """
        match action:
            case None:
                return None
            case Append():
                replica.append(
                    action.records,
                    leader_epoch=action.leader_epoch,
                    high_watermark=action.high_watermark,
                    log_start_offset=action.log_start_offset,
                    now_ms=self._runtime.now_ms(),
                )
                follower.on_appended(action)
                return None
            case TruncateTo() | TruncateFullyAndStartAt():
                if not is_wanted():
                    return None
                if self._next_job(replica.log, action) is None:
                    self._truncate(replica, action)
                    follower.on_truncated()
                    return None
                return self._truncate_in_steps(action, follower, replica, is_wanted)
            case _:
                assert_never(action)

    def _next_job(self, log: Log, action: _Truncation) -> BackgroundJob | None:
        """The disk work that `_truncate` would block for; None: none. Raises KafkaStorageError."""
        match action:
            case TruncateTo():
                return log.truncation.next_job(action.offset, now_ms=self._runtime.now_ms())
            case TruncateFullyAndStartAt():
                return log.truncation.restart_job(action.offset)
            case _:
                assert_never(action)

    def _truncate(self, replica: FollowerReplica, action: _Truncation) -> None:
        """Truncate synchronously. Raises KafkaStorageError."""
        now_ms = self._runtime.now_ms()
        match action:
            case TruncateTo():
                replica.truncate_to(action.offset, now_ms=now_ms)
            case TruncateFullyAndStartAt():
                replica.truncate_fully_and_start_at(action.offset, now_ms=now_ms)
            case _:
                assert_never(action)

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
                    self._truncate(replica, action)
                    follower.on_truncated()
                    return
                segments = log.segments
                try:
                    await self._run(job)
                except KafkaError:
                    # An error is ignored where another epoch has truncated the log, or removed files under the thread.
                    if is_valid() and log.segments is segments:
                        raise
        finally:
            log.truncation.discard()

    async def _run(self, job: BackgroundJob) -> None:
        """Run both halves of the job. Also when cancelled: the loop's half adopts or removes the files of the thread's."""
        running = asyncio.ensure_future(self._runtime.run_blocking(job.run, pool=self._pool))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if not running.cancelled() and running.exception() is None:
                job.finish()
            raise
        job.finish()
