"""A clock that can be moved forward: an event loop and a production runtime for tests that wait for hours.

    loop.advance(25 * 3600.0)
        time(), monotonic(), now_ms()   show 25 hours more, at once
        timers that are due by then     run in the next turn, in the order of their deadlines
        all other timers                keep their deadlines

asyncio's own waits (sleep, wait_for, timeout) use `call_later` and `call_at`, and so does `Runtime.call_later`. Threads
and sockets know nothing of it.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final, TypeVarTuple

import uvloop

from ottla.runtime.production import ProductionRuntime, wall_clock_ms

Ts = TypeVarTuple("Ts")

#: uvloop's clock and its alarms have this resolution.
_RESOLUTION_S: Final = 0.001
#: Cancelled timers that may stay in the queue.
_KEPT_CANCELLED: Final = 100


class MovableLoop(uvloop.Loop):
    """A uvloop whose clock can be moved forward."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        super().__init__()
        #: How far the clock is ahead of the system's, in seconds.
        self.ahead_s = ahead_s
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        #: At least as many as are in the queue.
        self._cancelled_count = 0
        #: The alarm of the system's clock for the first timer.
        self._alarm: asyncio.TimerHandle | None = None

    def time(self) -> float:
        """Return the seconds of the monotonic clock, in uvloop's resolution."""
        return super().time() + self.ahead_s

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call `callback` once, in `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call `callback` once, when the clock shows `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        if self._timers[0][2] is handle:
            self._set_alarm()
        return handle

    def advance(self, duration_s: float) -> None:
        """Move the clock forward. Called on the loop's thread."""
        assert duration_s >= 0, duration_s
        self.ahead_s += duration_s
        self._set_alarm()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Drop cancelled timers when they are many: each of them would stay until it is due. Called by `cancel`."""
        self._cancelled_count += 1
        if self._cancelled_count > max(_KEPT_CANCELLED, len(self._timers) // 2):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = max(0.0, self._timers[0][0] - self.time()) if self._timers else None
        self._alarm = None if delay_s is None else super().call_later(delay_s, self._run_due)

    def _run_due(self) -> None:
        """Schedule the timers that are due for the next turn, in which they may still be cancelled."""
        now = self.time() + _RESOLUTION_S
        while self._timers and self._timers[0][0] <= now:
            _, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                self.call_soon(_run_unless_cancelled, handle)
        self._alarm = None
        self._set_alarm()


def _run_unless_cancelled(handle: asyncio.TimerHandle) -> None:
    if not handle.cancelled():
        handle._run()


class MovableRuntime(ProductionRuntime):
    """The runtime of the running loop, a `MovableLoop`, whose clocks it follows."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovableLoop), loop
        super().__init__(
            monotonic=lambda: time.monotonic() + loop.ahead_s,
            now_ms=lambda: wall_clock_ms() + round(loop.ahead_s * 1000),
        )
