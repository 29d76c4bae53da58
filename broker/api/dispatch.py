"""Request dispatch: from a request frame to the buffers of its response.

Nothing here waits. The response of a handler that does not wait is encoded at once; a handler that must
wait returns an awaitable, and the connection awaits it before it handles its next request.
Source: KafkaApis.handle and RequestChannel of Kafka 4.3.1.
"""

import logging
from collections.abc import Awaitable
from typing import Any

from broker.api import Api, api, modules
from broker.api.k18_api_versions import unsupported_version
from broker.network import Buffers, Connection, Reply
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import KAFKA_VERSIONS, ApiKey
from protocol.codec import decode_request, encode_response
from protocol.errors import KafkaError, MalformedMessage, UnknownServerError
from protocol.framing import RequestHeader, parse_request_header, response_header
from protocol.refusals import refuse
from protocol.schema import Request, Response

logger = logging.getLogger(__name__)


class Dispatcher:
    """Calls the handlers; one for each broker."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._served = {key: KAFKA_VERSIONS[ApiKey(key)] for key in modules()}

    def __call__(self, frame: memoryview, connection: Connection) -> Reply:
        """Respond to one frame. Raises MalformedMessage, also for an API or version that is not served.

        The connection is then closed, as by Kafka.
        """
        header, body_at = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        versions = self._served.get(key)
        if versions is None or version not in versions:
            if key == ApiKey.API_VERSIONS:
                return _answer(header, 0, unsupported_version())
            raise MalformedMessage(f"API {key} v{version} is not served")
        context = RequestContext(
            key,
            version,
            header.correlation_id,
            header.client_id,
            connection.client_host,
            connection.listener_name,
        )
        served = api(key)
        if served.handle_raw is not None:
            return served.handle_raw(frame[body_at:], context, self._broker)
        assert served.handle is not None
        message = decode_request(key, version, frame[body_at:])
        try:
            response = served.handle(message, context, self._broker)
        except Exception as error:  # noqa: BLE001 a handler's bug must not end the connections of others
            return _answer(header, version, _refusal(served, message, context, error))
        if isinstance(response, Awaitable):
            return _wait(response, header, served, message, context)
        return None if response is None else _answer(header, version, response)


async def _wait(
    response: Awaitable[Any], header: RequestHeader, served: Api, message: Request, context: RequestContext
) -> Buffers | None:
    try:
        answer = await response
    except Exception as error:  # noqa: BLE001 as above
        answer = _refusal(served, message, context, error)
    return None if answer is None else _answer(header, context.version, answer)


def _answer(header: RequestHeader, version: int, message: Response) -> Buffers:
    return [
        response_header(header.api_key, version, header.correlation_id),
        encode_response(header.api_key, version, message),
    ]


def _refusal(served: Api, request: Request, context: RequestContext, error: Exception) -> Any:  # noqa: ANN401
    """The response to a request that failed as a whole, with the error, if the response has a field for it.

    Raises the error again if it has none; the connection is then closed, as by Kafka.
    """
    if isinstance(error, MalformedMessage):
        raise error
    if not isinstance(error, KafkaError):
        logger.error("%s of client %r failed", served.key.name, context.client_id, exc_info=error)
        error = UnknownServerError()
    if served.refuse is not None:
        return served.refuse(request, error)
    return refuse(request, error)
