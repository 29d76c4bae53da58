"""Metadata (key 3): the brokers of the cluster, and topics with their partitions and leaders.

Who asks: every client, at its start and after each NOT_LEADER_OR_FOLLOWER.
Versions: v0-13. v4 allow_auto_topic_creation, v5 offline replicas, v7 leader epochs, v8-10 authorized
operations of the cluster, v10 topic ids, v12 topics by id, v13 top-level error code.
Differs from Kafka: the response contains a topic that the request has created, where Kafka returns
UNKNOWN_TOPIC_OR_PARTITION and the client retries. If all brokers are fenced, all are listed; Kafka lists none,
and librdkafka (since 2.10) then drops the brokers that it knows and sends no request for five minutes.
Touches: broker.metadata (read only); the controller, to create a topic.
"""

from collections.abc import Awaitable
from uuid import UUID

from broker.api import Api
from broker.api import authorized_operations as operations
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode, InvalidRequest, InvalidTopic, KafkaError
from protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from protocol.metadata.image import PartitionImage, TopicImage
from protocol.topic_names import INTERNAL_TOPICS, check_topic_name
from protocol.types import ZERO_UUID


def handle(
    request: MetadataRequest, context: RequestContext, broker: BrokerServices
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Describe all topics, or those of the request by name or id; create missing ones if allowed."""
    _check(request, context.version)
    missing = _names_to_create(request, broker)
    return (
        _create_and_answer(missing, request, context, broker)
        if missing
        else _answer(request, context, broker)
    )


def _check(request: MetadataRequest, version: int) -> None:
    if version < 12 and any(
        asked.name is None or asked.topic_id != ZERO_UUID for asked in request.topics or ()
    ):
        raise InvalidRequest(f"Metadata v{version} names topics by name, not by id")


def _names_to_create(request: MetadataRequest, broker: BrokerServices) -> list[str]:
    if not (request.topics and request.allow_auto_topic_creation and broker.config.auto_create_topics_enable):
        return []
    if any(asked.topic_id != ZERO_UUID for asked in request.topics):
        return []
    names = dict.fromkeys(asked.name for asked in request.topics)
    return [name for name in names if name is not None and broker.metadata.topic(name) is None]


async def _create_and_answer(
    missing: list[str], request: MetadataRequest, context: RequestContext, broker: BrokerServices
) -> MetadataResponse:
    await broker.topic_creator.create(missing)
    return _answer(request, context, broker)


def _answer(request: MetadataRequest, context: RequestContext, broker: BrokerServices) -> MetadataResponse:
    topics = _describe_asked(request, context, broker)
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = operations.TOPIC
    alive = broker.metadata.alive_brokers(context.listener_name)
    listed = alive or broker.metadata.registered_brokers(context.listener_name)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node.broker_id, host=endpoint.host, port=endpoint.port, rack=node.rack
            )
            for node, endpoint in listed
        ],
        cluster_id=broker.cluster_id,
        # Clients send controller requests to this node; any broker forwards them (KIP-590).
        controller_id=broker.runtime.random.choice(alive)[0].broker_id if alive else -1,
        topics=topics,
        cluster_authorized_operations=(
            operations.CLUSTER if request.include_cluster_authorized_operations else operations.NOT_ASKED
        ),
    )


def _describe_asked(
    request: MetadataRequest, context: RequestContext, broker: BrokerServices
) -> list[MetadataResponseTopic]:
    if request.topics is None or (context.version == 0 and not request.topics):
        return [_describe(topic, context, broker) for topic in broker.metadata.image.topics_by_name.values()]
    ids = dict.fromkeys(asked.topic_id for asked in request.topics if asked.topic_id != ZERO_UUID)
    if ids:  # As in Kafka: in a request with ids, names are ignored.
        return [_describe_id(topic_id, context, broker) for topic_id in ids]
    names = dict.fromkeys(asked.name for asked in request.topics if asked.name is not None)
    return [_describe_name(name, context, broker) for name in names]


def _describe_id(topic_id: UUID, context: RequestContext, broker: BrokerServices) -> MetadataResponseTopic:
    topic = broker.metadata.topic_by_id(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.unknown_topic_id, name=None, topic_id=topic_id)
    return _describe(topic, context, broker)


def _describe_name(name: str, context: RequestContext, broker: BrokerServices) -> MetadataResponseTopic:
    topic = broker.metadata.topic(name)
    if topic is not None:
        return _describe(topic, context, broker)
    error = ErrorCode.unknown_topic_or_partition
    try:
        check_topic_name(name)
    except InvalidTopic as invalid:
        error = invalid.code
    return MetadataResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)


def _describe(topic: TopicImage, context: RequestContext, broker: BrokerServices) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _describe_partition(index, partition, context, broker)
            for index, partition in topic.partitions.items()
        ],
    )


def _describe_partition(
    index: int, partition: PartitionImage, context: RequestContext, broker: BrokerServices
) -> MetadataResponsePartition:
    metadata, listener = broker.metadata, context.listener_name
    replicas, isr = list(partition.replicas), list(partition.isr)
    error = ErrorCode.none
    if context.version == 0:  # The first clients expect an error if a replica is unavailable.
        available = metadata.available_replicas(replicas, listener)
        if len(available) < len(replicas):
            error = ErrorCode.replica_not_available
        replicas, isr = available, metadata.available_replicas(isr, listener)
    leader = partition.leader
    if metadata.endpoint(leader, listener) is None:
        is_listener_missing = metadata.broker(leader) is not None and context.version >= 6
        error = ErrorCode.listener_not_found if is_listener_missing else ErrorCode.leader_not_available
        leader = None
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=-1 if leader is None else leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=metadata.offline_replicas(partition, listener),
    )


def refuse(request: MetadataRequest, error: KafkaError) -> MetadataResponse:
    """The error in every requested topic; versions before 13 have no other field for it."""
    return MetadataResponse(
        error_code=error.code,
        topics=[
            MetadataResponseTopic(error_code=error.code, name=asked.name or "", topic_id=asked.topic_id)
            for asked in request.topics or ()
        ],
    )


API = Api(key=ApiKey.METADATA, versions=range(14), handle=handle, refuse=refuse)
