"""The picture of a whole result: the ratio of each figure to the baseline's, and its goal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import COUNT, Row, Unit, Verdict
from ottla.bench.report import Section

#: The largest number of rows in one picture: more are not read.
_MOST_ROWS: Final = 24
#: The axis ends here at the least, so that noise does not look like a difference.
_LEAST_END: Final = 2.0
#: The metrics that are neither good nor bad: sizes and times that a workload sets, and the generator's own
#: use.
_NEUTRAL: Final = frozenset({"tiered_bytes", "producer_took_s", "producer_late_s", "client_processors"})
_ENDS: Final = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 10_000.0, 100_000.0)


def is_more_better(row: Row) -> bool | None:
    """Whether more is better: by the figure's goal, else by its unit. None: neither is better.

    A rate should be high, a time, a cost or a size should be low.
    """
    goal, unit = row.figure.goal, row.figure.unit
    if goal is not None:
        return goal.at_least is not None
    if unit == COUNT or row.figure.metric in _NEUTRAL:
        return None
    return unit.name.endswith("/s")


def worst_ratio(rows: Sequence[Row], targets: Sequence[str]) -> tuple[Row, str] | None:
    """Return the row and the target with the worst ratio: the least good one if all are better than the baseline."""
    baseline, *others = targets
    judged = [
        (_times_worse(ratio, is_more), row, target)
        for row in rows
        if (is_more := is_more_better(row)) is not None
        for target in others
        if (ratio := row.ratio_of(target, baseline)) is not None
    ]
    return max(judged, key=lambda each: each[0])[1:] if judged else None


def _times_worse(ratio: float, is_more: bool) -> float:
    if not is_more:
        return ratio
    return 1 / ratio if ratio else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRow:
    """A figure, compared with the baseline's."""

    row: Row
    baseline: str
    #: Target -> ratio of the medians, of those that have one.
    ratios: dict[str, float]

    @property
    def label(self) -> str:
        """The label of the row: its table and its figure."""
        return f"{self.row.table.title}: {self.row.figure.title}"

    @property
    def goal(self) -> float | None:
        """The bound of the goal, if the goal is one of the ratio."""
        goal = self.row.figure.goal
        if goal is None or goal.is_absolute:
            return None
        return goal.at_least if goal.at_least is not None else goal.at_most

    def of_runs(self, target: str) -> list[float]:
        """Return the ratios of the runs, which were measured one after the other; none where a run is missing."""
        values, base = self.row.values(target), self.row.values(self.baseline)
        if len(values) != len(base) or not all(base):
            return []
        return [value / other for value, other in zip(values, base, strict=True)]


def ratio_rows(
    section: Section, headlines: Sequence[tuple[str, str]], targets: Sequence[str]
) -> list[RatioRow]:
    """Return the headlines of a section that have a ratio.

    Without headlines, its first rows with a goal, or its first rows.
    """
    rows = section.rows()
    chosen = [row for key in headlines for row in rows if row.key == tuple(key)]
    if not chosen:
        chosen = [row for row in rows if row.figure.goal is not None] or rows
    return [found for row in chosen if (found := _ratio_row(row, targets)).ratios][:_MOST_ROWS]


def _ratio_row(row: Row, targets: Sequence[str]) -> RatioRow:
    baseline, *others = targets
    ratios = {target: row.ratio_of(target, baseline) for target in others}
    return RatioRow(
        row=row,
        baseline=baseline,
        ratios={target: ratio for target, ratio in ratios.items() if ratio is not None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioAxis:
    """A logarithmic axis with 1 in its middle."""

    end: float

    @classmethod
    def of(cls, rows: Sequence[RatioRow]) -> "RatioAxis":
        """Make an axis that has all ratios of these rows, those of single runs included."""
        medians = [ratio for row in rows for ratio in row.ratios.values()]
        runs = [ratio for row in rows for target in row.ratios for ratio in row.of_runs(target)]
        return cls.holding([*medians, *runs])

    @classmethod
    def holding(cls, ratios: Sequence[float]) -> "RatioAxis":
        """Make an axis that has all of these ratios."""
        furthest = max((max(ratio, 1 / ratio) for ratio in ratios if ratio > 0), default=1.0)
        return cls(end=next((end for end in _ENDS if end >= max(furthest, _LEAST_END)), furthest))

    def part(self, ratio: float) -> float:
        """Return the place of a ratio on the axis: 0 at 1/end, 0.5 at 1, 1 at end.

        >>> RatioAxis(end=4.0).part(2.0), RatioAxis(end=4.0).part(0.0)
        (0.75, 0.0)
        """
        if ratio <= 0:
            return 0.0
        return min(max(0.5 + math.log(ratio) / math.log(self.end) / 2, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Return the ticks: both ends, the middle, and powers of ten between them."""
        powers = [10.0**power for power in range(1, 6) if 10.0**power < self.end / 3]
        if not powers and self.end > _LEAST_END:
            powers = [_LEAST_END]
        if len(powers) > 2:
            powers = powers[::2]
        ups = [*powers, self.end]
        return [*(1 / up for up in reversed(ups)), 1.0, *ups]


def ratio_words(ratio: float | None) -> str:
    """Return the ratio with two decimals, as goals are judged; without them where they add nothing.

    >>> ratio_words(0.333), ratio_words(31188.6), ratio_words(None)
    ('0.33', '31,189', '-')
    """
    if ratio is None:
        return "-"
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"


def ratio_tick(ratio: float) -> str:
    """Return the label of a round ratio on an axis.

    >>> ratio_tick(0.2), ratio_tick(1), ratio_tick(1000)
    ('1/5', '1', '1,000')
    """
    return f"{ratio:,.0f}" if ratio >= 1 else f"1/{1 / ratio:,.0f}"


def with_unit(value: float | None, unit: Unit) -> str:
    """Return a value with its unit, for prose."""
    return unit.shown(value) if value is None else f"{unit.shown(value)} {unit.name}"


VERDICT_SIGNS: Final = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.NOT_MEASURED: "\N{EN DASH}"}
