"""Charts from the rows of all runs: for each phase latency, throughput, the brokers, and the bytes that they moved.

Rows are what `seconds.parquet`, `samples.parquet` and `events.json` of a result folder have, as mappings. Pure.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.bench.figures import Unit
from ottla.bench.page.charts import Chart, Line, Mark, Strip
from ottla.bench.page.scales import CORES, RATES, SIZES, SPEEDS, TIMES, fitting
from ottla.bench.targets.stores import STORE_NODE

DataRow = Mapping[str, Any]
#: (target, run) -> second -> value.
_Runs = dict[tuple[str, int], dict[int, float]]
#: Combines several values of one run that are drawn as one point.
_Combine = Callable[[Iterable[float]], float]

#: The least duration of a phase that has charts.
_LEAST_SECONDS: Final = 3
#: The largest number of points that are visible: with more, neighbours become one.
_MOST_POINTS: Final = 240
_PERCENTILES: Final = {"p50_s": "p50", "p99_s": "p99", "max_s": "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The rows of a result that have a time."""

    seconds: Sequence[DataRow]
    samples: Sequence[DataRow]
    events: Sequence[DataRow]

    def phases(self) -> list[str]:
        """Return the phases in their order."""
        return list(dict.fromkeys(row["phase"] for row in self.seconds))


def charts(series: Series, phase: str, targets: Sequence[str]) -> list[Chart]:
    """Return the charts of a phase that have lines: latency, throughput, brokers, disks and network."""
    seconds = [row for row in series.seconds if row["phase"] == phase]
    samples = [row for row in series.samples if row["phase"] == phase]
    events = [row for row in series.events if row["phase"] == phase]
    marks = _marks(events, targets)
    end_s = max([_end_s([*seconds, *samples], targets), *(math.ceil(mark.at_s) for mark in marks)])
    if end_s < _LEAST_SECONDS:
        return []
    grid = _Grid(end_s=end_s, targets=targets)
    found = [
        grid.chart(
            "Latency",
            "from when a record was due until it was acknowledged, or delivered to a consumer",
            _latency(grid, seconds),
            marks,
        ),
        grid.chart("Throughput", "payload of the records", _throughput(grid, seconds), marks),
        grid.chart(
            "Brokers", "all processes of a target, measured from outside", _brokers(grid, samples), marks
        ),
        grid.chart("Disks and network", "bytes of all brokers", _moved(grid, samples), marks),
    ]
    return [chart for chart in found if chart.strips]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The points of a phase's time axis."""

    end_s: int
    targets: Sequence[str]

    @property
    def step_s(self) -> int:
        return math.ceil(self.end_s / _MOST_POINTS)

    @property
    def starts(self) -> list[int]:
        return list(range(0, self.end_s, self.step_s))

    def chart(self, title: str, note: str, strips: Sequence[Strip], marks: Sequence[Mark]) -> Chart:
        return Chart(
            title=title,
            note=note if self.step_s == 1 else f"{note}; a point for {self.step_s} s",
            xs=[float(start) for start in self.starts],
            step_s=self.step_s,
            strips=strips,
            marks=marks,
        )

    def strips(
        self, name: str, units: Sequence[Unit], runs: _Runs, combine: _Combine, *, may_be_log: bool = False
    ) -> list[Strip]:
        """Return a strip, or none if nothing was measured."""
        lines = [line for target in self.targets if (line := self._line(target, runs, combine)) is not None]
        if not lines:
            return []
        most = max(value for line in lines for value in line.high if value is not None)
        return [Strip(name=name, unit=fitting(units, most), lines=lines, may_be_log=may_be_log)]

    def _line(self, target: str, runs: _Runs, combine: _Combine) -> Line | None:
        own = [self._points(points, combine) for (name, _), points in runs.items() if name == target]
        columns = [[value for value in column if value is not None] for column in zip(*own, strict=True)]
        columns = [column if len(column) * 2 >= len(own) else [] for column in columns]
        if not any(columns):
            return None
        return Line(
            target=target,
            middle=[statistics.median(column) if column else None for column in columns],
            low=[min(column, default=None) for column in columns],
            high=[max(column, default=None) for column in columns],
        )

    def _points(self, points: Mapping[int, float], combine: _Combine) -> list[float | None]:
        parts = [
            [points[second] for second in range(start, start + self.step_s) if second in points]
            for start in self.starts
        ]
        return [combine(part) if part else None for part in parts]


def _latency(grid: _Grid, seconds: Sequence[DataRow]) -> list[Strip]:
    return [
        strip
        for role in _roles(seconds)
        for column, percentile in _PERCENTILES.items()
        for strip in grid.strips(
            f"{role}, {percentile}", TIMES, _of_role(seconds, role, column), max, may_be_log=True
        )
    ]


def _throughput(grid: _Grid, seconds: Sequence[DataRow]) -> list[Strip]:
    return [
        strip
        for role in _roles(seconds)
        for name, units, column in ((role, SPEEDS, "payload_bytes"), (f"{role}, errors", RATES, "errors"))
        for strip in grid.strips(name, units, _if_any(_of_role(seconds, role, column)), statistics.fmean)
    ]


def _roles(seconds: Sequence[DataRow]) -> list[str]:
    """Return the roles in these rows, producers first."""
    return sorted({row["role"] for row in seconds}, key=lambda role: (not role.startswith("producer"), role))


def _if_any(runs: _Runs) -> _Runs:
    """Return the runs, or nothing if all values are zero."""
    return runs if any(value for points in runs.values() for value in points.values()) else {}


def _end_s(rows: Sequence[DataRow], targets: Sequence[str]) -> int:
    """Return the second in which half of the runs of a target have ended.

    The few longest runs say nothing about the others.
    """
    lasts: dict[tuple[str, int], int] = {}
    for row in rows:
        run = row["target"], row["run"]
        lasts[run] = max(lasts.get(run, 0), row["second"])
    by_target = [
        sorted((last for (name, _), last in lasts.items() if name == target), reverse=True)
        for target in targets
    ]
    return max((ends[(len(ends) + 1) // 2 - 1] + 1 for ends in by_target if ends), default=0)


def _brokers(grid: _Grid, samples: Sequence[DataRow]) -> list[Strip]:
    brokers, store = _nodes(samples)
    return [
        *grid.strips("CPU", CORES, _of_nodes(brokers, "cpu_s", sum), statistics.fmean),
        *grid.strips(
            "memory of the largest, page cache aside", SIZES, _of_nodes(brokers, "private_bytes", max), max
        ),
        *grid.strips("in the remote tier", SIZES, _if_any(_of_nodes(store, "tiered_bytes", sum)), max),
        *grid.strips("CPU of the store", CORES, _if_any(_of_nodes(store, "cpu_s", sum)), statistics.fmean),
    ]


def _moved(grid: _Grid, samples: Sequence[DataRow]) -> list[Strip]:
    brokers, _ = _nodes(samples)
    titles = {
        "written_bytes": "written to disks",
        "read_bytes": "read from disks",
        "sent_bytes": "sent",
        "received_bytes": "received",
    }
    return [
        strip
        for column, title in titles.items()
        for strip in grid.strips(title, SPEEDS, _if_any(_of_nodes(brokers, column, sum)), statistics.fmean)
    ]


def _nodes(samples: Sequence[DataRow]) -> tuple[list[DataRow], list[DataRow]]:
    """Return the rows of the brokers, and those of the store."""
    brokers = [row for row in samples if row["node"] != STORE_NODE]
    return brokers, [row for row in samples if row["node"] == STORE_NODE]


def _of_role(seconds: Sequence[DataRow], role: str, column: str) -> _Runs:
    runs: _Runs = defaultdict(dict)
    for row in seconds:
        if row["role"] == role and (value := _number(row, column)) is not None:
            runs[row["target"], row["run"]][row["second"]] = value
    return runs


def _number(row: DataRow, column: str) -> float | None:
    """Return a number of the row; None if it is missing, which Pandas writes as NaN."""
    value = row.get(column)
    return None if value is None or math.isnan(value) else float(value)


def _of_nodes(samples: Sequence[DataRow], column: str, combine: _Combine) -> _Runs:
    """Combine the values of all nodes of a target into one."""
    found: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in samples:
        if (value := _number(row, column)) is not None:
            found[row["target"], row["run"]][row["second"]].append(value)
    return {
        run: {second: combine(values) for second, values in points.items()} for run, points in found.items()
    }


def _marks(events: Sequence[DataRow], targets: Sequence[str]) -> list[Mark]:
    by_name: dict[str, list[DataRow]] = defaultdict(list)
    for event in sorted(events, key=lambda event: float(event["at_s"])):
        by_name[event["name"]].append(event)
    return [
        Mark(
            number=number,
            name=name,
            at_s=statistics.median(event["at_s"] for event in rows),
            until=rows[0]["until"],
            took_s={
                target: _took_s([event for event in rows if event["target"] == target])
                for target in targets
                if rows[0]["until"] is not None
            },
        )
        for number, (name, rows) in enumerate(by_name.items(), start=1)
    ]


def _took_s(events: Sequence[DataRow]) -> float | None:
    took = [event["took_s"] for event in events]
    return None if not took or None in took else statistics.median(took)
