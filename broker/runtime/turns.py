"""Long work on the loop, cut into turns: between two of them everything else that is ready runs.

Work in a thread is no alternative where it is Python code: the loop waits for the interpreter's lock behind it, up to
`sys.getswitchinterval()` (5 ms) at each of its system calls. Threads are for what waits for a disk, and for C libraries.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

#: How long one turn may take, seconds. Requests that arrive meanwhile wait for its end. A switch to the loop and back costs
#: some 30 µs.
TURN_S: Final = 0.002
#: Steps of a turn at most: on virtual time, where a turn takes no time, long work is cut, too.
MAX_STEPS: Final = 100


class Clock(Protocol):
    """As much of a Runtime as turns need."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


async def in_turns(clock: Clock, steps: Iterable[object]) -> None:
    """Iterate over `steps`, and end the turn whenever it has taken `TURN_S`.

    What happens between two steps is done in one turn: others never see it half done. A step should take less than a
    millisecond. Raises what a step raises.
    """
    count, end = 0, clock.monotonic() + TURN_S
    for _ in steps:
        count += 1
        if count >= MAX_STEPS or clock.monotonic() >= end:
            await asyncio.sleep(0)
            count, end = 0, clock.monotonic() + TURN_S
