"""Memory pool of requests that are not done: `queued.max.request.bytes` and `queued.max.requests`.

A request that has arrived whole is dispatched in the same turn of the event loop: unlike in Kafka there is no
queue between network and handlers. Three kinds of bytes wait:

- a frame that is being received. It reserves its memory as its bytes arrive (twice as many, at most its
  size): the length that a peer names costs others nothing. While all have reserved
  `queued.max.request.bytes`, those that need more wait, in the order in which they asked, and their
  connections are not read. One of them at a time may exceed the bound, by up to one frame: it is received
  whole, so that the others continue (Kafka's SimpleMemoryPool, not strict);
- a request that is handled in several turns of the loop, and keeps a copy of its frame (`ReplyInTurns`). It
  holds its size until then, and waits for no other request: further frames wait for that, too;
- a request behind an earlier one of its connection that is parked, whose reply is not read, or after the bound of a
  turn. `queued.max.requests` connections may hold such requests (up to `PIPELINED_BYTES` and one read each). While so
  many do, no other blocked connection is read until their number has halved, or until it is unblocked.

So neither bound can cause a deadlock: no request waits for one that waits for it.
Source: kafka.network.RequestChannel, Selector and SimpleMemoryPool of Kafka 4.3.1.
"""

from collections.abc import Callable
from typing import Protocol

from ottla.broker.network.settings import NetworkSettings


class Receiver(Protocol):
    """A connection that waits for memory."""

    def on_memory(self) -> None:
        """Continue to read: the requested memory is reserved."""


class RequestMemory:
    """The memory that all connections of a server have reserved, and the number of queued connections."""

    __slots__ = (
        "_exceeding", "_held_bytes", "_on_queue", "_settings", "_waiting", "is_queue_full", "queued_count",
        "reserved_bytes",
    )  # fmt: skip

    def __init__(self, settings: NetworkSettings, *, on_queue: Callable[[], None]) -> None:
        """`on_queue` is called when `is_queue_full` changes: blocked connections may then not be read, or may again."""
        self._on_queue = on_queue
        #: Waiting receivers in the order of their requests, with the further bytes that each one requests.
        self._waiting: dict[Receiver, int] = {}
        #: The receiver that exceeds the bound, until its frame is whole or the others have released enough.
        self._exceeding: Receiver | None = None
        self.reserved_bytes = 0
        #: The part of the reserved bytes whose requests are being handled: these end without further memory.
        self._held_bytes = 0
        #: Connections that hold requests behind an earlier one.
        self.queued_count = 0
        self.is_queue_full = False
        self._settings = settings

    def change(self, settings: NetworkSettings) -> None:
        """Replace the bounds, and grant what fits now."""
        self._settings = settings
        self._grant()

    def reserve(self, receiver: Receiver, size_bytes: int) -> bool:
        """Reserve further memory for a frame; False: the receiver waits until its `on_memory` is called."""
        if receiver is not self._exceeding and (self._waiting or not self._has_bytes(size_bytes)):
            self._waiting[receiver] = size_bytes
            self._grant()
            return receiver not in self._waiting
        self.reserved_bytes += size_bytes
        return True

    def release(self, receiver: Receiver, size_bytes: int) -> None:
        """Release all that a frame has requested, granted or not: it was dispatched or dropped."""
        self.reserved_bytes -= size_bytes - self._waiting.pop(receiver, 0)
        assert self.reserved_bytes >= 0, self.reserved_bytes
        if receiver is self._exceeding:
            self._exceeding = None
        self._grant()

    def hold(self, size_bytes: int) -> None:
        """Count the bytes of an arrived request until `let_go`; it waits for nothing, whatever the bound."""
        self.reserved_bytes += size_bytes
        self._held_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """Release the bytes of a request that was answered or given up."""
        self.reserved_bytes -= size_bytes
        self._held_bytes -= size_bytes
        assert self.reserved_bytes >= self._held_bytes >= 0, (self.reserved_bytes, self._held_bytes)
        self._grant()

    def enter_queue(self) -> None:
        """Count one more connection that holds requests behind an earlier one."""
        self.queued_count += 1
        if not self.is_queue_full and self.queued_count >= self._settings.queued_max_requests:
            self.is_queue_full = True
            self._on_queue()

    def leave_queue(self) -> None:
        """Count one connection fewer that holds requests behind an earlier one."""
        self.queued_count -= 1
        # Not as soon as one place is free: `on_queue` visits all connections.
        if self.is_queue_full and self.queued_count <= self._settings.queued_max_requests // 2:
            self.is_queue_full = False
            self._on_queue()

    def _has_bytes(self, size_bytes: int) -> bool:
        max_bytes = self._settings.queued_max_request_bytes
        return max_bytes is None or self.reserved_bytes + size_bytes <= max_bytes

    def _grant(self) -> None:
        """Grant what fits, in order; the first that does not fit may exceed the bound.

        It waits if memory will be free by itself.
        """
        if self._has_bytes(0):
            self._exceeding = None
        while self._waiting:
            receiver, size_bytes = next(iter(self._waiting.items()))
            if not self._has_bytes(size_bytes):
                if self._exceeding is not None or self._held_bytes:
                    return
                self._exceeding = receiver
            del self._waiting[receiver]
            self.reserved_bytes += size_bytes
            receiver.on_memory()
