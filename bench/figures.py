"""Figures of several targets side by side: units, medians, ratios, goals, and the row that is furthest from its goal.

Pure: values in, values and text out. A table has one sample for each run; a row is one metric of it.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

#: Metric name -> value in base units: bytes, seconds, requests.
Sample = dict[str, float]

KAFKA: Final = "kafka"
OTTLA: Final = "ottla"
#: The same load served by a process that does only the necessary part of a broker's work
#: (`bench/targets/floor.py`).
FLOOR: Final = "floor"
_NAMES: Final = {KAFKA: "Kafka", OTTLA: "Ottla"}
_ABSENT: Final = "-"


def name_of(target: str) -> str:
    """Return the name of a target in sentences."""
    return _NAMES.get(target, target)


def baseline_first(targets: Iterable[str]) -> list[str]:
    """Return targets in the order in which they are shown: the baseline of all ratios comes first.

    >>> baseline_first(["ottla", "kafka"]), baseline_first(["old", "new"])
    (['kafka', 'ottla'], ['old', 'new'])
    """
    return sorted(targets, key=lambda target: target != KAFKA)


class LoadFailed(Exception):
    """A load ended, but without its due effect on the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit in which a figure is shown: base unit times `factor`."""

    name: str
    factor: float = 1.0
    decimals: int = 2

    def shown(self, value: float | None) -> str:
        """Return the number without the unit's name.

        >>> MILLISECONDS.shown(0.0123), MEGABYTES.shown(None)
        ('12.30', '-')
        """
        return _ABSENT if value is None else f"{value * self.factor:,.{self.decimals}f}"


#: Where every program that runs loads puts the memory of its servers.
MEMORY_TABLE: Final = "memory"

MEGABYTES_A_SECOND: Final = Unit(name="MB/s", factor=1e-6, decimals=0)
MEGABYTES: Final = Unit(name="MB", factor=1e-6, decimals=0)
KILOBYTES: Final = Unit(name="KB", factor=1e-3, decimals=1)
MILLISECONDS: Final = Unit(name="ms", factor=1e3)
SECONDS: Final = Unit(name="s")
SECONDS_A_GIGABYTE: Final = Unit(name="s/GB")
MICROSECONDS: Final = Unit(name="us", factor=1e6, decimals=1)
REQUESTS_A_SECOND: Final = Unit(name="requests/s", decimals=0)
RECORDS_A_SECOND: Final = Unit(name="records/s", decimals=0)
COUNT: Final = Unit(name="count", decimals=0)
TIMES: Final = Unit(name="times")
PERCENT: Final = Unit(name="%", factor=100, decimals=1)

GIGABYTE: Final = 1e9
#: The metrics of the processor time of brokers, in `bulk_figures` and `request_figures`.
CPU_METRICS: Final = ("cpu_s_per_gb", "cpu_s_per_request")


class Verdict(Enum):
    """The verdict on a goal."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound for the ratio Ottla / Kafka, or for Ottla's own figure if `is_absolute` (in base units).

    Ratios are judged as they are shown, rounded to two decimals.
    """

    at_least: float | None = None
    at_most: float | None = None
    is_absolute: bool = False

    def __post_init__(self) -> None:
        assert (self.at_least is None) != (self.at_most is None), self

    def words(self, unit: Unit) -> str:
        """Return the goal as text.

        >>> Goal(at_least=1.3).words(MEGABYTES_A_SECOND), Goal(at_most=80e6, is_absolute=True).words(MEGABYTES)
        ('≥ 1.3', 'Ottla ≤ 80 MB')
        """
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        assert bound is not None
        if self.is_absolute:
            name = "" if unit == COUNT else f" {unit.name}"
            return f"{name_of(OTTLA)} {sign} {bound * unit.factor:g}{name}"
        return f"{sign} {bound:g}"

    def shortfall(self, judged: float) -> float:
        """Return how many times the bound is missed; at most 1 where the goal is met.

        >>> Goal(at_least=1.5).shortfall(0.75), Goal(at_most=0.5).shortfall(0.25)
        (2.0, 0.5)
        """
        if self.at_least is not None:
            return self.at_least / judged if judged > 0 else math.inf
        assert self.at_most is not None
        if not self.at_most:
            return math.inf if judged > 0 else 0.0
        return judged / self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a table: one metric of its samples."""

    metric: str
    title: str
    unit: Unit
    goal: Goal | None = None
    #: Whether it counts what should not be, as lost records: a single run that has some counts, and not the median run.
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The figures and samples of one measure."""

    name: str
    title: str
    #: The description of the measurement.
    note: str
    figures: Sequence[Figure]
    #: Target -> one sample for each time that it was measured.
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def rows(self) -> "list[Row]":
        """Return a row for each figure."""
        return [Row(table=self, figure=figure) for figure in self.figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure with its values of all targets."""

    table: Table
    figure: Figure

    @property
    def key(self) -> tuple[str, str]:
        """The key of the figure, equal for the same figure in other sections."""
        return self.table.name, self.figure.metric

    def values(self, target: str) -> list[float]:
        """Return a value for each time that the target was measured."""
        metric = self.figure.metric
        return [sample[metric] for sample in self.table.samples.get(target, ()) if metric in sample]

    def median(self, target: str) -> float | None:
        """Return the median of a target; of faults, the most of any run. None where it was not measured."""
        values = self.values(target)
        if not values:
            return None
        return max(values) if self.figure.is_fault else statistics.median(values)

    def ratio_of(self, target: str, baseline: str) -> float | None:
        """Return the ratio of the medians; None without both, or where the baseline's is zero."""
        value, base = self.median(target), self.median(baseline)
        return value / base if base and value is not None else None

    @property
    def ratio(self) -> float | None:
        """The ratio Ottla / Kafka, which goals are about."""
        return self.ratio_of(OTTLA, KAFKA)

    @property
    def judged(self) -> float | None:
        """The value that the goal bounds; None without a goal, or where it was not measured."""
        goal = self.figure.goal
        if goal is None:
            return None
        if goal.is_absolute:
            return self.median(OTTLA)
        return None if self.ratio is None else round(self.ratio, 2)

    @property
    def shortfall(self) -> float | None:
        """The factor by which the goal's bound is missed, at most 1 where it is met; None where nothing is
        judged.
        """
        judged, goal = self.judged, self.figure.goal
        return None if judged is None or goal is None else goal.shortfall(judged)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the goal; None without a goal."""
        if self.figure.goal is None:
            return None
        shortfall = self.shortfall
        if shortfall is None:
            return Verdict.NOT_MEASURED
        return Verdict.MISSED if shortfall > 1 else Verdict.MET

    def cell(self, targets: Sequence[str] = (KAFKA, OTTLA)) -> str:
        """Return the values as text.

        Two targets: `first / second = ratio`. More: each with its ratio to the first one.

        And whether the goal is missed, and the floor if it was measured.
        """
        if all(self.median(target) is None for target in (*targets, FLOOR)):
            return Verdict.NOT_MEASURED.value
        baseline, *others = targets
        text = " / ".join([self._shown(baseline), *(self._beside(target, targets) for target in others)])
        if self.verdict is Verdict.MISSED:
            text += f" **{Verdict.MISSED.value}**"
        return text if self.median(FLOOR) is None else f"{text}, floor {self._shown(FLOOR)}"

    def _shown(self, target: str) -> str:
        return self.figure.unit.shown(self.median(target))

    def _beside(self, target: str, targets: Sequence[str]) -> str:
        ratio = self.ratio_of(target, targets[0])
        if ratio is None:
            return self._shown(target)
        return (
            f"{self._shown(target)} = {ratio:.2f}"
            if len(targets) == 2
            else f"{self._shown(target)} ({ratio:.2f})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The numbers of goals by verdict."""

    met: int
    missed: int
    not_measured: int

    def words(self) -> str:
        """Return the sentence for a table.

        >>> Tally(met=2, missed=1, not_measured=1).words()
        '1 of 3 missed, 1 not measured'
        >>> Tally(met=0, missed=0, not_measured=0).words()
        'none'
        """
        if not self.met + self.missed + self.not_measured:
            return "none"
        text = f"{self.missed} of {self.met + self.missed} missed"
        return f"{text}, {self.not_measured} not measured" if self.not_measured else text


def tally(rows: Iterable[Row]) -> Tally:
    """Count the goals of these rows."""
    verdicts = [row.verdict for row in rows]
    return Tally(
        met=verdicts.count(Verdict.MET),
        missed=verdicts.count(Verdict.MISSED),
        not_measured=verdicts.count(Verdict.NOT_MEASURED),
    )


def worst(rows: Iterable[Row]) -> Row | None:
    """Return the row that misses its goal by the largest factor, or meets it by the smallest; None without goals."""
    judged = [(row.shortfall, row) for row in rows if row.shortfall is not None]
    return max(judged, key=lambda each: each[0])[1] if judged else None


def percentiles(seconds: Sequence[float]) -> Sample:
    """Return p50, p99 and p99.9 as metrics."""
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return {"p50_s": cuts[499], "p99_s": cuts[989], "p999_s": cuts[998]}


def in_words(figures: Iterable[Figure], sample: Sample) -> str:
    """Return one sample as text, for a line of progress."""
    return ", ".join(
        f"{figure.title} {figure.unit.shown(sample[figure.metric])} {figure.unit.name}"
        for figure in figures
        if figure.metric in sample
    )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table whose columns are aligned in the source, too; the first row is its head.

    >>> list(aligned([["load", "MB/s"], ["a", "1"]]))
    ['| load | MB/s |', '|------|------|', '| a    | 1    |']
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


# -- figures of bulk loads and of requests, for one broker and for clusters ----------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """The bounds of ratios Ottla / Kafka; None where there is no goal."""

    throughput: float | None = None
    cpu: float | None = None
    p99: float | None = None


def bulk_figures(goals: Goals, *, cpu: str = "broker CPU", cpu_goal: Goal | None = None) -> list[Figure]:
    """Return the figures of loads that are measured in bytes."""
    return [
        Figure(
            metric="bytes_per_s",
            title="throughput",
            unit=MEGABYTES_A_SECOND,
            goal=_at_least(goals.throughput),
        ),
        Figure(
            metric="cpu_s_per_gb", title=cpu, unit=SECONDS_A_GIGABYTE, goal=cpu_goal or _at_most(goals.cpu)
        ),
    ]


def request_figures(goals: Goals, *, cpu: str = "broker CPU for each request") -> list[Figure]:
    """Return the figures of loads that are measured in requests."""
    return [
        Figure(
            metric="requests_per_s",
            title="throughput",
            unit=REQUESTS_A_SECOND,
            goal=_at_least(goals.throughput),
        ),
        Figure(metric="cpu_s_per_request", title=cpu, unit=MICROSECONDS, goal=_at_most(goals.cpu)),
    ]


def latency_figures(p99: float | None, *, p50: Goal | None = None, unit: Unit = MILLISECONDS) -> list[Figure]:
    """Return the figures of the percentiles that are shown."""
    return [
        Figure(metric="p50_s", title="p50", unit=unit, goal=p50),
        Figure(metric="p99_s", title="p99", unit=unit, goal=_at_most(p99)),
    ]


def _at_least(bound: float | None) -> Goal | None:
    return None if bound is None else Goal(at_least=bound)


def _at_most(bound: float | None) -> Goal | None:
    return None if bound is None else Goal(at_most=bound)


def bulk_sample(*, cpu_s: float, took_s: float, size_bytes: int) -> Sample:
    """Return a sample of `bulk_figures`."""
    return {"bytes_per_s": size_bytes / took_s, "cpu_s_per_gb": cpu_s / (size_bytes / GIGABYTE)}


def partition_words(count: int) -> str:
    """Return the number of partitions in words, for titles."""
    return "1 partition" if count == 1 else f"{count} partitions"
