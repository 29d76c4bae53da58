"""A benchmark's result: sections of tables, as data (JSON in bench/results or a result folder) and as Markdown.

A section is one run of all measures with one choice of settings and one place for the logs. The result of a workload
has one section, with a table for each phase.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ottla.bench.environment import Environment
from ottla.bench.figures import (
    FLOOR,
    KAFKA,
    MEMORY_TABLE,
    OTTLA,
    Figure,
    Goal,
    Row,
    Table,
    Unit,
    aligned,
    name_of,
    tally,
    worst,
)
from ottla.bench.profiles import Profile, profile_lines
from ottla.bench.targets.settings import SETTINGS_WORDS
from ottla.bench.turns import BOUND_MS, Turn, words_of
from ottla.bench.warm_up import WarmUp

RESULTS: Final = Path(__file__).parent / "results"
_FORMAT: Final = 3
#: Files of format 2 have the targets Kafka and Ottla, and nothing about a workload; older ones are passed over.
_READABLE: Final = (2, _FORMAT)
_ABSENT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All measures with the same settings and the logs in the same place."""

    settings: str
    place: str
    #: The type of the file system that the place is on.
    file_system: str
    #: The properties of every node of both sides on top of those that are always set
    #: (`ottla.bench.targets.servers`, `ottla.bench.targets.clusters`).
    properties: Mapping[str, str]
    tables: Sequence[Table]
    #: Target -> how it was warmed up; empty where it was not.
    warm_ups: dict[str, WarmUp] = field(default_factory=dict)
    #: Load or phase -> the turns of Ottla's event loops above the bound, where they were watched.
    turns: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    #: Load -> the turns of the floor's event loops above the bound, of the loads that it takes.
    floor_turns: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    #: The profiles of Ottla's processor time in some loads.
    profiles: Sequence[Profile] = ()

    @property
    def title(self) -> str:
        """The head of its column; neither settings nor place are known of clusters that the bench has not started."""
        words = [SETTINGS_WORDS.get(self.settings, self.settings), self.place]
        return ", ".join(filter(None, words)) or "medians"

    def rows(self) -> list[Row]:
        """Return all rows of all tables."""
        return [row for table in self.tables for row in table.rows()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a program or a workload, as one file has it."""

    program: str
    environment: Environment
    runs: int
    #: About how long each load took; None where phases have their own times.
    seconds: float | None
    #: Zero where it is not known.
    duration_s: float
    #: (table, metric) of the rows that `overview` shows.
    headlines: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    #: The measured targets, in the order of columns: name -> its version in words. The first one is the
    #: baseline.
    targets: Mapping[str, str] = field(default_factory=lambda: {KAFKA: "", OTTLA: ""})
    #: Of a workload: its title, the question that it answers, and the exact command.
    title: str = ""
    about: str = ""
    command: str = ""
    #: Whether it was stopped before its last run.
    is_partial: bool = False
    #: The errors that clients reported, in words.
    errors: Sequence[str] = ()

    @property
    def stem(self) -> str:
        """The name of the report's files, without the suffix."""
        return f"{self.environment.date}-{self.program}"


# -- data ----------------------------------------------------------------------------------------------


def as_json(report: Report) -> str:
    """Return the file's text: the tables once, and the samples of each section."""
    data = asdict(report)
    tables: dict[str, dict[str, Any]] = {}
    for section in data["sections"]:
        by_name = {table["name"]: table for table in section.pop("tables")}
        section["samples"] = {name: table.pop("samples") for name, table in by_name.items()}
        tables |= by_name
    return json.dumps({"format": _FORMAT} | data | {"tables": list(tables.values())}, indent=1) + "\n"


def from_json(text: str) -> Report | None:
    """Read the text of `as_json`; None for files of another format."""
    data = json.loads(text)
    if data.pop("format", None) not in _READABLE:
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
        turns=_turns(data.pop("turns", {})),
        floor_turns=_turns(data.pop("floor_turns", {})),
        profiles=[Profile(**each) for each in data.pop("profiles", ())],
        **data,
    )


def _turns(data: dict[str, Any]) -> dict[str, list[Turn]]:
    return {load: [Turn(**each) for each in found] for load, found in data.items()}


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
    """Return the newest result of a program, by the date in the file's name; None if there is none of this format."""
    for path in sorted(folder.glob(f"*-{program}.json"), reverse=True):
        if (report := from_json(path.read_text())) is not None:
            return report
    return None


# -- Markdown ------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """Return the whole report as Markdown."""
    return (
        "\n".join(
            [
                preface(report),
                "",
                *overview(report),
                "",
                *all_rows(report),
                "",
                *_notes(report),
                *_profiles(report),
            ]
        )
        + "\n"
    )


def preface(report: Report) -> str:
    """Return the environment of the figures, and how to read them."""
    sentences = [
        f"{report.environment.words()}.",
        *_of_workload(report),
        f"Medians of {report.runs} interleaved run{'s' if report.runs > 1 else ''}{_load_words(report)}.",
        *_how_to_read(list(report.targets)),
        *_floor(report),
        *_cold(report),
    ]
    return " ".join(sentences)


def _of_workload(report: Report) -> Iterator[str]:
    versions = "; ".join(f"{name}: {words}" for name, words in report.targets.items() if words)
    if versions:
        yield f"Targets: {versions}."
    elif len(report.targets) > 1:
        yield "Both sides have the same settings."
    if report.is_partial:
        yield "The measurement was stopped before its end."


def _load_words(report: Report) -> str:
    return "" if report.seconds is None else f", about {report.seconds:g} s for each load"


def _how_to_read(targets: Sequence[str]) -> Iterator[str]:
    names = [name_of(target) for target in targets]
    if len(names) == 2:
        yield f"Each cell is {names[0]} / {names[1]} = ratio {names[1]} / {names[0]}."
    elif len(names) > 2:
        yield f"Each cell is {' / '.join(names)}, in brackets the ratio to {names[0]}."


def _floor(report: Report) -> Iterator[str]:
    if any(FLOOR in table.samples for section in report.sections for table in section.tables):
        yield (
            "A floor is the same load served by a process (with replicas: three) that does nothing but "
            "what a broker in Python has to: receive, check the CRC, write, send to the followers, answer; "
            "the answer to a repeated question is kept."
        )


def _cold(report: Report) -> Iterator[str]:
    for section in report.sections:
        for target, warm_up in section.warm_ups.items():
            if not warm_up.is_steady:
                yield (
                    f"The CPU of {name_of(target)} still fell when its warm-up ended after {len(warm_up.costs)} "
                    f"rounds ({section.title})."
                )


def overview(report: Report) -> list[str]:
    """Return a short table with a column for each section: goals missed, the worst row, memory, and the headlines."""
    sections, targets = report.sections, list(report.targets)
    rows = [["", *(section.title for section in sections)]]
    rows.append(["goals", *(tally(section.rows()).words() for section in sections)])
    rows.append(["worst row", *(_worst_cell(section, targets) for section in sections)])
    for key in _keys(sections):
        first = _first(sections, key)
        if key in report.headlines or first.table.name == MEMORY_TABLE:
            rows.append([_title(first), *_cells(sections, key, targets)])
    return list(aligned(rows))


def _worst_cell(section: Section, targets: Sequence[str]) -> str:
    row = worst(section.rows())
    if row is None:
        return _ABSENT
    assert row.figure.goal is not None
    goal = row.figure.goal.words(row.figure.unit)
    return f"{row.table.title}: {row.figure.title} {row.cell(targets)} ({goal})"


def all_rows(report: Report) -> list[str]:
    """Return every row, with its goal; a column for each section."""
    sections, targets = report.sections, list(report.targets)
    rows = [["", "figure", "goal", *(section.title for section in sections)]]
    for key in _keys(sections):
        row = _first(sections, key)
        goal = row.figure.goal
        figure = f"{row.figure.title}, {row.figure.unit.name}"
        words = "" if goal is None else goal.words(row.figure.unit)
        rows.append([row.table.title, figure, words, *_cells(sections, key, targets)])
    return list(aligned(rows))


def _title(row: Row) -> str:
    goal = row.figure.goal
    words = f" (goal: {goal.words(row.figure.unit)})" if goal is not None else ""
    return f"{row.table.title}: {row.figure.title}, {row.figure.unit.name}{words}"


def _keys(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return the rows of all sections, each once, in the order in which they first come."""
    return list(dict.fromkeys(row.key for section in sections for row in section.rows()))


def _first(sections: Sequence[Section], key: tuple[str, str]) -> Row:
    return next(row for section in sections for row in section.rows() if row.key == key)


def _cells(sections: Sequence[Section], key: tuple[str, str], targets: Sequence[str]) -> Iterator[str]:
    for section in sections:
        yield next((row.cell(targets) for row in section.rows() if row.key == key), _ABSENT)


def _notes(report: Report) -> Iterator[str]:
    """Yield the notes of the tables, the set-up of each section, and the duration."""
    notes = {table.title: table.note for section in report.sections for table in section.tables if table.note}
    for title, note in notes.items():
        yield f"- {title}: {note}"
    for section in report.sections:
        yield ""
        if section.file_system:
            properties = ", ".join(f"`{key}={value}`" for key, value in section.properties.items())
            yield f"{section.title} ({section.file_system}){': ' if properties else ''}{properties}."
        for target, warm_up in section.warm_ups.items():
            costs = ", ".join(f"{cost:.3g}" for cost in warm_up.costs)
            yield f"Warm-up of {name_of(target)}, CPU of each round: {costs}."
        for words in words_of(section.turns):
            yield f"- Turns above {BOUND_MS} ms, {words}"
        for words in words_of(section.floor_turns):
            yield f"- Turns of the floor above {BOUND_MS} ms, {words}"
    for error in report.errors:
        yield f"- Error: {error}"
    yield ""
    if report.command:
        yield f"Measured by `{report.command}`."
    if report.duration_s:
        yield f"The whole run took {report.duration_s / 60:.0f} minutes."


def _profiles(report: Report) -> Iterator[str]:
    """Yield the profiles, load by load; nothing where none was profiled."""
    for section in report.sections:
        for profile in section.profiles:
            row = next(row for row in section.rows() if row.key == (profile.load, profile.metric))
            yield ""
            yield f"## {row.table.title} ({section.title})"
            yield ""
            timed, floor = (row.median(target) for target in (OTTLA, FLOOR))
            yield from profile_lines(profile, row.figure.unit, timed=timed, floor=floor)
