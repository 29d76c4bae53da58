"""From a request frame to the buffers of its response.

Nothing here waits. A handler that answers at once is called and answered on the spot; one that must
wait hands back an awaitable, which the connection waits for before it looks at its next request.
"""

import logging
from collections.abc import Awaitable
from typing import Any

from broker.api import Api, RequestContext, api, modules
from broker.api.k18_api_versions import unsupported_version
from broker.broker import Broker
from broker.network import Buffers, Connection, Reply
from protocol.api_keys import KAFKA_VERSIONS, ApiKey
from protocol.codec import decode_request, encode_response
from protocol.errors import KafkaError, MalformedMessage, UnknownServerError
from protocol.framing import RequestHeader, parse_request_header, response_header
from protocol.refusals import refuse
from protocol.schema import Request, Response

logger = logging.getLogger(__name__)


class Dispatcher:
    """Calls handlers; one for each node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._served = {key: KAFKA_VERSIONS[ApiKey(key)] for key in modules()}

    def __call__(self, frame: memoryview, connection: Connection) -> Reply:
        """Answer one frame. Raises MalformedMessage, also for what is not served: the connection is closed, as by Kafka."""
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
    """The whole request failed: its response with the error, if it has a place for one.

    Raises the error again where there is none; the connection is then closed, as Kafka does.
    """
    if isinstance(error, MalformedMessage):
        raise error
    if not isinstance(error, KafkaError):
        logger.error("%s of client %r failed", served.key.name, context.client_id, exc_info=error)
        error = UnknownServerError()
    if served.refuse is not None:
        return served.refuse(request, error)
    return refuse(request, error)
