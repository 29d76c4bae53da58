"""docs/benchmarks as text: a page for each workload, an index, and README's table. Pure; `docs.py` writes them, with pictures.

A workload's result is kept beside its page as <workload>.json, from which everything but pictures over time can be made again.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import KAFKA, OTTLA, Row, name_of
from ottla.bench.markdown import aligned
from ottla.bench.page.ratios import RatioRow, ratio_rows, worst_ratio
from ottla.bench.report import Report, as_markdown, from_json

FOLDER: Final = REPOSITORY / "docs" / "benchmarks"
INDEX: Final = "README.md"
#: The picture of all workloads.
OVERVIEW: Final = "overview.png"


def committed(folder: Path = FOLDER) -> dict[str, Report]:
    """Workload -> its result, of all that have a page."""
    found = {path.stem: from_json(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: report for name, report in found.items() if report is not None}


def workload_page(report: Report, pictures: Mapping[str, str]) -> str:
    """The page of one workload; `pictures`: file name -> what it shows."""
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
    """The index: which question each workload answers, and the table of all."""
    lines = [
        "# Benchmarks",
        "",
        "Ottla and Apache Kafka side by side, with equal settings, on one machine: each page has the exact command, the commit,",
        "the machine and all figures. `bench/README.md` explains how they are measured; `python -m ottla.bench.page.docs RESULT...`",
        "writes these pages from result folders.",
        "",
        *_picture(reports, ""),
    ]
    questions = [["workload", "question"]]
    questions += [
        [f"[{name}]({name}.md)", " ".join(report.about.split()).replace("|", "\\|")]
        for name, report in reports.items()
    ]
    return "\n".join([*lines, *aligned(questions), "", *table(reports, ""), ""])


def readme_lines(reports: Mapping[str, Report], to: str = "docs/benchmarks/") -> list[str]:
    """One picture and one table for README."""
    if not reports:
        return ["There is no result yet: `ottla bench run WORKLOAD` measures one.", ""]
    return [*_picture(reports, to), *table(reports, to), ""]


def _picture(reports: Mapping[str, Report], to: str) -> list[str]:
    if not overview_rows(reports):
        return []
    words = "Ratios Ottla / Kafka: of each workload its first figure with a goal and its worst one"
    return [f"![{words}]({to}{OVERVIEW})", ""]


def table(reports: Mapping[str, Report], to: str) -> list[str]:
    """Of each workload its first figure with a goal, and the one with the worst ratio."""
    rows = [["workload", "figure", f"{name_of(KAFKA)} / {name_of(OTTLA)}"]]
    for name, report in _of_clusters(reports).items():
        for row, is_worst in _chosen(report):
            figure = f"{row.table.title}: {row.figure.title}, {row.figure.unit.name}"
            rows.append(
                [
                    f"[{report.title or name}]({to}{name}.md)",
                    f"{figure}{' (the worst)' if is_worst else ''}",
                    row.cell(_compared(report)),
                ]
            )
    return list(aligned(rows))


def _chosen(report: Report) -> Iterator[tuple[Row, bool]]:
    """The first headline that has a goal, or the first of all, and the worst one if it is another."""
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
    """Kafka and Ottla, whichever of them were measured; else all."""
    return [target for target in (KAFKA, OTTLA) if target in report.targets] or list(report.targets)


def _of_clusters(reports: Mapping[str, Report]) -> Mapping[str, Report]:
    """Without those that compare something else: the load generator with Kafka's tool."""
    return {name: report for name, report in reports.items() if {KAFKA, OTTLA} & set(report.targets)}


def overview_rows(reports: Mapping[str, Report]) -> dict[str, RatioRow]:
    """Label -> row of the picture of all workloads."""
    found: dict[str, RatioRow] = {}
    for name, report in _of_clusters(reports).items():
        rows = ratio_rows(report.sections[0], [row.key for row, _ in _chosen(report)], _compared(report))
        found |= {f"{name}: {row.label}": row for row in rows}
    return found
