"""Reads of one Fetch: its partitions in order, up to the request's limits (ReplicaManager.readFromLog).

Each row's records reduce the limit of the next ones; the first batch found is sent even if it is larger than every
limit, so that a consumer always makes progress (KIP-74). A row may be a redirection to a nearer replica
(`preferred_read_replica.py`). From a follower a consumer may read what that follower knows to be committed:

| fetch offset at a follower | response (KIP-392) |
|---|---|
| below the log start (case 3) | OFFSET_OUT_OF_RANGE, with log start offset and high watermark |
| up to the high watermark | records |
| up to the log end (case 1), or below the leader's high watermark (case 2) | OFFSET_NOT_AVAILABLE |
| beyond (case 4) | OFFSET_OUT_OF_RANGE, with log start offset and high watermark |

Source: Kafka's ReplicaManager.readFromLog and Partition.fetchRecords.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final
from uuid import UUID

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.fetch_contexts import FetchContext
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.fetch_sessions import FetchedPartition, RequestRow
from ottla.broker.replicas.reading.follower_fetch import (
    check_follower,
    is_high_watermark_stale,
    is_in_remote_tier,
    moved_row,
    record_progress,
)
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.broker.replicas.reading.remote_reads import LocalFrom, RemoteReads
from ottla.broker.replicas.reading.response_rows import (
    NO_DIVERGENCE,
    PATIENT_ERRORS,
    ResponseRows,
    aborted_transactions,
    empty_row,
    error_row,
    must_be_seen,
    with_aborted_transactions,
    without_records,
)
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.protocol.errors import ErrorCode, KafkaError, OffsetMovedToTieredStorage, OffsetOutOfRange
from ottla.protocol.hot.fetch import FastRow, Row
from ottla.protocol.messages.fetch import AbortedTransaction, EpochEndOffset, PartitionData
from ottla.remote.reading.chunk_reads import PendingRead
from ottla.runtime.turns import in_turns
from ottla.storage.log import Log, WouldBlock

#: Errors that are no failure of this broker; the others count as FailedFetchRequests.
_EXPECTED_ERRORS: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_out_of_range,
        ErrorCode.offset_not_available,
        ErrorCode.offset_moved_to_tiered_storage,
    }
)

#: Rows that are read in one step of `read_in_turns`: up to half a millisecond.
ROWS_OF_STEP: Final = 32

_new_tuple = tuple.__new__


class LogReads:
    """Reads the partitions of one Fetch, once or several times. Its state is that of the last `read`."""

    __slots__ = (
        "_context",
        "_has_begun",
        "_has_waited",
        "_is_first",
        "_is_incremental",
        "_is_stale",
        "_limit_bytes",
        "_params",
        "_partition_of",
        "_preferred_read_replicas",
        "_remote",
        "_remote_limit_bytes",
        "_replicas",
        "cold_reads",
        "has_urgent_row",
        "is_high_watermark_stale",
        "patient_count",
        "pending_reads",
        "size_bytes",
        "without_metadata",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        preferred_read_replicas: PreferredReadReplicas,
        context: FetchContext,
        params: FetchParams,
        remote: RemoteReads | None,
    ) -> None:
        """`remote` reads from the remote tier; None: this broker has none."""
        self._remote = remote
        self._replicas = replicas
        self._preferred_read_replicas = preferred_read_replicas
        self._partition_of = replicas.hosted.get
        self._context = context
        self._params = params
        #: Rows without new data are left out of the response.
        self._is_incremental = context.session is not None
        #: Whether the follower is known to have registered again since.
        self._is_stale = False
        #: A follower's progress is recorded by the first read.
        self._has_begun = False
        self._is_first = True
        self._has_waited = False
        #: Reads data that is not in memory; to be called in a thread, before the next read.
        self.cold_reads: list[Callable[[], object]] = []
        #: Reads of the remote tier that are not complete, each with its row.
        self.pending_reads: list[tuple[FetchedPartition, PendingRead]] = []
        #: The number of bytes that the remaining rows may add to the response.
        self._limit_bytes = 0
        #: The number of bytes that the pending reads may add to the response, estimated as their rows' limits.
        self._remote_limit_bytes = 0
        #: Partitions whose rows are empty as the metadata of their copies was still being read.
        self.without_metadata: list[Partition] = []
        #: A follower's fetch: even a response without records would advance the follower's high watermark.
        self.is_high_watermark_stale = False
        #: One of the rows must be sent at once.
        self.has_urgent_row = False
        #: Rows with one of the PATIENT_ERRORS.
        self.patient_count = 0
        #: The size of all records read.
        self.size_bytes = 0

    def has_metadata_now(self) -> bool:
        """Whether the metadata of copies, which was missing for a row, has been read meanwhile."""
        remote = self._remote
        return remote is not None and any(map(remote.has_metadata, self.without_metadata))

    def read(self, *, may_block: bool, has_waited: bool = False) -> ResponseRows:
        """The rows to send. Unless it may block, data that is not in memory is left out, and noted in `cold_reads`.

        What has to come from the remote tier is left out in any case, and noted in `pending_reads`; if the request
        `has_waited` for it, a read that has failed is the error of its row.
        """
        self._begin(may_block=may_block, has_waited=has_waited)
        rows: ResponseRows = []
        self._read_all(list(self._context.to_read), rows, may_block=may_block)
        return rows

    async def read_in_turns(self, *, may_block: bool) -> ResponseRows:
        """Read many rows in turns of the event loop; other code runs in between, that of followers first.

        Ends early if the session is used by another request.
        """
        self._begin(may_block=may_block, has_waited=False)
        rows: ResponseRows = []
        await in_turns(
            self._replicas.runtime,
            self._steps(rows, may_block=may_block),
            goes_first=self._params.replica_id is not None,
        )
        return rows

    def _steps(self, rows: ResponseRows, *, may_block: bool) -> Iterator[None]:
        context = self._context
        # The partitions of a session may change between two steps. Those of a full fetch do not, and are not copied:
        # the garbage collector would visit a new list of 200,000 twice, 25 ms each time.
        left = iter(context.to_read if context.session is None else [*context.to_read])
        while (some := list(islice(left, ROWS_OF_STEP))) and not context.is_outdated:
            self._read_all(some, rows, may_block=may_block)
            yield

    def _begin(self, *, may_block: bool, has_waited: bool) -> None:
        params = self._params
        self._is_first, self._has_begun = not self._has_begun, True
        self._has_waited = may_block or has_waited or params.max_wait_ms <= 0
        self.pending_reads = []
        self._limit_bytes = self._remote_limit_bytes = params.max_bytes
        self.without_metadata = []
        self.patient_count = self.size_bytes = 0
        self.has_urgent_row = False

    def _read_all(
        self, partitions: Iterable[FetchedPartition], rows: ResponseRows, *, may_block: bool
    ) -> None:
        """Read these partitions, and add what is to be sent to `rows`."""
        params, context = self._params, self._context
        replica_id = params.replica_id
        self._is_stale = (
            replica_id is not None
            and params.replica_epoch != -1
            and self._replicas.cluster.is_stale(replica_id, params.replica_epoch)
        )
        limit_bytes, size_bytes = self._limit_bytes, self.size_bytes
        throttle = self._replicas.throttle
        for fetched in partitions:
            row = self._read(fetched, limit_bytes=limit_bytes, is_first=not size_bytes, may_block=may_block)
            if row is None:
                context.mark_clean(fetched)
                continue
            count = len(row.records or b"")
            if count and replica_id is not None:
                assert fetched.partition is not None
                if throttle.should_throttle(fetched.partition, replica_id):
                    row, count = without_records(row), 0
            if count:
                size_bytes += count
                limit_bytes = limit_bytes - count if count < limit_bytes else 0
                rows.append((fetched, row))
                assert fetched.partition is not None
                if size_bytes < params.min_bytes and fetched.partition.is_behind_active_segment(
                    fetched.request.fetch_offset
                ):
                    self.has_urgent_row = True
            elif self._must_send(fetched, row):
                rows.append((fetched, row))
            elif self._is_at_end(fetched, row):
                context.mark_clean(fetched)
        self._limit_bytes, self.size_bytes = limit_bytes, size_bytes

    def _must_send(self, fetched: FetchedPartition, row: Row) -> bool:
        """Whether the response has to include this row, which has no records."""
        if not isinstance(row, FastRow) and must_be_seen(row):
            if row.error_code in PATIENT_ERRORS:
                self.patient_count += 1
            else:
                self.has_urgent_row = True
        elif self._params.replica_id is not None:
            assert fetched.partition is not None
            if is_high_watermark_stale(fetched, fetched.partition.log):
                # Regardless of what was sent before: the follower may have ignored that response as outdated.
                self.is_high_watermark_stale = True
                return True
        return self._context.must_send(fetched, row)

    def _is_at_end(self, fetched: FetchedPartition, row: Row) -> bool:
        """Whether there is nothing left to read until the partition changes."""
        if self._params.replica_id is None:
            end = row.last_stable_offset if self._params.is_read_committed else row.high_watermark
        else:
            assert fetched.partition is not None
            end = fetched.partition.log.log_end_offset
        return fetched.request.fetch_offset >= end

    def _read(
        self, fetched: FetchedPartition, *, limit_bytes: int, is_first: bool, may_block: bool
    ) -> Row | None:
        """Read one row; None: a row of a session that has nothing new, until its partition changes.

        Long for speed: a fetch of 1,000 partitions calls it 1,000 times.
        """
        params, request = self._params, fetched.request
        partition = self._partition_of(fetched.key)
        if fetched.watched is not partition and fetched.session is not None:
            fetched.watch(partition)
        try:
            if partition is None:
                raise self._missing_partition_error(fetched)
            fetched.partition = partition
            partition.stats.total_fetch_requests += self._is_first  # once for each partition
            divergence = self._check_fast(partition, fetched)
            log = partition.log
            if params.client is not None and (row := self._redirect(partition, fetched)) is not None:
                return row
            offsets = log.offsets
            high_watermark, last_stable_offset = offsets.high_watermark, offsets.last_stable_offset
            log_start_offset = offsets.log_start_offset
            if params.replica_id is not None:
                end = offsets.log_end_offset
            else:
                end = last_stable_offset if params.is_read_committed else high_watermark
            if divergence is not NO_DIVERGENCE:
                return empty_row(fetched.key[1], offsets, diverging_epoch=divergence)
            if request.fetch_offset == end:
                if self._has_nothing_new(fetched, log):
                    return None
                records: bytes | memoryview = b""
                aborted: list[AbortedTransaction] | None = [] if params.is_read_committed else None
            else:
                records, aborted = self._records(
                    log, request, end, limit_bytes=limit_bytes, is_first=is_first, may_block=may_block
                )
        except KafkaError as error:
            return self._row_of_error(
                fetched, error, limit_bytes=limit_bytes, is_first=is_first, may_block=may_block
            )
        fields = (fetched.key[1], high_watermark, last_stable_offset, log_start_offset, aborted, records)
        fast = _new_tuple(FastRow, fields)
        return with_aborted_transactions(fast) if aborted else fast

    def _has_nothing_new(self, fetched: FetchedPartition, log: Log) -> bool:
        """Whether the row, at the end of what may be read, is as the last one that the session has sent."""
        offsets = log.offsets
        return (
            offsets.high_watermark == fetched.high_watermark
            and offsets.log_start_offset == fetched.log_start_offset
            and self._is_incremental
            and (self._params.replica_id is None or not is_high_watermark_stale(fetched, log))
        )

    def _records(
        self,
        log: Log,
        request: RequestRow,
        end: int,
        *,
        limit_bytes: int,
        is_first: bool,
        may_block: bool,
    ) -> tuple[bytes | memoryview, list[AbortedTransaction] | None]:
        """The records before `end`, and the aborted transactions among them: None unless they are asked for."""
        fetch_offset, is_read_committed = request.fetch_offset, self._params.is_read_committed
        max_bytes = min(request.partition_max_bytes, limit_bytes)
        records: bytes | memoryview | None = log.reader.read_newest(
            fetch_offset, max_bytes=max_bytes, max_offset=end
        )
        if records is None:
            try:
                read = log.reader.read(
                    fetch_offset,
                    max_bytes=max_bytes,
                    max_offset=end,
                    min_one_message=is_first,
                    may_block=may_block,
                    lend=True,
                )
            except WouldBlock:
                self.cold_reads.append(
                    partial(log.reader.warm_up, fetch_offset, max_bytes=max_bytes, max_offset=end)
                )
                return b"", [] if is_read_committed else None
            if read.is_first_batch_incomplete:
                # A client cannot use part of a batch: it fetches again with a larger limit.
                return b"", None
            records = read.records
        if not is_read_committed:
            return records, None
        return records, aborted_transactions(log, fetch_offset=fetch_offset, end_offset=end)

    def _check_fast(self, partition: Partition, fetched: FetchedPartition) -> EpochEndOffset:
        """Check a row as `_check` does; nearly all rows in half of its time: 1 us for a follower's row.

        What `_check` and `record_progress` decide stands here a second time, since their calls take 1 us of the 7 that
        a follower's row takes in all; test_fast_fetch holds both equal.
        """
        params, request = self._params, fetched.request
        leader, replica_id = partition.leader, params.replica_id
        if leader is None or partition.leader_epoch != request.current_leader_epoch:
            return self._check(partition, fetched)
        if replica_id is None:
            return self._check(partition, fetched) if request.last_fetched_epoch >= 0 else NO_DIVERGENCE
        log = partition.log
        offsets = log.offsets
        if (
            replica_id not in leader.state.followers
            or self._is_stale
            or request.last_fetched_epoch != log.leader_epochs.latest_epoch
            or not offsets.local_log_start_offset <= request.fetch_offset <= offsets.log_end_offset
            or request.local_log is not None
        ):
            return self._check(partition, fetched)
        if self._is_first:
            leader.on_follower_fetch(
                replica_id,
                fetch_offset=request.fetch_offset,
                log_start_offset=request.log_start_offset,
                local_log=None,
                broker_epoch=params.replica_epoch,
                session=fetched.session,
                now_ms=params.now_ms,
            )
        return NO_DIVERGENCE

    def _check(self, partition: Partition, fetched: FetchedPartition) -> EpochEndOffset:
        """Raise unless this broker may serve the row; returns where the sender's log diverges from ours, if it does.

        Records a follower's progress, unless its log diverges or its fetch offset is out of range. `_check_fast` is the
        fast path of this, which has to decide the same.
        """
        params, request = self._params, fetched.request
        epoch, is_follower = request.current_leader_epoch, params.replica_id is not None
        partition.local_log(None if epoch == -1 else epoch, must_lead=params.must_lead)
        if is_follower:
            check_follower(partition, params, has_leader_epoch=epoch != -1)
        elif not partition.is_leader:
            partition.check_fetch_offset(request.fetch_offset)
        if request.last_fetched_epoch >= 0:
            found = partition.diverging_epoch(
                last_fetched_epoch=request.last_fetched_epoch, fetch_offset=request.fetch_offset
            )
            if found is not None:
                return EpochEndOffset(epoch=found[0], end_offset=found[1])
        if is_follower and self._is_first:
            record_progress(partition, fetched, params, now_ms=params.now_ms)
        return NO_DIVERGENCE

    def _redirect(self, partition: Partition, fetched: FetchedPartition) -> PartitionData | None:
        """A row with the preferred read replica instead of records; None: read from this one."""
        assert self._params.client is not None
        preferred = self._preferred_read_replicas.choose(
            partition, self._params.client, fetched.request.fetch_offset
        )
        if preferred is None:
            return None
        return empty_row(fetched.key[1], partition.log.offsets, preferred_read_replica=preferred)

    def _missing_partition_error(self, fetched: FetchedPartition) -> KafkaError:
        """The error of a partition that is not hosted.

        As in Kafka, a session keeps the name of a topic id: a deleted topic is not reported as an unknown id.
        """
        topic, last = fetched.key[0], fetched.partition
        if fetched.topic_name is None and isinstance(topic, UUID):
            image = self._replicas.metadata.topic_by_id(topic)
            if last is not None:
                fetched.topic_name = last.topic_partition.topic
            elif image is not None:
                fetched.topic_name = image.name
        fetched.partition = None
        return self._replicas.hosted.missing_partition_error(fetched.key, known_name=fetched.topic_name)

    def _refused_row(self, fetched: FetchedPartition, error: KafkaError) -> PartitionData:
        if self._params.replica_id is not None and is_in_remote_tier(fetched, error):
            return moved_row(fetched, version=self._params.version)
        row = error_row(fetched.key[1], error.code, version=self._params.version)
        partition = fetched.partition
        if partition is not None and self._is_first and error.code not in _EXPECTED_ERRORS:
            partition.stats.failed_fetch_requests += 1
        if partition is not None and not partition.is_leader and isinstance(error, OffsetOutOfRange):
            # So that the consumer can distinguish too small from too large (KIP-392, cases 3 and 4).
            row.high_watermark = partition.log.high_watermark
            row.log_start_offset = partition.log.log_start_offset
        return row

    # -- the remote tier ---------------------------------------------------------------------------

    def _row_of_error(
        self,
        fetched: FetchedPartition,
        error: KafkaError,
        *,
        limit_bytes: int,
        is_first: bool,
        may_block: bool,
    ) -> PartitionData:
        """A row with the error, or what the remote tier has at the offset (ReplicaManager.handleOffsetOutOfRangeError).

        A follower gets OFFSET_MOVED_TO_TIERED_STORAGE: it does not copy that part, but builds its state of it.
        """
        partition = fetched.partition
        if not isinstance(error, OffsetMovedToTieredStorage) or self._params.replica_id is not None:
            return self._refused_row(fetched, error)
        assert partition is not None
        row = empty_row(
            fetched.key[1],
            partition.log.offsets,
            aborted_transactions=[] if self._params.is_read_committed else None,
        )
        try:
            self._read_remote(
                row, fetched, partition, limit_bytes=limit_bytes, is_first=is_first, may_block=may_block
            )
        except KafkaError as remote_error:
            return self._refused_row(fetched, remote_error)
        return row

    def _read_remote(
        self,
        row: PartitionData,
        fetched: FetchedPartition,
        partition: Partition,
        *,
        limit_bytes: int,
        is_first: bool,
        may_block: bool,
    ) -> None:
        """Fill in the records of a consumer's row. Raises OffsetOutOfRange, UnknownServerError."""
        params, request = self._params, fetched.request
        if self._remote is None:
            raise OffsetOutOfRange(
                f"{partition}: {request.fetch_offset} is in the remote tier, "
                "and remote.log.storage.system.enable is false"
            )
        max_bytes = min(request.partition_max_bytes, limit_bytes)
        if min(max_bytes, self._remote_limit_bytes) <= 0 and not is_first:
            return
        end = partition.readable_end(is_read_committed=params.is_read_committed)
        found = self._remote.read(
            partition,
            request.fetch_offset,
            max_bytes=max_bytes,
            max_offset=end,
            is_read_committed=params.is_read_committed,
            min_one_message=is_first,
            has_waited=self._has_waited,
        )
        if isinstance(found, PendingRead):
            self.pending_reads.append((fetched, found))
            self._remote_limit_bytes -= request.partition_max_bytes
        elif isinstance(found, LocalFrom):
            self._read_local_from(
                row, partition, found.offset, max_bytes=max_bytes, is_first=is_first, may_block=may_block
            )
        elif found is not None:
            row.records, row.aborted_transactions = found
        elif not self._remote.has_metadata(partition):
            self.without_metadata.append(partition)

    def _read_local_from(
        self,
        row: PartitionData,
        partition: Partition,
        offset: int,
        *,
        max_bytes: int,
        is_first: bool,
        may_block: bool,
    ) -> None:
        """Fill in a row whose offset has no batch in the remote tier: the next one is where the local log starts."""
        log, is_read_committed = partition.log, self._params.is_read_committed
        end = partition.readable_end(is_read_committed=is_read_committed)
        try:
            read = log.reader.read(
                offset,
                max_bytes=max_bytes,
                max_offset=end,
                min_one_message=is_first,
                may_block=may_block,
                lend=True,
            )
        except WouldBlock:
            self.cold_reads.append(partial(log.reader.warm_up, offset, max_bytes=max_bytes, max_offset=end))
            return
        row.records = read.records
        if is_read_committed:
            row.aborted_transactions = aborted_transactions(log, fetch_offset=offset, end_offset=end)
