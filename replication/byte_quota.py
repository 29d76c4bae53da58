"""ByteQuota: a rate in bytes per second over the last windows, and its bound.

Replication (KIP-73), copies between log directories, and the remote tier (KIP-956) keep to one each. Work is
admitted while the rate is within the bound, in pieces that may exceed it; then it waits until the rate is
within the bound again.

Source: org.apache.kafka.common.metrics.stats.Rate over SimpleRate's windows, Kafka 4.3.1. The rate of new connections
is a Rate of Kafka's, whose missing windows count as empty: `CreationRate` of `broker/network/limits.py`.
"""

from collections import deque
from collections.abc import Callable


class ByteQuota:
    """A rate of bytes per second over the last windows, and its bound. Times are in ms of one clock."""

    def __init__(
        self, *, rate: Callable[[], int | None], window_count: int = 11, window_ms: int = 1_000
    ) -> None:
        """`rate` returns the configured bound in bytes per second; None: there is none."""
        self._rate = rate
        self._window_count = window_count
        self._window_ms = window_ms
        #: (number of the window, bytes in it), the oldest first; at most `window_count`.
        self._windows: deque[list[int]] = deque()
        self._began_ms: int | None = None

    def record(self, size_bytes: int, *, now_ms: int) -> None:
        """Count `size_bytes` as transferred now."""
        assert size_bytes >= 0, size_bytes
        if self._began_ms is None:
            self._began_ms = now_ms
        number = now_ms // self._window_ms
        if not self._windows or self._windows[-1][0] < number:
            self._windows.append([number, 0])
        self._windows[-1][1] += size_bytes
        self._forget(number)

    def is_exceeded(self, *, now_ms: int) -> bool:
        """Whether the rate over the windows is above its bound."""
        bound = self._rate()
        if self._began_ms is None or bound is None:
            return False
        self._forget(now_ms // self._window_ms)
        elapsed_ms = min(now_ms - self._began_ms, self._window_count * self._window_ms)
        # At least one whole window: a single response does not make a rate.
        elapsed_s = max(elapsed_ms, self._window_ms) / 1000
        return sum(size for _, size in self._windows) / elapsed_s > bound

    def _forget(self, number: int) -> None:
        while self._windows and self._windows[0][0] <= number - self._window_count:
            self._windows.popleft()
