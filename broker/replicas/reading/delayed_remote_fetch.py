"""Delayed remote Fetch (Kafka's DelayedRemoteFetch): it waits until chunks of the remote tier are in memory.

It completes when all of its reads have ended or have brought `min_bytes`, when one of its partitions is
deleted, led elsewhere or in another leader epoch, or after the request's max_wait_ms or
remote.fetch.max.wait.ms, whichever is less. Then all partitions are read again. Reads that are not complete
go on, and answer the next Fetch.

Source: Kafka's DelayedRemoteFetch. Differs: Kafka waits for all reads, and for remote.fetch.max.wait.ms even if
the request's own limit is less: there, a read that is not complete is lost.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar

from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.read_from_log import LogReads
from ottla.broker.replicas.reading.remote_reads import RemoteReads
from ottla.broker.replicas.reading.response_rows import ResponseRows
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse

T = TypeVar("T")


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
        """The pending reads of the remote tier, and their partitions."""
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
