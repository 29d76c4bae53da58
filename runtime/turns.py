"""Divides long work on the event loop into turns: between two of them all other ready callbacks run.

A thread is no alternative for Python code: the loop would wait for the interpreter's lock, up to
`sys.getswitchinterval()` (5 ms) at each of its system calls. Threads are for work that waits for a disk or runs in C.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

#: The maximum duration of one turn, seconds; requests that arrive meanwhile wait for its end. A switch to the loop and
#: back costs some 30 µs.
TURN_S: Final = 0.002
#: The maximum number of steps of a turn: divides long work also on virtual time, where a turn takes no time.
MAX_STEPS: Final = 100


class Clock(Protocol):
    """The part of a Runtime that turns need."""

    def monotonic(self) -> float:
        """Seconds on a monotonic clock."""


class ClockAndLoop(Clock, Protocol):
    """With the loop whose turns are divided."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """That of the node."""


async def in_turns(clock: Clock, steps: Iterable[object], *, max_steps: int | None = None) -> None:
    """Iterate over `steps`, and end the turn after `max_steps` (default: `MAX_STEPS`), or when it has taken `TURN_S`.

    One step runs in one turn: other code never sees it half done. A step should take less than a
    millisecond. Raises what a step raises.
    """
    most = MAX_STEPS if max_steps is None else max_steps
    count, end = 0, clock.monotonic() + TURN_S
    for _ in steps:
        count += 1
        if count >= most or clock.monotonic() >= end:
            await asyncio.sleep(0)
            count, end = 0, clock.monotonic() + TURN_S


class SharedTurn:
    """The time of a turn, for callbacks that do long work independently of each other, as of several sockets that are ready at once."""

    def __init__(self, runtime: ClockAndLoop) -> None:
        self._runtime = runtime
        #: Of the present turn, if it has been asked for.
        self._end: float | None = None

    def is_over(self) -> bool:
        """Whether `TURN_S` have passed since this was first asked in this turn. Cost: 0.2 us, and 3 us once in a turn."""
        now = self._runtime.monotonic()
        if self._end is None:
            self._end = now + TURN_S
            # Before all that is called soon from here on, because it is not done in this turn.
            self._runtime.loop.call_soon(self._begin)
        return now >= self._end

    def _begin(self) -> None:
        self._end = None
