"""Memory pool of requests that are not done: `queued.max.request.bytes` and `queued.max.requests`.

A request that has arrived whole is dispatched in the same turn of the event loop: unlike in Kafka there is no queue between
network and handlers. Three kinds of bytes wait:

- a frame that is being received. It reserves its size when its length is known; while the frames of all connections
  have reserved `queued.max.request.bytes`, further ones wait, in the order of their arrival, and their connections are
  not read. One frame may exceed the bound, which is no smaller than one frame (Kafka's SimpleMemoryPool, not strict).
  A connection with a reservation is read until its frame is whole, so that each reservation ends;
- a request that is handled in several turns of the loop, and keeps a copy of its frame (`ReplyInTurns`). It holds its size
  until then, and waits for no other request: further frames wait for that, too;
- a request behind an earlier one of its connection that is parked, whose reply is not read, or after the bound of a
  turn. `queued.max.requests` connections may hold such requests (up to `PIPELINED_BYTES` and one read each). While so
  many do, no other blocked connection is read until their number has halved, or until it is unblocked.

So neither bound can cause a deadlock: no request waits for one that waits for it.
Source: kafka.network.RequestChannel, Selector and SimpleMemoryPool of Kafka 4.3.1.
"""

from collections.abc import Callable
from typing import Protocol

from broker.network.settings import NetworkSettings


class Receiver(Protocol):
    """A connection that waits for memory."""

    def on_memory(self) -> None:
        """The requested memory is reserved: continue to read."""


class RequestMemory:
    """The reservations of all connections of a server."""

    __slots__ = ("_on_queue", "_settings", "_waiting", "is_queue_full", "queued_count", "reserved_bytes")

    def __init__(self, settings: NetworkSettings, *, on_queue: Callable[[], None]) -> None:
        """`on_queue` is called when `is_queue_full` changes: blocked connections may then not be read, or may again."""
        self._on_queue = on_queue
        #: Waiting receivers in the order of their arrival, with the bytes that each one requests.
        self._waiting: dict[Receiver, int] = {}
        self.reserved_bytes = 0
        #: Connections that hold requests behind an earlier one.
        self.queued_count = 0
        self.is_queue_full = False
        self._settings = settings

    def change(self, settings: NetworkSettings) -> None:
        """Replace the settings."""
        self._settings = settings
        self._grant()

    def reserve(self, receiver: Receiver, size_bytes: int) -> bool:
        """Reserve memory for a frame; False: the receiver waits until its `on_memory` is called."""
        if self._waiting or not self._has_bytes():
            self._waiting[receiver] = size_bytes
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, receiver: Receiver, size_bytes: int) -> None:
        """Release the reservation, or the request for one, of a frame that was dispatched or dropped."""
        if self._waiting.pop(receiver, None) is None:
            self.reserved_bytes -= size_bytes
            assert self.reserved_bytes >= 0, self.reserved_bytes
        self._grant()

    def hold(self, size_bytes: int) -> None:
        """A request that has arrived keeps so many bytes until `let_go`; it waits for nothing, whatever the bound."""
        self.reserved_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """A request that has held so many bytes is done."""
        self.reserved_bytes -= size_bytes
        assert self.reserved_bytes >= 0, self.reserved_bytes
        self._grant()

    def enter_queue(self) -> None:
        """One more connection holds requests behind an earlier one."""
        self.queued_count += 1
        if not self.is_queue_full and self.queued_count >= self._settings.queued_max_requests:
            self.is_queue_full = True
            self._on_queue()

    def leave_queue(self) -> None:
        """One connection fewer holds requests behind an earlier one."""
        self.queued_count -= 1
        # Not as soon as one place is free: `on_queue` visits all connections.
        if self.is_queue_full and self.queued_count <= self._settings.queued_max_requests // 2:
            self.is_queue_full = False
            self._on_queue()

    def _has_bytes(self) -> bool:
        max_bytes = self._settings.queued_max_request_bytes
        return max_bytes is None or self.reserved_bytes < max_bytes

    def _grant(self) -> None:
        while self._waiting and self._has_bytes():
            receiver = next(iter(self._waiting))
            self.reserved_bytes += self._waiting.pop(receiver)
            receiver.on_memory()
