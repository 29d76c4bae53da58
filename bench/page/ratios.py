"""The picture of a whole result: how many times more or less each figure is than the baseline's, and its goal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.figures import Row, Unit, Verdict

#: The axis ends here at the least, so that noise does not look like a difference.
_LEAST_END: Final = 2.0
_ENDS: Final = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 10_000.0, 100_000.0)


def is_more_better(row: Row) -> bool:
    """By its goal, else by its unit: a rate should be high, a time, a cost or a size should be low."""
    goal = row.figure.goal
    if goal is not None:
        return goal.at_least is not None
    return row.figure.unit.name.endswith("/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioAxis:
    """A logarithmic axis with 1 in its middle."""

    end: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "RatioAxis":
        """One on which all of them are."""
        furthest = max((max(ratio, 1 / ratio) for ratio in ratios if ratio > 0), default=1.0)
        return cls(end=next((end for end in _ENDS if end >= max(furthest, _LEAST_END)), furthest))

    def part(self, ratio: float) -> float:
        """0 at 1/end, 0.5 at 1, 1 at end.

        >>> RatioAxis(end=4.0).part(2.0), RatioAxis(end=4.0).part(0.0)
        (0.75, 0.0)
        """
        if ratio <= 0:
            return 0.0
        return min(max(0.5 + math.log(ratio) / math.log(self.end) / 2, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Both ends, the middle, and powers of ten between them."""
        powers = [10.0**power for power in range(1, 6) if 10.0**power < self.end * 0.7]
        if not powers and self.end > _LEAST_END:
            powers = [_LEAST_END]
        if len(powers) > 2:
            powers = powers[::2]
        ups = [*powers, self.end]
        return [*(1 / up for up in reversed(ups)), 1.0, *ups]


def ratio_words(ratio: float | None) -> str:
    """Two decimals, as goals are judged; without them where they say nothing.

    >>> ratio_words(0.333), ratio_words(31188.6), ratio_words(None)
    ('0.33', '31,189', '-')
    """
    if ratio is None:
        return "-"
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"


def ratio_tick(ratio: float) -> str:
    """A round ratio on an axis.

    >>> ratio_tick(0.2), ratio_tick(1), ratio_tick(1000)
    ('1/5', '1', '1,000')
    """
    return f"{ratio:,.0f}" if ratio >= 1 else f"1/{1 / ratio:,.0f}"


def with_unit(value: float | None, unit: Unit) -> str:
    """A value for prose."""
    return unit.shown(value) if value is None else f"{unit.shown(value)} {unit.name}"


VERDICT_SIGNS: Final = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.NOT_MEASURED: "\N{EN DASH}"}
