"""Produce (key 0): append one record batch to each partition of the request.

Who asks: producers.
Versions: v3-13. v5 log_start_offset, v7 zstd, v8 record_errors and messages, v9 flexible, v10 the new
leader's address (KIP-951), v11-12 transactions' second version (KIP-890), v13 topic ids.
Differs from Kafka: never throttles; every error has a message, not only those of records; a partition named
twice is appended to twice (Kafka keeps the last); a row without records gets INVALID_RECORD (Kafka 4.3.1 never
responds to such a request); transactions are not served: transactional batches get INVALID_TXN_STATE.
Touches: broker.replicas. Waits with acks=all for the in-sync replicas (Kafka's DelayedProduce), with flush.messages
for the flush, and for the validation in a thread of a large batch that must be decompressed (a compacted topic,
another codec); other requests are served meanwhile.

The usual and the general way of each step are side by side:

    step      usual, 8 us for 200 bytes                 general, 20 us                         same by test
    request   `repeated`, then codec.read_topics        codec.decode                           test_usual_produce
    append    `_append_usual` (storage.usual_append)    `_append`, `_append_deferred`          test_usual_append
    response  codec.encode_appended                     codec.encode_response                  test_hot

What a connection's requests begin with (acks and timeout) is recognised by its bytes. No more than that is kept from
one request to the next: partition, role, topic configuration and log directory are looked up for each row, and so
will be permissions and quotas, as both ways meet in `_produce`. So no change of these has to invalidate anything.
"""

from asyncio import Future
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, cast
from uuid import UUID

from broker.api import Api, Buffers, Repeated, Reply
from broker.api.current_leader import name_leaders
from broker.replicas.delayed_produce import FlushPartitionStatus, PartitionStatus, ProducePartitionStatus
from broker.replicas.hosted_partitions import PartitionKey
from broker.replicas.partition import Partition
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTxnState,
    KafkaError,
    MalformedMessage,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from protocol.framing import response_header
from protocol.hot import produce as codec
from protocol.hot.produce import AppendedRow, ProducedTopic
from protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.records.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_FLAG,
)
from protocol.records.compression import Compression
from protocol.topic_names import INTERNAL_TOPICS
from runtime import Pool
from storage.validation import InvalidRecords, NeedsThread, ValidatedRecords, validate

#: The client id by which Kafka lets its own tools write to internal topics.
ADMIN_CLIENT_ID = "__admin_client"

#: Errors without a log start offset in their row; other errors of an append have it, as in Kafka.
_ERRORS_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.kafka_storage_error,
        ErrorCode.message_too_large,
        ErrorCode.not_leader_or_follower,
        ErrorCode.record_list_too_large,
    }
)

#: Errors that are no failure of this broker; the others count as FailedProduceRequests, as in Kafka.
_EXPECTED_ERRORS: Final = frozenset(
    {ErrorCode.not_leader_or_follower, ErrorCode.corrupt_message, ErrorCode.kafka_storage_error}
)
_TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})

_MAGIC_AT: Final = 16

_NO_LEADER = LeaderIdAndEpoch()  # shared by all rows without an error; never modified

#: The `acks` that there are.
_ACKS: Final = (-1, 0, 1)
#: The first version of which a batch may have any codec.
_ZSTD_VERSION: Final = 7
_FLEXIBLE_VERSION: Final = 9
_ACKS_AND_TIMEOUT = Struct(">hi")

_new_tuple = tuple.__new__


class UnansweredError(MalformedMessage):
    """A Produce with acks=0 failed. It has no response, so its connection is closed to report the failure."""


#: A partition's row of the response: appended, or with an error.
Row = AppendedRow | PartitionProduceResponse
#: The rows of a topic, by its name or id.
AnsweredTopic = tuple[str | UUID, list[Row]]


class PendingRow(NamedTuple):
    """A row that waits for replicas or for a flush, and its position."""

    status: PartitionStatus
    rows: list[Row]
    at: int


class DeferredBatch(NamedTuple):
    """A batch that is validated in a thread before it is appended, and the position of its row."""

    partition: Partition
    partition_index: int
    records: bytearray
    rows: list[Row]
    at: int


def handle_raw(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
    """Append all batches, then respond; with acks=all once the in-sync replicas have them."""
    request = codec.decode(context.version, body)
    by_id = context.version >= 13
    topics: list[ProducedTopic] = [
        (
            topic.topic_id if by_id else topic.name,
            [(data.index, data.records) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return _produce(request, topics, context, broker)


def repeated(version: int, body: memoryview) -> Repeated | None:
    """What precedes the topics: no transactional id, acks and timeout; None for a transactional producer."""
    no_id = b"\0" if version >= _FLEXIBLE_VERSION else b"\xff\xff"
    size_bytes = len(no_id) + _ACKS_AND_TIMEOUT.size
    if body[: len(no_id)] != no_id or len(body) < size_bytes:
        return None
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, len(no_id))
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms)

    def handle(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
        topics = codec.read_topics(context.version, body, size_bytes)
        if topics is None:
            return handle_raw(body, context, broker)
        return _produce(request, topics, context, broker)

    return Repeated(size_bytes, handle)


def _produce(
    request: ProduceRequest, topics: Sequence[ProducedTopic], context: RequestContext, broker: BrokerServices
) -> Reply:
    """Append the batches of these topics; of `request`, its other fields are used."""
    now_ms = broker.runtime.now_ms()
    pending: list[PendingRow] = []
    deferred: list[DeferredBatch] = []
    answers = _append_all(request, topics, now_ms, context, broker, pending, deferred)
    if deferred:
        return _append_deferred(deferred, request, answers, now_ms, context, broker, pending)
    return _respond(request, answers, context, broker, pending)


async def _append_deferred(
    deferred: list[DeferredBatch],
    request: ProduceRequest,
    answers: list[AnsweredTopic],
    now_ms: int,
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
) -> Buffers | None:
    """Append deferred batches one after the other: a partition's batches keep their order. The connection waits."""
    for partition, index, records, rows, at in deferred:
        check = partial(
            validate, records, first_offset=0, now_ms=now_ms, config=partition.log.config, leader_epoch=-1
        )
        try:
            validated = await broker.runtime.run_blocking(check, pool=Pool.VALIDATION)
        except KafkaError as error:
            rows[at] = _refused_row(partition, index, records, error)
        else:
            rows[at] = _append(partition, index, records, validated, request, now_ms, pending, rows, at)
    response_or_future = _respond(request, answers, context, broker, pending)
    return await response_or_future if isinstance(response_or_future, Future) else response_or_future


def _respond(
    request: ProduceRequest,
    answers: list[AnsweredTopic],
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
) -> "Buffers | Future[Buffers] | None":
    if request.acks == 0:
        _close_on_error(answers)
        return None
    if not pending:
        return _encode(answers, context, broker)

    def respond() -> Buffers:
        for status, rows, at in pending:
            if status.error is not None:
                rows[at] = row = _with_error_fields(rows[at])
                row.error_code = status.error.code
                row.error_message = status.error.message
        return _encode(answers, context, broker)

    return broker.replicas.respond_when_complete(
        [status for status, _, _ in pending], timeout_ms=request.timeout_ms, respond=respond
    )


def _encode(answers: list[AnsweredTopic], context: RequestContext, broker: BrokerServices) -> Buffers:
    appended = _without_errors(answers)
    if appended is not None:
        return [codec.encode_appended(context.version, context.correlation_id, appended)]
    response = ProduceResponse()
    for key, rows in answers:
        topic = TopicProduceResponse(partition_responses=[_with_error_fields(row) for row in rows])
        if isinstance(key, UUID):
            topic.topic_id = key
        else:
            topic.name = key
        response.responses.append(topic)
    if context.version >= 10:
        _name_leaders(response, context, broker)
    header = response_header(ApiKey.PRODUCE, context.version, context.correlation_id)
    return [header, codec.encode_response(context.version, response)]


def _append_all(
    request: ProduceRequest,
    topics: Sequence[ProducedTopic],
    now_ms: int,
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
    deferred: list[DeferredBatch],
) -> list[AnsweredTopic]:
    may_be_usual = context.version >= _ZSTD_VERSION and request.acks in _ACKS
    online_partition = broker.replicas.hosted.get
    answers: list[AnsweredTopic] = []
    for key, batches in topics:
        rows: list[Row] = []
        for index, records in batches:
            row: Row | None = None
            partition = online_partition((key, index))
            # Behind a deferred batch another one of its partition has to be deferred, too.
            if partition is not None and may_be_usual and not deferred:
                row = _append_usual(partition, index, records, request, now_ms, pending, rows)
            if row is None:
                try:
                    found = _partition(key, index, records, request, context, broker)
                    assert records
                    if deferred and any(found is batch.partition for batch in deferred):
                        raise NeedsThread  # the partition is named twice: its batches keep their order
                    row = _append(found, index, records, records, request, now_ms, pending, rows, len(rows))
                except NeedsThread:
                    deferred.append(DeferredBatch(found, index, bytearray(records or b""), rows, len(rows)))
                    row = PartitionProduceResponse(index=index)
                except KafkaError as error:
                    row = _error_row(index, error)
            rows.append(row)
        answers.append((key, rows))
    return answers


def _append_usual(
    partition: Partition,
    index: int,
    records: bytes | memoryview | None,
    request: ProduceRequest,
    now_ms: int,
    pending: list[PendingRow],
    rows: list[Row],
) -> Row | None:
    """Append the batch if it is a usual one (`storage.usual_append`); None, with nothing changed, for any other one."""
    leader = partition.leader
    if (
        leader is None
        or type(records) is not memoryview
        or partition.topic_partition.topic in INTERNAL_TOPICS
    ):
        return None
    try:
        first_offset = leader.append_usual(records, required_acks=request.acks, now_ms=now_ms)
    except KafkaError as error:
        return _refused_row(partition, index, records, error)
    if first_offset is None:
        return None
    offsets = leader.log.offsets
    if request.acks == -1 and offsets.high_watermark < offsets.log_end_offset:
        status = ProducePartitionStatus(partition, offsets.log_end_offset)
        pending.append(PendingRow(status, rows, len(rows)))
    return _new_tuple(AppendedRow, (index, 0, first_offset, -1, offsets.log_start_offset))


def _partition(
    topic: str | UUID,
    index: int,
    records: bytes | memoryview | None,
    request: ProduceRequest,
    context: RequestContext,
    broker: BrokerServices,
) -> Partition:
    """The partition to append to. Raises KafkaError for all errors that do not depend on the log."""
    replicas, acks = broker.replicas, request.acks
    partition = replicas.hosted.get((topic, index))
    if partition is None:
        raise replicas.hosted.missing_partition_error((topic, index))
    if not -1 <= acks <= 1:
        raise InvalidRequiredAcks(f"acks={acks} is none of 0, 1 and -1")
    if partition.topic_partition.topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopic(f"Clients cannot append to {partition.topic_partition.topic}")
    if not records:
        raise InvalidRecord("A Produce request has a record batch for each of its partitions")
    _check_request(records, context.version, request.transactional_id)
    return partition


def _append(
    partition: Partition,
    index: int,
    sent: bytes | bytearray | memoryview,
    records: bytes | memoryview | ValidatedRecords,
    request: ProduceRequest,
    now_ms: int,
    pending: list[PendingRow],
    rows: list[Row],
    at: int,
) -> Row:
    """Append the batch as sent, or the result of its validation; returns its row, to be `rows[at]`. Raises NeedsThread."""
    acks = request.acks
    try:
        info = partition.as_leader().append_records(records, required_acks=acks, now_ms=now_ms, is_quick=True)
    except KafkaError as error:
        return _refused_row(partition, index, sent, error)
    if acks == -1 and partition.log.high_watermark <= info.last_offset:
        pending.append(PendingRow(ProducePartitionStatus(partition, info.last_offset + 1), rows, at))
    elif acks == 1 and partition.log.flusher.is_due:
        pending.append(PendingRow(FlushPartitionStatus(partition, info.last_offset + 1), rows, at))
    return AppendedRow(
        index,
        0,
        info.first_offset,
        -1 if info.log_append_time_ms is None else info.log_append_time_ms,
        info.log_start_offset,
    )


def _refused_row(
    partition: Partition, index: int, sent: bytes | bytearray | memoryview, error: KafkaError
) -> PartitionProduceResponse:
    row = _error_row(index, error)
    stats = partition.stats
    stats.total_produce_requests += 1
    if error.code in _TOO_LARGE:
        stats.bytes_rejected += len(sent)
    elif error.code not in _EXPECTED_ERRORS:
        stats.failed_produce_requests += 1
    if error.code not in _ERRORS_WITHOUT_LOG_START and (
        _is_one_batch(sent) or error.code != InvalidRecord.code
    ):
        row.log_start_offset = partition.log.log_start_offset
    return row


def _is_one_batch(records: bytes | bytearray | memoryview) -> bool:
    """Whether this is a single whole batch of magic 2; otherwise Kafka refuses it before it reaches the log."""
    return (
        len(records) >= HEADER_SIZE_BYTES
        and records[_MAGIC_AT] == MAGIC
        and LOG_OVERHEAD_BYTES + int.from_bytes(records[8:LOG_OVERHEAD_BYTES], "big") == len(records)
    )


def _check_request(records: bytes | memoryview, version: int, transactional_id: str | None) -> None:
    """Refuse batches that this version or this broker does not support; the log checks everything else."""
    if len(records) > ATTRIBUTES_OFFSET + 1:
        attributes = records[ATTRIBUTES_OFFSET + 1]  # the low byte of two
        if version < 7 and attributes & COMPRESSION_MASK == Compression.ZSTD:
            raise UnsupportedCompressionType(f"Produce v{version} does not know zstd")
        if attributes & TRANSACTIONAL_FLAG:
            if transactional_id is None:
                raise TransactionalIdAuthorizationFailed("A transactional batch needs a transactional id")
            raise InvalidTxnState("Transactions are not served by this broker")


def _error_row(index: int, error: KafkaError) -> PartitionProduceResponse:
    row = PartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message
    )
    if isinstance(error, InvalidRecords):
        row.record_errors = [
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=message)
            for at, message in error.record_errors
        ]
    return row


def _with_error_fields(row: Row) -> PartitionProduceResponse:
    """The row as the general codec encodes it."""
    if isinstance(row, PartitionProduceResponse):
        return row
    return PartitionProduceResponse(
        index=row.partition,
        base_offset=row.base_offset,
        log_append_time_ms=row.log_append_time_ms,
        log_start_offset=row.log_start_offset,
        current_leader=_NO_LEADER,
    )


def _without_errors(answers: list[AnsweredTopic]) -> list[tuple[str | UUID, list[AppendedRow]]] | None:
    """The same, if every row is appended; else None."""
    for _, rows in answers:
        for row in rows:
            if type(row) is not AppendedRow:
                return None
    return cast("list[tuple[str | UUID, list[AppendedRow]]]", answers)


def _close_on_error(answers: list[AnsweredTopic]) -> None:
    failed = [
        f"{key}-{row.index}: {ErrorCode(row.error_code).name}"
        for key, rows in answers
        for row in rows
        if isinstance(row, PartitionProduceResponse)
    ]
    if failed:
        raise UnansweredError(f"Produce with acks=0 failed: {', '.join(failed)}")


def _name_leaders(response: ProduceResponse, context: RequestContext, broker: BrokerServices) -> None:
    by_id = context.version >= 13
    refused: list[tuple[PartitionKey, PartitionProduceResponse]] = [
        ((topic.topic_id if by_id else topic.name, row.index), row)
        for topic in response.responses
        for row in topic.partition_responses
        if row.error_code == ErrorCode.not_leader_or_follower
    ]
    response.node_endpoints = name_leaders(
        refused, context, broker, leader=LeaderIdAndEpoch, endpoint=NodeEndpoint
    )


API = Api(key=ApiKey.PRODUCE, versions=range(3, 14), handle_raw=handle_raw, repeated=repeated)
