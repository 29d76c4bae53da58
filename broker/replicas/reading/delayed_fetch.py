"""Delayed Fetch (Kafka's DelayedFetch, DelayedRemoteFetch): it waits for `min_bytes`, or for `max_wait_ms`.

A local one completes when a partition that it reads is deleted or led elsewhere, when the request's leader epoch is not
the partition's any more, when enough bytes have arrived, or when a follower can advance its high watermark,
unless records are expected that it can be sent with (`high_watermark_delay.py`). Then it reads all of its
partitions again: what was read before is not kept. One whose offset is in the remote tier waits for the
metadata of its copies, too, if that is still being read.

A remote one waits until chunks of the remote tier are in memory: it completes when all of its reads have ended or have
brought `min_bytes`, for the same reasons as a local one, or after the request's max_wait_ms or
remote.fetch.max.wait.ms, whichever is less. Then all partitions are read again. Reads that are not complete
go on, and answer the next Fetch.

Source: Kafka's DelayedFetch and DelayedRemoteFetch. Kafka watches a fetch under each of its partitions; here a fetch of
a session is watched under the session alone. Kafka waits for all remote reads, and for remote.fetch.max.wait.ms even if
the request's own limit is less: there, a read that is not complete is lost.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, TypeVar

from ottla.broker.replicas.reading.fetch_contexts import FetchContext
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.follower_fetch import is_high_watermark_stale
from ottla.broker.replicas.reading.high_watermark_delay import MAX_DELAY_S
from ottla.broker.replicas.reading.read_from_log import LogReads
from ottla.broker.replicas.reading.remote_reads import RemoteReads
from ottla.broker.replicas.reading.response_rows import ResponseRows
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.broker.replicas.waiting.delayed_operation import Timer
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.runtime.histogram import Histogram

T = TypeVar("T")

#: Between two looks whether metadata is read, at first and at most: it takes some hundred milliseconds after a start.
_FIRST_LOOK_S: Final = 0.01
_MAX_LOOK_S: Final = 0.2

#: More rows are read in turns of the event loop. A row with records takes 5 us, or twice that where so many
#: do not fit into the processor's caches.
MAX_ROWS_AT_ONCE: Final = 200
#: More rows are long work (`ottla.runtime.turns`): in a turn that has had its part of it, they are read in later ones.
FEW_ROWS: Final = 20


class DelayedFetch(DelayedResponse[T | asyncio.Future[T]]):
    """A Fetch that waits for enough records, a new high watermark, or its deadline.

    `reads` has not found enough: in this turn of the loop, else the caller calls `try_complete`.
    """

    __slots__ = (
        "_began_at", "_context", "_delay_timer", "_has_yielded", "_params", "_reads", "_replicas", "_respond", "_times",
        "is_short"
    )  # fmt: skip

    kind = "Fetch"

    def __init__(
        self,
        replicas: ReplicaManager,
        context: FetchContext,
        params: FetchParams,
        reads: LogReads,
        respond: Callable[[ResponseRows], T],
        times: Histogram | None,
    ) -> None:
        """`times` observes the time from now to the response."""
        super().__init__(replicas.runtime.loop)
        self._replicas = replicas
        self._context = context
        self._params = params
        self._reads = reads
        self._respond = respond
        self._times = times
        self._began_at = replicas.runtime.monotonic()
        self.is_short = len(context.requested) <= FEW_ROWS
        #: Of a follower's fetch: while its high watermark waits for records; and whether it has yielded a
        #: turn to producers.
        self._delay_timer: Timer | None = None
        self._has_yielded = False

    def expiry_kind(self) -> str:
        """The value of Kafka's metric tag fetcherType: "consumer" or "follower"."""
        return "consumer" if self._params.replica_id is None else "follower"

    def watch_keys(self) -> tuple[Hashable, ...]:
        """The keys under which the Fetch waits: its session, or without one its partitions."""
        context = self._context
        session = context.session
        if session is not None:
            return (session,)
        return tuple({fetched.partition: None for fetched in context.requested.values() if fetched.partition})

    def can_complete(self) -> bool:
        """Whether enough can be read now, or a row will be an error."""
        params = self._params
        size_bytes = 0
        is_stale = False
        for fetched in self._context.to_read:
            partition = fetched.partition
            if partition is None:
                # Not hosted at the last read: that error can wait, see PATIENT_ERRORS. A partition that is new in
                # the session is read with the others.
                continue
            request = fetched.request
            if (
                partition.is_deleted
                or request.current_leader_epoch not in (-1, partition.leader_epoch)
                or (not partition.is_leader and params.must_lead)
            ):
                return True
            if params.replica_id is None:
                end = partition.readable_end(is_read_committed=params.is_read_committed)
            else:
                end = partition.log.offsets.log_end_offset
            # Below the local log start it is in the remote tier, and throttled: what is appended does not help.
            if partition.log.offsets.local_log_start_offset <= request.fetch_offset < end and not (
                params.replica_id is not None
                and self._replicas.throttle.should_throttle(partition, params.replica_id)
            ):
                if params.min_bytes <= 1:
                    return True
                found_bytes = partition.log.reader.size_between(request.fetch_offset, end)
                if found_bytes is None:
                    return True
                size_bytes += min(found_bytes, request.partition_max_bytes)
            if params.replica_id is not None and not is_stale:
                is_stale = is_high_watermark_stale(fetched, partition.log)
        if size_bytes >= params.min_bytes:
            return True
        return is_stale and not self._awaits_records() and not self._yields()

    def on_new_high_watermark(self) -> None:
        """The follower's high watermark is stale; and there are no records, or not enough."""
        if not self._awaits_records():
            self._check_soon()

    def _awaits_records(self) -> bool:
        """Whether the new high watermark waits for records that it can be sent with."""
        if self._delay_timer is not None:
            return True
        session, runtime = self._context.session, self._replicas.runtime
        if session is None or not session.high_watermark_delay.on_new_high_watermark(runtime.monotonic()):
            return False
        self._delay_timer = runtime.call_later(MAX_DELAY_S, self._on_delay_over)
        return True

    def _on_delay_over(self) -> None:
        assert self._context.session is not None
        self._context.session.high_watermark_delay.on_delay_over()
        self.force_complete()

    def _yields(self) -> bool:
        """Yield one turn of the loop to the producers whose requests the same high watermark completes."""
        if self._has_yielded:
            return False
        self._has_yielded = True
        self._check_soon()
        return True

    def _end(self) -> None:
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        super()._end()

    def await_metadata(self, pause_s: float = _FIRST_LOOK_S) -> None:
        """Complete when the metadata of copies, which a row lacks, is read: look for it, less and less often.

        The read from the remote tier begins then, and answers the next Fetch.
        """
        if self._reads.has_metadata_now():
            self.force_complete()
        elif not self.is_done:
            next_pause_s = min(2 * pause_s, _MAX_LOOK_S)
            self._replicas.runtime.call_later(pause_s, lambda: self.await_metadata(next_pause_s))

    def _check_soon(self) -> None:
        """Check the condition again in the next turn of the loop."""
        for key in self._keys:
            self._replicas.purgatory.signal(key)

    def respond(self) -> T | asyncio.Future[T]:
        """Read all partitions again, and respond; of many rows, in later turns of the loop."""
        if len(self._context.to_read) > MAX_ROWS_AT_ONCE:
            return while_wanted(self._respond_in_turns())
        return self._send(self._reads.read(may_block=True))

    async def _respond_in_turns(self) -> T:
        rows = await self._reads.read_in_turns(may_block=True)
        # As the response to a Fetch that is read in turns when it arrives.
        await self._replicas.runtime.turns.share(goes_first=self._params.replica_id is not None)
        return self._send(rows)

    def _send(self, rows: ResponseRows) -> T:
        if self._times is not None:
            self._times.observe((self._replicas.runtime.monotonic() - self._began_at) * 1000)
        return self._respond(rows)


def while_wanted(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """A future of the result; if it is cancelled, so is the work.

    A connection that is lost cancels what it waits for, but no task: the Fetch would wait for max_wait_ms,
    perhaps weeks.
    """
    task = asyncio.ensure_future(work)
    wanted = asyncio.shield(task)
    wanted.add_done_callback(lambda _: task.cancel())
    return wanted


class DelayedRemoteFetch(DelayedResponse[T]):
    """A Fetch that waits for chunks of the remote tier, or its deadline.

    `reads` has read the partitions: in this turn of the loop, else the caller calls `try_complete`.
    """

    __slots__ = ("_params", "_reads", "_remote", "_respond")

    kind = "RemoteFetch"

    def __init__(
        self, remote: RemoteReads, params: FetchParams, reads: LogReads, respond: Callable[[ResponseRows], T]
    ) -> None:
        super().__init__(remote.runtime.loop)
        self._remote = remote
        self._params = params
        self._reads = reads
        self._respond = respond

    @property
    def timeout_ms(self) -> int:
        """The maximum wait: the lesser of the request's max_wait_ms and remote.fetch.max.wait.ms."""
        return min(self._params.max_wait_ms, self._remote.settings().fetch_max_wait_ms)

    def watch_keys(self) -> tuple[Hashable, ...]:
        """The keys under which the Fetch waits: its pending reads of the remote tier, and their partitions."""
        keys: dict[Hashable, None] = {}
        for fetched, read in self._reads.pending_reads:
            keys[read] = None
            keys[fetched.partition] = None
        return tuple(keys)

    def can_complete(self) -> bool:
        """Whether something can be sent, or a row will be an error."""
        is_complete = True
        size_bytes = self._reads.size_bytes
        for fetched, read in self._reads.pending_reads:
            partition, epoch = fetched.partition, fetched.request.current_leader_epoch
            assert partition is not None
            if (
                partition.is_deleted
                or epoch not in (-1, partition.leader_epoch)
                or (self._params.must_lead and not partition.is_leader)
            ):
                return True
            if not read.is_done:
                is_complete = False
            elif read.error is None:
                size_bytes += min(read.data_bytes, fetched.request.partition_max_bytes)
        return is_complete or size_bytes >= self._params.min_bytes

    def expire(self) -> None:
        """Count the expired Fetch, and respond: the maximum wait has passed."""
        self._remote.expired_fetch_count += 1
        super().expire()

    def respond(self) -> T:
        """Read all partitions again, and respond.

        Local data that has left the memory meanwhile is left out: the next Fetch reads it in a thread.
        """
        return self._respond(self._reads.read(may_block=False, has_waited=True))
