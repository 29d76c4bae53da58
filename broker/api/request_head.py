"""Head of a request: what the requests of a connection begin with, recognised by its bytes instead of being parsed.

    api key, version | correlation id | client id, tagged fields, the body's beginning | the rest of the body
    the same         | of the request | the same                                       | `Repeated.handle`

A producer sends its requests with the same client id, acks and timeout: they differ in the correlation id and in what
follows the head.

Life: it is made of a request that was parsed and handled (`Api.repeated`), is kept in the connection's
`session`, and is replaced by that of the next request that has to be parsed, or ends with the connection:
then it is closed. A connection has one, of at most `MAX_BYTES`.
Invalidation: it says what bytes mean, nothing else, so that no event can make it wrong. What `handle` knows
besides is its own to keep right (`ottla.broker.replicas.reading.implicit_fetch_sessions`).

Source: none in Kafka.
"""

from struct import Struct
from typing import Final

from ottla.broker.api import Api, Repeated
from ottla.broker.request_stats import RequestCounter
from ottla.protocol.framing import RequestHeader

#: Heads that are larger are not kept: a client id may have 32,767 bytes, and a broker has many connections.
MAX_BYTES: Final = 512

#: The beginning of each request: API key and version, and the correlation id.
_BEFORE: Final = ">ii"
_BEFORE_BYTES: Final = 8


class RequestHead:
    """The first bytes of a connection's last request, and how a request that begins with the same ones is handled."""

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
    if repeated is None or body_at + repeated.size_bytes > MAX_BYTES:
        return None
    return RequestHead(frame, header, body_at, repeated, counter)
