"""DescribeTopicPartitions (key 75): topics in pages, with their eligible leader replicas (KIP-966).

Who asks: admin clients (kafka-topics --describe), for topics of any number of partitions.
Versions: v0.
Differs from Kafka: nothing known.
Touches: broker.metadata (read only).
"""

from broker.api import Api
from broker.api import authorized_operations as operations
from broker.metadata_cache import MetadataCache
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode, InvalidRequest, InvalidTopic, KafkaError
from protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from protocol.metadata.image import PartitionImage, TopicImage
from protocol.topic_names import INTERNAL_TOPICS, check_topic_name


def handle(
    request: DescribeTopicPartitionsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeTopicPartitionsResponse:
    """Topics sorted by name, from the cursor on, up to the limit of partitions."""
    names = _names_from_cursor(request, broker.metadata)
    limit = max(1, min(broker.config.max_request_partition_size_limit, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = broker.metadata.topic(name)
        if topic is None:
            if request.topics:
                response.topics.append(_unknown(name))
            continue
        cursor = request.cursor
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= start]
        response.topics.append(_describe(topic, indexes[:limit], context, broker.metadata))
        if len(indexes) > limit:
            response.next_cursor = Cursor(topic_name=name, partition_index=indexes[limit])
            break
        limit -= len(indexes)
    return response


def _names_from_cursor(request: DescribeTopicPartitionsRequest, metadata: MetadataCache) -> list[str]:
    asked = {topic.name for topic in request.topics} or set(metadata.image.topics_by_name)
    cursor = request.cursor
    if cursor is None:
        return sorted(asked)
    if request.topics and cursor.topic_name not in asked:
        raise InvalidRequest(f"The cursor's topic {cursor.topic_name!r} is not among the topics asked for")
    if cursor.partition_index < 0:
        raise InvalidRequest(f"The cursor's partition {cursor.partition_index} is negative")
    return sorted(name for name in asked if name >= cursor.topic_name)


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    error = ErrorCode.unknown_topic_or_partition
    try:
        check_topic_name(name)
    except InvalidTopic as invalid:
        error = invalid.code
    return DescribeTopicPartitionsResponseTopic(
        error_code=error,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations.TOPIC,
    )


def _describe(
    topic: TopicImage, indexes: list[int], context: RequestContext, metadata: MetadataCache
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _describe_partition(index, topic.partitions[index], context.listener_name, metadata)
            for index in indexes
        ],
        topic_authorized_operations=operations.TOPIC,
    )


def _describe_partition(
    index: int, partition: PartitionImage, listener: str, metadata: MetadataCache
) -> DescribeTopicPartitionsResponsePartition:
    is_led = metadata.endpoint(partition.leader, listener) is not None
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if is_led and partition.leader is not None else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=metadata.offline_replicas(partition, listener),
    )


def refuse(request: DescribeTopicPartitionsRequest, error: KafkaError) -> DescribeTopicPartitionsResponse:
    """The error in every requested topic: the response has no other field for it."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error.code, name=asked.name)
            for asked in request.topics
        ]
    )


API = Api(key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=range(1), handle=handle, refuse=refuse)
