"""Medians, ratios and goals: the comparison as a table and as data."""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.loads import Load, Sample
from bench.servers import StartUp, Usage

_START_GOAL_S: Final = 0.4
_IDLE_GOAL_BYTES: Final = 80e6
_LOADED_GOAL_BYTES: Final = 150e6
_MISSED: Final = " (missed: {goal})"
_ABSENT: Final = "-"

#: Metric -> (factor to what is shown, decimals, unit).
_SHOWN: Final = {
    "bytes_per_s": (1e-6, 0, "MB/s"),
    "requests_per_s": (1.0, 0, "requests/s"),
    "p50_s": (1e3, 2, "ms"),
    "p99_s": (1e3, 2, "ms"),
    "p999_s": (1e3, 2, "ms"),
    "cpu_s_per_gb": (1.0, 2, "s/GB"),
    "cpu_s_per_request": (1e6, 1, "us"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the figures depend on."""

    date: str
    commit: str
    #: Whether the working tree differs from the commit.
    is_changed: bool
    cpu_count: int
    #: One minute's, before anything was started: what else ran on the machine.
    load_average: float
    #: Where the logs were.
    file_system: str
    kernel: str
    python: str
    #: A step of a loop: Pythons that are built without profile-guided optimization take half as long again.
    python_step_ns: float
    java: str
    kafka: str


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Everything that was measured."""

    environment: Environment
    loads: list[Load]
    #: Load -> server -> one sample for each run.
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    #: Server -> how each start went, and what it held when idle.
    starts: dict[str, list[tuple[StartUp, Usage]]] = field(default_factory=dict)
    #: Server -> the most that it held after any load.
    peaks: dict[str, Usage] = field(default_factory=dict)

    def median(self, load: str, server: str, metric: str) -> float | None:
        """None where it was not measured."""
        values = [sample[metric] for sample in self.samples.get(load, {}).get(server, ()) if metric in sample]
        return statistics.median(values) if values else None

    def ratio(self, load: str, metric: str) -> float | None:
        """Ottla / Kafka, of the medians."""
        kafka, ottla = (self.median(load, server, metric) for server in ("kafka", "ottla"))
        return ottla / kafka if kafka and ottla else None


def in_words(sample: Sample) -> str:
    """One sample, for a line of progress."""
    return ", ".join(
        f"{metric.removesuffix('_s')} {_show(value, metric)}" for metric, value in sample.items()
    )


def _show(value: float | None, metric: str, *, unit: bool = True) -> str:
    if value is None:
        return _ABSENT
    factor, decimals, name = _SHOWN[metric]
    return f"{value * factor:,.{decimals}f}{f' {name}' if unit else ''}"


def as_markdown(comparison: Comparison) -> str:
    """The whole report."""
    environment = comparison.environment
    changed = " with changes" if environment.is_changed else ""
    python = f"Python {environment.python} ({environment.python_step_ns:.0f} ns for a step of a loop)"
    preface = (
        f"Ottla {environment.commit}{changed} against Apache Kafka {environment.kafka}, {environment.date}: "
        f"{environment.cpu_count} CPUs (load {environment.load_average:.1f} before), logs on "
        f"{environment.file_system}, Linux {environment.kernel}, {python}, {environment.java}. "
        f"Medians of {_runs(comparison)}; each cell is Kafka / Ottla = ratio."
    )
    lines = [
        preface,
        "",
        *_table(["load", "throughput", "p50 ms", "p99 ms", "broker CPU"], _load_rows(comparison)),
        "",
        *_table(["process", "Kafka", "Ottla", "ratio"], _process_rows(comparison)),
    ]
    return "\n".join(lines) + "\n"


def _runs(comparison: Comparison) -> str:
    count = max(
        (len(samples) for by_server in comparison.samples.values() for samples in by_server.values()),
        default=0,
    )
    return "1 run" if count == 1 else f"{count} runs"


def _load_rows(comparison: Comparison) -> Iterable[list[str]]:
    for load in comparison.loads:
        goals = load.goals
        in_bytes = comparison.median(load.name, "ottla", "requests_per_s") is None
        throughput = "bytes_per_s" if in_bytes else "requests_per_s"
        per_gb = comparison.median(load.name, "ottla", "cpu_s_per_request") is None
        cpu = "cpu_s_per_gb" if per_gb else "cpu_s_per_request"
        yield [
            load.title,
            _cell(comparison, load, throughput, at_least=goals.throughput),
            _cell(comparison, load, "p50_s"),
            _cell(comparison, load, "p99_s", at_most=goals.p99),
            _cell(comparison, load, cpu, at_most=goals.cpu),
        ]


def _cell(
    comparison: Comparison,
    load: Load,
    metric: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> str:
    """`Kafka / Ottla = ratio`, with the goal where it is missed."""
    kafka, ottla = (comparison.median(load.name, server, metric) for server in ("kafka", "ottla"))
    if kafka is None and ottla is None:
        return _ABSENT
    unit = "" if metric in ("p50_s", "p99_s") else f" {_SHOWN[metric][2]}"
    both = f"{_show(kafka, metric, unit=False)} / {_show(ottla, metric, unit=False)}{unit}"
    ratio = comparison.ratio(load.name, metric)
    if ratio is None:
        return both
    return f"{both} = **{ratio:.2f}**{_judged(round(ratio, 2), at_least=at_least, at_most=at_most)}"


def _judged(value: float, *, at_least: float | None = None, at_most: float | None = None) -> str:
    if at_least is not None and value < at_least:
        return _MISSED.format(goal=f"≥ {at_least}")
    if at_most is not None and value > at_most:
        return _MISSED.format(goal=f"≤ {at_most}")
    return ""


def _process_rows(comparison: Comparison) -> Iterable[list[str]]:
    starts = comparison.starts

    def medians(of: Callable[[StartUp, Usage], float]) -> tuple[float | None, float | None]:
        kafka, ottla = (
            statistics.median(of(start, idle) for start, idle in starts[name]) if name in starts else None
            for name in ("kafka", "ottla")
        )
        return kafka, ottla

    yield _process_row(
        "start to first ApiVersions answer, s",
        medians(lambda start, _: start.start_s),
        1,
        at_most=_START_GOAL_S,
    )
    yield _process_row("formatting a new data folder, s", medians(lambda start, _: start.format_s), 1)
    yield _process_row("resident when idle, MB", medians(lambda _, idle: idle.resident_bytes), 1e-6)
    yield _process_row(
        "the same, page cache aside, MB",
        medians(lambda _, idle: idle.private_bytes),
        1e-6,
        at_most=_IDLE_GOAL_BYTES,
    )
    peaks = [comparison.peaks.get(name) for name in ("kafka", "ottla")]
    resident = tuple(peak and float(peak.resident_bytes) for peak in peaks)
    private = tuple(peak and float(peak.private_bytes) for peak in peaks)
    yield _process_row("most resident after a load, MB", resident, 1e-6)
    yield _process_row("the same, page cache aside, MB", private, 1e-6, at_most=_LOADED_GOAL_BYTES)


def _process_row(
    title: str, values: tuple[float | None, ...], factor: float, *, at_most: float | None = None
) -> list[str]:
    kafka, ottla = values
    decimals = 2 if factor == 1 else 0
    shown = [_ABSENT if value is None else f"{value * factor:.{decimals}f}" for value in (kafka, ottla)]
    if ottla is not None and at_most is not None and ottla > at_most:
        shown[1] += _MISSED.format(goal=f"≤ {at_most * factor:g}")
    return [title, *shown, f"{ottla / kafka:.2f}" if kafka and ottla else _ABSENT]


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Markdown whose columns stand under each other, too."""
    cells = [head, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write <date>-<commit>.json and .md."""
    folder.mkdir(exist_ok=True)
    stem = f"{comparison.environment.date}-{comparison.environment.commit}"
    data = {
        "environment": asdict(comparison.environment),
        "samples": comparison.samples,
        "starts": {
            name: [asdict(start) | {"idle": idle._asdict()} for start, idle in starts]
            for name, starts in comparison.starts.items()
        },
        "peaks": {name: peak._asdict() for name, peak in comparison.peaks.items()},
        "ratios": {
            load.name: {
                metric: round(ratio, 3)
                for metric in _SHOWN
                if (ratio := comparison.ratio(load.name, metric)) is not None
            }
            for load in comparison.loads
        },
    }
    paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
    paths[0].write_text(json.dumps(data, indent=1) + "\n")
    paths[1].write_text(as_markdown(comparison))
    return paths
