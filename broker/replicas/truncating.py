"""Truncation of a follower's log without blocking the event loop: disk operations run in a thread beforehand.

Invariant: the log is consistent between the steps. Its partition may begin another leader epoch in between; then the
truncation is abandoned.

Source: Kafka's LogManager.truncateTo and truncateFullyAndStartAt, which block the fetcher thread.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from broker.replication.follower import TruncateFullyAndStartAt, TruncateTo
from protocol.errors import KafkaError
from runtime import Pool, Runtime
from storage.background import BackgroundJob
from storage.log import Log

Truncation = TruncateTo | TruncateFullyAndStartAt


class Truncated(Protocol):
    """A log, or the replica that holds it."""

    def truncate_to(self, offset: int, *, now_ms: int) -> object:
        """See `Log.truncate_to`."""

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """See `Log.truncate_fully_and_start_at`."""


def next_job(log: Log, action: Truncation, *, now_ms: int) -> BackgroundJob | None:
    """The disk work that `carry_out` would block for; None: none. Raises KafkaStorageError."""
    match action:
        case TruncateTo():
            return log.truncation_job(action.offset, now_ms=now_ms)
        case TruncateFullyAndStartAt():
            return log.restart_job(action.offset)


def carry_out(target: Truncated, action: Truncation, *, now_ms: int) -> None:
    """Truncate synchronously. Raises KafkaStorageError."""
    match action:
        case TruncateTo():
            target.truncate_to(action.offset, now_ms=now_ms)
        case TruncateFullyAndStartAt():
            target.truncate_fully_and_start_at(action.offset, now_ms=now_ms)


async def truncate(
    runtime: Runtime,
    log: Log,
    target: Truncated,
    action: Truncation,
    *,
    pool: Pool,
    is_wanted: Callable[[], bool],
) -> bool:
    """Truncate `log` through `target`, waiting for the disk in threads of `pool`.

    False: it was abandoned, since `is_wanted` is False. Raises KafkaStorageError, CorruptMessage.
    """
    try:
        # Checked before each step, also the first: another leader epoch may have begun since the decision.
        while is_wanted():
            job = next_job(log, action, now_ms=runtime.now_ms())
            if job is None:
                carry_out(target, action, now_ms=runtime.now_ms())
                return True
            segments = log.segments
            try:
                await _run(runtime, job, pool)
            except KafkaError:
                # An error is ignored where another epoch has truncated the log, or removed files under the thread.
                if is_wanted() and log.segments is segments:
                    raise
    finally:
        log.give_up_truncation()
    return False


async def _run(runtime: Runtime, job: BackgroundJob, pool: Pool) -> None:
    """Run both halves of the job. Also when cancelled: the loop's half adopts or removes the files of the thread's."""
    running = asyncio.ensure_future(runtime.run_blocking(job.run, pool=pool))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled() and running.exception() is None:
            job.finish()
        raise
    job.finish()
