"""Loads that are not counted, in rounds, until a server's CPU for them falls no more.

A JVM compiles what it runs often, and takes up to five times the CPU before: Kafka has to be measured warm. Ottla
gets the same rounds.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: The number of rounds in which the CPU has not fallen ...
STEADY_ROUNDS: Final = 2
#: ... if none of them is below this part of the least before them.
_STEADY: Final = 0.95
MOST_ROUNDS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """A warm-up: the CPU of each round, and whether it had stopped falling at the last one.

    One number for a round with several loads: the geometric mean of their costs, so that each counts by its relative
    change whatever its unit.
    """

    costs: Sequence[float]
    is_steady: bool


def is_steady(costs: Sequence[float]) -> bool:
    """Whether the last `STEADY_ROUNDS` rounds are no cheaper than the best one before, but for 5 %.

    >>> is_steady([44, 12, 9.0]), is_steady([44, 12, 9.0, 9.1, 8.8])
    (False, True)
    """
    recent, before = costs[-STEADY_ROUNDS:], costs[:-STEADY_ROUNDS]
    return bool(before) and min(recent) > _STEADY * min(before)


def warm_up(
    run_round: Callable[[], Mapping[str, float]],
    *,
    say: Callable[[str], None],
    most_rounds: int = MOST_ROUNDS,
    most_s: float = math.inf,
) -> WarmUp:
    """Repeat a round, which returns the CPU of each of its loads, until `is_steady`.

    Or until `most_rounds` are done; no round begins after `most_s`.
    """
    costs: list[float] = []
    began = time.monotonic()
    while len(costs) < most_rounds and not is_steady(costs) and time.monotonic() - began < most_s:
        by_load = run_round()
        costs.append(_cost(by_load.values()))
        say(f"warm-up {len(costs)}  " + ", ".join(f"{load} {cost:.3g}" for load, cost in by_load.items()))
    return WarmUp(costs=costs, is_steady=is_steady(costs))


def _cost(costs: Iterable[float]) -> float:
    # A short load may use less than the system's unit of processor time, 10 ms, and cost nothing.
    known = [cost for cost in costs if cost]
    return statistics.geometric_mean(known) if known else 0.0
