"""What a client in a task is given by its task, and what it reports: orders in, states out."""

import threading
import time


class ClientFailed(Exception):
    """A client cannot go on; a sentence."""


def now_us() -> int:
    """Microseconds since the epoch: clients of several machines are compared, so no monotonic clock."""
    return time.time_ns() // 1000


class Orders:
    """What the driver has said up to now; written by the thread of the control channel, read by the clients."""

    def __init__(self) -> None:
        #: Microseconds since the epoch; None until all clients are ready.
        self.start_us: int | None = None
        #: Topic -> partition -> offset up to which consumers read; None until the producers are done.
        self.ends: dict[str, dict[int, int]] | None = None
        self._started = threading.Event()
        self._stopped = threading.Event()
        #: The phase is over: idle connections are closed.
        self.over = threading.Event()

    def start(self, start_us: int) -> None:
        """All clients begin at this time."""
        self.start_us = start_us
        self._started.set()

    def stop(self) -> None:
        """All clients end as soon as they can, and report what they have."""
        self._stopped.set()
        self._started.set()
        self.over.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def await_start(self) -> int:
        """When the phase begins; returns at that time, or when it was stopped before."""
        self._started.wait()
        start_us = self.start_us or now_us()
        self._stopped.wait(max(0.0, (start_us - now_us()) / 1e6))
        return start_us
