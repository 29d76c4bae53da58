"""What requests that are not dispatched yet may take: `queued.max.request.bytes` and `queued.max.requests`.

A request that has arrived whole is dispatched in the turn that has read it: there is no queue between network and
handlers, as Kafka has one. What waits is

- a frame that is being received. It reserves its size when its length is known; while the frames of all connections
  have reserved `queued.max.request.bytes`, further ones wait, in the order of their arrival, and their connections are
  not read. One frame may go beyond the bound, which is no smaller than one frame (Kafka's SimpleMemoryPool, not strict).
  Who has a reservation is read until its frame is whole, so that each of them comes to an end;
- a request behind an earlier one of its connection, which is parked, whose reply is not taken, or that has had its turn.
  `queued.max.requests` connections may hold such (up to `PIPELINED_BYTES` and one read each). While so many do, no
  other connection that cannot dispatch is read; it is again when half of them are done, or when it can dispatch.

So neither bound makes a request wait for one that waits for it.
Source: kafka.network.RequestChannel, Selector and SimpleMemoryPool of Kafka 4.3.1.
"""

from collections.abc import Callable
from typing import Protocol

from broker.network.settings import NetworkSettings


class Receiver(Protocol):
    """A connection that waits for memory."""

    def on_memory(self) -> None:
        """The memory that it asked for is reserved: read on."""


class RequestMemory:
    """The reservations of all connections of a server."""

    __slots__ = ("_on_queue", "_settings", "_waiting", "is_queue_full", "queued_count", "reserved_bytes")

    def __init__(self, settings: NetworkSettings, *, on_queue: Callable[[], None]) -> None:
        """`on_queue` is called when connections that cannot dispatch must not be read any more, and when they may."""
        self._on_queue = on_queue
        #: Receivers in the order of their arrival, and how much each asks for.
        self._waiting: dict[Receiver, int] = {}
        self.reserved_bytes = 0
        #: Connections that hold requests behind an earlier one.
        self.queued_count = 0
        self.is_queue_full = False
        self._settings = settings

    def change(self, settings: NetworkSettings) -> None:
        """There are other settings."""
        self._settings = settings
        self._grant()

    def reserve(self, receiver: Receiver, size_bytes: int) -> bool:
        """Reserve memory for a frame; False: it waits, and `on_memory` is called when it is its turn."""
        if self._waiting or not self._has_bytes():
            self._waiting[receiver] = size_bytes
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, receiver: Receiver, size_bytes: int) -> None:
        """The frame for which so much was reserved, or asked for, is dispatched or given up."""
        if self._waiting.pop(receiver, None) is None:
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
        """One connection less does."""
        self.queued_count -= 1
        # Not as soon as there is one place: all connections are looked through each time.
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
