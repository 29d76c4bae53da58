"""Figures of a phase of `ottla.bench.internals.tier_scale`: time, CPU, the longest turn of the loop, memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ottla.bench.internals.loop_turns import LoopTurns
from ottla.bench.internals.storage_open import private_bytes

#: Metric -> figure.
Figures = dict[str, float]

COUNT: Final = "count"


class Phases:
    """The phases of one process, in their order."""

    def __init__(self, turns: LoopTurns) -> None:
        self.figures: dict[str, Figures] = {}
        self._turns = turns

    @contextmanager
    def phase(self, name: str) -> Iterator[Figures]:
        """Measure the block, which adds figures of its own, such as its count."""
        figures: Figures = {}
        self._turns.longest()
        began, cpu_began = time.perf_counter(), time.process_time()
        yield figures
        figures |= {"s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_began}
        longest = self._turns.longest()
        figures |= {"turn_cpu_s": longest.cpu_s, "turn_s": longest.s}
        figures.setdefault("private_bytes", private_bytes())
        self.figures[name] = figures

    def stop(self) -> None:
        """Stop the measurement of turns."""
        self._turns.stop()
