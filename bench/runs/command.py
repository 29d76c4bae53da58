"""The command `ottla bench run`: its options, and its output.

Exit status of `run`: 0; 1 if a load failed, records were lost, corrupt, twice or out of order, or nothing
could be run; 130 after Ctrl-C. What was measured is written in each case.
"""

import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from ottla.bench.environment import DirtyTree
from ottla.bench.figures import LoadFailed
from ottla.bench.report import Report, overview
from ottla.bench.runs.options import MINIO, CannotRun, Options
from ottla.bench.runs.run import Outcome, run
from ottla.bench.spark.errors import SparkCannotStart
from ottla.bench.targets.started import STARTABLE
from ottla.bench.targets.target import TargetError
from ottla.bench.workloads.keys import WorkloadError
from ottla.bench.workloads.model import Tier

_FAILED: Final = 1
#: The exit status that a shell reports for a process that Ctrl-C has ended.
_INTERRUPTED: Final = 130
_RUNS: Final = 5
_WARM_UP_ROUNDS: Final = 6
_OUT: Final = Path("bench-results")
_STORES: Final = (Tier.DIRECTORY.value, Tier.MINIO.value)


class _NamedTarget(click.ParamType[tuple[str, str]]):
    name = "NAME=HOST:PORT,..."

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, bootstrap = value.partition("=")
        if not (name and equals and bootstrap):
            self.fail(f"{value!r} is not NAME=HOST:PORT, as in ottla=127.0.0.1:9092", param, ctx)
        return name, bootstrap


@click.command("run", no_args_is_help=True)
@click.argument("workload")
@click.option(
    "--target", "targets", type=_NamedTarget(), multiple=True, help="A running cluster; may be repeated."
)
@click.option(
    "--start",
    type=click.Choice([*STARTABLE, MINIO]),
    multiple=True,
    help=f"Start a cluster on this machine; may be repeated. {MINIO} starts a MinIO server, Ottla's remote tier.",
)
@click.option(
    "--store", type=click.Choice(_STORES), help="The remote tier's store, instead of the workload's choice."
)
@click.option(
    "--master",
    default="local[2]",
    show_default=True,
    help="The Spark master: local[N], or spark://HOST:PORT.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=_RUNS,
    show_default=True,
    help="The number of interleaved runs; medians are shown.",
)
@click.option(
    "--seconds-factor",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    help="Multiply the times and numbers of records of the workload by this factor.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=_OUT,
    show_default=True,
    help="The folder in which the result gets its folder.",
)
@click.option(
    "--disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=tempfile.gettempdir(),
    show_default=True,
    help="The folder of the files of started clusters.",
)
@click.option(
    "--warm-up-rounds",
    type=click.IntRange(min=0),
    default=_WARM_UP_ROUNDS,
    show_default=True,
    help="Warm-up rounds of each started cluster, at most; they end when its CPU falls no more, or after 35 s.",
)
@click.option(
    "--observe/--no-observe",
    "is_observed",
    default=None,
    help="Count turns of the event loops above 5 ms in an extra run of a separate Ottla, if --start names it. By "
    "default unless --runs is 1.",
)
@click.option(
    "--allow-dirty",
    "is_dirty_allowed",
    is_flag=True,
    help="Measure even if the tree differs from its commit; the report notes it.",
)
def run_workload(
    *,
    workload: str,
    targets: tuple[tuple[str, str], ...],
    start: tuple[str, ...],
    store: str | None,
    master: str,
    runs: int,
    seconds_factor: float,
    out: Path,
    disk: Path,
    warm_up_rounds: int,
    is_observed: bool | None,
    is_dirty_allowed: bool,
) -> None:
    """Run WORKLOAD, a shipped one by its name or a file, on all targets in turn.

    The result is a folder with all rows, a summary, a page (report.html) and pictures. Ctrl-C ends the measurement; the
    result is then made of what there is.
    """
    options = Options(
        workload=workload,
        targets=targets,
        start=start,
        store=None if store is None else Tier(store),
        master=master,
        runs=runs,
        seconds_factor=seconds_factor,
        out=out,
        disk=disk,
        warm_up_rounds=warm_up_rounds,
        is_observed=runs > 1 if is_observed is None else is_observed,
        is_dirty_allowed=is_dirty_allowed,
        command=shlex.join(["ottla", "bench", "run", *_arguments()]),
    )
    try:
        outcome = run(options)
    except (CannotRun, WorkloadError, TargetError, SparkCannotStart, DirtyTree, LoadFailed) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo(
            f"Stopped before there was a result; what was measured, if anything, is in {out}.", err=True
        )
        sys.exit(_INTERRUPTED)
    _show(outcome)


def _arguments() -> list[str]:
    """Return the arguments behind `run` on the command line."""
    return sys.argv[sys.argv.index("run") + 1 :] if "run" in sys.argv else []


def _show(outcome: Outcome) -> None:
    for line in overview(outcome.report):
        click.echo(line)
    click.echo(f"written: {outcome.folder}\n         {outcome.page}")
    wrong = list(_wrong(outcome.report))
    if outcome.failure is not None:
        wrong.insert(0, str(outcome.failure))
    if wrong:
        click.echo(f"Error: {'; '.join(wrong)}", err=True)
        sys.exit(_FAILED)
    if outcome.was_interrupted:
        click.echo("Stopped: the result is of what there was.", err=True)
        sys.exit(_INTERRUPTED)


def _wrong(report: Report) -> Iterator[str]:
    """Yield the faults of each target.

    Goals are Ottla's, but a run of another target with a fault is no good one either.
    """
    for row in (row for section in report.sections for row in section.rows() if row.figure.is_fault):
        goal = row.figure.goal
        for target in report.targets:
            if goal is not None and goal.at_most == 0 and (count := row.median(target)):
                yield f"{target}, {row.table.title}: {count:,.0f} {row.figure.title}"
