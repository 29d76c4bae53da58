"""The driver's orders to the clients of a task, and the states that clients report."""

import threading
import time


class ClientFailed(Exception):
    """A client cannot go on; the message is one sentence."""


def now_us() -> int:
    """Return the time in microseconds since the epoch.

    Clients of several machines are compared, so it is no monotonic clock.
    """
    return time.time_ns() // 1000


class Orders:
    """The driver's orders up to now; written by the thread of the control channel, read by the clients."""

    def __init__(self) -> None:
        #: The start of the phase in microseconds since the epoch; None until all clients are ready.
        self.start_us: int | None = None
        #: Topic -> partition -> offset up to which consumers read; None until the producers are done.
        self.ends: dict[str, dict[int, int]] | None = None
        self._started = threading.Event()
        self._stopped = threading.Event()
        #: Set when the phase is over: idle connections are then closed.
        self.over = threading.Event()

    def start(self, start_us: int) -> None:
        """Let all clients begin at this time."""
        self.start_us = start_us
        self._started.set()

    def stop(self) -> None:
        """End all clients as soon as they can; they report what they have."""
        self._stopped.set()
        self._started.set()
        self.over.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def await_start(self) -> int:
        """Wait until the phase begins, or is stopped before; return the time at which it begins."""
        self._started.wait()
        start_us = self.start_us or now_us()
        self._stopped.wait(max(0.0, (start_us - now_us()) / 1e6))
        return start_us
