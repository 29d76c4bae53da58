"""Metadata (key 3): the brokers of the cluster, and topics with their partitions and leaders.

Who asks: every client, at its start and after each NOT_LEADER_OR_FOLLOWER.
Versions: v0-13. v4 allow_auto_topic_creation, v5 offline replicas, v7 leader epochs, v8-10 authorized
operations of the cluster, v10 topic ids, v12 topics by id, v13 top-level error code.
Differs from Kafka: the response contains a topic that the request has created, where Kafka returns
UNKNOWN_TOPIC_OR_PARTITION and the client retries. If all brokers are fenced, all are listed; Kafka lists none,
and librdkafka (since 2.10) then drops the brokers that it knows and sends no request for five minutes.
Touches: broker.metadata (read only); the controller, to create a topic. Many names and partitions take
several turns of the loop; all are described as of one of them.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from operator import attrgetter
from typing import Final, TypeAlias, cast
from uuid import UUID

from ottla.broker.api import Api
from ottla.broker.api import authorized_operations as operations
from ottla.broker.api.long_answers import ROWS_OF_STEP, Work, at_once_or_in_turns, distinct
from ottla.broker.metadata_cache import ListenerBrokers
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.image import PartitionImage, TopicImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, InvalidRequest, InvalidTopic, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.steps import NAMES_OF_STEP
from ottla.protocol.topic_names import INTERNAL_TOPICS, check_topic_name
from ottla.protocol.types import ZERO_UUID

#: Topics that one request creates at most; the others are unknown in its answer, and created when the client
#: asks again.
MOST_CREATED: Final = 1000

#: A topic's name or id.
_Key: TypeAlias = str | UUID
#: Different names or ids, in their order.
_Keys: TypeAlias = Mapping[_Key, None]
#: The name or id of a requested topic, the topic, None if there is none, and its partitions.
_Asked: TypeAlias = tuple[_Key, TopicImage | None, Mapping[int, PartitionImage]]
_NO_TOPIC: Final[tuple[None, Mapping[int, PartitionImage]]] = (None, {})

_FIRST_VERSION_WITH_IDS: Final = 12

_topic_id: Callable[[MetadataRequestTopic], UUID] = attrgetter("topic_id")
_name: Callable[[MetadataRequestTopic], str | None] = attrgetter("name")


def handle(
    request: MetadataRequest, context: RequestContext, broker: BrokerServices
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Describe all topics, or those of the request by name or id; create missing ones if allowed."""
    work = _create_or_describe(request, context, broker)
    return at_once_or_in_turns(work, broker.runtime, broker.long_answers)


def _create_or_describe(
    request: MetadataRequest, context: RequestContext, broker: BrokerServices
) -> Work[MetadataResponse]:
    asked = yield from _keys(request, context.version)
    if asked and request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
        missing = yield from _names_to_create(asked, broker)
        if missing:
            return _create_and_describe(missing, asked, request, context, broker)
    return (yield from _describe(asked, request, context, broker))


def _keys(request: MetadataRequest, version: int) -> Generator[None, None, _Keys | None]:
    """Return the requested ids, or else names, each once; None for all topics. Raises InvalidRequest."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    ids = yield from distinct(request.topics, _topic_id)
    ids.pop(ZERO_UUID, None)
    if ids and version >= _FIRST_VERSION_WITH_IDS:  # As in Kafka: in a request with ids, names are ignored.
        return cast("_Keys", ids)
    names = yield from distinct(request.topics, _name)
    if version < _FIRST_VERSION_WITH_IDS and (ids or None in names):
        raise InvalidRequest(f"Metadata v{version} names topics by name, not by id")
    names.pop(None, None)
    return cast("_Keys", names)


def _names_to_create(asked: _Keys, broker: BrokerServices) -> Generator[None, None, list[str]]:
    """The first names without a topic; none if the request has ids."""
    missing: list[str] = []
    for number, name in enumerate(asked):
        if number % NAMES_OF_STEP == NAMES_OF_STEP - 1:
            yield
        if isinstance(name, UUID) or len(missing) == MOST_CREATED:
            break
        if broker.metadata.topic(name) is None:
            missing.append(name)
    return missing


async def _create_and_describe(
    missing: list[str],
    asked: _Keys,
    request: MetadataRequest,
    context: RequestContext,
    broker: BrokerServices,
) -> MetadataResponse:
    await broker.topic_creator.create(missing)
    work: Work[MetadataResponse] = _describe(asked, request, context, broker)
    answer = at_once_or_in_turns(work, broker.runtime, broker.long_answers)
    return await answer if isinstance(answer, Awaitable) else answer


def _describe(
    asked_for: _Keys | None,
    request: MetadataRequest,
    context: RequestContext,
    broker: BrokerServices,
) -> Generator[None, None, MetadataResponse]:
    # Brokers, topics and partitions are those of the first step's moment.
    brokers = broker.metadata.brokers_for(context.listener_name)
    alive = brokers.alive()
    # Clients send controller requests to this node; any broker forwards them (KIP-590).
    controller_id = broker.runtime.random.choice(alive)[0].broker_id if alive else -1
    topics = []
    left = ROWS_OF_STEP
    for asked, image, partitions in _found(asked_for, broker):
        if not left:
            left = ROWS_OF_STEP
            yield
        left -= 1
        topics.append(topic := _describe_topic(asked, image))
        if request.include_topic_authorized_operations:
            topic.topic_authorized_operations = operations.TOPIC
        for index, partition in partitions.items():
            if not left:
                left = ROWS_OF_STEP
                yield
            left -= 1
            topic.partitions.append(_describe_partition(index, partition, context.version, brokers))
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node.broker_id, host=endpoint.host, port=endpoint.port, rack=node.rack
            )
            for node, endpoint in alive or brokers.registered()
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller_id,
        topics=topics,
        cluster_authorized_operations=(
            operations.CLUSTER if request.include_cluster_authorized_operations else operations.NOT_ASKED
        ),
    )


def _found(asked: _Keys | None, broker: BrokerServices) -> Iterable[_Asked]:
    """Look up the requested topics in one turn of the loop.

    All rows show the same moment. The cost is bounded by the topics that exist, not by those that are
    requested.
    """
    image = broker.metadata.image
    # Partitions are copied: the image's own are replaced one by one.
    if asked is None:
        return [(name, topic, topic.partitions.copy()) for name, topic in image.topics_by_name.items()]
    is_by_id = isinstance(next(iter(asked), None), UUID)
    topics = cast("Mapping[_Key, TopicImage]", image.topics_by_id if is_by_id else image.topics_by_name)
    found = {key: (topics[key], topics[key].partitions.copy()) for key in asked.keys() & topics.keys()}
    return ((key, *found.get(key, _NO_TOPIC)) for key in asked)


def _describe_topic(asked: str | UUID, topic: TopicImage | None) -> MetadataResponseTopic:
    """Describe a topic without its partitions, or the error of one that does not exist."""
    if topic is not None:
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.name in INTERNAL_TOPICS
        )
    if isinstance(asked, UUID):
        return MetadataResponseTopic(error_code=ErrorCode.unknown_topic_id, name=None, topic_id=asked)
    error = ErrorCode.unknown_topic_or_partition
    try:
        check_topic_name(asked)
    except InvalidTopic as invalid:
        error = invalid.code
    return MetadataResponseTopic(error_code=error, name=asked, is_internal=asked in INTERNAL_TOPICS)


def _describe_partition(
    index: int, partition: PartitionImage, version: int, brokers: ListenerBrokers
) -> MetadataResponsePartition:
    error = ErrorCode.none
    replicas, isr = list(partition.replicas), list(partition.isr)
    if version == 0:  # The first clients expect an error if a replica is unavailable.
        available = brokers.available(replicas)
        if len(available) < len(replicas):
            error = ErrorCode.replica_not_available
        replicas, isr = available, brokers.available(isr)
    leader = partition.leader
    if not brokers.has_endpoint(leader):
        is_listener_missing = brokers.is_registered(leader) and version >= 6
        error = ErrorCode.listener_not_found if is_listener_missing else ErrorCode.leader_not_available
        leader = None
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=-1 if leader is None else leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=brokers.offline_replicas(partition),
    )


def refuse(request: MetadataRequest, error: KafkaError) -> MetadataResponse:
    """Return a response with the error in every requested topic; versions before 13 have no other field for it."""
    return MetadataResponse(
        error_code=error.code,
        topics=[
            MetadataResponseTopic(error_code=error.code, name=asked.name or "", topic_id=asked.topic_id)
            for asked in request.topics or ()
        ],
    )


def depends_on(broker: BrokerServices) -> object:
    """Return the last applied offset of the metadata, and a time in tenths of a second.

    The time is there for a client that cannot reach the broker whose id is the controller's: it asks again.
    """
    return broker.metadata.last_applied_offset, int(broker.runtime.monotonic() * 10)


API = Api(
    key=ApiKey.METADATA,
    versions=range(14),
    handle=handle,
    refuse=refuse,
    depends_on=depends_on,
    is_encoded_in_turns=True,
)
