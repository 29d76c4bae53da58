"""DescribeTopicPartitions (key 75): topics in pages, with their eligible leader replicas (KIP-966).

Who asks: admin clients (kafka-topics --describe), for topics of any number of partitions.
Versions: v0.
Differs from Kafka: nothing known.
Touches: broker.metadata (read only). Many partitions take several turns of the loop, and are described as of the first one.
"""

from collections.abc import Awaitable, Generator

from broker.api import Api
from broker.api import authorized_operations as operations
from broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from broker.metadata_cache import ListenerBrokers, MetadataCache
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
) -> DescribeTopicPartitionsResponse | Awaitable[DescribeTopicPartitionsResponse]:
    """Topics sorted by name, from the cursor on, up to the limit of partitions."""
    return at_once_or_in_turns(_answer(request, context, broker), broker.runtime, broker.long_answers)


def _answer(
    request: DescribeTopicPartitionsRequest, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    response = DescribeTopicPartitionsResponse()
    # Brokers and partitions are those of the first step's moment.
    brokers = broker.metadata.brokers_for(context.listener_name)
    left = ROWS_OF_STEP
    for topic, partitions in _page(request, broker, response):
        response.topics.append(topic)
        for index, partition in partitions:
            if not left:
                left = ROWS_OF_STEP
                yield
            left -= 1
            topic.partitions.append(_describe_partition(index, partition, brokers))
    return response


def _page(
    request: DescribeTopicPartitionsRequest,
    broker: BrokerServices,
    response: DescribeTopicPartitionsResponse,
) -> list[tuple[DescribeTopicPartitionsResponseTopic, list[tuple[int, PartitionImage]]]]:
    """Topics without their partitions, and these; sets the next cursor."""
    limit = max(1, min(broker.config.max_request_partition_size_limit, request.response_partition_limit))
    page: list[tuple[DescribeTopicPartitionsResponseTopic, list[tuple[int, PartitionImage]]]] = []
    for name in _names_from_cursor(request, broker.metadata):
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = broker.metadata.topic(name)
        if topic is None:
            if request.topics:
                page.append((_unknown(name), []))
            continue
        cursor = request.cursor
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= start]
        page.append((_known(topic), [(index, topic.partitions[index]) for index in indexes[:limit]]))
        if len(indexes) > limit:
            response.next_cursor = Cursor(topic_name=name, partition_index=indexes[limit])
            break
        limit -= len(indexes)
    return page


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


def _known(topic: TopicImage) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        topic_authorized_operations=operations.TOPIC,
    )


def _describe_partition(
    index: int, partition: PartitionImage, brokers: ListenerBrokers
) -> DescribeTopicPartitionsResponsePartition:
    is_led = brokers.has_endpoint(partition.leader)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if is_led and partition.leader is not None else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=brokers.offline_replicas(partition),
    )


def refuse(request: DescribeTopicPartitionsRequest, error: KafkaError) -> DescribeTopicPartitionsResponse:
    """The error in every requested topic: the response has no other field for it."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error.code, name=asked.name)
            for asked in request.topics
        ]
    )


API = Api(
    key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=range(1),
    handle=handle,
    refuse=refuse,
    is_encoded_in_turns=True,
)
