"""FindCoordinator (key 10): the broker that coordinates a group.

Who asks: every member of a group, and admin clients of groups, at their start and after NOT_COORDINATOR.
Versions: v0-6. v1 key type (groups 0, transactional ids 1), v4 several keys (KIP-699), v6 key type of
share groups 2 (KIP-932).
Differs from Kafka: the first request creates the offsets topic and is answered when it exists, where Kafka
returns COORDINATOR_NOT_AVAILABLE until then. Transactions are not served: a transactional id gets
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the only error of this API that every client treats as final (librdkafka
retries indefinitely after any other, also UNSUPPORTED_VERSION). Share groups get INVALID_REQUEST, as if disabled.
Touches: broker.metadata, ottla.broker.groups (read only); the controller, to create the topic.
"""

import logging
from collections.abc import Awaitable

from ottla.broker.api import Api
from ottla.broker.api.answering_each import answer_each
from ottla.broker.groups.config import OFFSETS_TOPIC
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_SEVERAL_KEYS = 4
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2


def handle(
    request: FindCoordinatorRequest, context: RequestContext, broker: BrokerServices
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Look up the coordinator in the metadata; first create the offsets topic if it is missing."""
    if request.key_type == _GROUP and broker.metadata.topic(OFFSETS_TOPIC) is None:
        return _create_and_answer(request, context, broker)
    return _answer(request, context, broker)


async def _create_and_answer(
    request: FindCoordinatorRequest, context: RequestContext, broker: BrokerServices
) -> FindCoordinatorResponse:
    config = broker.groups.config
    try:
        await broker.topic_creator.create_internal(
            OFFSETS_TOPIC,
            partition_count=config.offsets_topic_partition_count,
            replication_factor=config.offsets_topic_replication_factor,
            configs=config.topic_configs,
        )
    except KafkaError as error:
        logger.warning("%s was not created: %s", OFFSETS_TOPIC, error)
    answer = _answer(request, context, broker)
    return await answer if isinstance(answer, Awaitable) else answer


def _answer(
    request: FindCoordinatorRequest, context: RequestContext, broker: BrokerServices
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if context.version >= _FIRST_VERSION_WITH_SEVERAL_KEYS:
        return answer_each(
            request.coordinator_keys,
            lambda key: _find(key, request.key_type, context, broker),
            lambda rows: FindCoordinatorResponse(coordinators=rows),
            broker,
        )
    found = _find(request.key, request.key_type, context, broker)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        # As in Kafka, whose successful response has the name of its error code as its message.
        error_message=found.error_message or "NONE",
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(key: str, key_type: int, context: RequestContext, broker: BrokerServices) -> Coordinator:
    """Return the row of one key; without a coordinator, node -1, port -1 and an empty host."""
    row = Coordinator(key=key, node_id=-1, port=-1)
    try:
        if key_type == _TRANSACTION:
            raise TransactionalIdAuthorizationFailed("Transactions are not served.")
        if key_type != _GROUP:
            raise InvalidRequest("share groups are not served" if key_type == _SHARE else "unknown key type")
        partition = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_for(key))
        image = broker.metadata.partition(partition)
        if image is None or image.leader is None:
            raise CoordinatorNotAvailable(f"{partition} has no leader")
        endpoint = broker.metadata.endpoint(image.leader, context.listener_name)
        if endpoint is None or not broker.metadata.is_available(image.leader, context.listener_name):
            raise CoordinatorNotAvailable(f"broker {image.leader} cannot be reached")
    except KafkaError as error:
        row.error_code, row.error_message = error.code, error.message
        return row
    row.error_code, row.node_id = ErrorCode.none, image.leader
    row.host, row.port = endpoint.host, endpoint.port
    return row


API = Api(key=ApiKey.FIND_COORDINATOR, versions=range(7), handle=handle, is_encoded_in_turns=True)
