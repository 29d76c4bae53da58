"""The longest turn of an event loop, while something else runs on it."""

import asyncio
import time
from typing import Final, NamedTuple

#: The interval between two ticks. Others have their turns within it: it is the largest error of a figure.
_TICK_S: Final = 0.001


class Longest(NamedTuple):
    """The longest turn since the last call of `longest`."""

    #: The processor time of the loop's thread: it does not count other processes, nor waits for a disk.
    cpu_s: float
    #: The time between two ticks, all included.
    s: float


class LoopTurns:
    """Watches the running loop until `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest = Longest(0.0, 0.0)
        self._begin()

    def _begin(self) -> None:
        self._cpu_s, self._began = time.thread_time(), time.perf_counter()
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._look()
        self._begin()

    def _look(self) -> None:
        cpu_s, s = time.thread_time() - self._cpu_s, time.perf_counter() - self._began
        self._longest = Longest(max(self._longest.cpu_s, cpu_s), max(self._longest.s, s))

    def longest(self) -> Longest:
        """Return the longest turn up to now, and begin again."""
        self._look()
        self._timer.cancel()
        longest, self._longest = self._longest, Longest(0.0, 0.0)
        self._begin()
        return longest

    def stop(self) -> None:
        """Stop to measure turns."""
        self._timer.cancel()
