"""Fetch: read the requested partitions, or wait until there is enough to read (ReplicaManager.fetchMessages).

    read all ---enough bytes, an error, max_wait_ms is 0------------> respond
             ---a follower opens a session--------------------------> respond
             ---a follower's high watermark is stale--> wait for records, a little ---> read all again, respond
             ---many rows---> read them in turns of the event loop, then as above and below
             ---some data is not in memory---> read it in a thread -> read all again, respond
             ---some is in the remote tier---> wait for it ---it is here, or a timeout-> read all again, respond
             ---too few bytes--> wait ---more arrives, or a timeout-> read all again, respond

Enough is `min_bytes`. The reads are in `read_from_log.py`, the waits in `delayed_fetch.py` and `delayed_remote_fetch.py`, a
follower's part in `follower_fetch.py`.

Source: Kafka's ReplicaManager.fetchMessages.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from broker.purgatory.delayed_response import DelayedResponse
from broker.reads.delayed_fetch import DelayedFetch
from broker.reads.delayed_remote_fetch import DelayedRemoteFetch
from broker.reads.fetch_contexts import FetchContext
from broker.reads.fetch_params import FetchParams
from broker.reads.fetch_sessions import FetchSession
from broker.reads.preferred_read_replica import PreferredReadReplicas
from broker.reads.read_from_log import LogReads
from broker.reads.remote_reads import RemoteReads
from broker.reads.response_rows import ResponseRows
from broker.replicas.replica_manager import ReplicaManager
from broker.request_stats import RequestCounter
from protocol.errors import KafkaError
from runtime import Pool

T = TypeVar("T")

#: More rows are read in turns of the event loop. A row with records takes 5 us, or twice that where so many do not fit into
#: the processor's caches.
MAX_ROWS_AT_ONCE: Final = 200


def fetch(
    replicas: ReplicaManager,
    preferred_read_replicas: PreferredReadReplicas,
    context: FetchContext,
    params: FetchParams,
    respond: Callable[[ResponseRows], T],
    *,
    remote: RemoteReads | None = None,
) -> T | DelayedResponse[T] | asyncio.Future[T] | Coroutine[Any, Any, T]:
    """Respond with `respond(rows)`, at once or when there is enough."""
    is_follower = params.replica_id is not None
    stats = replicas.topic_stats
    counter = stats.follower_fetches if is_follower else stats.consumer_fetches
    counter.left -= 1
    began_at = None
    if not counter.left:
        counter.begin_round()
        began_at = replicas.runtime.monotonic()
    if is_follower:
        respond = _counted(replicas, context.session, respond)
    reads = LogReads(replicas, preferred_read_replicas, context, params, remote)
    if len(context.partitions_to_read()) > MAX_ROWS_AT_ONCE:
        respond = _timed(replicas, counter, respond)
        return _while_wanted(_read_in_turns(replicas, context, params, reads, respond, remote))
    rows = reads.read(may_block=False)
    if reads.cold_reads:
        return _read_in_thread(replicas, reads, _timed(replicas, counter, respond))
    if _is_enough(context, params, reads):
        if began_at is not None:
            counter.observe(replicas.runtime.monotonic() - began_at)
        return respond(rows)
    return _delay(replicas, context, params, reads, _timed(replicas, counter, respond), remote)


def _is_enough(context: FetchContext, params: FetchParams, reads: LogReads) -> bool:
    """Whether the rows that were read are the response."""
    return (
        reads.is_urgent
        or params.max_wait_ms <= 0
        or reads.size_bytes >= params.min_bytes
        or not context.requested
        or (params.replica_id is not None and context.opens_session)
    )


def _delay(
    replicas: ReplicaManager,
    context: FetchContext,
    params: FetchParams,
    reads: LogReads,
    respond: Callable[[ResponseRows], T],
    remote: RemoteReads | None,
) -> DelayedResponse[T]:
    """Wait for more."""
    if reads.pending_reads:
        assert remote is not None
        delayed_remote = DelayedRemoteFetch(remote, params, reads, respond)
        return delayed_remote.watch(remote.fetch_purgatory, timeout_ms=delayed_remote.timeout_ms)
    delayed = DelayedFetch(replicas, context, params, reads, respond)
    delayed.watch(replicas.purgatory, timeout_ms=params.max_wait_ms)
    if reads.is_high_watermark_stale:
        delayed.on_new_high_watermark()
    if reads.lacks_metadata:
        delayed.await_metadata()
    return delayed


def _while_wanted(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """A future of the result; if it is cancelled, so is the work.

    A connection that is lost cancels what it waits for, but no task: the Fetch would wait for max_wait_ms, perhaps weeks.
    """
    task = asyncio.ensure_future(work)
    wanted = asyncio.shield(task)
    wanted.add_done_callback(lambda _: task.cancel())
    return wanted


async def _read_in_turns(
    replicas: ReplicaManager,
    context: FetchContext,
    params: FetchParams,
    reads: LogReads,
    respond: Callable[[ResponseRows], T],
    remote: RemoteReads | None,
) -> T:
    """As `fetch`, of many rows: other requests are handled in between."""
    rows = await reads.read_in_turns(may_block=False)
    if reads.cold_reads:
        return await _read_in_thread(replicas, reads, respond)
    # High watermarks that have taken turns to read do not wait for records, and are not read again for that.
    if _is_enough(context, params, reads) or reads.is_high_watermark_stale or context.is_outdated:
        await asyncio.sleep(0)  # a response of 3,000 rows takes 3 ms
        return respond(rows)
    delayed = _delay(replicas, context, params, reads, respond, remote)
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


def _counted(
    replicas: ReplicaManager, session: FetchSession | None, respond: Callable[[ResponseRows], T]
) -> Callable[[ResponseRows], T]:
    """Counts the records sent to a follower: rows that are sent, not earlier reads; for the replication quota, too."""

    def respond_counted(rows: ResponseRows) -> T:
        has_records = False
        for fetched, row in rows:
            if row.records and (partition := fetched.partition) is not None:
                has_records = True
                replicas.throttle.record_sent(partition, len(row.records))
                partition.stats.replication_bytes_out += len(row.records)
        if has_records and session is not None:
            session.high_watermark_delay.on_records(replicas.runtime.monotonic())
        return respond(rows)

    return respond_counted


def _timed(
    replicas: ReplicaManager, counter: RequestCounter, respond: Callable[[ResponseRows], T]
) -> Callable[[ResponseRows], T]:
    """Observes the time until the response of a fetch that has to wait."""
    monotonic, times = replicas.runtime.monotonic, counter.times
    began_at = monotonic()

    def respond_timed(rows: ResponseRows) -> T:
        assert times is not None
        times.observe((monotonic() - began_at) * 1000)
        return respond(rows)

    return respond_timed
