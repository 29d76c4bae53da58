"""TransferQuota: bytes per second to or from the remote tier (KIP-956), granted in pieces of a segment.

A piece is admitted while the rate over the last windows is within its bound; so a large segment is throttled
while it is transferred. Kafka admits whole segments: with a bound of 10 MB/s a segment of 1 GB goes out at
once, and then none for a while.

Source: RLMQuotaManager of Kafka 4.3.1, with the same windows.
"""

from collections.abc import Callable
from threading import Lock
from typing import Final

from ottla.remote.metrics import ThrottleTime
from ottla.replication.byte_quota import ByteQuota
from ottla.runtime import Runtime

#: The longest pause before the quota is asked again, seconds: its bound is dynamic, and the transfer may be cancelled.
_PAUSE_S: Final = 0.1


class TransferQuota:
    """A quota that several transfers share; its methods may be called by any thread."""

    def __init__(
        self,
        *,
        rate: Callable[[], int | None],
        window_count: int,
        window_ms: int,
        throttle: ThrottleTime,
        runtime: Runtime,
    ) -> None:
        """`rate` returns the bound in bytes per second, or None; `throttle` counts the waits."""
        self._rate = rate
        self._quota = ByteQuota(rate=rate, window_count=window_count, window_ms=window_ms)
        self.throttle = throttle
        self._runtime = runtime
        self._lock = Lock()

    def try_take(self, size_bytes: int) -> bool:
        """Count `size_bytes` and return True, if the rate is within its bound; else the caller asks again, later."""
        now_ms = round(self._runtime.monotonic() * 1000)
        with self._lock:
            if self._quota.is_exceeded(now_ms=now_ms):
                return False
            self._quota.record(size_bytes, now_ms=now_ms)
            return True

    def record(self, size_bytes: int) -> None:
        """Count `size_bytes` that were transferred without a wait for the quota."""
        with self._lock:
            self._quota.record(size_bytes, now_ms=round(self._runtime.monotonic() * 1000))

    def record_wait(self, waited_s: float) -> None:
        """Record that a transfer has waited for this quota."""
        with self._lock:
            self.throttle.record(round(waited_s * 1000))

    def take_in_thread(self, size_bytes: int, *, on_wait: Callable[[float], None]) -> None:
        """Wait in this thread until `size_bytes` are admitted.

        A piece that is larger than the quota of a second is admitted in several: otherwise, for a piece
        beyond the quota of all windows, the rate would exceed its bound. `on_wait` is called before each pause with 0,
        and after it with its length in seconds; it raises when the transfer has to end.
        """
        waited_s = 0.0
        while True:
            bound = self._rate()
            portion = size_bytes if bound is None else min(size_bytes, max(bound, 1))
            while not self.try_take(portion):
                paused_at_s = self._runtime.monotonic()
                on_wait(0.0)
                self._runtime.pause_thread(_PAUSE_S)
                pause_s = self._runtime.monotonic() - paused_at_s
                if not pause_s:
                    break  # in a simulation, without a thread: no time would ever pass
                waited_s += pause_s
                on_wait(pause_s)
            size_bytes -= portion
            if size_bytes <= 0:
                break
        if waited_s:
            self.record_wait(waited_s)
