"""A benchmark's result: sections of tables, as data (bench/results/*.json) and as Markdown.

A section is one run of all measures with one choice of settings and one place for the logs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.environment import Environment
from bench.figures import Figure, Goal, Row, Table, Unit, tally, worst
from bench.markdown import aligned
from bench.targets.settings import SETTINGS_WORDS
from bench.warm_up import WarmUp

RESULTS: Final = Path(__file__).parent / "results"
#: Of the files that this module reads; older ones have none, or another one.
_FORMAT: Final = 2
_ABSENT: Final = "-"
#: Where every program that runs loads puts the memory of its servers.
MEMORY_TABLE: Final = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All measures with the same settings and the logs in the same place."""

    settings: str
    place: str
    #: The type of the file system that the place is on.
    file_system: str
    #: What every node of both sides got on top of what is always set (`bench.targets.servers`, `bench.targets.clusters`).
    properties: Mapping[str, str]
    tables: Sequence[Table]
    #: Server -> how it was warmed up; empty where it was not.
    warm_ups: dict[str, WarmUp] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The head of its column."""
        return f"{SETTINGS_WORDS.get(self.settings, self.settings)}, {self.place}"

    def rows(self) -> list[Row]:
        """All rows of all tables."""
        return [row for table in self.tables for row in table.rows()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One result file."""

    program: str
    environment: Environment
    runs: int
    #: About how long each load took.
    seconds: float
    duration_s: float
    #: (table, metric) of the rows that `overview` shows.
    headlines: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    @property
    def stem(self) -> str:
        """The name of its files, without the ending."""
        return f"{self.environment.date}-{self.program}"


# -- data ----------------------------------------------------------------------------------------------


def as_json(report: Report) -> str:
    """The file's text: what the tables are, once, and the samples of each section."""
    data = asdict(report)
    tables: dict[str, dict[str, Any]] = {}
    for section in data["sections"]:
        by_name = {table["name"]: table for table in section.pop("tables")}
        section["samples"] = {name: table.pop("samples") for name, table in by_name.items()}
        tables |= by_name
    return json.dumps({"format": _FORMAT} | data | {"tables": list(tables.values())}, indent=1) + "\n"


def from_json(text: str) -> Report | None:
    """The inverse of `as_json`; None for files of another format."""
    data = json.loads(text)
    if data.pop("format", None) != _FORMAT:
        return None
    tables = {each["name"]: _table(each) for each in data.pop("tables")}
    return Report(
        environment=Environment(**data.pop("environment")),
        headlines=[(table, metric) for table, metric in data.pop("headlines")],
        sections=[_section(each, tables) for each in data.pop("sections")],
        **data,
    )


def _section(data: dict[str, Any], tables: Mapping[str, Table]) -> Section:
    samples = data.pop("samples")
    return Section(
        tables=[replace(tables[name], samples=samples[name]) for name in samples],
        warm_ups={name: WarmUp(**each) for name, each in data.pop("warm_ups").items()},
        **data,
    )


def _table(data: dict[str, Any]) -> Table:
    return Table(figures=[_figure(each) for each in data.pop("figures")], **data)


def _figure(data: dict[str, Any]) -> Figure:
    unit, goal = Unit(**data.pop("unit")), data.pop("goal")
    return Figure(unit=unit, goal=Goal(**goal) if goal is not None else None, **data)


def save(report: Report, folder: Path = RESULTS) -> list[Path]:
    """Write <date>-<program>.json and .md."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{report.stem}{ending}" for ending in (".json", ".md")]
    paths[0].write_text(as_json(report))
    paths[1].write_text(as_markdown(report))
    return paths


def latest(program: str, folder: Path = RESULTS) -> Report | None:
    """The newest result of a program, by the date in the file's name; None if there is none of this format."""
    for path in sorted(folder.glob(f"*-{program}.json"), reverse=True):
        if (report := from_json(path.read_text())) is not None:
            return report
    return None


# -- Markdown ------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """The whole report."""
    return (
        "\n".join([preface(report), "", *overview(report), "", *all_rows(report), "", *_notes(report)]) + "\n"
    )


def preface(report: Report) -> str:
    """What the figures depend on, and how to read them."""
    return (
        f"{report.environment.words()}. Both sides have the same settings. Medians of {report.runs} interleaved "
        f"run{'s' if report.runs > 1 else ''}, about {report.seconds:g} s for each load. Each cell is Kafka / Ottla "
        f"= ratio Ottla / Kafka.{''.join(f' {sentence}' for sentence in _cold(report))}"
    )


def _cold(report: Report) -> Iterator[str]:
    for section in report.sections:
        for server, warm_up in section.warm_ups.items():
            if not warm_up.is_steady:
                yield (
                    f"The CPU of {server.capitalize()} still fell when its warm-up ended after {len(warm_up.costs)} "
                    f"rounds ({section.title})."
                )


def overview(report: Report) -> list[str]:
    """A short table: goals missed, the worst row, memory under load, and the headlines; a column for each section."""
    sections = report.sections
    rows = [["", *(section.title for section in sections)]]
    rows.append(["goals", *(tally(section.rows()).words() for section in sections)])
    rows.append(["worst row", *(_worst_cell(section) for section in sections)])
    for key in _keys(sections):
        first = _first(sections, key)
        if key in report.headlines or first.table.name == MEMORY_TABLE:
            rows.append([_title(first), *_cells(sections, key)])
    return list(aligned(rows))


def _worst_cell(section: Section) -> str:
    row = worst(section.rows())
    if row is None:
        return _ABSENT
    assert row.figure.goal is not None
    goal = row.figure.goal.words(row.figure.unit)
    return f"{row.table.title}: {row.figure.title} {row.cell()} ({goal})"


def all_rows(report: Report) -> list[str]:
    """Every row, with its goal; a column for each section."""
    sections = report.sections
    rows = [["", "figure", "goal", *(section.title for section in sections)]]
    for key in _keys(sections):
        row = _first(sections, key)
        goal = row.figure.goal
        figure = f"{row.figure.title}, {row.figure.unit.name}"
        words = "" if goal is None else goal.words(row.figure.unit)
        rows.append([row.table.title, figure, words, *_cells(sections, key)])
    return list(aligned(rows))


def _title(row: Row) -> str:
    goal = row.figure.goal
    words = f" (goal: {goal.words(row.figure.unit)})" if goal is not None else ""
    return f"{row.table.title}: {row.figure.title}, {row.figure.unit.name}{words}"


def _keys(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """The rows of all sections, each once, in the order in which they first come."""
    return list(dict.fromkeys(row.key for section in sections for row in section.rows()))


def _first(sections: Sequence[Section], key: tuple[str, str]) -> Row:
    return next(row for section in sections for row in section.rows() if row.key == key)


def _cells(sections: Sequence[Section], key: tuple[str, str]) -> Iterator[str]:
    for section in sections:
        yield next((row.cell() for row in section.rows() if row.key == key), _ABSENT)


def _notes(report: Report) -> Iterator[str]:
    """What was done in each table, how each section was set up, and how long it took."""
    notes = {table.title: table.note for section in report.sections for table in section.tables if table.note}
    for title, note in notes.items():
        yield f"- {title}: {note}"
    for section in report.sections:
        yield ""
        properties = ", ".join(f"`{key}={value}`" for key, value in section.properties.items())
        yield f"{section.title} ({section.file_system}): {properties}."
        for server, warm_up in section.warm_ups.items():
            costs = ", ".join(f"{cost:.3g}" for cost in warm_up.costs)
            yield f"Warm-up of {server.capitalize()}, CPU of each round: {costs}."
    yield ""
    yield f"The whole run took {report.duration_s / 60:.0f} minutes."
