"""Kafka's and Ottla's figures side by side, one a row: medians, ratios and goals, as a table and as data."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.loads import Sample
from bench.report import Environment

_ABSENT: Final = "-"
_HEAD: Final = ("figure", "Kafka", "Ottla", "ratio", "goal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """How a figure is shown: base unit times `factor`."""

    name: str
    factor: float = 1.0
    decimals: int = 2


MEGABYTES_A_SECOND: Final = Unit(name="MB/s", factor=1e-6, decimals=0)
MEGABYTES: Final = Unit(name="MB", factor=1e-6, decimals=0)
MILLISECONDS: Final = Unit(name="ms", factor=1e3)
SECONDS: Final = Unit(name="s")
SECONDS_A_GIGABYTE: Final = Unit(name="s/GB")
MICROSECONDS: Final = Unit(name="us", factor=1e6, decimals=0)
REQUESTS_A_SECOND: Final = Unit(name="requests/s", decimals=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric of a measure's samples, and what its ratio Ottla / Kafka should be."""

    metric: str
    title: str
    unit: Unit
    at_least: float | None = None
    at_most: float | None = None

    def goal(self, ratio: float | None) -> str:
        """What is wanted, and whether it is so."""
        if self.at_least is None and self.at_most is None:
            return ""
        text = f"≥ {self.at_least}" if self.at_least is not None else f"≤ {self.at_most}"
        if ratio is None:
            return text
        rounded = round(ratio, 2)
        is_met = (self.at_least is None or rounded >= self.at_least) and (
            self.at_most is None or rounded <= self.at_most
        )
        return f"{text} {'met' if is_met else '**missed**'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The figures of one measure."""

    name: str
    title: str
    #: What stands above the table: what was done.
    note: str
    figures: Sequence[Figure]
    #: Cluster -> one sample for each run.
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def median(self, cluster: str, metric: str) -> float | None:
        """None where it was not measured."""
        values = [sample[metric] for sample in self.samples.get(cluster, ()) if metric in sample]
        return statistics.median(values) if values else None

    def ratio(self, metric: str) -> float | None:
        """Ottla / Kafka, of the medians."""
        kafka, ottla = (self.median(cluster, metric) for cluster in ("kafka", "ottla"))
        return ottla / kafka if kafka and ottla is not None else None


def in_words(figures: Iterable[Figure], sample: Sample) -> str:
    """One sample, for a line of progress."""
    return ", ".join(
        f"{figure.metric} {_shown(sample[figure.metric], figure.unit)} {figure.unit.name}"
        for figure in figures
        if figure.metric in sample
    )


def as_text(table: Table) -> str:
    """Title, note and table, as Markdown."""
    rows = [list(_HEAD)]
    for figure in table.figures:
        kafka, ottla = (table.median(cluster, figure.metric) for cluster in ("kafka", "ottla"))
        ratio = table.ratio(figure.metric)
        rows.append(
            [
                f"{figure.title}, {figure.unit.name}",
                _shown(kafka, figure.unit),
                _shown(ottla, figure.unit),
                _ABSENT if ratio is None else f"{ratio:.2f}",
                figure.goal(ratio),
            ]
        )
    count = max((len(samples) for samples in table.samples.values()), default=0)
    medians = "One sample." if count == 1 else f"Medians of {count} samples."
    return "\n".join([f"## {table.title}", "", f"{table.note} {medians}", "", *_aligned(rows)]) + "\n"


def _shown(value: float | None, unit: Unit) -> str:
    return _ABSENT if value is None else f"{value * unit.factor:,.{unit.decimals}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Markdown whose columns stand under each other, too."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def preface(environment: Environment, settings: Mapping[str, str]) -> str:
    """What the figures depend on."""
    changed = " with changes" if environment.is_changed else ""
    extra = ", ".join(f"{key}={value}" for key, value in settings.items())
    return (
        f"Ottla {environment.commit}{changed} against Apache Kafka {environment.kafka}, {environment.date}: "
        f"three controllers and three brokers each, the same settings{f' ({extra})' if extra else ''}, "
        f"{environment.cpu_count} CPUs (load {environment.load_average:.1f} before), files on "
        f"{environment.file_system}, Linux {environment.kernel}, Python {environment.python} "
        f"({environment.python_step_ns:.0f} ns for a step of a loop), {environment.java}. "
        "Ratios are Ottla / Kafka.\n"
    )


def save(
    environment: Environment, settings: Mapping[str, str], tables: Sequence[Table], *, stem: str, folder: Path
) -> list[Path]:
    """Write <date>-<stem>.json and .md."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{environment.date}-{stem}{ending}" for ending in (".json", ".md")]
    data = {
        "environment": asdict(environment),
        "settings": dict(settings),
        "measures": {
            table.name: {
                "samples": table.samples,
                "ratios": {
                    figure.metric: round(ratio, 3)
                    for figure in table.figures
                    if (ratio := table.ratio(figure.metric)) is not None
                },
            }
            for table in tables
        },
    }
    paths[0].write_text(json.dumps(data, indent=1) + "\n")
    paths[1].write_text("\n".join([preface(environment, settings), *map(as_text, tables)]))
    return paths
