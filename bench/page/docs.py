"""Writes docs/benchmarks from result folders: python -m ottla.bench.page.docs RESULT..."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from ottla.bench.figures import KAFKA, OTTLA
from ottla.bench.page.documents import (
    FOLDER,
    INDEX,
    OVERVIEW,
    committed,
    index_page,
    overview_rows,
    workload_page,
)
from ottla.bench.page.files import NotAResult, read_result
from ottla.bench.page.plots import overview_plot, phase_plots, save_plot
from ottla.bench.page.ratios import ratio_rows
from ottla.bench.page.series import Series
from ottla.bench.report import Report, as_json

#: The least number of runs of a figure that is published.
LEAST_RUNS: Final = 5
#: The largest number of pictures over time of one workload.
_MOST_PHASES: Final = 4


def check_publishable(path: Path, report: Report, *, least_runs: int) -> None:
    """Raise NotAResult for figures that belong to no commit, or to too few runs."""
    if report.environment.is_changed:
        raise NotAResult(f"{path} was measured with uncommitted changes: its figures belong to no commit.")
    if report.is_partial:
        raise NotAResult(f"{path} was stopped before its last run.")
    if report.runs < least_runs:
        raise NotAResult(f"{path} has {report.runs} runs, fewer than {least_runs}.")


def without_out(command: str) -> str:
    """Return the command that measured a result, without its `--out`: where a result went is no part of it."""
    words = iter(shlex.split(command))
    kept: list[str] = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return shlex.join(kept)


def write_workload(report: Report, series: Series, folder: Path) -> None:
    """Write a workload's page, pictures and result, and remove older files of it."""
    report = replace(report, command=without_out(report.command))
    name, targets = report.program, list(report.targets)
    for old in list(folder.glob(f"{name}.*")):
        old.unlink()
    pictures = {}
    if rows := ratio_rows(report.sections[0], report.headlines, targets):
        pictures[f"{name}.png"] = f"{report.title}: ratios"
        save_plot(overview_plot({row.label: row for row in rows}, targets), folder / f"{name}.png")
    for number, (table, plot) in enumerate(phase_plots(report, series, most=_MOST_PHASES), start=1):
        pictures[f"{name}.phase-{number}.png"] = f"{table.title}, over time"
        save_plot(plot, folder / f"{name}.phase-{number}.png")
    (folder / f"{name}.json").write_text(as_json(report))
    (folder / f"{name}.md").write_text(workload_page(report, pictures))


def write_index(folder: Path) -> None:
    """Write the index of all workloads that have a result there, and the picture of all of them."""
    reports = committed(folder)
    (folder / OVERVIEW).unlink(missing_ok=True)
    if rows := overview_rows(reports):
        save_plot(overview_plot(rows, [KAFKA, OTTLA]), folder / OVERVIEW)
    (folder / INDEX).write_text(index_page(reports))


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out", default=FOLDER, type=click.Path(file_okay=False, path_type=Path), help="The folder of the pages."
)
@click.option("--least-runs", default=LEAST_RUNS, show_default=True, help="Refuse results with fewer runs.")
def main(results: Sequence[Path], out: Path, least_runs: int) -> None:
    """Write the pages of RESULTS into docs/benchmarks, and the index of all that are there; then README by
    `make figures`.
    """
    try:
        found = [(path, *read_result(path)) for path in results]
        for path, report, _ in found:
            check_publishable(path, report, least_runs=least_runs)
    except NotAResult as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    for _, report, series in found:
        write_workload(report, series, out)
        click.echo(out / f"{report.program}.md")
    write_index(out)


if __name__ == "__main__":
    main()
