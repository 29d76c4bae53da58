"""docs/benchmarks as text: a page for each workload, an index, and README's table. Pure; `docs.py` writes the files.

The pages of the programs (`PROGRAM_PAGES`) are written by hand, around the figures that `ottla.bench.readme`
puts into them.

A workload's result is kept beside its page as <workload>.json, from which everything but pictures over time
can be made again.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import KAFKA, OTTLA, Row, aligned, name_of
from ottla.bench.page.ratios import RatioRow, ratio_rows, worst_ratio
from ottla.bench.report import Report, as_markdown, from_json

FOLDER: Final = REPOSITORY / "docs" / "benchmarks"
INDEX: Final = "README.md"
#: The file of the picture of all workloads.
OVERVIEW: Final = "overview.png"
#: The pages of the programs that measure without Spark.
PROGRAM_PAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "one-broker.md": "Loads on one broker, down to single requests.",
        "three-brokers.md": "Replication, fail-over and the metadata quorum of three brokers and three controllers.",
        "remote-tier.md": "The test cases of KIP-405: what measures each; a consumer beside a plain client.",
    }
)
#: The workloads of README's table; its last row is the worst one of all workloads.
_IN_README: Final = (
    "throughput",
    "latency",
    "many-partitions",
    "many-connections",
    "kip405-1-produce",
    "kip405-2-catch-up",
    "kip405-3-rejoin",
)


def committed(folder: Path = FOLDER) -> dict[str, Report]:
    """Return workload -> its result, of all that have a page."""
    found = {path.stem: from_json(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: report for name, report in found.items() if report is not None}


def workload_page(report: Report, pictures: Mapping[str, str]) -> str:
    """Return the page of one workload; `pictures`: file name -> its description."""
    lines = [
        f"# {report.title or report.program}",
        "",
        *([report.about, ""] if report.about else []),
        *(["    " + report.command, ""] if report.command else []),
    ]
    for name, words in pictures.items():
        lines += [f"![{words}]({name})", ""]
    return "\n".join(lines) + "\n" + as_markdown(report)


def index_page(reports: Mapping[str, Report]) -> str:
    """Return the index: the question that each workload answers, and the table of all."""
    lines = [
        "# Benchmarks",
        "",
        (
            "Ottla and Apache Kafka side by side, with equal settings, on one machine: each page has the exact "
            "command, the commit,"
        ),
        (
            "the machine and all figures. `bench/README.md` explains how they are measured; `python -m "
            "ottla.bench.page.docs RESULT...`"
        ),
        "writes these pages from result folders.",
        "",
        *_picture(reports, ""),
    ]
    questions = [["workload", "question"]]
    questions += [
        [f"[{name}]({name}.md)", " ".join(report.about.split()).replace("|", "\\|")]
        for name, report in reports.items()
    ]
    programs = [f"- [{name.removesuffix('.md')}]({name}): {words}" for name, words in PROGRAM_PAGES.items()]
    measured = ["Measurements without Spark ([PROGRAMS.md](../../bench/PROGRAMS.md)):", "", *programs, ""]
    return "\n".join([*lines, *aligned(questions), "", *measured, *table(reports, ""), ""])


def readme_lines(reports: Mapping[str, Report], to: str = "docs/benchmarks/") -> list[str]:
    """Return README's picture and short table: a figure of each of a few workloads, and the worst one of all."""
    if not reports:
        return ["There is no result yet: `ottla bench run WORKLOAD` measures one.", ""]
    rows = [_HEAD]
    for name in _IN_README:
        if (report := reports.get(name)) is not None:
            rows += [_cells(name, report, row, "", to) for row, _ in islice(_chosen(report), 1)]
    worst = _worst_of_all(reports)
    if worst is not None:
        name, row = worst
        rows.append(_cells(name, reports[name], row, " (the worst of all)", to))
    return [*_picture(reports, to), *aligned(rows), ""]


def _worst_of_all(reports: Mapping[str, Report]) -> tuple[str, Row] | None:
    """Return the workload and the row whose ratio is the worst of all chosen ones; None without any ratio."""
    chosen = {
        id(row): (name, row) for name, report in _of_clusters(reports).items() for row, _ in _chosen(report)
    }
    found = worst_ratio([row for _, row in chosen.values()], (KAFKA, OTTLA))
    return None if found is None else chosen[id(found[0])]


def _picture(reports: Mapping[str, Report], to: str) -> list[str]:
    if not overview_rows(reports):
        return []
    words = "Ratios Ottla / Kafka: of each workload its first figure with a goal and its worst one"
    return [f"![{words}]({to}{OVERVIEW})", ""]


def table(reports: Mapping[str, Report], to: str) -> list[str]:
    """Return the table of all workloads: for each, its first figure with a goal, and the one with the worst ratio."""
    rows = [_HEAD]
    for name, report in _of_clusters(reports).items():
        for row, is_worst in _chosen(report):
            rows.append(_cells(name, report, row, " (the worst)" if is_worst else "", to))
    return list(aligned(rows))


_HEAD: Final = ["workload", "figure", f"{name_of(KAFKA)} / {name_of(OTTLA)}"]


def _cells(name: str, report: Report, row: Row, remark: str, to: str) -> list[str]:
    figure = f"{row.table.title}: {row.figure.title}, {row.figure.unit.name}{remark}"
    return [f"[{report.title or name}]({to}{name}.md)", figure, row.cell(_compared(report))]


def _chosen(report: Report) -> Iterator[tuple[Row, bool]]:
    """Yield the first headline that has a goal, or the first of all, and the worst one if it is another."""
    section = report.sections[0]
    headlines = [row for key in report.headlines for row in section.rows() if row.key == tuple(key)]
    if not headlines:
        return
    judged = (row for row in headlines if row.figure.goal is not None and not row.figure.is_fault)
    first = next(judged, headlines[0])
    worst = worst_ratio(headlines, _compared(report))
    yield first, worst is not None and worst[0] is first
    if worst is not None and worst[0] is not first:
        yield worst[0], True


def _compared(report: Report) -> Sequence[str]:
    """Return Kafka and Ottla, whichever of them were measured; else all targets."""
    return [target for target in (KAFKA, OTTLA) if target in report.targets] or list(report.targets)


def _of_clusters(reports: Mapping[str, Report]) -> Mapping[str, Report]:
    """Return the results but those that compare something else: the load generator with Kafka's tool."""
    return {name: report for name, report in reports.items() if {KAFKA, OTTLA} & set(report.targets)}


def overview_rows(reports: Mapping[str, Report]) -> dict[str, RatioRow]:
    """Return label -> row of the picture of all workloads."""
    found: dict[str, RatioRow] = {}
    for name, report in _of_clusters(reports).items():
        rows = ratio_rows(report.sections[0], [row.key for row, _ in _chosen(report)], _compared(report))
        found |= {f"{name}: {row.label}": row for row in rows}
    return found
