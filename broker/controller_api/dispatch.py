"""Request dispatch of a controller's listener: from a request frame to the buffers of its response.

    ApiVersions, DescribeCluster, DescribeConfigs   handled here, from committed metadata
    Envelope                                        handles the request in it, and returns its response in an envelope
    all others                                      handled by the controller or the quorum

An authorizer, once there is one, is called here: `services.NODE_REQUESTS` need CLUSTER_ACTION, Envelope for its own
sender, and the request in an envelope for the principal that the envelope names.
Source: ControllerApis, EnvelopeUtils of Kafka 4.3.1.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ottla.broker.api import k20_delete_topics
from ottla.broker.api.dispatch import LONG_BODY_BYTES
from ottla.broker.api.k18_api_versions import unsupported_version
from ottla.broker.api.long_answers import at_once_or_in_turns
from ottla.broker.controller_api import handlers
from ottla.broker.controller_api.services import QUORUM_REQUESTS, ControllerServices
from ottla.broker.membership.envelope import has_not_controller_error, unwrap_request, wrap_response
from ottla.broker.network import Buffers, Connection, Reply, ReplyInTurns
from ottla.broker.request_context import RequestContext
from ottla.broker.request_stats import RequestStats
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import (
    decode_request,
    decode_request_in_steps,
    encode_response,
    encode_response_in_steps,
    scatter_encoder,
)
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnknownServerError
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_response_header
from ottla.protocol.messages import response_class
from ottla.protocol.messages.delete_topics import DeleteTopicsResponse
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.refusals import refuse
from ottla.protocol.schema import Request, Response
from ottla.runtime.turns import FreedInTurns, result_in_turns

logger = logging.getLogger(__name__)

#: The APIs that are handled at once, from this node's own state.
_LOCAL: Final[Mapping[int, Callable[[Any, RequestContext, ControllerServices], Response]]] = {
    ApiKey.API_VERSIONS: handlers.api_versions,
    ApiKey.DESCRIBE_CLUSTER: handlers.describe_cluster,
}
#: The APIs whose requests are checked here before the controller decides, or are handled here by a coroutine.
_CONFIG_HANDLERS: Final[
    Mapping[int, Callable[[Any, RequestContext, ControllerServices], Awaitable[Response]]]
] = {
    ApiKey.DESCRIBE_CONFIGS: handlers.describe_configs,
    ApiKey.ALTER_CONFIGS: handlers.replace_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handlers.alter_configs_incrementally,
}
#: APIs whose responses contain records, which are not copied into one buffer with the rest.
_WITH_RECORDS: Final = frozenset({ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT})
#: The same with the response that an envelope contains: 20 MB are copied in 30 ms.
_SCATTERED: Final = _WITH_RECORDS | {ApiKey.ENVELOPE}


class ControllerDispatcher:
    """Calls the handlers; one for each controller."""

    def __init__(self, services: ControllerServices, stats: RequestStats | None = None) -> None:
        self._services = services
        keys = handlers.served_keys(services)
        self._served = {key: KAFKA_VERSIONS[ApiKey(key)] for key in keys}
        stats = stats or RequestStats()
        stats.serve(self._served, is_broker=False)
        self._counters = stats.counters

    def __call__(self, frame: memoryview, connection: Connection) -> Reply:
        """Respond to one frame. Raises MalformedMessage, also for an API or version that is not served."""
        header, body_at = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        counter = self._counters.get((key, version))
        if counter is None:
            if key == ApiKey.API_VERSIONS:
                return _encoded(header, unsupported_version(), version=0)
            raise MalformedMessage(f"API {key} v{version} is not served by controllers")
        counter.left -= 1
        if not counter.left:
            counter.begin_round()
        # Copied: a waiting request outlasts the frame, and a decoded message may hold slices (records, envelopes).
        body = bytes(frame[body_at:])
        context = RequestContext(
            key,
            version,
            header.correlation_id,
            header.client_id,
            connection.client_host,
            connection.listener_name,
        )
        if key not in _LOCAL:
            connection.time_reply(counter.waits)
        if len(body) > LONG_BODY_BYTES and key not in _WITH_RECORDS:
            return ReplyInTurns(self._handle_long(header, body, context))
        return self._respond(header, decode_request(key, version, body), context)

    async def _handle_long(self, header: RequestHeader, body: bytes, context: RequestContext) -> Reply:
        """Decode in turns of the loop, and respond."""
        parts = FreedInTurns(self._services.runtime)
        decoding = decode_request_in_steps(header.api_key, header.api_version, body, parts)
        message = await result_in_turns(decoding, self._services.runtime)
        return self._respond(header, message, context, parts)

    def _respond(
        self,
        header: RequestHeader,
        message: Request,
        context: RequestContext,
        parts: FreedInTurns | None = None,
    ) -> Reply:
        if (local := _LOCAL.get(header.api_key)) is not None:
            return _encoded(header, self._answered(local, message, context))
        if isinstance(message, EnvelopeRequest):
            return self._open_envelope(header, message, context)
        return self._wait(header, message, context, parts)

    async def _wait(
        self,
        header: RequestHeader,
        request: Request,
        context: RequestContext,
        _parts: FreedInTurns | None,
    ) -> Buffers:
        """Respond when the response is available; `_parts` of a request of many rows are held until then."""
        message = await self._decide(request, context)
        if header.api_key in _WITH_RECORDS:
            return _encoded(header, message)
        head = encode_response_header(header.api_key, header.api_version, header.correlation_id)
        return [head, await self._encode(header, message)]

    async def _encode(self, header: RequestHeader, message: Response) -> bytes:
        """Encode a response of any number of rows, in turns of the loop if they are many."""
        parts = FreedInTurns(self._services.runtime)
        encoding = encode_response_in_steps(header.api_key, header.api_version, message, parts)
        encoded = at_once_or_in_turns(encoding, self._services.runtime)
        return encoded if isinstance(encoded, bytes) else await encoded

    def _answered(
        self,
        handle: Callable[[Any, RequestContext, ControllerServices], Response],
        message: Request,
        context: RequestContext,
    ) -> Response:
        try:
            return handle(message, context, self._services)
        except Exception as error:  # noqa: BLE001 a handler's bug must not end the connections of others
            return self._refusal(message, context, error)

    async def _decide(
        self,
        message: Request,
        context: RequestContext,
        *,
        is_forwarded: bool = False,
    ) -> Response:
        """Return the response of the controller or the quorum, or the one that refuses the request as a whole."""
        try:
            # A broker has checked the requests that it forwards, and has removed its loggers from them.
            if not is_forwarded and (handle := _CONFIG_HANDLERS.get(context.api_key)) is not None:
                return await handle(message, context, self._services)
            response: Response = await self._services.controller.request(context.api_key, message, context)
            if isinstance(response, DeleteTopicsResponse):
                return k20_delete_topics.in_version(response, context.version)
            return response
        except Exception as error:  # noqa: BLE001 as above
            return self._refusal(message, context, error)

    async def _open_envelope(
        self, header: RequestHeader, envelope: EnvelopeRequest, context: RequestContext
    ) -> Buffers:
        try:
            parts = FreedInTurns(self._services.runtime)
            opening = at_once_or_in_turns(
                unwrap_request(envelope, context.listener_name, parts), self._services.runtime
            )
            inner = await opening if isinstance(opening, Awaitable) else opening
            if inner.context.api_key not in self._served:
                raise KafkaError(f"API {inner.context.api_key} is not served by controllers")
        except KafkaError as error:
            logger.info("an envelope of %s cannot be opened: %s", context.client_host, error)
            return _encoded(header, EnvelopeResponse(error_code=error.code))
        response = await self._decide(inner.message, inner.context, is_forwarded=True)
        if has_not_controller_error(response):
            return _encoded(header, EnvelopeResponse(error_code=ErrorCode.not_controller))
        encoded = await self._encode(inner.header, response)
        return _encoded(header, EnvelopeResponse(response_data=wrap_response(inner.header, encoded)))

    def _refusal(self, message: Request, context: RequestContext, error: Exception) -> Response:
        """The response with the error, if it has a field for one; else raises it, and the connection is closed."""
        key = ApiKey(context.api_key)
        if isinstance(error, MalformedMessage):
            raise error
        if not isinstance(error, KafkaError):
            logger.error("%s of client %r failed", key.name, context.client_id, exc_info=error)
            error = UnknownServerError()
        return refuse(message, error)


def _encoded(header: RequestHeader, message: Response, *, version: int | None = None) -> Buffers:
    key = header.api_key
    version = header.api_version if version is None else version
    head = encode_response_header(key, version, header.correlation_id)
    if key in _SCATTERED:
        return scatter_encoder(response_class(key), version)(message, head)
    return [head, encode_response(key, version, message)]


assert not QUORUM_REQUESTS & _LOCAL.keys()
