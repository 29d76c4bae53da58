"""Outgoing connection to another node: sends requests and receives whole responses in the order of the requests.

    opened --> open --the peer closes, violates the protocol, or is too late--> closed: all waiting requests fail

Several requests may be in flight at the same time: a peer responds to them in their order. A request that times out
closes the connection, since the peer may be blocked, and with it every later response. One timer serves all deadlines
of a connection: a request that is answered in time, as nearly all are, neither sets nor cancels one.
A small response is received in a buffer that all connections of a client share, and copied out of it. A large one gets
a buffer of its own, into which the socket is read directly: its records are never copied, and the caller may keep
slices of it. A caller that processes its responses at once leases this buffer instead (`response_buffer.py`).
Source: org.apache.kafka.clients.InFlightRequests and NetworkReceive of Kafka 4.3.1.
"""

# ruff: noqa: D102 (the methods that the transport calls are those of asyncio.BufferedProtocol)

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, cast

from ottla.broker.network.response_buffer import ResponseBuffer
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.framing import decode_response_header, encode_request_header

#: The size of the buffer that the connections of one client share; a response within one read is copied out of it.
SHARED_BYTES: Final = 64 * 1024

#: The maximum that is allocated for a frame's length alone. Beyond that a buffer is at most `GROWTH_FACTOR` times
#: the bytes that have arrived: a faulty peer cannot make this node allocate memory by a length alone.
TRUSTED_BYTES: Final = 4 * 1024 * 1024
GROWTH_FACTOR: Final = 4

#: The maximum number of requests in flight on one connection; further ones wait to be sent.
MAX_IN_FLIGHT: Final = 200

#: With this many unsent bytes, because the peer does not read, further requests wait.
WRITE_HIGH_WATER_BYTES: Final = 1024 * 1024

_PREFIX = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size


class Disconnected(ConnectionError):
    """There is no connection, or it closed before the response: the request may have been carried out."""


class _InFlight(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    deadline: float
    future: "asyncio.Future[memoryview]"
    #: The buffer for a large response; None: it gets one that its caller may keep.
    buffer: ResponseBuffer | None


class OutgoingConnection(asyncio.BufferedProtocol):
    """A connection to another node: sends requests, and receives whole responses in the order of the requests.

    `on_lost` is called once, when the connection is closed.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        *,
        label: str,
        client_id: str,
        shared: memoryview,
        max_bytes: int,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[["OutgoingConnection"], None],
    ) -> None:
        self._label = label
        self._client_id = client_id
        self._shared = shared
        self._max_bytes = max_bytes
        self._loop = loop
        self._on_lost = on_lost
        #: The requests that wait for a response, in order; at most MAX_IN_FLIGHT.
        self._in_flight: deque[_InFlight] = deque()
        self._next_correlation_id = 0
        self._is_clogged = False
        #: Set while another request may be sent.
        self._has_room = asyncio.Event()
        self._has_room.set()
        #: Fires at `_checks_at` of the loop's clock, which is at or before the earliest deadline.
        self._timer: asyncio.TimerHandle | None = None
        self._checks_at = 0.0
        # The bytes of the next, incomplete frame that have arrived, prefix included: `_own[:_end]`.
        self._own: memoryview | None = None
        self._end = 0
        self._close_reason: str | None = None
        #: Whether the transport is closed.
        self.is_lost = False
        #: The versions that the peer serves, by API key; set by the negotiation.
        self.served: dict[int, range] = {}
        self.active_at = loop.time()

    def __repr__(self) -> str:
        return f"<OutgoingConnection {self._label}>"

    @property
    def is_closed(self) -> bool:
        """Whether no further request can be sent."""
        return self._close_reason is not None

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for a response."""
        return not self._in_flight

    async def request(
        self,
        api_key: int,
        body: bytes,
        *,
        version: int,
        deadline: float,
        buffer: ResponseBuffer | None = None,
    ) -> memoryview:
        """Send a request and wait for the body of its response.

        The caller may keep the body; with `buffer`, only until its `release`.

        Raises Disconnected, and TimeoutError at `deadline` (on the loop's clock).
        """
        while not self._has_room.is_set():
            async with asyncio.timeout_at(deadline):
                await self._has_room.wait()
        if self._close_reason is not None:
            raise Disconnected(self._close_reason)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        head = encode_request_header(api_key, version, correlation_id, self._client_id)
        response: asyncio.Future[memoryview] = self._loop.create_future()
        self._in_flight.append(_InFlight(api_key, version, correlation_id, deadline, response, buffer))
        if len(self._in_flight) == MAX_IN_FLIGHT:
            self._has_room.clear()
        if self._timer is None or deadline < self._checks_at:
            self._check_at(deadline)
        self.active_at = self._loop.time()
        self._transport.write(_PREFIX.pack(len(head) + len(body)) + head + body)
        received = await response
        if buffer is None:
            return received
        # The event loop has the future, and so its result, until the task waits again: too late for `buffer.release`.
        with received:
            return received[:]

    def abort(self, reason: str) -> None:
        """Close at once; all waiting requests raise Disconnected with the reason."""
        if self._close_reason is None:
            self._close_reason = f"{self._label}: {reason}"
            self._fail_all()
            self._transport.abort()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._close_reason is None:
            self._close_reason = f"{self._label}: {exc or 'the peer has closed the connection'}"
        self._fail_all()
        self._own = None
        self.is_lost = True
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._is_clogged = True
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._note_room()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared if self._own is None else self._own[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._close_reason is not None:
            return
        self.active_at = self._loop.time()
        try:
            if self._own is None:
                self._take_shared(nbytes)
            else:
                self._end += nbytes
                self._continue_own()
        except MalformedMessage as error:
            self.abort(f"a malformed response: {error}")

    # Inside

    def _note_room(self) -> None:
        if not self._is_clogged and len(self._in_flight) < MAX_IN_FLIGHT:
            self._has_room.set()

    def _check_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._checks_at = deadline
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Close the connection if a deadline has passed; otherwise set the timer to the next one."""
        self._timer = None
        waiting = [each for each in self._in_flight if not each.future.done()]
        if not waiting:
            return
        first = min(waiting, key=lambda each: each.deadline)
        if first.deadline > self._loop.time():
            self._check_at(first.deadline)
            return
        for each in waiting:
            if each.deadline <= first.deadline:
                each.future.set_exception(TimeoutError())
        self.abort(f"no response to {ApiKey(first.api_key).name} in time")

    def _fail_all(self) -> None:
        reason = self._close_reason or self._label
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._has_room.set()
        while self._in_flight:
            future = self._in_flight.popleft().future
            if not future.done():
                future.set_exception(Disconnected(reason))

    def _take_shared(self, size: int) -> None:
        """Copy the whole frames of a read out of the shared buffer; move an incomplete one to its own buffer."""
        view, start = self._shared, 0
        while size - start >= _PREFIX_BYTES:
            stop = start + _PREFIX_BYTES + self._length(view[start:])
            if stop > size:
                break
            self._deliver(memoryview(bytes(view[start + _PREFIX_BYTES : stop])))
            start = stop
        if start < size:
            self._begin_own(view[start:size])

    def _continue_own(self) -> None:
        own = self._own
        assert own is not None
        if self._end < _PREFIX_BYTES:
            return
        whole = _PREFIX_BYTES + self._length(own)
        if len(own) < whole and self._end == len(own):
            self._begin_own(own)
        elif self._end == whole == len(own):
            # The buffer held exactly this frame: the next one begins in the shared buffer again.
            self._own = None
            self._deliver(own[_PREFIX_BYTES:])

    def _begin_own(self, arrived: memoryview) -> None:
        """Allocate a buffer for the frame that begins with `arrived`: its exact size, within the trusted bounds."""
        size = len(arrived)
        capacity = _PREFIX_BYTES
        buffer = None
        if size >= _PREFIX_BYTES:
            whole = _PREFIX_BYTES + self._length(arrived)
            capacity = min(whole, max(size * GROWTH_FACTOR, TRUSTED_BYTES))
            if whole > len(self._shared) and self._in_flight:
                buffer = self._in_flight[0].buffer
        own = (
            memoryview(bytearray(capacity))
            if buffer is None
            else buffer.lease(whole, allocated_bytes=capacity)
        )
        own[:size] = arrived
        self._own, self._end = own, size

    def _length(self, frame: memoryview) -> int:
        (length,) = _PREFIX.unpack_from(frame)
        if not 0 < length <= self._max_bytes:
            raise MalformedMessage(f"a frame of {length} bytes (at most {self._max_bytes})")
        return int(length)

    def _deliver(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise MalformedMessage("a response without a request")
        waiting = self._in_flight[0]
        correlation_id, body_at = decode_response_header(waiting.api_key, waiting.version, frame)
        if correlation_id != waiting.correlation_id:
            raise MalformedMessage(f"response {correlation_id}, where {waiting.correlation_id} is due")
        self._in_flight.popleft()
        if not self._has_room.is_set():
            self._note_room()
        if not waiting.future.done():
            waiting.future.set_result(frame[body_at:])
