"""Connection of one client: parses frames from its bytes and writes replies to its socket, one request at a time.

    open ---- the reply is not known yet -------> parked ----- it is done ------> open, or yielding if requests wait
    open ---- the peer does not read replies ---> clogged ---- it has read -----> open
    open ---- the bound of one turn ------------> yielding --- others' turns ---> open
    open ---- a frame has begun, no memory ------> starved --- memory is free ---> open
    open ---- long work has taken its turn --------> yielding --- in the order of arrival ---> open
    any  ---- finish(), close(), bad frame, failure, end of stream --> ending --> closed

The reply of a parked request is sent by what completes it, a delayed response in a purgatory mostly, in the
same turn of the loop. Requests that wait behind it are dispatched in a later turn: a follower's Fetch may
complete the requests of a hundred producers, whose replies are all sent before any of their next requests is
handled, and no dispatch is part of another one.

Requests are dispatched only while the connection is open. While it is parked, clogged or yielding (or several of
these) bytes are still read, up to `PIPELINED_BYTES` and one read, so that a disconnect of the peer is
noticed; beyond that the socket is not read until the connection is open again. `request_memory.py` has the
bounds of all connections together.
Source: Processor and KafkaChannel of Kafka 4.3.1.
"""

# ruff: noqa: D102 (the methods that the transport calls are those of asyncio.BufferedProtocol)

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from errno import EFAULT
from struct import Struct
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, cast

from ottla.broker.network.receive_buffer import BufferPool, ReceiveBuffer, allowance
from ottla.broker.network.request_memory import RequestMemory
from ottla.broker.network.settings import NetworkSettings
from ottla.broker.request_context import UNKNOWN_SOFTWARE
from ottla.protocol.errors import KafkaError
from ottla.runtime import Runtime
from ottla.runtime.histogram import Histogram
from ottla.runtime.turns import LoopTurns

log = logging.getLogger(__name__)

#: The pieces of one reply, without the length prefix.
Buffers = list[bytes | memoryview]


class DelayedReply(Awaitable[Any], Protocol):
    """A reply that is not known yet: a delayed response of a purgatory, a future or a task.

    Its result may be another one: a Fetch that has waited, and whose many rows are then read in turns of the loop.
    """

    def add_done_callback(self, callback: Callable[[Any], object], /) -> object:
        """Call `callback(self)` once it is done, not within this call. A delayed response calls it as it completes."""

    def result(self) -> "Reply":
        """Return the reply. Raises the error of the request, or CancelledError. Precondition: it is done."""

    def cancel(self) -> object:
        """Cancel the reply, which is not wanted any more: it is done, and the callback is called."""


class ReplyInTurns(NamedTuple):
    """A reply that takes several turns of the loop, and waits for no other request.

    Its task keeps a copy of the frame, which counts in `RequestMemory` until the task is done. Replies that
    wait for other requests do not count: these might wait for the memory. Awaited, it is its work.
    """

    work: Coroutine[Any, Any, "Reply"]

    def __await__(self) -> Generator[Any, None, "Reply"]:
        return self.work.__await__()


class ReplyOfReads(NamedTuple):
    """A reply whose work changes nothing, and may take long: its task is cancelled when the connection is lost."""

    work: Coroutine[Any, Any, "Reply"]

    def __await__(self) -> Generator[Any, None, "Reply"]:
        return self.work.__await__()


#: The reply to a frame. A coroutine is run as a task; its result may be another reply, like a delayed
#: reply's.
Reply = Buffers | DelayedReply | ReplyInTurns | ReplyOfReads | Coroutine[Any, Any, "Reply"] | None
Dispatch = Callable[[memoryview, "Connection"], Reply]

#: While a request is parked, this many bytes behind it are read; the rest waits in the socket.
PIPELINED_BYTES = 64 * 1024

#: With this many unsent bytes, no further request of the connection is dispatched.
WRITE_HIGH_WATER_BYTES = 256 * 1024

#: The bounds of a turn on the loop, in requests and in bytes of replies; then other connections are served. One
#: read may contain a thousand requests, and a peer that sends without pause would otherwise be the only one served.
REQUESTS_PER_TURN = 32
REPLY_BYTES_PER_TURN = 64 * 1024

#: Frames of this size are long work (`ottla.runtime.turns`): several connections may have received some at once, and a
#: megabyte written to new pages of the page cache takes 0.5 to 2.4 ms.
LARGE_FRAME_BYTES = 128 * 1024
#: Frames of this size may have many rows: they wait where long work, of whatever connection, has taken its
#: part of the turn.
MANY_ROWS_BYTES = 1024

#: Replies of one turn are joined into one piece up to this size: uvloop sends one piece by send(),
#: several by writev(), which costs more than copying so few bytes.
JOIN_BYTES = 16 * 1024

_PREFIX = Struct(">i")
_PREFIX_BYTES = _PREFIX.size


class DispatchSession(Protocol):
    """The state that `dispatch` keeps for one connection."""

    def close(self) -> None:
        """Free the state: no further request comes."""


class ConnectionOwner(Protocol):
    """The network server, as its connections use it."""

    @property
    def runtime(self) -> Runtime:
        """The runtime with the node's loop and clock."""

    @property
    def dispatch(self) -> Dispatch:
        """The function that handles a request."""

    @property
    def settings(self) -> NetworkSettings:
        """The network settings in effect."""

    @property
    def pool(self) -> BufferPool:
        """The receive buffers of all connections."""

    @property
    def memory(self) -> RequestMemory:
        """The memory and the queue of requests, bounded for all connections together."""

    @property
    def turns(self) -> LoopTurns:
        """The turns of the loop in which long requests are dispatched."""

    @property
    def activity_clock(self) -> float:
        """The time of the next sweep, at which a connection that is used now counts as used."""

    def admit(self, connection: "Connection") -> bool:
        """Whether an accepted connection may stay open."""

    def begin(self, work: Coroutine[Any, Any, "Reply"]) -> "asyncio.Task[Reply]":
        """Begin the task of a request, which runs to its end even if its connection is lost."""

    def forget(self, connection: "Connection") -> None:
        """Forget a connection, admitted or not, that is closed."""

    def log_closing(self, connection: "Connection", reason: str) -> None:
        """Log why a connection is closed; a bounded number of times."""

    def on_unreadable(self) -> None:
        """Report that the kernel could not read the memory of a reply, a page of a mapped file."""


class Connection(asyncio.BufferedProtocol):
    """A client's connection: parses frames from its bytes and sends the replies in order, one request at a time."""

    __slots__ = (
        "_buffer",
        "_frame_bytes",
        "_granted_bytes",
        "_has_memory",
        "_is_at_end",
        "_is_clogged",
        "_is_closed",
        "_is_ending",
        "_is_queued",
        "_is_reading",
        "_is_working",
        "_is_yielding",
        "_max_bytes",
        "_only_reads",
        "_parked",
        "_server",
        "_timed",
        "_transport",
        "_unsent_bytes",
        "_waits_for_turn",
        "active_at",
        "client_host",
        "client_port",
        "dispatch",
        "listener_name",
        "session",
        "software",
    )

    _transport: asyncio.Transport

    def __init__(self, server: ConnectionOwner, listener_name: str) -> None:
        self._server = server
        #: Handles one request; a gate that has opened replaces itself here.
        self.dispatch = server.dispatch
        self._max_bytes = server.settings.request_max_bytes
        self._buffer = ReceiveBuffer(server.pool)
        self._parked: DelayedReply | None = None
        #: Whether the parked reply is the task of a `ReplyOfReads`.
        self._only_reads = False
        self._is_working = False  # inside `_work`: a transport may call back from within write()
        self._is_clogged = False
        self._is_yielding = False
        self._is_reading = True
        self._frame_bytes = (
            _PREFIX_BYTES  # the size of the frame that is being received; that of the prefix if there is none
        )
        self._granted_bytes = 0  # of that frame, requested from `RequestMemory`
        self._has_memory = True  # for that frame's next bytes
        self._is_queued = False  # counted as a connection that holds requests behind an earlier one
        self._is_at_end = False  # the peer has closed its direction
        self._is_ending = False  # no further request is dispatched
        self._is_closed = False  # the transport is closing or closed
        self._waits_for_turn = False  # a long request that has been received
        self._unsent_bytes = 0  # at the last sweep
        #: The histogram of the parked request, and the time at which it was parked.
        self._timed: tuple[Histogram, float] | None = None
        #: When the peer was last active, rounded up to the time of a sweep.
        self.active_at = server.activity_clock
        self.listener_name = listener_name
        self.client_host = ""
        self.client_port = 0
        self.software = UNKNOWN_SOFTWARE
        #: State that `dispatch` keeps for this connection; closed with it.
        self.session: DispatchSession | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.listener_name} {self.client_host}:{self.client_port}>"

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is sent to the peer."""
        return self._is_closed

    def closing_order(self) -> tuple[bool, bool, float]:
        """Sort key for closing excess connections: closing ones first, then those not parked, then the longest idle."""
        return not self._is_closed, self._parked is not None, self.active_at

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:  # None if it is already disconnected
            # IPv4 on a socket that is bound to all addresses; Kafka also shows it as IPv4.
            self.client_host, self.client_port = peer[0].removeprefix("::ffff:"), peer[1]
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if not self._server.admit(self):
            self._is_ending = self._is_closed = True
            transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._buffer
        # `room`; the shared buffer is empty between reads, and needs no slice.
        return buffer.room() if buffer.end else buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = self._server.activity_clock
        self._buffer.end += nbytes
        self._work()

    def eof_received(self) -> bool:
        # Unread requests are still processed: a producer with acks=0 may send and disconnect. Otherwise
        # close: no Kafka client closes one direction only, so the parked reply has no receiver.
        self._is_at_end = True
        self._is_reading = False
        return self._is_blocked() and self._buffer.unread_bytes > 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ending = self._is_closed = True
        self._buffer.discard()
        self._receive_frame(_PREFIX_BYTES)
        self._leave_queue()
        self._server.forget(self)
        if isinstance(exc, OSError) and exc.errno == EFAULT:
            self._server.on_unreadable()
        # A request that only waits is cancelled: a Fetch may request a wait of weeks, and would be kept for
        # that time without a receiver. A task is doing work, and runs to its end, unless it only reads.
        if self._parked is not None and (self._only_reads or not isinstance(self._parked, asyncio.Task)):
            self._parked.cancel()
        if self.session is not None:
            self.session.close()
            self.session = None

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self.active_at = self._server.activity_clock
        if not self._is_working:
            self._work()
        else:  # called from within write(): `_work` dispatches no further requests in this turn
            self._yield()

    # Called by the server, and by `dispatch`

    def on_memory(self) -> None:
        """Continue to read a frame whose memory was granted."""
        self._has_memory = True
        if not (self._is_ending or self._is_at_end or self._is_reading):
            self._buffer.prepare(self._granted_bytes)
            self._read(True)

    def finish(self) -> None:
        """Dispatch no further request; close when the request in progress has its response."""
        self._is_ending = True
        if self._parked is None:
            self.close()

    def time_reply(self, histogram: Histogram) -> None:
        """Observe how long the next reply that `dispatch` returns waits."""
        self._timed = histogram, self._server.runtime.monotonic()

    def close(self) -> None:
        """Close after the pending replies are sent; a parked request gets no response."""
        self._is_ending = True
        if not (self._is_closed or self._is_working):  # `_work` first sends, then closes
            self._is_closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_ending = self._is_closed = True
        self._transport.abort()

    def on_queue_changed(self) -> None:
        """Start or stop reading ahead, since `RequestMemory.is_queue_full` has changed."""
        if self._is_blocked() and not (self._is_ending or self._is_at_end):
            is_wanted = self._may_read_ahead()
            if is_wanted != self._is_reading:
                self._read(is_wanted)

    def sweep(self, idle_since: float, *, used_since: float) -> None:
        """Close the connection if idle since `idle_since`; release its buffer if not used since `used_since`.

        A peer that reads bytes of a long reply is not idle, nor is one whose request is parked or waits for memory. A
        peer that reads none is disconnected also while the connection closes: it would hold its slot indefinitely.
        """
        unsent_bytes = self._transport.get_write_buffer_size()
        is_held = self._parked is not None or not self._has_memory
        if unsent_bytes != self._unsent_bytes or (is_held and not self._is_closed):
            self._unsent_bytes = unsent_bytes
            self.active_at = self._server.activity_clock
        elif self.active_at < idle_since:
            self.abort()  # not close(): the peer does not read the bytes that close() would send first
        if self.active_at < used_since and not self._buffer.unread_bytes:
            self._buffer.release()

    # Inside

    def _is_blocked(self) -> bool:
        return self._is_clogged or self._is_yielding or self._parked is not None

    def _work(self) -> None:  # noqa: C901
        """Dispatch the requests that have arrived, within the bounds of state and turn; send the replies at once.

        The hot loop of the network layer, hence the local names and the one long function: with an
        echo as `dispatch` a 200 B request costs 1.4-1.9 µs of processor in all, system calls included, if
        many arrive at a time, and 16 µs if they arrive one by one.
        """
        buffer, dispatch = self._buffer, self.dispatch
        view, start, end = buffer.view, buffer.start, buffer.end
        first = start
        needed_bytes = _PREFIX_BYTES
        replies: Buffers = []
        replies_bytes = 0
        # `not _is_blocked()`, without a call for each read
        may_dispatch = not (self._is_clogged or self._is_yielding or self._is_ending) and self._parked is None
        requests_left = REQUESTS_PER_TURN if may_dispatch else 0
        self._is_working = True
        while end - start >= _PREFIX_BYTES:
            if not requests_left or replies_bytes >= REPLY_BYTES_PER_TURN:
                self._yield()
                break
            (length,) = _PREFIX.unpack_from(view, start)
            if not 0 < length <= self._max_bytes:
                self._server.log_closing(self, f"a frame of {length} bytes (at most {self._max_bytes})")
                self._is_ending = True
                break
            stop = start + _PREFIX_BYTES + length
            if stop > end:
                needed_bytes = _PREFIX_BYTES + length
                break
            if length >= MANY_ROWS_BYTES and self._must_wait(length):
                self._yield()
                break
            try:
                reply = dispatch(view[start + _PREFIX_BYTES : stop], self)
            except Exception as error:  # noqa: BLE001 (any exception ends this connection only)
                self._failed(error)
                break
            start = stop
            requests_left -= 1
            if type(reply) is list:
                length = len(reply[0]) if len(reply) == 1 else sum(map(len, reply))
                replies.append(_PREFIX.pack(length))
                replies += reply
                replies_bytes += length
            elif reply is not None:
                self._park(
                    cast("DelayedReply | ReplyInTurns | ReplyOfReads | Coroutine[Any, Any, Reply]", reply),
                    length,
                )
                break
            if self._is_ending:  # closed by `dispatch`
                break
        buffer.start = start
        if replies:
            self._send(replies, replies_bytes)
        self._is_working = False
        if self._is_ending or self._is_at_end:
            self._receive_frame(_PREFIX_BYTES)
            self._end_if_done()
        elif start == end and self._is_at_rest():
            buffer.start = buffer.end = 0  # nearly always: what `_prepare_next_read` does then
        else:
            self._prepare_next_read(needed_bytes, is_next_frame=start != first)

    def _is_at_rest(self) -> bool:
        """Whether the next read needs no preparation if nothing is unread: like the last one, into the shared buffer.

        Not with a buffer of its own, which may be kept or released; not while it is counted as queued, since its place
        is free now; not while the queue is full: if it is blocked, it is not read.
        Otherwise no frame has begun, whose bytes would be in a buffer of its own, and the connection is read:
        reading pauses for such a frame, for bytes read ahead, which are in an own buffer, too, and for the
        full queue.
        """
        return not (self._buffer.is_own or self._is_queued or self._server.memory.is_queue_full)

    def _must_wait(self, length: int) -> bool:
        """Whether the next frame, which may be long, is dispatched in a later turn. A frame waits for one
        turn at most.
        """
        turns = self._server.turns
        self._waits_for_turn = not self._waits_for_turn and turns.is_spent
        if length >= LARGE_FRAME_BYTES and not self._waits_for_turn:
            turns.charge()
        return self._waits_for_turn

    def _yield(self) -> None:
        """Continue in another turn, unless the connection is blocked and continues when it is unblocked."""
        if not self._is_blocked() and not self._is_ending:
            self._is_yielding = True
            self._server.turns.later(self._next_turn)

    def _next_turn(self) -> None:
        self._is_yielding = False
        self._work()

    def _receive_frame(self, size_bytes: int) -> None:
        """Receive a frame of this size, prefix included (the prefix alone: none), after releasing the one before."""
        granted_bytes, self._granted_bytes = self._granted_bytes, 0
        self._frame_bytes = size_bytes
        self._has_memory = True
        if granted_bytes:
            self._server.memory.release(self, granted_bytes)

    def _reserve(self) -> None:
        """Request the memory for the next bytes of the frame, as many as have arrived."""
        wanted = allowance(self._frame_bytes, self._buffer.unread_bytes)
        if (more := wanted - self._granted_bytes) > 0:
            self._granted_bytes = wanted
            self._has_memory = self._server.memory.reserve(self, more)

    def _may_read_ahead(self) -> bool:
        """Whether a blocked connection may read further bytes; it is counted once it holds some."""
        unread = self._buffer.unread_bytes
        if not unread:
            self._leave_queue()  # what it held has been dispatched
            return not self._server.memory.is_queue_full
        if not self._is_queued:
            self._is_queued = True
            self._server.memory.enter_queue()
        return unread < PIPELINED_BYTES

    def _leave_queue(self) -> None:
        if self._is_queued:
            self._is_queued = False
            self._server.memory.leave_queue()

    def _prepare_next_read(self, needed_bytes: int, *, is_next_frame: bool) -> None:
        """Prepare the next read; a blocked connection that has read enough ahead pauses reading."""
        if self._is_blocked():
            # A large frame that has been received, and waits for a turn, keeps its memory; not that of a peer
            # that reads no replies.
            if self._frame_bytes != _PREFIX_BYTES and (self._is_clogged or not self._waits_for_turn):
                self._receive_frame(_PREFIX_BYTES)
            self._buffer.prepare(PIPELINED_BYTES, is_enough=True)
            is_wanted = self._may_read_ahead()
        else:
            if self._is_queued:
                self._leave_queue()
            # A frame that follows another one of the same size queues for memory again, behind waiting ones.
            if needed_bytes != self._frame_bytes or (is_next_frame and needed_bytes != _PREFIX_BYTES):
                self._receive_frame(needed_bytes)
            if needed_bytes != _PREFIX_BYTES and self._has_memory:
                self._reserve()
            is_wanted = self._has_memory
            if is_wanted:
                self._buffer.prepare(self._granted_bytes or needed_bytes)
            else:
                self._buffer.prepare(0, is_enough=True)
        if is_wanted != self._is_reading:
            self._read(is_wanted)

    def _read(self, is_wanted: bool) -> None:
        self._is_reading = is_wanted
        if is_wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _end_if_done(self) -> None:
        """Close an ending connection, or one whose peer has closed its direction, once no request is in progress."""
        if self._parked is None and (self._is_ending or not self._is_blocked()):
            self.close()
        elif self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _send(self, pieces: Buffers, size_bytes: int) -> None:
        if self._is_closed:
            return
        if size_bytes <= JOIN_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def _park(
        self,
        reply: DelayedReply | ReplyInTurns | ReplyOfReads | Coroutine[Any, Any, Reply],
        frame_bytes: int = 0,
    ) -> None:
        self._only_reads = type(reply) is ReplyOfReads
        if isinstance(reply, CoroutineType):
            reply = self._server.begin(reply)
        elif type(reply) is ReplyOfReads:
            reply = self._server.begin(reply.work)
        elif type(reply) is ReplyInTurns:
            reply = self._server.begin(reply.work)
            # Also if the connection is lost before it is done.
            memory = self._server.memory
            memory.hold(frame_bytes)
            reply.add_done_callback(lambda _: memory.let_go(frame_bytes))
        self._parked = parked = cast("DelayedReply", reply)
        parked.add_done_callback(self._on_reply)
        if self._is_closed and (self._only_reads or not isinstance(parked, asyncio.Task)):
            # The connection was lost while a task was still working, and the task has returned what waits.
            parked.cancel()

    def _on_reply(self, parked: DelayedReply) -> None:
        """Send the reply of the parked request, which is done. Dispatches nothing, and completes nothing else."""
        self._parked = None
        self.active_at = self._server.activity_clock
        self._is_working = True  # see `resume_writing`
        try:
            reply = parked.result()
            if isinstance(reply, list):
                length = sum(map(len, reply))
                self._send([_PREFIX.pack(length), *reply], length)
            elif reply is not None:
                self._park(reply)
        except asyncio.CancelledError:
            self._is_ending = True  # as by a shutdown: no response is sent
        except Exception as error:  # noqa: BLE001 (any exception, also a reply of 2 GiB, ends this connection only)
            self._failed(error)
        finally:
            self._is_working = False
        if (timed := self._timed) is not None and self._parked is None:
            self._timed = None
            timed[0].observe((self._server.runtime.monotonic() - timed[1]) * 1000)
        # At rest there is nothing to do: what is unread would be in a buffer of the connection's own.
        if self._is_ending or self._is_at_end or not self._is_at_rest():
            if self._buffer.unread_bytes and not self._is_ending:
                self._yield()
            else:
                self._work()  # nothing to dispatch: prepare the next read, or close

    def _failed(self, error: BaseException) -> None:
        """Close the connection of a request that has failed, as Kafka does. The failure is logged only here."""
        self._is_ending = True
        if isinstance(error, KafkaError):  # malformed, or an error for which the response has no field
            self._server.log_closing(self, str(error))
        else:
            log.error("%r: a request failed; closed", self, exc_info=error)
