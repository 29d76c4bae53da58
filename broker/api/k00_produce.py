"""Produce (key 0): append one record batch to each partition of the request.

Who asks: producers.
Versions: v3-13. v5 log_start_offset, v7 zstd, v8 record_errors and messages, v9 flexible, v10 the new
leader's address (KIP-951), v11-12 transactions' second version (KIP-890), v13 topic ids.
Differs from Kafka: never throttles; every error has a message, not only those of records; a partition named
twice is appended to twice (Kafka keeps the last); a row without records gets INVALID_RECORD (Kafka 4.3.1 never
responds to such a request); transactions are not served: transactional batches get INVALID_TXN_STATE.
Touches: ottla.broker.replicas. Waits with acks=all for the in-sync replicas (Kafka's DelayedProduce), with
flush.messages for the flush, and for the validation in a thread of a batch that must be opened (few records
in a codec, a compacted topic, another codec), if it is large or others have spent the turn of the loop; other
requests are served meanwhile.

The fast path and the general path of each step are side by side:

    step      fast: 7 us in all, 200 bytes            general: 17 us                   held equal by
    request   `repeated`, then codec.TopicsDecoder    codec.decode                     test_fast_produce, test_hot
    append    `_append_rows`, `append_fast`           `_append_any`, `append_records`  test_fast_produce
    response  codec.encode_appended                   codec.encode_response            test_hot

What a connection's requests begin with (acks and timeout, the topic of a single row) is recognised by its
bytes. No more than what these bytes say is kept from one request to the next: partition, role, topic
configuration and log directory are looked up for each row, and so will be permissions and quotas, as both
paths meet in `_produce`. So no change of these has to invalidate anything.

Many rows are appended in turns of the event loop (`_produce_in_turns`), between which other connections'
requests are handled. Each row is looked up in its own turn, so that it answers for itself whatever happens in
between.
"""

from collections.abc import Generator, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from ottla.broker.api import Api, Repeated, Reply
from ottla.broker.api.long_answers import ROWS_OF_STEP as LISTED_ROWS_OF_STEP
from ottla.broker.api.produce_rows import (
    AnsweredTopic,
    Row,
    close_on_error,
    encode,
    encode_in_steps,
    error_row,
    refused_row,
    with_error_fields,
)
from ottla.broker.network import ReplyInTurns
from ottla.broker.replicas.leading.delayed_produce import (
    FlushPartitionStatus,
    PartitionStatus,
    ProducePartitionStatus,
)
from ottla.broker.replicas.partition import Partition
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.config.log_config import LogConfig
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTxnState,
    KafkaError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from ottla.protocol.hot import produce as codec
from ottla.protocol.hot.produce import AppendedRow, ProducedRow, ProducedTopic
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceRequest
from ottla.protocol.records.batch import ATTRIBUTES_OFFSET, COMPRESSION_MASK, TRANSACTIONAL_FLAG
from ottla.protocol.records.compression import Compression
from ottla.protocol.steps import Step, at_once
from ottla.protocol.topic_names import INTERNAL_TOPICS
from ottla.runtime import Pool
from ottla.runtime.turns import FreedInTurns, LoopTurns, in_turns, result_in_turns
from ottla.storage.validation import NeedsThread, ValidatedRecords, validate

#: The client id by which Kafka lets its own tools write to internal topics.
ADMIN_CLIENT_ID = "__admin_client"

#: The valid values of `acks`.
_ACKS: Final = (-1, 0, 1)
#: The first version whose batches may have any codec.
_ZSTD_VERSION: Final = 7
_FLEXIBLE_VERSION: Final = 9
_ACKS_AND_TIMEOUT = Struct(">hi")

#: The rows of a request that is handled in one turn of the loop, a millisecond; a connection may have sent several.
MAX_ROWS_AT_ONCE: Final = 100
#: More rows than these are long work (`ottla.runtime.turns`): behind them, others wait where such work has
#: had its part of the turn.
_FEW_ROWS: Final = 10
#: The rows of one step of a turn: each may have a megabyte, which takes half a millisecond.
ROWS_OF_STEP: Final = 4
#: The size of the smallest row: an index, a length and no tagged fields.
_SMALLEST_ROW_BYTES: Final = 6

_new_tuple = tuple.__new__


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
    decoding = codec.decode_in_steps(context.version, body, [])
    try:
        next(decoding)
    except StopIteration as done:
        request: ProduceRequest = done.value
        topics = at_once(_topics(request, context.version, FreedInTurns(broker.runtime)))
        return _produce(request, topics, len(body), context, broker)
    # The connection receives its next requests into the same memory. Cost of the copy: 0.7 ms a megabyte.
    return ReplyInTurns(_decode_and_produce(memoryview(bytearray(body)), context, broker))


async def _decode_and_produce(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
    """Decode a request of many rows, possibly of thousands of topics, in turns of the loop, and append its batches."""
    parts = FreedInTurns(broker.runtime)
    request = await result_in_turns(codec.decode_in_steps(context.version, body, parts), broker.runtime)
    topics = await result_in_turns(_topics(request, context.version, parts), broker.runtime)
    return await _produce_in_turns(request, topics, context, broker)


def _topics(
    request: ProduceRequest, version: int, parts: FreedInTurns
) -> Generator[None, None, list[ProducedTopic]]:
    by_id = version >= 13
    found: list[ProducedTopic] = []
    step = Step(LISTED_ROWS_OF_STEP)
    for topic in request.topic_data:
        rows: list[ProducedRow] = []
        found.append((topic.topic_id if by_id else topic.name, rows))
        parts.hold(found[-1])
        for data in topic.partition_data:
            rows.append(row := (data.index, data.records))
            parts.hold(row)
            if step.is_full():
                yield
        if step.is_full():
            yield
    return found


def repeated(version: int, body: memoryview) -> Repeated | None:
    """Return how requests with the same acks and timeout are handled; None for a transactional producer.

    The bytes that are compared precede the topics: no transactional id, acks and timeout.
    """
    no_id = b"\0" if version >= _FLEXIBLE_VERSION else b"\xff\xff"
    size_bytes = len(no_id) + _ACKS_AND_TIMEOUT.size
    if body[: len(no_id)] != no_id or len(body) < size_bytes:
        return None
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, len(no_id))
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms)
    decode_topics = codec.TopicsDecoder(version, size_bytes).decode

    def handle(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
        topics = decode_topics(body)
        if topics is None:
            return handle_raw(body, context, broker)
        return _produce(request, topics, len(body), context, broker)

    return Repeated(size_bytes, handle)


def _produce(
    request: ProduceRequest,
    topics: Sequence[ProducedTopic],
    size_bytes: int,
    context: RequestContext,
    broker: BrokerServices,
) -> Reply:
    """Append the batches of these topics, then respond.

    Of `request`, whose body has `size_bytes`, everything but its topics is used.
    """
    now_ms = broker.runtime.now_ms()
    # Nearly all requests have one topic of a few rows, also those of many bytes: counting would take 1.6 us.
    if size_bytes > _FEW_ROWS * _SMALLEST_ROW_BYTES and (len(topics) != 1 or len(topics[0][1]) > _FEW_ROWS):
        row_count = sum([len(batches) for _, batches in topics])
        if row_count > MAX_ROWS_AT_ONCE:
            return ReplyInTurns(_produce_in_turns(request, _copied(topics), context, broker))
        if row_count > _FEW_ROWS:
            broker.runtime.turns.charge(row_count // ROWS_OF_STEP)
    answers: list[AnsweredTopic] = []
    pending: list[PendingRow] = []
    deferred: list[DeferredBatch] = []
    are_appended = True
    for key, batches in topics:
        rows: list[Row] = []
        if not _append_rows(key, batches, rows, request, now_ms, context, broker, pending, deferred):
            are_appended = False
        answers.append((key, rows))
    if are_appended and not pending and request.acks:
        # Nearly always: 0.3 us less than by `_respond`.
        return [codec.encode_appended(context.version, context.correlation_id, answers)]  # type: ignore[arg-type]
    if deferred:
        return ReplyInTurns(_append_deferred(deferred, request, answers, context, broker, pending))
    # Batches that have all been appended in this turn: nothing can have ended the wait of any yet. One that
    # was not may have: its disk fails, and all partitions of that directory are offline.
    return _respond(request, answers, context, broker, pending, is_pending=are_appended)


def _copied(topics: Sequence[ProducedTopic]) -> list[ProducedTopic]:
    """Copy the rows out of the frame, in whose memory the connection receives its next requests.

    Cost: 0.7 ms a megabyte.
    """
    copy = memoryview(
        bytearray().join([records for _, batches in topics for _, records in batches if records])
    )
    found: list[ProducedTopic] = []
    start = 0
    for key, batches in topics:
        rows: list[ProducedRow] = []
        for index, records in batches:
            end = start + len(records or b"")
            rows.append((index, copy[start:end] if records else records))
            start = end
        found.append((key, rows))
    return found


async def _produce_in_turns(
    request: ProduceRequest,
    topics: Sequence[ProducedTopic],
    context: RequestContext,
    broker: BrokerServices,
) -> Reply:
    """Append a request of many rows in turns of the loop, between which other requests are handled.

    The connection waits.
    """
    answers: list[AnsweredTopic] = []
    pending: list[PendingRow] = []
    deferred: list[DeferredBatch] = []
    parts = FreedInTurns(broker.runtime)

    def steps() -> Iterator[object]:
        for key, batches in topics:
            rows: list[Row] = []
            answers.append((key, rows))
            # Topics without rows are steps, too.
            for start in range(0, max(1, len(batches)), ROWS_OF_STEP):
                some = batches[start : start + ROWS_OF_STEP]
                # Not the time of the first turn: LogAppendTime ascends, and others append in between.
                now_ms = broker.runtime.now_ms()
                yield _append_rows(key, some, rows, request, now_ms, context, broker, pending, deferred)
                for row in rows[start:]:
                    parts.hold(row)
            parts.hold(answers[-1])

    await in_turns(broker.runtime, steps())
    await broker.runtime.turns.share()  # a response of 3,000 rows takes 2 ms
    if deferred:
        return await _append_deferred(deferred, request, answers, context, broker, pending)
    if request.acks and not pending:
        return await result_in_turns(encode_in_steps(answers, context, broker), broker.runtime)
    # What was appended in an earlier turn may be on all replicas by now.
    return _respond(request, answers, context, broker, pending, is_pending=False)


def _append_rows(
    key: str | UUID,
    batches: Sequence[ProducedRow],
    rows: list[Row],
    request: ProduceRequest,
    now_ms: int,
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
    deferred: list[DeferredBatch],
) -> bool:
    """Append or defer batches of a topic, and add their rows to `rows`; whether all are appended.

    The fast path of a row is written here, as a call for each would be a tenth of its time. What `_partition` and
    `_append` decide of such a row stands here a second time: test_fast_produce holds both equal.
    """
    acks = request.acks
    may_be_fast = context.version >= _ZSTD_VERSION and acks in _ACKS
    online_partition = broker.replicas.hosted.get
    are_appended = True
    for index, records in batches:
        row: Row | None = None
        partition = online_partition((key, index))
        # Behind a deferred batch another one of its partition has to be deferred, too.
        if (
            partition is not None
            and (leader := partition.leader) is not None
            and may_be_fast
            and not deferred
            and type(records) is memoryview
        ):
            try:
                first_offset = leader.append_fast(records, required_acks=acks, now_ms=now_ms)
            except KafkaError as error:
                row = refused_row(partition, index, records, error)
            else:
                if first_offset is not None:
                    offsets = leader.log.offsets
                    if acks == -1 and offsets.high_watermark < offsets.log_end_offset:
                        status = ProducePartitionStatus(partition, offsets.log_end_offset)
                        pending.append(_new_tuple(PendingRow, (status, rows, len(rows))))
                    row = _new_tuple(AppendedRow, (index, 0, first_offset, -1, offsets.log_start_offset))
        if row is None:
            row = _append_any(key, index, records, request, now_ms, context, broker, pending, deferred, rows)
        if type(row) is not AppendedRow:
            are_appended = False
        rows.append(row)
    return are_appended


async def _append_deferred(
    deferred: list[DeferredBatch],
    request: ProduceRequest,
    answers: list[AnsweredTopic],
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
) -> Reply:
    """Append deferred batches one after the other: a partition's batches keep their order. The connection waits.

    Time and configuration are those of the append, also of a batch whose validation has waited: LogAppendTime ascends.
    What waits for replicas is returned, not awaited: the memory of the batches is free by then.
    """
    runtime = broker.runtime
    for partition, index, records, rows, at in deferred:
        try:
            validated = await _validated(partition, records, broker)
        except KafkaError as error:
            rows[at] = refused_row(partition, index, records, error)
        else:
            now_ms = runtime.now_ms()
            turns = runtime.turns
            rows[at] = _append(
                partition, index, records, validated, request, now_ms, pending, rows, at, turns
            )
    return _respond(request, answers, context, broker, pending, is_pending=False)


async def _validated(partition: Partition, records: bytearray, broker: BrokerServices) -> ValidatedRecords:
    """Validate a copy of the batch in a thread, by the configuration that the log has afterwards. Raises KafkaError."""
    runtime = broker.runtime
    while True:
        config, now_ms = partition.log.config, runtime.now_ms()

        def check(config: LogConfig = config, now_ms: int = now_ms) -> ValidatedRecords:
            return validate(bytearray(records), first_offset=0, now_ms=now_ms, config=config, leader_epoch=-1)

        validated = await runtime.run_blocking(check, pool=Pool.VALIDATION)
        if partition.log.config == config:
            return validated


def _respond(
    request: ProduceRequest,
    answers: list[AnsweredTopic],
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
    *,
    is_pending: bool,
) -> Reply:
    """Respond, or wait for the `pending` rows; with `is_pending`, all of them are known to wait still."""
    if request.acks == 0:
        close_on_error(answers)
        return None
    if not pending:
        return _encoded(answers, context, broker)

    def respond() -> Reply:
        for status, rows, at in pending:
            if status.error is not None:
                rows[at] = row = with_error_fields(rows[at])
                row.error_code = status.error.code
                row.error_message = status.error.message
        return _encoded(answers, context, broker)

    statuses = [status for status, _, _ in pending]
    if is_pending:
        return broker.replicas.respond_later(statuses, timeout_ms=request.timeout_ms, respond=respond)
    return broker.replicas.respond_when_complete(statuses, timeout_ms=request.timeout_ms, respond=respond)


def _encoded(answers: list[AnsweredTopic], context: RequestContext, broker: BrokerServices) -> Reply:
    """The response; of many rows in turns of the loop."""
    if sum([len(rows) for _, rows in answers]) <= MAX_ROWS_AT_ONCE:
        return encode(answers, context, broker)
    return ReplyInTurns(result_in_turns(encode_in_steps(answers, context, broker), broker.runtime))


def _append_any(
    key: str | UUID,
    index: int,
    records: bytes | memoryview | None,
    request: ProduceRequest,
    now_ms: int,
    context: RequestContext,
    broker: BrokerServices,
    pending: list[PendingRow],
    deferred: list[DeferredBatch],
    rows: list[Row],
) -> Row:
    """Append or defer any batch; returns its row, which is to be added to `rows`."""
    try:
        partition = _partition(key, index, records, request, context, broker)
        assert records
        if deferred and any(partition is batch.partition for batch in deferred):
            raise NeedsThread  # the partition is named twice: its batches keep their order
        turns, at = broker.runtime.turns, len(rows)
        return _append(partition, index, records, records, request, now_ms, pending, rows, at, turns)
    except NeedsThread:
        deferred.append(DeferredBatch(partition, index, bytearray(records or b""), rows, len(rows)))
        return PartitionProduceResponse(index=index)
    except KafkaError as error:
        return error_row(index, error)


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
    turns: LoopTurns,
) -> Row:
    """Append the batch as sent, or the result of its validation, and return its row, which becomes `rows[at]`.

    `_append_rows` has the fast path of this, without flush.messages and LogAppendTime. Raises NeedsThread.
    """
    acks = request.acks
    try:
        info = partition.as_leader().append_records(records, required_acks=acks, now_ms=now_ms, turns=turns)
    except KafkaError as error:
        return refused_row(partition, index, sent, error)
    if acks == -1 and partition.log.high_watermark <= info.last_offset:
        pending.append(PendingRow(ProducePartitionStatus(partition, info.last_offset + 1), rows, at))
    elif acks == 1 and partition.log.flusher.is_due and partition.log.recovery_point <= info.last_offset:
        # A duplicate may be on the disk already, and wait for nothing, while a flush of later batches is due.
        pending.append(PendingRow(FlushPartitionStatus(partition, info.last_offset + 1), rows, at))
    return AppendedRow(
        index,
        0,
        info.first_offset,
        -1 if info.log_append_time_ms is None else info.log_append_time_ms,
        info.log_start_offset,
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


API = Api(key=ApiKey.PRODUCE, versions=range(3, 14), handle_raw=handle_raw, repeated=repeated)
