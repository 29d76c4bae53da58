"""Virtual time: things that happen, one after the other, in an order that a seed decides and nothing else."""

import heapq
from collections.abc import Callable
from hashlib import blake2b

#: Global time is in microseconds, so that things of one millisecond still have an order.
MS = 1_000
S = 1_000_000


class Events:
    """The schedule of events, and the trace of those that have happened: equal runs have equal traces."""

    def __init__(self, *, is_traced: bool) -> None:
        self.now = 0
        self.count = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._digest = blake2b(digest_size=16)
        self.trace: list[str] | None = [] if is_traced else None

    def at(self, time: int, happen: Callable[[], None]) -> None:
        """It happens then; not before now."""
        self._number += 1
        heapq.heappush(self._queue, (max(time, self.now), self._number, happen))

    def after(self, delay: int, happen: Callable[[], None]) -> None:
        """It happens in so many microseconds."""
        self.at(self.now + delay, happen)

    def step(self) -> bool:
        """The next thing happens; False if there is none."""
        if not self._queue:
            return False
        self.now, _, happen = heapq.heappop(self._queue)
        self.count += 1
        happen()
        return True

    def note(self, *what: object) -> None:
        """An event for the trace."""
        self._digest.update(repr((self.now, what)).encode())
        if self.trace is not None:
            self.trace.append(f"{self.now / S:10.6f} {' '.join(map(str, what))}")

    @property
    def digest(self) -> str:
        """The digest of the whole trace."""
        return self._digest.hexdigest()
