"""The figures of `bench.internals.command` as tables and as data."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.environment import Environment
from bench.markdown import aligned

_ABSENT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One figure of each row, and how it is shown."""

    metric: str
    head: str
    factor: float = 1.0
    decimals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table: a row for each case, medians where there were several runs."""

    title: str
    #: What stands above the table: what was done.
    note: str
    columns: Sequence[Column]
    #: Case -> metric -> one figure for each run.
    rows: Mapping[str, Mapping[str, Sequence[float]]]
    #: What a missed goal says, by case; see `missed_goals`.
    goals: Sequence["Goal"] = ()

    def median(self, case: str, metric: str) -> float | None:
        """None where it was not measured."""
        values = self.rows.get(case, {}).get(metric)
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure that must not be larger."""

    case: str
    metric: str
    at_most: float
    words: str


def gathered(runs: int, measure: Callable[[], Mapping[str, float]]) -> dict[str, list[float]]:
    """The figures of several runs of the same thing, each metric's together."""
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for metric, value in measure().items():
            found.setdefault(metric, []).append(value)
    return found


def as_text(section: Section) -> str:
    """Title, note, table and goals, as Markdown."""
    table = [["", *(column.head for column in section.columns)]]
    table += [[case, *(_shown(section, case, column) for column in section.columns)] for case in section.rows]
    lines = [f"## {section.title}", "", section.note, "", *aligned(table)]
    if section.goals:
        lines += ["", *(_judged(section, goal) for goal in section.goals)]
    return "\n".join(lines) + "\n"


def _shown(section: Section, case: str, column: Column) -> str:
    value = section.median(case, column.metric)
    return _ABSENT if value is None else f"{value * column.factor:,.{column.decimals}f}"


def _judged(section: Section, goal: Goal) -> str:
    value = section.median(goal.case, goal.metric)
    if value is None:
        return f"- {goal.words}: not measured"
    return f"- {goal.words}: {'met' if value <= goal.at_most else '**missed**'}"


def preface(environment: Environment, file_system: str, runs: int) -> str:
    """What the figures depend on."""
    return f"{environment.words()}; files on {file_system}. Medians of {runs} run{'s' if runs > 1 else ''}.\n"


def save(
    program: str,
    environment: Environment,
    file_system: str,
    sections: Sequence[Section],
    *,
    runs: int,
    folder: Path,
) -> list[Path]:
    """Write <date>-<program>.json and .md."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{environment.date}-{program}{ending}" for ending in (".json", ".md")]
    data = {
        "environment": asdict(environment),
        "file_system": file_system,
        "sections": [{"title": it.title, "note": it.note, "rows": it.rows} for it in sections],
    }
    paths[0].write_text(json.dumps(data, indent=1) + "\n")
    paths[1].write_text("\n".join([preface(environment, file_system, runs), *map(as_text, sections)]))
    return paths
