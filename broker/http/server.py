"""HTTP server: the listeners of `metrics.listeners`, and their connections, on the node's own loop.

A connection reads one request at a time, and writes its response; each state has a deadline:

    waiting ---- a first byte ------------> reading
    reading ---- the end of a head -------> answering ---- the response is computed --> writing
    writing ---- the peer has read it ----> waiting, or closed if it is not persistent
    answering -- a stream begins ---------> streaming, until either side closes it
    reading ---- a head that is refused --> writing --> closed
    any     ---- its deadline ------------> aborted

A peer that sends slowly does not move the deadline: it is that of the whole head. While a request is answered
nothing is read, so that a connection holds the bytes of one read at most, and one response.

A stream (server-sent events) is a response without an end. It holds one part of it at most: while the peer has not
read that, further parts are not sent, and after `WRITE_S` the connection is aborted. At most `MAX_STREAMS` are open.

At most `MAX_CONNECTIONS` are open: a further one takes the place of the one that has been idle longest, so
that peers which connect and ask for nothing do not keep a scraper out. If none is idle, the new one is
closed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, Protocol, cast

from ottla.broker.http.request import HEAD_END, MAX_HEAD_BYTES, BadRequest, HttpRequest, parse_head
from ottla.runtime import Listening, Runtime, SocketOptions

# ruff: noqa: D102 (the methods that the transport calls are those of asyncio.Protocol)


logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 32
#: The others are left for scrapers and health checks.
MAX_STREAMS: Final = 16
#: The time limit for the responses that are owed when the server stops.
STOP_S: Final = 1.0
#: How long a connection may stay open without a request: more than Prometheus' default interval.
IDLE_S: Final = 120.0
#: The time limit for a head, from its first byte to its end.
HEAD_S: Final = 10.0
#: The time limit for computing a response, which waits for nothing but turns of the loop.
ANSWER_S: Final = 60.0
#: The time limit for a peer to read a response.
WRITE_S: Final = 30.0

TEXT: Final = "text/plain; charset=utf-8"
EVENTS: Final = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response with its whole body."""

    status: int = 200
    body: bytes | bytearray
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStream:
    """A response without an end: server-sent events."""

    #: Called when the head is written; sends the parts from then on.
    opened: "Callable[[HttpConnection], None]"
    #: Called once when the connection is closed.
    closed: "Callable[[HttpConnection], None]"
    headers: Mapping[str, str] = field(default_factory=dict)


Response = HttpResponse | HttpStream
#: Responds to a request: at once, or when the future is done. The future is the connection's own, which cancels it
#: when the peer is gone; work that is shared with others is given as an `asyncio.shield` of it.
Respond = Callable[[HttpRequest], "Response | asyncio.Future[HttpResponse]"]


class ConnectionOwner(Protocol):
    """The server, as its connections use it."""

    @property
    def runtime(self) -> Runtime:
        """The runtime with the node's loop and clock."""

    @property
    def respond(self) -> Respond:
        """The function that responds to a request."""

    @property
    def stream_count(self) -> int:
        """The number of open streams."""

    def opened(self, connection: "HttpConnection") -> None:
        """Register the connection, which was opened."""

    def closed(self, connection: "HttpConnection") -> None:
        """Forget the connection, which is closed."""


class _State(Enum):
    WAITING = auto()
    READING = auto()
    ANSWERING = auto()
    WRITING = auto()
    STREAMING = auto()
    CLOSED = auto()


class HttpConnection(asyncio.Protocol):
    """One connection of the HTTP server: reads one request at a time, and writes its response before the next one."""

    _transport: asyncio.Transport

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._state = _State.WAITING
        #: The bytes that have arrived, at most those of a head and of one read.
        self._received = bytearray()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_write_paused = False
        self._closes_after_response = False
        self._is_head = False
        #: The monotonic time, in seconds, at which the connection began to wait for a request.
        self.waiting_since = owner.runtime.monotonic()
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._stream: HttpStream | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no response is owed to the peer."""
        return self._state in (_State.WAITING, _State.READING)

    @property
    def is_stream(self) -> bool:
        """Whether the connection's response has no end."""
        return self._state is _State.STREAMING

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._enter(_State.WAITING, HEAD_S)  # a new connection is not idle: its peer has something to ask
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_stream:
            self.abort()  # the peer of a stream has nothing more to ask
            return
        self._received += data
        if self._state is _State.WAITING:
            self._enter(_State.READING, HEAD_S)
        if self._state is _State.READING:
            self._read_head()

    def eof_received(self) -> bool:
        # A peer that closes its direction gets the response to what it has sent.
        self._closes_after_response = True
        return self._state in (_State.ANSWERING, _State.WRITING)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self.is_stream:
            self._enter(_State.STREAMING, WRITE_S)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self.is_stream:
            self._cancel_deadline()
        self._continue()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._cancel_deadline()
        self._received.clear()
        if self._answer is not None:
            self._answer.remove_done_callback(self._on_answer)
            self._answer.cancel()  # the peer is gone: what would be computed is not read
        if self._stream is not None:
            self._stream.closed(self)
        self._owner.closed(self)

    # Called by the server

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def finish(self) -> None:
        """Close the connection, after the pending response if there is one."""
        self._closes_after_response = True
        if self.is_idle or self.is_stream:
            self._transport.close()

    # Called by the owner of a stream

    @property
    def can_send(self) -> bool:
        """Whether the peer has read all parts of the stream that were sent."""
        return self.is_stream and not self._is_write_paused

    def send(self, part: bytes) -> None:
        """Send a part of the stream, which `can_send`."""
        assert self.can_send, self._state
        self._transport.write(part)

    # Inside

    def _enter(self, state: _State, deadline_s: float) -> None:
        self._state = state
        self._cancel_deadline()
        self._deadline = self._owner.runtime.call_later(deadline_s, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _read_head(self) -> None:
        end = self._received.find(HEAD_END)
        if (len(self._received) if end < 0 else end) > MAX_HEAD_BYTES:
            self._refuse(BadRequest(431, f"The headers are larger than {MAX_HEAD_BYTES} bytes."))
            return
        if end < 0:
            return
        head = bytes(self._received[:end])
        del self._received[: end + len(HEAD_END)]
        try:
            request = parse_head(head)
        except BadRequest as error:
            self._refuse(error)
            return
        self._transport.pause_reading()
        self._closes_after_response |= not request.is_persistent
        self._enter(_State.ANSWERING, ANSWER_S)
        self._is_head = request.is_head
        answer = self._owner.respond(request)
        if isinstance(answer, HttpResponse):
            self._write(answer)
        elif isinstance(answer, HttpStream):
            self._begin(answer)
        else:
            self._answer = answer
            answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: "asyncio.Future[HttpResponse]") -> None:
        self._answer = None
        if self._state is not _State.ANSWERING:
            return
        if answer.cancelled() or (error := answer.exception()) is not None:
            logger.error(
                "metrics: a page could not be written", exc_info=None if answer.cancelled() else error
            )
            self._closes_after_response = True
            self._write(HttpResponse(status=500, body=b"The page could not be written.\n"))
        else:
            self._write(answer.result())

    def _refuse(self, error: BadRequest) -> None:
        self._closes_after_response = True
        self._is_head = False
        self._transport.pause_reading()
        headers = {"Allow": "GET, HEAD"} if error.status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._write(HttpResponse(status=error.status, body=f"{error.reason}\n".encode(), headers=headers))

    def _begin(self, stream: HttpStream) -> None:
        """Write the head of a stream, and let its owner send the parts."""
        if self._owner.stream_count >= MAX_STREAMS:
            text = f"{MAX_STREAMS} streams of events are open, which is the limit. Close a page, and try again.\n"
            self._write(HttpResponse(status=503, body=text.encode()))
            return
        self._closes_after_response = True
        self._enter(_State.STREAMING, WRITE_S)
        self._transport.write(self._head(200, {"Content-Type": EVENTS, **stream.headers}))
        if self._is_head:
            self._transport.close()
            return
        self._stream = stream
        if not self._is_write_paused:
            self._cancel_deadline()
        self._transport.resume_reading()  # to notice that the peer has closed the connection
        stream.opened(self)

    def _head(self, code: int, headers: Mapping[str, str]) -> bytes:
        now = datetime.fromtimestamp(self._owner.runtime.now_ms() / 1000, UTC)
        status = HTTPStatus(code)
        every = {
            "Date": now.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "Connection": "close" if self._closes_after_response else "keep-alive",
            "Cache-Control": "no-store",
            **headers,
        }
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            *(f"{key}: {text}" for key, text in every.items()),
        ]
        return "\r\n".join(lines).encode() + HEAD_END

    def _write(self, response: HttpResponse) -> None:
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            **response.headers,
        }
        self._enter(_State.WRITING, WRITE_S)
        self._transport.write(self._head(response.status, headers))
        if not self._is_head:
            self._transport.write(response.body)
        if self._closes_after_response:
            self._transport.close()  # after what was written; the deadline holds until it is closed
        else:
            # In the next turn: by then the transport has written, or has said that the peer does not read.
            self._owner.runtime.loop.call_soon(self._continue)

    def _continue(self) -> None:
        if self._state is not _State.WRITING or self._is_write_paused:
            return
        if self._closes_after_response:
            self._transport.close()  # `finish` was called since the response was written
            return
        if self._received:
            self._enter(_State.READING, HEAD_S)
            self._read_head()
        else:
            self.waiting_since = self._owner.runtime.monotonic()
            self._enter(_State.WAITING, IDLE_S)
        if self.is_idle:
            self._transport.resume_reading()


class HttpServer:
    """The HTTP server of a node's metrics: its listeners, and at most `MAX_CONNECTIONS` connections."""

    def __init__(self, runtime: Runtime, respond: Respond) -> None:
        self.runtime = runtime
        self.respond = respond
        self._listenings: list[Listening] = []
        #: The open connections in the order of their opening; at most MAX_CONNECTIONS.
        self._connections: dict[HttpConnection, None] = {}
        self._all_closed: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int) -> Listening:
        """Accept connections at `host`:`port`. Raises OSError if it cannot be bound."""
        listening = await self.runtime.listen(
            host, port, lambda: HttpConnection(self), SocketOptions(backlog=MAX_CONNECTIONS)
        )
        self._listenings.append(listening)
        return listening

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def stream_count(self) -> int:
        """The number of open streams."""
        return sum(each.is_stream for each in self._connections)

    def opened(self, connection: HttpConnection) -> None:
        """Register an open connection; if there are too many, the one that has been idle longest is closed."""
        if len(self._connections) >= MAX_CONNECTIONS:
            idle = [each for each in self._connections if each.is_idle]
            excess = min(idle, key=lambda each: each.waiting_since, default=connection)
            self._connections.pop(excess, None)
            excess.abort()
            if excess is connection:
                return
        self._connections[connection] = None

    def closed(self, connection: HttpConnection) -> None:
        """Forget a closed connection."""
        self._connections.pop(connection, None)
        if self._all_closed is not None and not self._connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    def break_connections(self) -> None:
        """Break all connections, whatever is owed to their peers."""
        for connection in list(self._connections):
            connection.abort()

    async def stop(self) -> None:
        """Close the listeners, finish the responses that are owed within `STOP_S`, and close all connections."""
        for listening in self._listenings:
            listening.close()
        for connection in list(self._connections):
            connection.finish()
        if not self._connections:
            return
        self._all_closed = self.runtime.loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._all_closed
        if self._connections:
            self._all_closed = self.runtime.loop.create_future()
            for connection in list(self._connections):
                connection.abort()
            await self._all_closed
