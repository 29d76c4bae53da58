"""Throttler: keeps work in a thread below a rate, `log.cleaner.io.max.bytes.per.second`.

Source: org.apache.kafka.storage.internals.utils.Throttler; unlike it, this waits before a burst, not after.
"""

from collections.abc import Callable

#: Shorter waits are skipped: a thread wakes up late anyway.
_TOLERANCE_S = 0.01
#: The window of the rate: after an idle time of more than this, unused rate is not made up for.
_PERIOD_S = 1.0
#: The longest wait between two calls of `check`.
_LONGEST_PAUSE_S = 0.1


class Throttler:
    """Called with the number of bytes read or written; waits while the rate is exceeded."""

    def __init__(
        self,
        bytes_per_second: Callable[[], float],
        *,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
        check: Callable[[], None],
    ) -> None:
        """`check` raises when the work has to end; it is called at the start of each call and after each wait."""
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._pause = pause
        self._check = check
        #: The start of the period that `_used_s` measures.
        self._began_s = monotonic()
        #: The work done since `_began_s`, as the time that it takes at the permitted rate.
        self._used_s = 0.0

    def __call__(self, size_bytes: int) -> None:
        """Account for `size_bytes`, and wait if the rate is exceeded. [any thread, one at a time]"""
        self._check()
        now_s = self._monotonic()
        idle_s = now_s - self._began_s - self._used_s
        if idle_s > _PERIOD_S:
            self._began_s, self._used_s = now_s, 0.0
        self._used_s += size_bytes / self._bytes_per_second()
        while (early_s := self._began_s + self._used_s - self._monotonic()) > _TOLERANCE_S:
            self._pause(min(early_s, _LONGEST_PAUSE_S))
            self._check()
