"""Truncating a follower's log without a wait on the event loop: what the disk has to do is done in a thread before.

Between the steps the log is whole, and its partition may begin another leader epoch: then the truncation is given up.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from broker.replication.follower import TruncateFullyAndStartAt, TruncateTo
from broker.runtime import Pool, Runtime
from protocol.errors import KafkaError
from storage.background import BackgroundJob
from storage.log import Log

Truncation = TruncateTo | TruncateFullyAndStartAt


class Truncated(Protocol):
    """A log, or the replica that has it."""

    def truncate_to(self, offset: int, *, now_ms: int) -> object:
        """See `Log.truncate_to`."""

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """See `Log.truncate_fully_and_start_at`."""


def next_job(log: Log, action: Truncation, *, now_ms: int) -> BackgroundJob | None:
    """What `carry_out` would wait for; None: nothing. Raises KafkaStorageError."""
    match action:
        case TruncateTo():
            return log.truncation_job(action.offset, now_ms=now_ms)
        case TruncateFullyAndStartAt():
            return log.restart_job(action.offset)


def carry_out(target: Truncated, action: Truncation, *, now_ms: int) -> None:
    """Truncate here and now. Raises KafkaStorageError."""
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
    """Truncate `log` by way of `target`, waiting for the disk in threads of `pool`.

    False: it was given up, since it is not wanted any more. Raises KafkaStorageError, CorruptMessage.
    """
    try:
        # Before each step: also the first one may find that another leader epoch has begun since it was decided on.
        while is_wanted():
            job = next_job(log, action, now_ms=runtime.now_ms())
            if job is None:
                carry_out(target, action, now_ms=runtime.now_ms())
                return True
            segments = log.segments
            try:
                await _run(runtime, job, pool)
            except KafkaError:
                # What a thread meets where another epoch truncates, or files have been removed, says nothing.
                if is_wanted() and log.segments is segments:
                    raise
    finally:
        log.give_up_truncation()
    return False


async def _run(runtime: Runtime, job: BackgroundJob, pool: Pool) -> None:
    """Both halves of the job. Also if this is cancelled: what the thread has made, the loop's half takes, or removes."""
    running = asyncio.ensure_future(runtime.run_blocking(job.run, pool=pool))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled() and running.exception() is None:
            job.finish()
        raise
    job.finish()
