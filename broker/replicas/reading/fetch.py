"""Fetch: read the requested partitions, or wait until there is enough to read (ReplicaManager.fetchMessages).

    read all ---enough bytes, an error, max_wait_ms is 0------------> respond
             ---a follower opens a session--------------------------> respond
             ---a follower's high watermark is stale--> wait for records, a little ---> read all again, respond
             ---many rows---> read them in turns of the event loop, then as above and below
             ---some data is not in memory---> read it in a thread -> read all again, respond
             ---some is in the remote tier---> wait for it ---it is here, or a timeout-> read all again, respond
             ---too few bytes--> wait ---more arrives, or a timeout-> read all again, respond

What has waited locally is read again in turns, too, if it has many rows by then.

Enough is `min_bytes`. The reads are in `read_from_log.py`, the waits in `delayed_fetch.py`,
a follower's part in `follower_fetch.py`.

Source: Kafka's ReplicaManager.fetchMessages.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ottla.broker.replicas.reading.delayed_fetch import (
    FEW_ROWS,
    MAX_ROWS_AT_ONCE,
    DelayedFetch,
    DelayedRemoteFetch,
    while_wanted,
)
from ottla.broker.replicas.reading.fetch_contexts import FetchContext
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.broker.replicas.reading.read_from_log import ROWS_OF_STEP, LogReads
from ottla.broker.replicas.reading.remote_reads import RemoteReads
from ottla.broker.replicas.reading.response_rows import ResponseRows
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.broker.request_stats import RequestCounter
from ottla.protocol.errors import KafkaError
from ottla.runtime import Pool

T = TypeVar("T")

#: The second one is of many rows, which are read in turns of the loop once there is enough.
Delayed = DelayedResponse[T] | DelayedResponse[T | asyncio.Future[T]]


def fetch(
    replicas: ReplicaManager,
    preferred_read_replicas: PreferredReadReplicas,
    context: FetchContext,
    params: FetchParams,
    respond: Callable[[ResponseRows], T],
    *,
    remote: RemoteReads | None = None,
) -> T | Delayed[T] | asyncio.Future[T | asyncio.Future[T]] | Coroutine[Any, Any, T]:
    """Respond with `respond(rows)`, at once or when there is enough."""
    stats = replicas.topic_stats
    counter = stats.consumer_fetches if params.replica_id is None else stats.follower_fetches
    counter.left -= 1
    began_at = None
    if not counter.left:
        counter.begin_round()
        began_at = replicas.runtime.monotonic()
    reads = LogReads(replicas, preferred_read_replicas, context, params, remote)
    row_count = len(context.to_read)
    if row_count > FEW_ROWS and (row_count > MAX_ROWS_AT_ONCE or replicas.runtime.turns.is_spent):
        respond = _timed(replicas, counter, respond)
        return while_wanted(_read_in_turns(replicas, context, params, reads, respond, remote))
    if row_count > FEW_ROWS:
        replicas.runtime.turns.charge(row_count // ROWS_OF_STEP + 1)
    rows = reads.read(may_block=False)
    if reads.cold_reads:
        return _read_in_thread(replicas, reads, _timed(replicas, counter, respond))
    if _is_enough(context, params, reads):
        if began_at is not None:
            counter.observe(replicas.runtime.monotonic() - began_at)
        return respond(rows)
    return _delay(replicas, context, params, reads, respond, remote, counter)


def _is_enough(context: FetchContext, params: FetchParams, reads: LogReads) -> bool:
    """Whether the rows that were read are the response."""
    return (
        reads.has_urgent_row
        or reads.patient_count == len(context.requested)  # also if there is nothing to wait for
        or params.max_wait_ms <= 0
        or reads.size_bytes >= params.min_bytes
        or (context.session is None and params.replica_id is not None and context.opens_session)
    )


def _delay(
    replicas: ReplicaManager,
    context: FetchContext,
    params: FetchParams,
    reads: LogReads,
    respond: Callable[[ResponseRows], T],
    remote: RemoteReads | None,
    counter: RequestCounter | None,
) -> Delayed[T]:
    """Wait for more records. `counter` observes the time until the response; without one, `respond` observes
    it.
    """
    if reads.pending_reads:
        assert remote is not None
        if counter is not None:
            respond = _timed(replicas, counter, respond)
        delayed_remote = DelayedRemoteFetch(remote, params, reads, respond)
        return delayed_remote.watch(remote.fetch_purgatory, timeout_ms=delayed_remote.timeout_ms)
    times = None if counter is None else counter.waits
    delayed = DelayedFetch(replicas, context, params, reads, respond, times)
    replicas.purgatory.watch(delayed, timeout_ms=params.max_wait_ms)
    if reads.is_high_watermark_stale:
        delayed.on_new_high_watermark()
    if reads.without_metadata:
        delayed.await_metadata()
    return delayed


async def _read_in_turns(
    replicas: ReplicaManager,
    context: FetchContext,
    params: FetchParams,
    reads: LogReads,
    respond: Callable[[ResponseRows], T],
    remote: RemoteReads | None,
) -> T | asyncio.Future[T]:
    """Fetch many rows in turns of the event loop: other requests are handled in between."""
    rows = await reads.read_in_turns(may_block=False)
    if reads.cold_reads:
        return await _read_in_thread(replicas, reads, respond)
    # High watermarks that have taken turns to read do not wait for records, and are not read again for that.
    if _is_enough(context, params, reads) or reads.is_high_watermark_stale or context.is_outdated:
        # A response of 3,000 rows takes 3 ms.
        await replicas.runtime.turns.share(goes_first=params.replica_id is not None)
        return respond(rows)
    delayed = _delay(replicas, context, params, reads, respond, remote, None)
    delayed.try_complete()  # what was read in an earlier turn may have changed since
    return await delayed


async def _read_in_thread(
    replicas: ReplicaManager, reads: LogReads, respond: Callable[[ResponseRows], T]
) -> T:
    """Read the data that is not in memory in a thread, then all partitions again: the loop does not wait for a disk."""
    for read in reads.cold_reads:
        # Deleted meanwhile, or a failing disk: the read that follows reports the error in its row.
        with suppress(KafkaError):
            await replicas.runtime.run_blocking(read, pool=Pool.READS)
    return respond(await reads.read_in_turns(may_block=True))


def _timed(
    replicas: ReplicaManager, counter: RequestCounter, respond: Callable[[ResponseRows], T]
) -> Callable[[ResponseRows], T]:
    """Observe the time until the response of a fetch that has to wait."""
    monotonic, waits = replicas.runtime.monotonic, counter.waits
    began_at = monotonic()

    def respond_timed(rows: ResponseRows) -> T:
        waits.observe((monotonic() - began_at) * 1000)
        return respond(rows)

    return respond_timed
