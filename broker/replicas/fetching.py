"""Answering one Fetch: read what there is, or wait for it.

    read all ---enough bytes, an error to tell, no wish to wait--------> answer
             ---some of it is not in memory---> read it in a thread ---> read all again, answer
             ---too little--> park ---more arrives, or time is over----> read all again, answer

Enough are `min_bytes`. The first batch found is sent even if it is larger than every limit, so that a
consumer always makes progress (KIP-74).

Source: Kafka's ReplicaManager.fetchMessages and DelayedFetch. It parks a fetch under each of its
partitions; here one that belongs to a session waits for the session alone.
"""

from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from broker.replicas.fetch_contexts import FetchContext
from broker.replicas.fetch_sessions import FetchedPartition, PartitionKey
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from broker.runtime import Runtime
from protocol.errors import ErrorCode, KafkaError, NotLeaderOrFollower, UnknownLeaderEpoch
from protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from storage.log import WouldBlock

T = TypeVar("T")

#: The rows of one response, in the order of reading.
Answers = list[tuple[FetchedPartition, PartitionData]]

# What nearly every row holds. Shared, since a row is made for every partition of every fetch: nobody
# may change them.
_NO_DIVERGENCE: Final = EpochEndOffset()
_NO_LEADER: Final = LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = SnapshotId()

#: Errors that are found before anything is read: with another partition to wait for, they can wait too,
#: or a consumer of one deleted topic would ask in a circle.
_PATIENT_ERRORS: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


@dataclass(slots=True, frozen=True, kw_only=True)
class FetchParams:
    """What a Fetch asks of all its partitions together."""

    version: int
    #: The follower that asks; None for a consumer.
    replica_id: int | None
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_read_committed: bool

    @property
    def must_lead(self) -> bool:
        """Consumers may read from followers since version 11 (KIP-392); followers never do."""
        return self.replica_id is not None or self.version < 11


class Hosting(Protocol):
    """What a fetch needs of the replica manager."""

    @property
    def hosted(self) -> Mapping[PartitionKey, Partition]:
        """The partitions of this broker, by topic name and by topic id."""

    @property
    def fetch_purgatory(self) -> Purgatory:
        """Where fetches wait."""

    @property
    def runtime(self) -> Runtime:
        """Tasks, futures, blocking reads."""

    def why_not_hosted(self, key: PartitionKey) -> KafkaError:
        """What to tell of a partition that is not in `hosted`."""


def fetch(
    hosting: Hosting, context: FetchContext, params: FetchParams, respond: Callable[[Answers], T]
) -> "T | Future[T] | Coroutine[Any, Any, T]":
    """Answer by `respond(rows)`, at once or as soon as there is enough. A cancelled future waits no more."""
    return _Fetch(hosting, context, params, respond).begin()


class _Fetch(Generic[T]):
    __slots__ = ("_cold", "_context", "_future", "_hosting", "_params", "_respond")

    def __init__(
        self, hosting: Hosting, context: FetchContext, params: FetchParams, respond: Callable[[Answers], T]
    ) -> None:
        self._hosting = hosting
        self._context = context
        self._params = params
        self._respond = respond
        self._cold: list[Callable[[], object]] = []
        self._future: Future[T] | None = None

    def begin(self) -> "T | Future[T] | Coroutine[Any, Any, T]":
        params = self._params
        answers, size_bytes, is_urgent = self._read_all(may_block=False)
        if self._cold:
            return self._warm_up()
        if is_urgent or params.max_wait_ms <= 0 or size_bytes >= params.min_bytes or not self._context.asked:
            return self._respond(answers)
        return self._park()

    async def _warm_up(self) -> T:
        for read in self._cold:
            await self._hosting.runtime.run_blocking(read)
        answers, _, _ = self._read_all(may_block=True)
        return self._respond(answers)

    def _park(self) -> Future[T]:
        future: Future[T] = self._hosting.runtime.loop.create_future()
        self._future = future
        session = self._context.session
        keys = (
            (session,)
            if session is not None
            else tuple(fetched.partition for fetched in self._context.asked.values() if fetched.partition)
        )
        delayed = self._hosting.fetch_purgatory.watch(
            keys,
            timeout_ms=self._params.max_wait_ms,
            is_satisfied=self._is_satisfied,
            complete=self._complete,
        )
        # Its connection may end before; a fetch may ask to wait for weeks.
        future.add_done_callback(lambda _: delayed.abandon())
        return future

    def _complete(self, is_timed_out: bool) -> None:
        future = self._future
        assert future is not None
        if not future.done():
            try:
                answers, _, _ = self._read_all(may_block=True)
                future.set_result(self._respond(answers))
            except Exception as error:  # noqa: BLE001 - whoever awaits the answer hears of it
                future.set_exception(error)

    def _is_satisfied(self) -> bool:
        params = self._params
        size_bytes = 0
        for fetched in self._context.candidates():
            partition = fetched.partition
            if partition is None:
                # It was not here when we looked: that can wait, see _PATIENT_ERRORS. A session's fresh
                # partition is read with the rest.
                continue
            request = fetched.request
            if (
                partition.is_deleted
                or request.current_leader_epoch not in (-1, partition.leader_epoch)
                or (params.must_lead and not partition.is_leader)
            ):
                return True
            if request.fetch_offset < partition.readable_end(is_read_committed=params.is_read_committed):
                if params.min_bytes <= 1:
                    return True
                arrived = partition.appended_bytes - fetched.appended_bytes
                size_bytes += min(fetched.read_bytes + arrived, request.partition_max_bytes)
        return size_bytes >= params.min_bytes

    def _read_all(self, *, may_block: bool) -> tuple[Answers, int, bool]:
        """The rows to send, how many bytes they hold, and whether one of them must not wait."""
        context, params = self._context, self._params
        answers: Answers = []
        limit_bytes = params.max_bytes
        size_bytes = patient_count = 0
        is_urgent = False
        for fetched in list(context.candidates()):
            row = self._read(fetched, limit_bytes=limit_bytes, is_first=not size_bytes, may_block=may_block)
            count = len(row.records) if row.records else 0
            fetched.read_bytes = count
            size_bytes += count
            limit_bytes = max(0, limit_bytes - count)
            if row.error_code in _PATIENT_ERRORS:
                patient_count += 1
            elif (
                row.error_code
                or row.diverging_epoch.epoch >= 0
                or row.preferred_read_replica >= 0
                or (
                    count
                    and fetched.partition
                    and fetched.partition.is_behind_active_segment(fetched.request.fetch_offset)
                )
            ):
                is_urgent = True
            if context.must_answer(fetched, row):
                answers.append((fetched, row))
            elif fetched.request.fetch_offset >= (
                row.last_stable_offset if params.is_read_committed else row.high_watermark
            ):
                context.settle(fetched)
        return answers, size_bytes, is_urgent or patient_count == len(context.asked)

    def _read(
        self, fetched: FetchedPartition, *, limit_bytes: int, is_first: bool, may_block: bool
    ) -> PartitionData:
        params = self._params
        partition = fetched.partition = self._hosting.hosted.get(fetched.key)
        if fetched.session is not None:
            fetched.watch(partition)
        try:
            if partition is None:
                raise self._hosting.why_not_hosted(fetched.key)
            return self._read_hosted(
                fetched, partition, limit_bytes=limit_bytes, is_first=is_first, may_block=may_block
            )
        except WouldBlock:
            assert partition is not None
            self._cold.append(self._blocking_read(fetched, partition, limit_bytes))
            return _row(fetched, partition, b"", is_read_committed=False)
        except KafkaError as error:
            return _error_row(fetched.key[1], error.code, params.version)

    def _read_hosted(
        self,
        fetched: FetchedPartition,
        partition: Partition,
        *,
        limit_bytes: int,
        is_first: bool,
        may_block: bool,
    ) -> PartitionData:
        params, request = self._params, fetched.request
        epoch = request.current_leader_epoch
        partition.local_log(None if epoch == -1 else epoch, must_lead=params.must_lead)
        if params.replica_id is not None:
            raise _unknown_follower(partition, params.replica_id, has_epoch=epoch != -1)
        fetched.appended_bytes = partition.appended_bytes
        if request.last_fetched_epoch >= 0:
            divergence = partition.diverging_epoch(
                last_fetched_epoch=request.last_fetched_epoch, fetch_offset=request.fetch_offset
            )
            if divergence is not None:
                row = _row(fetched, partition, b"", is_read_committed=params.is_read_committed)
                row.diverging_epoch = EpochEndOffset(epoch=divergence[0], end_offset=divergence[1])
                return row
        records: bytes | memoryview = b""
        if request.fetch_offset != partition.readable_end(is_read_committed=params.is_read_committed):
            read = partition.read(
                request,
                max_bytes=min(request.partition_max_bytes, limit_bytes),
                min_one_message=is_first,
                is_read_committed=params.is_read_committed,
                may_block=may_block,
            )
            # Part of a batch is of no use: the client asks again, with more room.
            if not read.is_first_batch_incomplete:
                records = read.records
        return _row(fetched, partition, records, is_read_committed=params.is_read_committed)

    def _blocking_read(
        self, fetched: FetchedPartition, partition: Partition, limit_bytes: int
    ) -> Callable[[], object]:
        request = fetched.request
        return lambda: partition.read(
            request,
            max_bytes=min(request.partition_max_bytes, limit_bytes),
            min_one_message=True,
            is_read_committed=self._params.is_read_committed,
            may_block=True,
        )


def _row(
    fetched: FetchedPartition,
    partition: Partition,
    records: bytes | memoryview,
    *,
    is_read_committed: bool,
) -> PartitionData:
    log = partition.log
    aborted = None
    if is_read_committed:
        # Up to the last stable offset rather than to the end of `records`: the client skips a
        # transaction that begins later than what it got, and it is in its next answer again.
        aborted = (
            [
                AbortedTransaction(producer_id=found.producer_id, first_offset=found.first_offset)
                for found in log.aborted_transactions(fetched.request.fetch_offset, log.last_stable_offset)
            ]
            if records
            else []
        )
    return PartitionData(
        partition_index=fetched.key[1],
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        diverging_epoch=_NO_DIVERGENCE,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=aborted,
        records=records,
    )


def _error_row(index: int, code: ErrorCode, version: int) -> PartitionData:
    if code == ErrorCode.kafka_storage_error and version <= 5:
        # Clients that old do not know that they may try again after this error.
        code = ErrorCode.not_leader_or_follower
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        diverging_epoch=_NO_DIVERGENCE,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=None,
        records=b"",
    )


def _unknown_follower(partition: Partition, replica_id: int, *, has_epoch: bool) -> KafkaError:
    # A client that claims to be a replica must not move the high watermark (CVE-2018-1288). With an
    # epoch, the pair (replica, epoch) is what is not known (yet), so that a real follower tries again.
    text = f"{partition}: broker {replica_id} is not one of the replicas {partition.replicas} it could be"
    return UnknownLeaderEpoch(text) if has_epoch else NotLeaderOrFollower(text)
