"""InitProducerId (key 22): the producer id and epoch by which retried batches are recognised (KIP-98).

Who asks: idempotent producers at their start, and after an error that breaks their sequence (KIP-360).
Versions: v0-5. v2 flexible, v3 the producer's present id and epoch (KIP-360), v4 PRODUCER_FENCED, v5 for
KIP-890. Kafka has v6 (KIP-939), which it does not advertise.
Differs from Kafka: never throttles; waits for a block of ids where Kafka lets the client retry;
transactions are not served: a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED as in
FindCoordinator, which every client treats as final.
Touches: broker.producer_ids. Waits when a block of ids is used up.
"""

from collections.abc import Awaitable

from ottla.broker.api import Api
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

UNKNOWN = -1


def handle(
    request: InitProducerIdRequest, context: RequestContext, broker: BrokerServices
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Return a new id with epoch 0, also if the producer had one before: without transactions there is no fencing."""
    if request.transactional_id is not None:
        # An empty transactional id is invalid, unlike null.
        is_named = bool(request.transactional_id)
        return _error(
            ErrorCode.transactional_id_authorization_failed if is_named else ErrorCode.invalid_request
        )
    if (request.producer_id == UNKNOWN) != (request.producer_epoch == UNKNOWN):
        return _error(ErrorCode.invalid_request)
    producer_id = broker.producer_ids.try_next()
    if producer_id is None:
        return _wait(broker)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _wait(broker: BrokerServices) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
    except KafkaError as error:
        return _error(error.code)


def _error(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=UNKNOWN, producer_epoch=UNKNOWN)


API = Api(key=ApiKey.INIT_PRODUCER_ID, versions=range(6), handle=handle)
