"""DeleteRecords (key 21): delete the records of a partition before an offset.

Who asks: admin clients (kafka-delete-records.sh).
Versions: v0-2. v2 flexible. Offset -1 means the high watermark.
Differs from Kafka: never throttles; a partition named twice is answered twice.
Touches: broker.partition. Waits until every live replica has deleted them, for timeout_ms at most
(Kafka's DelayedDeleteRecords).
"""

from broker.api import Api
from broker.purgatory.delayed_response import DelayedResponse
from broker.replicas.delayed_produce import DeleteRecordsPartitionStatus
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import InvalidTopic, KafkaError
from protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import TopicPartition

HIGH_WATERMARK = -1


def handle(
    request: DeleteRecordsRequest, context: RequestContext, broker: BrokerServices
) -> DeleteRecordsResponse | DelayedResponse[DeleteRecordsResponse]:
    """Handle each partition separately; respond when all are done."""
    statuses: list[tuple[DeleteRecordsPartitionResult, DeleteRecordsPartitionStatus]] = []
    topics = []
    for topic in request.topics:
        rows = []
        for asked in topic.partitions:
            row = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            rows.append(row)
            try:
                statuses.append((row, _delete(topic.name, asked, broker)))
            except KafkaError as error:
                row.error_code = error.code
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))

    def respond() -> DeleteRecordsResponse:
        for row, status in statuses:
            if status.error is not None:
                row.error_code = status.error.code
            else:
                assert status.low_watermark is not None
                row.low_watermark = status.low_watermark
        return DeleteRecordsResponse(topics=topics)

    return broker.replicas.respond_when_complete(
        [status for _, status in statuses], timeout_ms=max(0, request.timeout_ms), respond=respond
    )


def _delete(
    topic: str, asked: DeleteRecordsPartition, broker: BrokerServices
) -> DeleteRecordsPartitionStatus:
    partition = broker.replicas.partition(TopicPartition(topic, asked.partition_index))
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"Clients cannot delete records of {topic}")
    offset = partition.as_leader().delete_records(None if asked.offset == HIGH_WATERMARK else asked.offset)
    return DeleteRecordsPartitionStatus(partition, offset)


API = Api(key=ApiKey.DELETE_RECORDS, versions=range(3), handle=handle)
