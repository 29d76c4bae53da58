"""Conditions of the simulated network: latency, window, additional delays, and which hosts cannot reach each other.

`MemoryNetwork` and a test change them; both ends of every connection (`MemoryTransport`) read them.
"""

from collections.abc import Callable
from random import Random


def _default_latency(random: Random) -> float:
    """The latency of a piece in seconds: 50 to 500 µs, a local network."""
    return random.uniform(50e-6, 500e-6)


class NetworkConditions:
    """The conditions of the simulated network: latency, window, additional delays, cut pairs of hosts.

    A pair of hosts is (source, target); each direction has conditions of its own.
    """

    def __init__(self, random: Random, record: Callable[[str], None]) -> None:
        self.random = random
        #: Adds a line to the simulation's trace.
        self.record = record
        self.latency_s: Callable[[Random], float] = _default_latency
        #: Maximum bytes of one direction that are in transit or unread; beyond it the sender's buffer fills.
        self.window_bytes = 256 * 1024
        #: If set, a read returns a random number of bytes up to this, even if more have arrived.
        self.max_read_bytes: int | None = None
        #: Additional latency in seconds.
        self.delays_s: dict[tuple[str, str], float] = {}
        #: The pairs between which no bytes arrive.
        self.cuts: set[tuple[str, str]] = set()
        #: Hosts without power.
        self.unplugged: set[str] = set()

    def draw_latency_s(self) -> float:
        """The latency of the next piece, without additional delays."""
        return self.latency_s(self.random)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether no bytes arrive from `source` at `target`."""
        if self.unplugged and (source in self.unplugged or target in self.unplugged):
            return True
        return bool(self.cuts) and (source, target) in self.cuts
