"""Fetch and delayed fetch: read the requested partitions, or wait until there is enough to read.

    read all ---enough bytes, an error, max_wait_ms is 0------------> respond
             ---a follower opens a session--------------------------> respond
             ---a follower's high watermark is stale--> yield to producers --> read all again, respond
             ---some data is not in memory---> read it in a thread -> read all again, respond
             ---too few bytes--> park ---more arrives, or a timeout-> read all again, respond

Enough is `min_bytes`. The first batch found is sent even if it is larger than every limit, so that a
consumer always makes progress (KIP-74).

A follower reads up to the log end, and its fetch offset shows how far it has replicated: the leader records that when
the fetch arrives, not when it responds. It responds at once when the follower can advance its high watermark, and when
the fetch opens a session, so that consumers of followers do not wait for replica.fetch.wait.max.ms (KIP-392; with Kafka
4.3.1 they wait). Before a response that advances the high watermark it yields a few turns of the loop to the producers
whose requests the same high watermark completes: their next requests, if sent already, are appended by then, and the
response includes those records, too.

A consumer may be redirected to a nearer replica (`preferred_read_replica.py`). From a follower it may read what that follower
knows to be committed:

| fetch offset at a follower | response (KIP-392) |
|---|---|
| below the log start (case 3) | OFFSET_OUT_OF_RANGE, with log start offset and high watermark |
| up to the high watermark | records |
| up to the log end (case 1), or below the leader's high watermark (case 2) | OFFSET_NOT_AVAILABLE |
| beyond (case 4) | OFFSET_OUT_OF_RANGE, with log start offset and high watermark |

Source: Kafka's ReplicaManager.fetchMessages and DelayedFetch. Kafka parks a fetch under each of its
partitions; here a fetch of a session waits under the session alone.
"""

from asyncio import Future
from collections.abc import Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from broker.reads.fetch_contexts import FetchContext
from broker.reads.fetch_sessions import FetchedPartition, FetchRow, PartitionKey
from broker.reads.preferred_read_replica import ClosestReplica
from broker.replicas.leader_throttle import LeaderThrottle
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from broker.replication.replica_selector import ClientMetadata
from protocol.errors import ErrorCode, KafkaError, OffsetOutOfRange
from protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from runtime import Pool, Runtime
from storage.log import Log, WouldBlock

T = TypeVar("T")

#: The rows of one response, in the order of reading.
Answers = list[tuple[FetchedPartition, PartitionData]]

# Fields of nearly every row. Shared, since a row is created for every partition of every fetch: they must
# not be changed.
_NO_DIVERGENCE: Final = EpochEndOffset()
_NO_LEADER: Final = LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = SnapshotId()

#: In a request's row: the follower does not report its high watermark (before version 18, and Kafka 4.3.1).
_UNTOLD: Final = 2**63 - 1

#: Turns of the event loop until a producer has its response and its next request is handled. With pipelined requests a
#: record then costs each follower one fetch instead of two: a third less CPU at 1,000 requests a second.
TURNS_FOR_PRODUCERS: Final = 4

#: Errors found before any read. If the fetch has other partitions to wait for, these errors wait too: otherwise a
#: consumer of one deleted topic would fetch in a tight loop.
_PATIENT_ERRORS: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


@dataclass(slots=True, kw_only=True)
class FetchParams:
    """Parameters of a Fetch for all its partitions. Never changed; not frozen, since that takes 2 us to create."""

    version: int
    #: The fetching follower and its broker epoch (-1: none sent); None for a consumer.
    replica_id: int | None
    replica_epoch: int = -1
    #: A consumer that may be redirected to a nearer replica (KIP-392); None: no redirection.
    client: ClientMetadata | None = None
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_read_committed: bool

    @property
    def must_lead(self) -> bool:
        """Consumers may read from followers since version 11 (KIP-392); followers never do."""
        return self.replica_id is not None or self.version < 11


class Hosting(Protocol):
    """The part of the replica manager that a fetch uses."""

    @property
    def hosted(self) -> Mapping[PartitionKey, Partition]:
        """The partitions of this broker, by topic name and by topic id."""

    @property
    def purgatory(self) -> Purgatory:
        """Where fetches wait."""

    @property
    def runtime(self) -> Runtime:
        """Tasks, futures, blocking reads."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id; None if there is none."""

    def why_not_hosted(self, key: PartitionKey, *, known_name: str | None) -> KafkaError:
        """The error of a partition that is not in `hosted`; `known_name` is the last known name of a topic id."""

    @property
    def throttle(self) -> LeaderThrottle:
        """Which followers get no records now."""

    @property
    def closest_replica(self) -> ClosestReplica:
        """Chooses consumers' preferred read replicas."""


def fetch(
    hosting: Hosting, context: FetchContext, params: FetchParams, respond: Callable[[Answers], T]
) -> "T | Future[T] | Coroutine[Any, Any, T]":
    """Respond with `respond(rows)`, at once or when there is enough. A cancelled future stops waiting."""
    return _Fetch(hosting, context, params, respond).begin()


class _Fetch(Generic[T]):
    __slots__ = (
        "_cold", "_context", "_future", "_hosting", "_is_first", "_is_stale", "_keys", "_params",
        "_respond", "_turns",
    )  # fmt: skip

    def __init__(
        self, hosting: Hosting, context: FetchContext, params: FetchParams, respond: Callable[[Answers], T]
    ) -> None:
        self._hosting = hosting
        self._context = context
        self._params = params
        self._respond = respond
        self._cold: list[Callable[[], object]] = []
        self._future: Future[T] | None = None
        #: Watch keys in the purgatory.
        self._keys: tuple[Hashable, ...] = ()
        #: A follower's fetch: even a response without records would advance the follower's high watermark.
        self._is_stale = False
        #: Turns of the loop that it has yielded to producers.
        self._turns = 0
        #: A follower's progress is recorded once, when its fetch arrives.
        self._is_first = True

    def begin(self) -> "T | Future[T] | Coroutine[Any, Any, T]":
        params = self._params
        answers, size_bytes, is_urgent = self._read_all(may_block=False)
        self._is_first = False
        if self._cold:
            return self._warm_up()
        if (
            is_urgent
            or params.max_wait_ms <= 0
            or size_bytes >= params.min_bytes
            or not self._context.asked
            or (params.replica_id is not None and self._context.begins_session)
        ):
            return self._answer(answers)
        future = self._park()
        if self._is_stale:
            self._look_again()
        return future

    async def _warm_up(self) -> T:
        for read in self._cold:
            # Deleted meanwhile, or a failing disk: the read that follows reports the error in its row.
            with suppress(KafkaError):
                await self._hosting.runtime.run_blocking(read, pool=Pool.READS)
        answers, _, _ = self._read_all(may_block=True)
        return self._answer(answers)

    def _park(self) -> Future[T]:
        future: Future[T] = self._hosting.runtime.loop.create_future()
        self._future = future
        session = self._context.session
        self._keys = (
            (session,)
            if session is not None
            else tuple(fetched.partition for fetched in self._context.asked.values() if fetched.partition)
        )
        delayed = self._hosting.purgatory.watch(
            self._keys,
            timeout_ms=self._params.max_wait_ms,
            is_satisfied=self._is_satisfied,
            complete=self._complete,
        )
        # The connection may close before the timeout; a fetch may ask to wait for weeks.
        future.add_done_callback(lambda _: delayed.abandon())
        return future

    def _complete(self, is_timed_out: bool) -> None:
        future = self._future
        assert future is not None
        if not future.done():
            try:
                answers, _, _ = self._read_all(may_block=True)
                future.set_result(self._answer(answers))
            except Exception as error:  # noqa: BLE001 - raised where the response is awaited
                future.set_exception(error)

    def _look_again(self) -> None:
        """Check this fetch again in the next turn of the loop."""
        for key in self._keys:
            self._hosting.purgatory.signal(key)

    def _is_satisfied(self) -> bool:
        params = self._params
        size_bytes = 0
        is_stale = False
        for fetched in self._context.candidates():
            partition = fetched.partition
            if partition is None:
                # Not hosted at the last read: that error can wait, see _PATIENT_ERRORS. A partition that is new in
                # the session is read with the others.
                continue
            request = fetched.request
            if (
                partition.is_deleted
                or request.current_leader_epoch not in (-1, partition.leader_epoch)
                or (params.must_lead and not partition.is_leader)
            ):
                return True
            if params.replica_id is None:
                end = partition.readable_end(is_read_committed=params.is_read_committed)
            else:
                end = partition.log.log_end_offset
                is_stale = is_stale or _is_high_watermark_stale(fetched, partition.log)
                if self._hosting.throttle.is_held_back(partition, params.replica_id):
                    continue
            if request.fetch_offset < end:
                if params.min_bytes <= 1:
                    return True
                arrived = partition.appended_bytes - fetched.appended_bytes
                size_bytes += min(fetched.read_bytes + arrived, request.partition_max_bytes)
        if is_stale and self._turns < TURNS_FOR_PRODUCERS:
            self._turns += 1
            self._look_again()
            is_stale = False
        return is_stale or size_bytes >= params.min_bytes

    def _read_all(self, *, may_block: bool) -> tuple[Answers, int, bool]:
        """The rows to send, their size in bytes, and whether one of them must be sent at once."""
        context, params = self._context, self._params
        answers: Answers = []
        limit_bytes = params.max_bytes
        size_bytes = patient_count = 0
        is_urgent = False
        for fetched in list(context.candidates()):
            row = self._read(fetched, limit_bytes=limit_bytes, is_first=not size_bytes, may_block=may_block)
            count = fetched.read_bytes = len(row.records or b"")
            if count and params.replica_id is not None:
                count = fetched.read_bytes = self._sent_to_follower(fetched, row)
            if count:
                size_bytes += count
                limit_bytes = max(0, limit_bytes - count)
                assert fetched.partition is not None
                if fetched.partition.is_behind_active_segment(fetched.request.fetch_offset):
                    is_urgent = True
            elif row.error_code:
                if row.error_code in _PATIENT_ERRORS:
                    patient_count += 1
                else:
                    is_urgent = True
            elif row.diverging_epoch is not _NO_DIVERGENCE or row.preferred_read_replica >= 0:
                is_urgent = True
            elif params.replica_id is not None:
                assert fetched.partition is not None
                if _is_high_watermark_stale(fetched, fetched.partition.log):
                    # Regardless of what was sent before: the follower may have ignored that response as outdated.
                    self._is_stale = True
                    answers.append((fetched, row))
                    continue
            if context.must_answer(fetched, row):
                answers.append((fetched, row))
            elif self._has_all(fetched, row):
                context.settle(fetched)
        return answers, size_bytes, is_urgent or patient_count == len(context.asked)

    def _sent_to_follower(self, fetched: FetchedPartition, row: PartitionData) -> int:
        """The size in bytes of the row's records for a follower: all, or none while it is throttled."""
        partition, replica_id = fetched.partition, self._params.replica_id
        assert partition is not None
        assert replica_id is not None
        if self._hosting.throttle.is_held_back(partition, replica_id):
            row.records = b""
        return len(row.records or b"")

    def _answer(self, answers: Answers) -> T:
        """Send these rows; only they count for the replication quota, not earlier reads."""
        if self._params.replica_id is not None:
            for fetched, row in answers:
                if row.records and fetched.partition is not None:
                    self._hosting.throttle.note_sent(fetched.partition, len(row.records))
        return self._respond(answers)

    def _has_all(self, fetched: FetchedPartition, row: PartitionData) -> bool:
        """Whether there is nothing left to read until the partition changes."""
        if self._params.replica_id is None:
            end = row.last_stable_offset if self._params.is_read_committed else row.high_watermark
        else:
            assert fetched.partition is not None
            end = fetched.partition.log.log_end_offset
        return fetched.request.fetch_offset >= end

    def _read(
        self, fetched: FetchedPartition, *, limit_bytes: int, is_first: bool, may_block: bool
    ) -> PartitionData:
        """Read one row. One long function for speed: a fetch of 1,000 partitions calls it 1,000 times."""
        params, request = self._params, fetched.request
        partition = self._hosting.hosted.get(fetched.key)
        if fetched.watched is not partition and fetched.session is not None:
            fetched.watch(partition)
        try:
            if partition is None:
                raise self._why_missing(fetched)
            fetched.partition = partition
            divergence = _NO_DIVERGENCE
            if (
                not partition.is_leader
                or partition.leader_epoch != request.current_leader_epoch != -1
                or request.last_fetched_epoch >= 0
                or params.replica_id is not None
            ):
                divergence = self._check(partition, fetched)
            log = partition.log
            if params.client is not None and (row := self._redirect(partition, fetched)) is not None:
                return row
            fetched.appended_bytes = partition.appended_bytes
            high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
            log_start_offset = log.log_start_offset
            end = last_stable_offset if params.is_read_committed else high_watermark
            if params.replica_id is not None:
                end = log.log_end_offset
            records: bytes | memoryview = b""
            aborted: list[AbortedTransaction] | None = [] if params.is_read_committed else None
            if divergence is not _NO_DIVERGENCE:
                aborted = None
            elif request.fetch_offset != end:
                read = log.read(
                    request.fetch_offset,
                    max_bytes=min(request.partition_max_bytes, limit_bytes),
                    max_offset=end,
                    min_one_message=is_first,
                    may_block=may_block,
                    lend=True,
                )
                if read.is_first_batch_incomplete:
                    # A client cannot use part of a batch: it fetches again with a larger limit.
                    aborted = None
                else:
                    records = read.records
                    if params.is_read_committed:
                        aborted = _aborted_transactions(log, request.fetch_offset, end)
        except WouldBlock:
            self._cold.append(self._warming_read(request, log, end, limit_bytes))
        except KafkaError as error:
            return self._refusal(fetched, error)
        return PartitionData(
            partition_index=fetched.key[1],
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log_start_offset,
            diverging_epoch=divergence,
            current_leader=_NO_LEADER,
            snapshot_id=_NO_SNAPSHOT,
            aborted_transactions=aborted,
            records=records,
        )

    def _why_missing(self, fetched: FetchedPartition) -> KafkaError:
        """The error of a partition that is not hosted.

        As in Kafka, a session keeps the name of a topic id: a deleted topic is not reported as an unknown id.
        """
        topic, last = fetched.key[0], fetched.partition
        if fetched.topic_name is None and isinstance(topic, UUID):
            fetched.topic_name = (
                self._hosting.topic_name(topic) if last is None else last.topic_partition.topic
            )
        fetched.partition = None
        return self._hosting.why_not_hosted(fetched.key, known_name=fetched.topic_name)

    def _refusal(self, fetched: FetchedPartition, error: KafkaError) -> PartitionData:
        row = _error_row(fetched.key[1], error.code, self._params.version)
        partition = fetched.partition
        if partition is not None and not partition.is_leader and isinstance(error, OffsetOutOfRange):
            # So that the consumer can distinguish too small from too large (KIP-392, cases 3 and 4).
            row.high_watermark = partition.log.high_watermark
            row.log_start_offset = partition.log.log_start_offset
        return row

    def _redirect(self, partition: Partition, fetched: FetchedPartition) -> PartitionData | None:
        """A row with the preferred read replica instead of records; None: read from this one."""
        assert self._params.client is not None
        preferred = self._hosting.closest_replica.choose(
            partition, self._params.client, fetched.request.fetch_offset
        )
        return None if preferred is None else _preferred_row(fetched.key[1], partition.log, preferred)

    def _check(self, partition: Partition, fetched: FetchedPartition) -> EpochEndOffset:
        """Raise unless this broker may serve the row; returns where the sender's log diverges from ours, if it does.

        Records a follower's progress, unless its log diverges or its fetch offset is out of range.
        """
        params, request = self._params, fetched.request
        epoch = request.current_leader_epoch
        partition.local_log(None if epoch == -1 else epoch, must_lead=params.must_lead)
        if params.replica_id is not None:
            partition.check_follower(
                params.replica_id,
                None if params.replica_epoch == -1 else params.replica_epoch,
                has_leader_epoch=epoch != -1,
            )
        elif not partition.is_leader:
            partition.check_offset_is_known(request.fetch_offset)
        if request.last_fetched_epoch >= 0:
            found = partition.diverging_epoch(
                last_fetched_epoch=request.last_fetched_epoch, fetch_offset=request.fetch_offset
            )
            if found is not None:
                return EpochEndOffset(epoch=found[0], end_offset=found[1])
        if params.replica_id is not None and self._is_first:
            log = partition.log
            if log.log_start_offset <= request.fetch_offset <= log.log_end_offset:  # else the read raises
                partition.on_follower_fetch(
                    params.replica_id,
                    fetch_offset=request.fetch_offset,
                    log_start_offset=request.log_start_offset,
                    broker_epoch=params.replica_epoch,
                    session=fetched.session,
                    now_ms=self._hosting.runtime.now_ms(),
                )
        return _NO_DIVERGENCE

    def _warming_read(self, request: FetchRow, log: Log, end: int, limit_bytes: int) -> Callable[[], object]:
        return lambda: log.warm_up(
            request.fetch_offset, max_bytes=min(request.partition_max_bytes, limit_bytes), max_offset=end
        )


def _aborted_transactions(log: Log, fetch_offset: int, end: int) -> list[AbortedTransaction]:
    # Up to the last stable offset rather than to the end of the records read: the client ignores a transaction
    # that begins later, and receives it again with its records.
    return [
        AbortedTransaction(producer_id=found.producer_id, first_offset=found.first_offset)
        for found in log.aborted_transactions(fetch_offset, end)
    ]


def _error_row(index: int, code: ErrorCode, version: int) -> PartitionData:
    if code == ErrorCode.kafka_storage_error and version <= 5:
        # Clients of these versions do not retry after this error.
        code = ErrorCode.not_leader_or_follower
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        diverging_epoch=_NO_DIVERGENCE,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        # As in Kafka, whose rows differ in this field where no log was read; no client depends on it.
        aborted_transactions=[] if code in _PATIENT_ERRORS else None,
        records=b"",
    )


def _preferred_row(index: int, log: Log, preferred: int) -> PartitionData:
    """A row without records that names the preferred read replica (KIP-392)."""
    return PartitionData(
        partition_index=index,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        diverging_epoch=_NO_DIVERGENCE,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=None,
        preferred_read_replica=preferred,
        records=b"",
    )


def _is_high_watermark_stale(fetched: FetchedPartition, log: Log) -> bool:
    """Whether the leader's high watermark would advance the follower's.

    A follower that does not report its high watermark has the one last sent in its session. Without a session it
    receives the high watermark with records, or at the timeout: otherwise all of its fetches would be answered at once.
    """
    request = fetched.request
    known = request.high_watermark
    if known == _UNTOLD:
        if fetched.session is None:
            return False
        known = -1 if fetched.high_watermark is None else fetched.high_watermark
    return known < min(log.high_watermark, request.fetch_offset)
