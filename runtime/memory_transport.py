"""One end of an in-memory connection, with the transport semantics that asyncio and uvloop have.

    write -> own buffer -> (window permitting) in transit -> received, unread -> the peer's protocol

The guarantees that protocols depend on: `write` copies nothing until the end of the loop's turn (as
uvloop, so that a buffer that is reused too early is detected here as well); pause_writing/resume_writing
follow the high and low water marks; a reader that pauses fills the window and then the sender's buffer;
close() sends buffered bytes first, abort() does not; connection_lost is called by the loop, last,
and once. A transport whose reading is paused detects a reset only when it writes or resumes.
"""

# ruff: noqa: D102 (the public methods are those of asyncio.Transport, and documented there)

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from enum import Enum, auto
from typing import Any, cast

from ottla.runtime.network_conditions import NetworkConditions

#: Maximum bytes of one read (asyncio's own size).
_READ_BYTES = 256 * 1024
_DEFAULT_HIGH_WATER_BYTES = 64 * 1024
#: The context of bytes in transit, which belong to no process.
_NETWORK = Context()


class _Signal(Enum):
    """End of stream and reset, which arrive in order with the bytes."""

    EOF = auto()
    RESET = auto()


class MemoryTransport(asyncio.Transport):
    """One end of an in-memory connection; both are created by `MemoryNetwork.connect`."""

    peer: "MemoryTransport"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        *,
        conditions: NetworkConditions,
        own_address: tuple[str, int],
        peer_address: tuple[str, int],
        context: Context,
        on_end: Callable[["MemoryTransport"], object],
    ) -> None:
        """`context` is that of the process that owns this end: the protocol is called in it.

        `on_end` is called once, when this end is closed, aborted, reset or has vanished.
        """
        super().__init__({"sockname": own_address, "peername": peer_address})
        self.own_address = own_address
        self._loop = loop
        self._conditions = conditions
        self._context = context
        self._on_end = on_end
        self._protocol = protocol
        self._label = f"{own_address[0]}:{own_address[1]} < {peer_address[0]}:{peer_address[1]}"
        # Sending.
        #: Bounded by the protocol, which does not write more while it is paused.
        self._buffer: deque[bytes | bytearray | memoryview] = deque()
        self._buffer_bytes = 0
        self._unread_by_peer_bytes = 0  # in transit, or arrived and not read
        #: The sender's buffers that the peer has not read yet (at most `window_bytes`), each with the count of
        #: bytes at which it has read it: a slow connection keeps references to them.
        self._held: deque[tuple[int, memoryview]] = deque()
        self._sent_bytes = self._read_by_peer_bytes = 0
        self._is_flush_due = False
        self._high_bytes, self._low_bytes = _DEFAULT_HIGH_WATER_BYTES, _DEFAULT_HIGH_WATER_BYTES // 4
        self._is_protocol_paused = False
        self._wants_eof = False
        self._is_eof_sent = False
        #: Receiving: in transit to this end, in order, as (arrival time, what); at most `window_bytes` with the next.
        self._travelling: deque[tuple[float, bytes | _Signal]] = deque()
        #: Arrived and not read; at most `window_bytes`.
        self._received: deque[bytes | _Signal] = deque()
        self._is_reading_paused = False
        self._is_read_due = False
        self._is_reset_received = False
        self._is_reset_noticed = False
        # Ending.
        self._is_closing = False
        self._is_ending = False  # connection_lost has been called or is about to be
        self._is_made = False

    def begin(self) -> None:
        """Schedule the call of the protocol's connection_made."""
        self._loop.call_soon(self._made, context=self._context)

    def _made(self) -> None:
        self._is_made = True
        if not self._is_ending:
            self._protocol.connection_made(self)
            self._schedule_read()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._wants_eof:
            raise RuntimeError("cannot write after write_eof")
        if self._is_closing or self._is_ending or not data:
            return
        if isinstance(data, memoryview):
            data = data.cast("B")
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        self._schedule_flush()
        if self._buffer_bytes > self._high_bytes and not self._is_protocol_paused:
            self._is_protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        if not (self._wants_eof or self._is_closing):
            self._wants_eof = True
            self._schedule_flush()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _DEFAULT_HIGH_WATER_BYTES if low is None else 4 * low
        self._high_bytes, self._low_bytes = high, high // 4 if low is None else low
        assert self._high_bytes >= self._low_bytes >= 0, (high, low)

    def _schedule_flush(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_ending:
            return
        if self._buffer and self._is_reset_received:
            self._is_reset_noticed = True
            self._end(BrokenPipeError("the peer has reset the connection"))
            return
        while self._buffer and (room := self._conditions.window_bytes - self._unread_by_peer_bytes) > 0:
            data = self._buffer.popleft()
            if len(data) > room:
                self._buffer.appendleft(memoryview(data)[room:])
                data = memoryview(data)[:room]
            self._buffer_bytes -= len(data)
            self._unread_by_peer_bytes += len(data)
            self._sent_bytes += len(data)
            if isinstance(data, memoryview):
                self._held.append((self._sent_bytes, data))
            self._send(bytes(data))
        if self._is_protocol_paused and self._buffer_bytes <= self._low_bytes:
            self._is_protocol_paused = False
            self._protocol.resume_writing()
        if not self._buffer:
            if self._is_closing:
                self._end(None)
            elif self._wants_eof and not self._is_eof_sent:
                self._is_eof_sent = True
                self._send(_Signal.EOF)

    def _send(self, what: bytes | _Signal) -> None:
        """Put bytes or a signal in transit; pieces of one direction never overtake each other."""
        peer, conditions = self.peer, self._conditions
        arrival = self._loop.time() + conditions.draw_latency_s()
        if conditions.delays_s:
            arrival += conditions.delays_s.get((self.own_address[0], peer.own_address[0]), 0.0)
        if peer._travelling:
            arrival = max(arrival, peer._travelling[-1][0])
        peer._travelling.append((arrival, what))
        self._loop.call_at(arrival, peer.receive_due, context=_NETWORK)

    # Reading

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._schedule_read()

    def is_reading(self) -> bool:
        return not (self._is_reading_paused or self._is_closing or self._is_ending)

    def receive_due(self) -> None:
        """Receive what has arrived by now, unless the network between the two hosts is cut."""
        if self._conditions.is_cut(self.peer.own_address[0], self.own_address[0]):
            return
        due = self._loop.time() + 1e-6
        while self._travelling and self._travelling[0][0] <= due:
            _, what = self._travelling.popleft()
            size = len(what) if isinstance(what, bytes) else what.name
            check = zlib.crc32(what) if isinstance(what, bytes) else 0
            self._conditions.record(f"{self._label} {size} {check:08x}")
            if not self._is_ending:
                self._received.append(what)
                self._is_reset_received |= what is _Signal.RESET
                self._schedule_read()
            elif isinstance(what, bytes):
                self._send(_Signal.RESET)  # bytes for an end that is closed

    def _schedule_read(self) -> None:
        if not self._is_read_due and self._received:
            self._is_read_due = True
            self._loop.call_soon(self._read_once, context=self._context)

    def _read_once(self) -> None:
        """Pass the bytes of one read to the protocol; further reads are later turns of the loop."""
        self._is_read_due = False
        if not self._is_made or not self.is_reading() or not self._received:
            return
        what = self._received[0]
        if what is _Signal.RESET:
            self._is_reset_noticed = True
            self._end(ConnectionResetError("the peer has reset the connection"))
        elif what is _Signal.EOF:
            self._received.popleft()
            if not self._protocol.eof_received():  # type: ignore[attr-defined]  # both kinds have it
                self.close()
        else:
            try:
                read = self._hand_over()
            except Exception as error:  # noqa: BLE001 (a protocol's bug ends its connection, as in asyncio)
                self._loop.call_exception_handler(
                    {"message": f"protocol failed: {error!r}", "exception": error, "transport": self}
                )
                self._end(error)
                return
            self.peer._acknowledge(read)
            self._schedule_read()

    def _hand_over(self) -> int:
        """Call data_received or buffer_updated; returns the number of bytes passed."""
        limit = _READ_BYTES
        conditions = self._conditions
        if conditions.max_read_bytes is not None:
            limit = conditions.random.randint(1, conditions.max_read_bytes)
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            # typeshed: Buffer; every implementation returns a writable memoryview or bytearray.
            target = memoryview(cast("bytearray", self._protocol.get_buffer(-1))).cast("B")
            data = self._take(min(limit, len(target)))
            target[: len(data)] = data
            self._protocol.buffer_updated(len(data))
        else:
            data = self._take(limit)
            cast("asyncio.Protocol", self._protocol).data_received(data)
        return len(data)

    def _take(self, limit: int) -> bytes:
        pieces = []
        while limit > 0 and self._received and isinstance(self._received[0], bytes):
            piece = self._received.popleft()
            assert isinstance(piece, bytes)
            if len(piece) > limit:
                self._received.appendleft(piece[limit:])
                piece = piece[:limit]
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)

    def _acknowledge(self, count: int) -> None:
        self._unread_by_peer_bytes -= count
        self._read_by_peer_bytes += count
        while self._held and self._held[0][0] <= self._read_by_peer_bytes:
            self._held.popleft()
        if self._buffer:
            self._schedule_flush()

    # Ending

    def is_closing(self) -> bool:
        return self._is_closing or self._is_ending

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._schedule_flush()

    def abort(self) -> None:
        if not self._is_ending:
            self._is_closing = True
            self._end(None, is_abrupt=True)

    def vanish(self, *, is_silent: bool = False) -> None:
        """The host crashed: the peer is reset (unless `is_silent`), the own protocol is not called again."""
        if not self._is_ending:
            self._is_ending = True
            self._held.clear()
            self._on_end(self)
            if not is_silent:
                self._send(_Signal.RESET)

    def _end(self, error: Exception | None, *, is_abrupt: bool = False) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        self._buffer.clear()
        self._held.clear()
        self._buffer_bytes = 0
        self._on_end(self)
        if not self._is_reset_noticed:
            # TCP sends a reset when an end is closed before it has read everything.
            is_unread = any(isinstance(what, bytes) for what in self._received)
            if is_abrupt or is_unread or error:
                self._send(_Signal.RESET)
            elif not self._is_eof_sent:
                self._send(_Signal.EOF)
        self._loop.call_soon(self._lost, error, context=self._context)

    def _lost(self, error: Exception | None) -> None:
        if self._is_made:
            self._protocol.connection_lost(error)

    # The other methods of an asyncio transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 (asyncio's signature)
        return super().get_extra_info(name, default)
