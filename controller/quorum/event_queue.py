"""The event queue of the Raft driver: requests, responses, appends and results of writes, one at a time to the machine.

    add          at the end, with the time of arrival
    add_result   at the front: the result of a write that began before the queued events arrived
    next         the next event; events that arrived before the machine's deadline precede the deadline

Source: RaftMessageQueue, BlockingMessageQueue of Kafka 4.3.1, which is unbounded.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.controller.raft.effects import Effect

#: Limit of queued events: beyond it, requests are refused with NotController, and their senders retry. Requests queue
#: up while the disk does not respond, since peers time out and retry. Events of this node itself are not refused, but
#: bounded: one for each request that it has sent, one for all appends, one for a resignation.
MAX_QUEUED_EVENTS: Final = 20_000

#: One event: a function of the time on the machine's clock to the machine's effects.
Decide = Callable[[int], list[Effect]]


class _Event(NamedTuple):
    #: On the machine's clock.
    arrived_ms: int
    decide: Decide


class EventQueue:
    """The queue of the Raft machine's events, and the signal that wakes its only reader."""

    def __init__(self) -> None:
        #: At most MAX_QUEUED_EVENTS, and this node's own.
        self._events: deque[_Event] = deque()
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_full(self) -> bool:
        """Whether the queue is full, so that requests must be refused."""
        return len(self._events) >= MAX_QUEUED_EVENTS

    def add(self, decide: Decide, *, now_ms: int) -> None:
        """Add an event, and wake the reader."""
        self._events.append(_Event(now_ms, decide))
        self._wakeup.set()

    def add_result(self, decide: Decide) -> None:
        """Add the result of a write, in front: the write has begun before the queued events."""
        self._events.appendleft(_Event(0, decide))

    def next(self, *, deadline_ms: int, now_ms: int, tick: Decide) -> Decide | None:
        """The machine's next event, `tick` if its deadline is due; None if there is none.

        An event that arrived before the deadline precedes it, however long the driver was blocked by the disk: a slow
        disk must not look like a silent leader or follower.
        """
        if self._events and self._events[0].arrived_ms <= deadline_ms:
            return self._events.popleft().decide
        if deadline_ms <= now_ms:
            return tick
        return self._events.popleft().decide if self._events else None

    def wakeup(self) -> None:
        """Wake the reader: a deadline is due, or the driver stops."""
        self._wakeup.set()

    def clear_wakeup(self) -> None:
        """Clear the signal after the reader has seen everything, so that the next `wait` returns after the
        next wakeup.
        """
        self._wakeup.clear()

    async def wait(self) -> None:
        """Wait for an event or a wakeup."""
        await self._wakeup.wait()
