"""DeleteRecords (key 21): everything before an offset of a partition goes.

Who asks: admin clients (kafka-delete-records.sh).
Versions: v0-2. v2 flexible. Offset -1 stands for the high watermark.
Differs from Kafka: never throttles; a partition named twice is answered twice.
Touches: broker.partition. With one replica the low watermark is the leader's log start offset, so it
never waits.
"""

from broker.api import Api, RequestContext
from broker.broker import Broker
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


def handle(request: DeleteRecordsRequest, context: RequestContext, broker: Broker) -> DeleteRecordsResponse:
    """Each partition on its own."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[answer_partition(topic.name, asked, broker) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def answer_partition(
    topic: str, asked: DeleteRecordsPartition, broker: Broker
) -> DeleteRecordsPartitionResult:
    """One row: the low watermark after it, or the error."""
    row = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition = broker.replicas.partition(TopicPartition(topic, asked.partition_index))
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"Clients cannot delete records of {topic}")
        row.low_watermark = partition.delete_records(None if asked.offset == HIGH_WATERMARK else asked.offset)
    except KafkaError as error:
        row.error_code = error.code
    return row


API = Api(key=ApiKey.DELETE_RECORDS, versions=range(3), handle=handle)
