"""Request dispatch: from a request frame to the buffers of its response.

Nothing here waits, except a first request for the import of its API, if that is long. The response of a
handler that does not wait is encoded at once; a handler that must wait returns an awaitable, and the
connection awaits it before it handles its next request. A long response is encoded in turns of the loop.

    frame --begins with the head of the request before (`RequestHead`)--> `Repeated.handle`
          --else--> header --the API has `handle_raw`-----------------> it decodes and encodes
                           --the same request, of an equal state------> the cached response (`ResponseCache`)
                           --else-------------------------------------> decode -> handle -> encode

Source: KafkaApis.handle and RequestChannel of Kafka 4.3.1, which has neither heads nor cached responses.
"""

import asyncio
import logging
from collections.abc import Awaitable
from struct import Struct
from typing import Any, Final, NamedTuple, cast

from ottla.broker.api import Api, Repeated, api, import_steps, is_import_long, modules
from ottla.broker.api.k18_api_versions import unsupported_version
from ottla.broker.api.long_answers import at_once_or_in_turns
from ottla.broker.network import Buffers, Connection, Reply, ReplyInTurns, ReplyOfReads
from ottla.broker.request_context import RequestContext
from ottla.broker.request_stats import RequestCounter, RequestStats
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import (
    decode_request,
    decode_request_in_steps,
    encode_response,
    encode_response_in_steps,
)
from ottla.protocol.errors import KafkaError, MalformedMessage, UnknownServerError
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_response_header
from ottla.protocol.refusals import refuse
from ottla.protocol.schema import Request, Response
from ottla.runtime.turns import FreedInTurns, result_in_turns

logger = logging.getLogger(__name__)

#: A longer body may have more elements than are decoded in a millisecond: it is decoded in turns of the loop.
LONG_BODY_BYTES: Final = 8 * 1024


MAX_CACHED_RESPONSES: Final = 64
MAX_CACHED_REQUEST_BYTES: Final = 1024
MAX_CACHED_RESPONSE_BYTES: Final = 16 * 1024


#: Heads that are larger are not kept: a client id may have 32,767 bytes, and a broker has many connections.
MAX_HEAD_BYTES: Final = 512

#: The beginning of each request: API key and version, and the correlation id.
_BEFORE: Final = ">ii"
_BEFORE_BYTES: Final = 8


class RequestHead:
    """The first bytes of a connection's last request, and how a request that begins with the same ones is handled.

        api key, version | correlation id | client id, tagged fields, the body's beginning | the rest of the body
        the same         | of the request | the same                                       | `Repeated.handle`

    A producer sends its requests with the same client id, acks and timeout: they differ in the correlation id and in
    what follows the head. A connection has one head, of at most `MAX_HEAD_BYTES`: it is made of a request that was
    parsed and handled (`Api.repeated`), is kept in the connection's `session`, and is replaced by that of the next
    request that has to be parsed, or ends with the connection: then it is closed.

    Invalidation: it says what bytes mean, nothing else, so that no event can make it wrong. What `handle` knows
    besides is its own to keep right (`ottla.broker.replicas.reading.implicit_fetch_sessions`).
    """

    __slots__ = (
        "_first",
        "_rest",
        "_size",
        "_unpack",
        "body_at",
        "client_id",
        "close",
        "counter",
        "handle",
        "key",
        "version",
    )

    def __init__(
        self,
        frame: memoryview,
        header: RequestHeader,
        body_at: int,
        repeated: Repeated,
        counter: RequestCounter,
    ) -> None:
        """Make the head of a frame whose body begins at `body_at`; `counter` counts such requests."""
        self.key, self.version, _, self.client_id = header
        self.body_at = body_at
        self.counter = counter
        self.handle, self.close = repeated.handle, repeated.close
        self._size = size = body_at + repeated.size_bytes
        self._unpack = Struct(f"{_BEFORE}{size - _BEFORE_BYTES}s").unpack_from
        self._first, _, self._rest = self._unpack(frame)

    def correlation_id(self, frame: memoryview) -> int | None:
        """The correlation id of a frame that begins with this head; None for any other one. Cost: 0.2 us."""
        if len(frame) < self._size:
            return None
        first, correlation_id, rest = self._unpack(frame)
        return correlation_id if rest == self._rest and first == self._first else None


def request_head(
    served: Api, frame: memoryview, header: RequestHeader, body_at: int, counter: RequestCounter
) -> RequestHead | None:
    """Return the head of a request that was handled; None if the next one has to be parsed, too."""
    assert served.repeated is not None, served.key
    repeated = served.repeated(header.api_version, frame[body_at:])
    if repeated is None or body_at + repeated.size_bytes > MAX_HEAD_BYTES:
        return None
    return RequestHead(frame, header, body_at, repeated, counter)


class RequestKey(NamedTuple):
    """A request without its header's correlation id and client id, on which no response depends."""

    key: int
    version: int
    listener_name: str
    body: bytes


class ResponseCache:
    """The encoded responses that one broker has cached, each with the state of which it was made.

    Every client asks Metadata when it connects and every five minutes: equal requests, a thousand at a time after a
    restart, about metadata that has not changed in between. A cached response about one topic takes the broker 17 us
    less (`time.thread_time`), about more topics more. ApiVersions is not cached: that is 11 us once in a connection,
    and clients' names and versions would push out the others.

    Invalidation: none to forget. An API says what its responses depend on beside the request and its listener
    (`Api.depends_on`); a response is used while that is equal. No client's identity is part of it: once responses
    depend on the client's rights, so must this.

    Bounds: `MAX_CACHED_RESPONSES` of at most `MAX_CACHED_REQUEST_BYTES` and `MAX_CACHED_RESPONSE_BYTES`, the oldest is
    dropped; only responses that did not wait.
    """

    def __init__(self) -> None:
        self._responses: dict[RequestKey, tuple[object, bytes]] = {}

    def get(self, request: RequestKey, state: object) -> bytes | None:
        """The encoded response, without its header, if it was made of an equal state."""
        cached = self._responses.get(request)
        return cached[1] if cached is not None and cached[0] == state else None

    def put(self, request: RequestKey, state: object, encoded: bytes) -> None:
        """Cache a response, in place of that of an earlier state."""
        if len(encoded) > MAX_CACHED_RESPONSE_BYTES:
            return
        responses = self._responses
        responses.pop(request, None)
        if len(responses) >= MAX_CACHED_RESPONSES:
            del responses[next(iter(responses))]
        responses[request] = state, encoded


class Dispatcher:
    """Calls the handlers; one for each broker."""

    def __init__(self, broker: BrokerServices, stats: RequestStats | None = None) -> None:
        self._broker = broker
        self._monotonic = broker.runtime.monotonic
        stats = stats or RequestStats()
        stats.serve({key: KAFKA_VERSIONS[ApiKey(key)] for key in modules()}, is_broker=True)
        self._counters = stats.counters
        self._response_cache = ResponseCache()

    def __call__(self, frame: memoryview, connection: Connection) -> Reply:
        """Respond to one frame. Raises MalformedMessage, also for an API or version that is not served.

        The connection is then closed, as by Kafka.
        """
        head = cast("RequestHead | None", connection.session)
        handle = None
        if head is not None and (correlation_id := head.correlation_id(frame)) is not None:
            key, version, client_id, body_at = head.key, head.version, head.client_id, head.body_at
            counter, handle = head.counter, head.handle
        else:
            header, body_at = decode_request_header(frame)
            key, version, correlation_id, client_id = header
            known = self._counters.get((key, version))
            if known is None:
                if key == ApiKey.API_VERSIONS:
                    return _answer(header, 0, unsupported_version())
                raise MalformedMessage(f"API {key} v{version} is not served")
            counter = known
            if counter.handler is None and is_import_long(key):
                return self._when_imported(key, bytearray(frame), connection)
        counter.left -= 1
        started_at = None
        if not counter.left:
            counter.begin_round()
            started_at = self._monotonic()
        context = RequestContext(
            key,
            version,
            correlation_id,
            client_id,
            connection.client_host,
            connection.listener_name,
            connection=connection,
        )
        body = frame[body_at:]
        if handle is not None:
            reply = handle(body, context, self._broker)
        else:
            served: Api = counter.handler or self._load(counter, key)
            if served.handle_raw is None:
                reply = self._handle(served, body, header, context)
            else:
                reply = served.handle_raw(body, context, self._broker)
                if served.repeated is not None:
                    connection.session = _next_head(
                        head, request_head(served, frame, header, body_at, counter)
                    )
        if type(reply) is list:
            if started_at is not None:
                counter.observe(self._monotonic() - started_at)
        elif reply is not None and counter.times is not None:
            connection.time_reply(counter.waits)
        return reply

    async def _when_imported(self, key: int, frame: bytearray, connection: Connection) -> Reply:
        """Dispatch the frame after the import of its API, a step a turn: other requests do not wait for all of it.

        Several requests that wait share the steps: what one has imported takes the others no time.
        """
        for _ in import_steps(key):
            await asyncio.sleep(0)
        return None if connection.is_closed else self(memoryview(frame), connection)

    def _load(self, counter: RequestCounter, key: int) -> Api:
        counter.handler = api(key)
        return api(key)

    def _handle(self, served: Api, body: memoryview, header: RequestHeader, context: RequestContext) -> Reply:
        """Decode the message, and respond."""
        assert served.handle is not None
        key, version = header.api_key, header.api_version
        cache_key, state = None, None
        if served.depends_on is not None and len(body) <= MAX_CACHED_REQUEST_BYTES:
            cache_key = RequestKey(key, version, context.listener_name, bytes(body))
            state = served.depends_on(self._broker)
            if (encoded := self._response_cache.get(cache_key, state)) is not None:
                return _buffers(header, version, encoded)
        elif len(body) > LONG_BODY_BYTES:
            return ReplyInTurns(self._handle_long(served, bytes(body), header, context))
        return self._respond(served, decode_request(key, version, body), header, context, cache_key, state)

    async def _handle_long(
        self, served: Api, body: bytes, header: RequestHeader, context: RequestContext
    ) -> Reply:
        """Decode a long request in turns of the event loop, in which other requests are handled, and respond."""
        parts = FreedInTurns(self._broker.runtime)
        decoding = decode_request_in_steps(header.api_key, header.api_version, body, parts)
        message = await result_in_turns(decoding, self._broker.runtime)
        return self._respond(served, message, header, context, parts=parts)

    def _respond(
        self,
        served: Api,
        message: Request,
        header: RequestHeader,
        context: RequestContext,
        cache_key: RequestKey | None = None,
        state: object = None,
        *,
        parts: FreedInTurns | None = None,
    ) -> Reply:
        """Handle the decoded message, and respond.

        With `cache_key`, the response is cached for equal requests, as one that depends on `state`. `parts` are the
        parts of a message of many rows.
        """
        assert served.handle is not None
        key, version = header.api_key, header.api_version
        try:
            response = served.handle(message, context, self._broker)
        except Exception as error:  # noqa: BLE001 a handler's bug must not end the connections of others
            response = _refusal(served, message, context, error)
        if isinstance(response, Awaitable):
            reply = self._wait(response, header, served, message, context, parts)
            return ReplyOfReads(reply) if served.only_reads else reply
        if response is None:
            return None
        if parts is not None:
            return self._encode(response, header, version)
        encoded = encode_response(key, version, response)
        if cache_key is not None:
            self._response_cache.put(cache_key, state, encoded)
        return _buffers(header, version, encoded)

    async def _wait(
        self,
        response: Awaitable[Any],
        header: RequestHeader,
        served: Api,
        message: Request,
        context: RequestContext,
        parts: FreedInTurns | None,
    ) -> Buffers | None:
        try:
            answer = await response
        except Exception as error:  # noqa: BLE001 as above
            answer = _refusal(served, message, context, error)
        if answer is None:
            return None
        if parts is None and not served.is_encoded_in_turns:
            return _answer(header, context.version, answer)
        return await self._encode(answer, header, context.version)

    async def _encode(self, answer: Response, header: RequestHeader, version: int) -> Buffers:
        """The response, of any number of rows."""
        parts = FreedInTurns(self._broker.runtime)
        encoding = encode_response_in_steps(header.api_key, version, answer, parts)
        encoded = at_once_or_in_turns(encoding, self._broker.runtime)
        return _buffers(header, version, encoded if isinstance(encoded, bytes) else await encoded)


def _next_head(head: RequestHead | None, found: RequestHead | None) -> RequestHead | None:
    if found is None:
        return head
    if head is not None:
        head.close()
    return found


def _answer(header: RequestHeader, version: int, message: Response) -> Buffers:
    return _buffers(header, version, encode_response(header.api_key, version, message))


def _buffers(header: RequestHeader, version: int, encoded: bytes) -> Buffers:
    return [encode_response_header(header.api_key, version, header.correlation_id), encoded]


def _refusal(served: Api, request: Request, context: RequestContext, error: Exception) -> Response:
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
