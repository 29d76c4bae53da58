"""Values over the last time, for metrics: each reader gets the same, and none takes anything from another one.

    |---- window ----|---- window ----|-- now
     forgotten         read with the present one

Source: Max and SampledStat of Kafka 4.3.1, with its defaults: two samples of 30 seconds.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 30.0
#: How far back an `IdleRatio` looks, and the shortest time between two of its samples.
IDLE_WINDOW_S: Final = 60.0
_SAMPLE_S: Final = 1.0


class WindowedMax:
    """The largest value of the present window and the one before: of the last 30 to 60 seconds.

    >>> now_s = 0.0
    >>> longest = WindowedMax(lambda: now_s)
    >>> longest.record(5)
    >>> now_s = 40.0; longest.record(2); longest.read()
    5
    >>> now_s = 70.0; longest.read()
    2
    """

    __slots__ = ("_before", "_monotonic", "_now", "_number")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._number = 0
        #: The largest values of the present window and of the one before; 0 without any.
        self._now: float = 0
        self._before: float = 0

    def record(self, value: float) -> None:
        """Record a value; not negative."""
        self._turn()
        self._now = max(self._now, value)

    def read(self) -> float:
        """The largest value; 0 without any."""
        self._turn()
        return max(self._now, self._before)

    def _turn(self) -> None:
        number = int(self._monotonic() / WINDOW_S)
        if number != self._number:
            self._before = self._now if number == self._number + 1 else 0
            self._now, self._number = 0, number


class WindowedSum:
    """The sum and the number of the values of the present window and the one before, for a rate and an average.

    >>> now_s = 0.0
    >>> total = WindowedSum(lambda: now_s)
    >>> total.record(60); total.record(30); total.mean(), total.rate()
    (45.0, 3.0)
    >>> now_s = 45.0; total.rate()
    2.0
    """

    __slots__ = ("_before", "_counts", "_monotonic", "_now", "_number")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._number = int(monotonic() / WINDOW_S)
        self._now = self._before = 0.0
        #: The number of values of the present window, and of the one before.
        self._counts = (0, 0)

    def record(self, value: float) -> None:
        """Add a value to the present window."""
        self._turn()
        self._now += value
        self._counts = (self._counts[0] + 1, self._counts[1])

    def rate(self) -> float:
        """The sum divided by the seconds of the two windows, up to now."""
        now_s = self._turn()
        return (self._now + self._before) / (now_s - (self._number - 1) * WINDOW_S)

    def mean(self) -> float:
        """The average of the values; 0 without any."""
        self._turn()
        count = sum(self._counts)
        return (self._now + self._before) / count if count else 0.0

    def _turn(self) -> float:
        now_s = self._monotonic()
        number = int(now_s / WINDOW_S)
        if number != self._number:
            is_next = number == self._number + 1
            self._before, self._counts = (self._now, (0, self._counts[0])) if is_next else (0.0, (0, 0))
            self._now, self._number = 0.0, number
        return now_s


class IdleRatio:
    """The part of the time, from 0 to 1, in which a thread did not run: over the last minute, or since the start.

    >>> now_s, running_s = 0.0, 0.0
    >>> idle = IdleRatio(lambda: now_s, lambda: running_s)
    >>> now_s, running_s = 10.0, 2.5
    >>> idle.read()
    0.75
    """

    __slots__ = ("_monotonic", "_running_s", "_samples")

    def __init__(self, monotonic: Callable[[], float], running_s: Callable[[], float]) -> None:
        """`running_s` returns for how long the thread has run up to now."""
        self._monotonic = monotonic
        self._running_s = running_s
        #: (time, running time up to then); at most one each second.
        self._samples = deque([(monotonic(), running_s())])

    def read(self) -> float:
        """The idle part; 1 while no time has passed."""
        now_s, running_s, samples = self._monotonic(), self._running_s(), self._samples
        while len(samples) > 1 and samples[1][0] <= now_s - IDLE_WINDOW_S:
            samples.popleft()
        began_s, running_before_s = samples[0]
        if now_s - samples[-1][0] >= _SAMPLE_S:
            samples.append((now_s, running_s))
        if now_s <= began_s:
            return 1.0
        return min(1.0, max(0.0, 1.0 - (running_s - running_before_s) / (now_s - began_s)))
