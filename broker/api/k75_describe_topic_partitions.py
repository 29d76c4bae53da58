"""DescribeTopicPartitions (key 75): topics in pages, with their eligible leader replicas (KIP-966).

Who asks: admin clients (kafka-topics --describe), for topics of any number of partitions.
Versions: v0.
Differs from Kafka: nothing known.
Touches: broker.metadata (read only). Many names and partitions take several turns of the loop; all are
described as of one of them.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Container, Generator, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from ottla.broker.api import Api
from ottla.broker.api import authorized_operations as operations
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns, distinct, in_order
from ottla.broker.metadata_cache import ListenerBrokers
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.image import PartitionImage, TopicImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, InvalidRequest, InvalidTopic, KafkaError
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from ottla.protocol.steps import NAMES_OF_STEP
from ottla.protocol.topic_names import INTERNAL_TOPICS, check_topic_name

_name: Callable[[TopicRequest], str] = attrgetter("name")

#: The cursor before all topics.
_FIRST: Final = Cursor(topic_name="", partition_index=0)
#: A topic with the partitions that are described, and the index of the one after them, if there is one.
_Page: TypeAlias = tuple[TopicImage, list[tuple[int, PartitionImage]], int | None]


def handle(
    request: DescribeTopicPartitionsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeTopicPartitionsResponse | Awaitable[DescribeTopicPartitionsResponse]:
    """Describe topics sorted by name, from the cursor on, up to the limit of partitions."""
    return at_once_or_in_turns(_answer(request, context, broker), broker.runtime, broker.long_answers)


def _answer(
    request: DescribeTopicPartitionsRequest, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    response = DescribeTopicPartitionsResponse()
    topics = broker.metadata.image.topics_by_name
    if request.topics:
        asked = yield from distinct(request.topics, _name)
        names = yield from in_order(asked)
        _check_cursor(request, asked)
        # Looked up again: a snapshot replaces the image.
        topics = broker.metadata.image.topics_by_name
        existing = names if len(names) <= NAMES_OF_STEP else sorted(asked.keys() & topics.keys())
    else:
        _check_cursor(request, topics)
        names = existing = sorted(topics)
    # Brokers, topics and partitions are those of this moment: of all names, no more topics than the cluster has.
    brokers = broker.metadata.brokers_for(context.listener_name)
    cursor = request.cursor or _FIRST
    limit = max(1, min(broker.config.max_request_partition_size_limit, request.response_partition_limit))
    pages = _pages(topics, existing, cursor, limit)
    left = ROWS_OF_STEP
    for name in names:
        if not left:
            left = ROWS_OF_STEP
            yield
        left -= 1
        if name < cursor.topic_name:
            continue
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        page = pages.get(name)
        if page is None:
            response.topics.append(_unknown(name))
            continue
        topic, partitions, next_index = page
        response.topics.append(row := _known(topic))
        for index, partition in partitions:
            if not left:
                left = ROWS_OF_STEP
                yield
            left -= 1
            row.partitions.append(_describe_partition(index, partition, brokers))
        if next_index is not None:
            response.next_cursor = Cursor(topic_name=name, partition_index=next_index)
            break
        limit -= len(partitions)
    return response


def _check_cursor(request: DescribeTopicPartitionsRequest, asked: Container[str]) -> None:
    """Check that the cursor names a requested topic and a valid partition. Raises InvalidRequest."""
    cursor = request.cursor
    if cursor is None:
        return
    if request.topics and cursor.topic_name not in asked:
        raise InvalidRequest(f"The cursor's topic {cursor.topic_name!r} is not among the topics asked for")
    if cursor.partition_index < 0:
        raise InvalidRequest(f"The cursor's partition {cursor.partition_index} is negative")


def _pages(
    topics: Mapping[str, TopicImage], names: list[str], cursor: Cursor, limit: int
) -> dict[str, _Page]:
    """Return, by name, the page of each topic that is described: from the cursor on, up to the limit of partitions."""
    pages: dict[str, _Page] = {}
    for name in names:
        topic = topics.get(name)
        if topic is None or name < cursor.topic_name:
            continue
        indexes = sorted(topic.partitions)
        if name == cursor.topic_name:
            indexes = indexes[bisect_left(indexes, cursor.partition_index) :]
        next_index = indexes[limit] if len(indexes) > limit else None
        partitions = [(index, topic.partitions[index]) for index in indexes[:limit]]
        pages[name] = topic, partitions, next_index
        limit -= len(partitions)
        if limit == 0:
            break
    return pages


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
    """Return a response with the error in every requested topic: the response has no other field for it."""
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
