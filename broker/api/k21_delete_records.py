"""DeleteRecords (key 21): delete the records of a partition before an offset.

Who asks: admin clients (kafka-delete-records.sh).
Versions: v0-2. v2 flexible. Offset -1 means the high watermark.
Differs from Kafka: never throttles; a partition named twice is answered twice.
Touches: broker.partition. Waits until every live replica has deleted them, for timeout_ms at most
(Kafka's DelayedDeleteRecords). Many partitions take several turns of the loop.
"""

from collections.abc import Awaitable, Generator
from typing import Final

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.replicas.leading.delayed_produce import DeleteRecordsPartitionStatus
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import InvalidTopic, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.protocol.topic_names import INTERNAL_TOPICS
from ottla.protocol.types import TopicPartition

HIGH_WATERMARK = -1

#: The number of partitions of one step, and so of a request that is handled at once: each rewrites a
#: checkpoint of its log, in 0.5 to 1.5 ms.
_DELETIONS_OF_STEP: Final = 2


def handle(
    request: DeleteRecordsRequest, context: RequestContext, broker: BrokerServices
) -> DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]:
    """Handle each partition separately; respond when all are done."""
    return at_once_or_in_turns(_delete_each(request, broker), broker.runtime, broker.long_answers)


def _delete_each(
    request: DeleteRecordsRequest, broker: BrokerServices
) -> Generator[None, None, DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]]:
    pending: list[tuple[DeleteRecordsPartitionResult, DeleteRecordsPartitionStatus]] = []
    topics = []
    left = _DELETIONS_OF_STEP
    for number, topic in enumerate(request.topics):
        if number % ROWS_OF_STEP == ROWS_OF_STEP - 1:
            yield
        rows: list[DeleteRecordsPartitionResult] = []
        for asked in topic.partitions:
            if not left:
                left = _DELETIONS_OF_STEP
                yield
            left -= 1
            row = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            rows.append(row)
            try:
                status = _delete(topic.name, asked, broker)
            except KafkaError as error:
                row.error_code = error.code
                continue
            if status.is_complete():
                _fill(row, status)
            else:
                pending.append((row, status))
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))

    def respond() -> DeleteRecordsResponse:
        for row, status in pending:
            _fill(row, status)
        return DeleteRecordsResponse(topics=topics)

    return broker.replicas.respond_when_complete(
        [status for _, status in pending], timeout_ms=max(0, request.timeout_ms), respond=respond
    )


def _fill(row: DeleteRecordsPartitionResult, status: DeleteRecordsPartitionStatus) -> None:
    if status.error is not None:
        row.error_code = status.error.code
    else:
        assert status.low_watermark is not None
        row.low_watermark = status.low_watermark


def _delete(
    topic: str, asked: DeleteRecordsPartition, broker: BrokerServices
) -> DeleteRecordsPartitionStatus:
    partition = broker.replicas.partition(TopicPartition(topic, asked.partition_index))
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"Clients cannot delete records of {topic}")
    offset = partition.as_leader().delete_records(None if asked.offset == HIGH_WATERMARK else asked.offset)
    return DeleteRecordsPartitionStatus(partition, offset)


API = Api(key=ApiKey.DELETE_RECORDS, versions=range(3), handle=handle, is_encoded_in_turns=True)
