"""Results of any runs compared by Spark SQL: medians, spread, ratio, and whether the difference exceeds the noise.

A side is a target of a result. It is compared with the baseline of its result, and with the same target of
the first result that has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.bench.aggregation.noise import SIGNIFICANT, Noise, mann_whitney_p, verdict
from ottla.bench.figures import Row, Unit, aligned
from ottla.bench.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The key of a figure, equal for the same figure in several results.
_Key = tuple[str, str, str, str]
_KEY: Final = "program string, section string, load string, metric string"
_MEASURED: Final = f"side string, {_KEY}, position int, value double"
_PAIRS: Final = "number int, reference string, side string"
_QUERY: Final = """
    WITH summed AS (
        SELECT side, program, section, load, metric, min(position) AS position,
               percentile(value, 0.25) AS lower, median(value) AS median, percentile(value, 0.75) AS upper,
               collect_list(value) AS runs
        FROM measured
        GROUP BY side, program, section, load, metric
    )
    SELECT pairs.reference, pairs.side, program, section, load, metric,
           r.lower AS reference_lower, r.median AS reference_median, r.upper AS reference_upper,
           r.runs AS reference_runs,
           s.lower, s.median, s.upper, s.runs,
           try_divide(s.median, r.median) AS ratio, mann_whitney_p(r.runs, s.runs) AS p
    FROM pairs
    JOIN summed AS s ON s.side = pairs.side
    JOIN summed AS r USING (program, section, load, metric)
    WHERE r.side = pairs.reference
    ORDER BY pairs.number, s.position
"""


class NothingToCompare(Exception):
    """The results have no figure in common; the sentence says what they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The runs of one side."""

    runs: Sequence[float]
    lower: float
    median: float
    upper: float

    def shown(self, unit: Unit) -> str:
        """Return the median, and the quartiles, as text.

        >>> Spread(runs=[1.0, 2.0, 4.0], lower=1.5, median=2.0, upper=3.0).shown(Unit(name="s"))
        '2.00 (1.50 to 3.00)'
        """
        return f"{unit.shown(self.median)} ({unit.shown(self.lower)} to {unit.shown(self.upper)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of a side and of its reference."""

    reference_side: str
    side: str
    section: str
    row: Row
    reference: Spread
    compared: Spread
    #: The ratio of the medians; None where the reference's is zero.
    ratio: float | None
    p: float

    @property
    def noise(self) -> Noise:
        """The relation of the difference to the noise.

        Faults have no noise: what is lost in one of many runs is lost.
        """
        if self.row.figure.is_fault and max(self.reference.runs) != max(self.compared.runs):
            return Noise.EXCEEDED
        return verdict(self.reference.runs, self.compared.runs)

    def words(self) -> str:
        """Return the verdict with its basis: p and the numbers of runs, or the faults."""
        counts = f"{len(self.reference.runs)} and {len(self.compared.runs)} runs"
        if self.row.figure.is_fault and self.noise is Noise.EXCEEDED:
            most = [f"{max(spread.runs):,.0f}" for spread in (self.reference, self.compared)]
            return f"{self.noise.value}: at most {' and '.join(most)} in a run ({counts})"
        match self.noise:
            case Noise.EXCEEDED | Noise.WITHIN:
                return f"{self.noise.value} (p {self.p:.3f}, {counts})"
            case Noise.UNKNOWN:
                return f"{self.noise.value} with {counts}"
            case Noise.EQUAL:
                return f"{self.noise.value}"


def compare(spark: "SparkSession", results: Sequence[tuple[str, Report]]) -> list[Difference]:
    """Compare all figures that a side has in common with its reference. Raises NothingToCompare.

    `results` has the name and the report of each.
    """
    pairs = pairs_of(results)
    rows = {key: row for key, _, row in _rows(results)}
    spark.createDataFrame([(at, *pair) for at, pair in enumerate(pairs)], _PAIRS).createOrReplaceTempView(
        "pairs"
    )
    spark.createDataFrame(list(_measured(results)), _MEASURED).createOrReplaceTempView("measured")
    spark.udf.register("mann_whitney_p", mann_whitney_p, "double")
    found = [_difference(each.asDict(), rows) for each in spark.sql(_QUERY).collect()]
    if not found:
        names = ", ".join(
            f"{name} ({report.program} of {', '.join(report.targets)})" for name, report in results
        )
        raise NothingToCompare(f"No figure is in two of these: {names}")
    return found


def pairs_of(results: Sequence[tuple[str, Report]]) -> list[tuple[str, str]]:
    """Return (reference, side) for each side that has a reference."""
    pairs: dict[tuple[str, str], None] = {}
    for at, (name, report) in enumerate(results):
        own = list(report.targets)
        same = [(earlier, before) for earlier, before in results[:at] if before.program == report.program]
        for target in own:
            side = _side(results, name, target)
            first = next((earlier for earlier, before in same if target in before.targets), None)
            if target != own[0]:
                pairs[_side(results, name, own[0]), side] = None
            if first is not None:
                pairs[_side(results, first, target), side] = None
            elif target == own[0] and same:
                earlier, before = same[0]
                pairs[_side(results, earlier, next(iter(before.targets))), side] = None
    return list(pairs)


def _side(results: Sequence[tuple[str, Report]], name: str, target: str) -> str:
    return target if len(results) == 1 else f"{target} ({name})"


def _rows(results: Sequence[tuple[str, Report]]) -> Iterator[tuple[_Key, str, Row]]:
    """Yield (key, name of the result, row) of all results."""
    for name, report in results:
        for section in report.sections:
            for row in section.rows():
                yield (report.program, section.title, *row.key), name, row


def _measured(results: Sequence[tuple[str, Report]]) -> Iterator[tuple[object, ...]]:
    """Yield a row of _MEASURED for each figure of each run."""
    for position, (key, name, row) in enumerate(_rows(results)):
        for target in row.table.samples:
            for value in row.values(target):
                yield _side(results, name, target), *key, position, float(value)


def _difference(found: Mapping[str, Any], rows: Mapping[_Key, Row]) -> Difference:
    sides = [
        Spread(
            runs=found[f"{prefix}runs"],
            lower=found[f"{prefix}lower"],
            median=found[f"{prefix}median"],
            upper=found[f"{prefix}upper"],
        )
        for prefix in ("reference_", "")
    ]
    return Difference(
        reference_side=found["reference"],
        side=found["side"],
        section=found["section"],
        row=rows[found["program"], found["section"], found["load"], found["metric"]],
        reference=sides[0],
        compared=sides[1],
        ratio=found["ratio"],
        p=found["p"],
    )


# -- text ----------------------------------------------------------------------------------------------


def as_markdown(differences: Sequence[Difference]) -> str:
    """Return a table for each pair of sides, with an explanation."""
    lines = []
    for reference, side, section in dict.fromkeys(
        (it.reference_side, it.side, it.section) for it in differences
    ):
        rows = [
            it for it in differences if (it.reference_side, it.side, it.section) == (reference, side, section)
        ]
        head = ["", f"{reference}: median (quartiles)", f"{side}: median (quartiles)", "ratio", "difference"]
        lines += [f"## {side} compared with {reference}: {section}", ""]
        lines += [*aligned([head, *map(_cells, rows)]), "", _tally(rows), ""]
    return "\n".join([*lines, _METHOD])


def _cells(difference: Difference) -> list[str]:
    figure = difference.row.figure
    return [
        f"{difference.row.table.title}: {figure.title}, {figure.unit.name}",
        difference.reference.shown(figure.unit),
        difference.compared.shown(figure.unit),
        "-" if difference.ratio is None else f"{difference.ratio:.2f}",
        difference.words(),
    ]


def _tally(differences: Sequence[Difference]) -> str:
    counts = {noise: sum(it.noise is noise for it in differences) for noise in Noise}
    return ", ".join(f"{count} {noise.value}" for noise, count in counts.items() if count) + "."


_METHOD: Final = (
    "A difference exceeds the noise if p of the exact Mann-Whitney test over the runs is below "
    f"{SIGNIFICANT:g}: runs of equal sides are so far apart in at most one row of {1 / SIGNIFICANT:.0f}. "
    "Four runs of each side are the fewest that can exceed it."
)
