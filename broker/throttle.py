"""Keeps work in a thread below a rate: `log.cleaner.io.max.bytes.per.second`.

Source: org.apache.kafka.storage.internals.utils.Throttler; unlike it, this waits before a burst, not after.
"""

from collections.abc import Callable

#: Differences that are not worth a wait: a thread wakes up later than it wants to, anyway.
_TOLERANCE_S = 0.01
#: How far back a rate is looked at: what was not used for longer is not made up for.
_PERIOD_S = 1.0
#: How long a thread waits before it looks whether it is still wanted.
_LONGEST_PAUSE_S = 0.1


class Throttle:
    """Called with the bytes that were read or written; waits if these were too many."""

    def __init__(
        self,
        bytes_per_second: Callable[[], float],
        *,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
        check: Callable[[], None],
    ) -> None:
        """`check` raises when the work is to end; it is asked before and in each wait."""
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._pause = pause
        self._check = check
        #: From when on `_used_s` counts.
        self._began_s = monotonic()
        #: What was done, as the time that it may take.
        self._used_s = 0.0

    def __call__(self, size_bytes: int) -> None:
        """So many bytes more. [any thread, one at a time]"""
        self._check()
        now_s = self._monotonic()
        idle_s = now_s - self._began_s - self._used_s
        if idle_s > _PERIOD_S:
            self._began_s, self._used_s = now_s, 0.0
        self._used_s += size_bytes / self._bytes_per_second()
        while (early_s := self._began_s + self._used_s - self._monotonic()) > _TOLERANCE_S:
            self._pause(min(early_s, _LONGEST_PAUSE_S))
            self._check()
