"""Rows of a Produce response: appended, or with an error; and the response that they make.

    appended             `AppendedRow`, encoded by `encode_appended` if no row of the response has an error
    refused, timed out   PartitionProduceResponse, encoded by `encode_response`, as all rows are then

Source: ProduceResponse.PartitionResponse of Kafka 4.3.1.
"""

from collections.abc import Generator
from itertools import islice
from typing import Final, cast
from uuid import UUID

from ottla.broker.api import Buffers
from ottla.broker.api.current_leader import name_leaders
from ottla.broker.api.long_answers import ROWS_OF_STEP
from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.replicas.partition import Partition
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, InvalidRecord, KafkaError, MalformedMessage
from ottla.protocol.framing import encode_response_header
from ottla.protocol.hot import produce as codec
from ottla.protocol.hot.produce import AppendedRow
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from ottla.protocol.steps import Step, at_once
from ottla.runtime.turns import FreedInTurns
from ottla.storage.validation import InvalidRecords

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

#: Rows that the reason of a closed connection names, at most.
_NAMED_FAILURES: Final = 10

_NO_LEADER = LeaderIdAndEpoch()  # shared by all rows without an error; never modified


class UnansweredError(MalformedMessage):
    """A Produce with acks=0 failed. It has no response, so its connection is closed to report the failure."""


#: A partition's row of the response: appended, or with an error.
Row = AppendedRow | PartitionProduceResponse
#: The rows of a topic, by its name or id.
AnsweredTopic = tuple[str | UUID, list[Row]]


def refused_row(
    partition: Partition, index: int, sent: bytes | bytearray | memoryview, error: KafkaError
) -> PartitionProduceResponse:
    """The row of a batch that the partition has refused; counts it."""
    row = error_row(index, error)
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


def error_row(index: int, error: KafkaError) -> PartitionProduceResponse:
    """The row of a batch that is not appended."""
    row = PartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message
    )
    if isinstance(error, InvalidRecords):
        row.record_errors = [
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=message)
            for at, message in error.record_errors
        ]
    return row


def with_error_fields(row: Row) -> PartitionProduceResponse:
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
    """Return the same answers if every row is appended, else None."""
    for _, rows in answers:
        for row in rows:
            if type(row) is not AppendedRow:
                return None
    return cast("list[tuple[str | UUID, list[AppendedRow]]]", answers)


def close_on_error(answers: list[AnsweredTopic]) -> None:
    """Raise UnansweredError if a row of a Produce with acks=0 has an error: its connection has to be closed."""
    failures = (
        f"{key}-{row.index}: {ErrorCode(row.error_code).name}"
        for key, rows in answers
        for row in rows
        if isinstance(row, PartitionProduceResponse)
    )
    if failed := list(islice(failures, _NAMED_FAILURES)):
        raise UnansweredError(f"Produce with acks=0 failed: {', '.join(failed)}")


def encode(answers: list[AnsweredTopic], context: RequestContext, broker: BrokerServices) -> Buffers:
    """Encode header and body of the response at once."""
    appended = _without_errors(answers)
    if appended is not None:
        return [codec.encode_appended(context.version, context.correlation_id, appended)]
    return at_once(encode_in_steps(answers, context, broker))


def encode_in_steps(
    answers: list[AnsweredTopic], context: RequestContext, broker: BrokerServices
) -> Generator[None, None, Buffers]:
    """Encode header and body of a response with any number of rows, in short steps."""
    response = ProduceResponse()
    refused: list[tuple[PartitionKey, PartitionProduceResponse]] = []
    step = Step(ROWS_OF_STEP)
    for key, rows in answers:
        topic = TopicProduceResponse()
        if isinstance(key, UUID):
            topic.topic_id = key
        else:
            topic.name = key
        response.responses.append(topic)
        for each in rows:
            row = with_error_fields(each)
            topic.partition_responses.append(row)
            if row.error_code == ErrorCode.not_leader_or_follower:
                refused.append(((key, row.index), row))
            if step.is_full():
                yield
        if step.is_full():
            yield
    if context.version >= 10:
        _name_leaders(refused, response, context, broker)
    header = encode_response_header(ApiKey.PRODUCE, context.version, context.correlation_id)
    parts = FreedInTurns(broker.runtime)
    return [header, (yield from codec.encode_response_in_steps(context.version, response, parts))]


def _name_leaders(
    refused: list[tuple[PartitionKey, PartitionProduceResponse]],
    response: ProduceResponse,
    context: RequestContext,
    broker: BrokerServices,
) -> None:
    response.node_endpoints = name_leaders(
        refused, context, broker, leader=LeaderIdAndEpoch, endpoint=NodeEndpoint
    )
