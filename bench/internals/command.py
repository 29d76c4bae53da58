"""The command line of the programs that measure one process or package: tables, and files in bench/results.

A measure has cases, and each case is a table of the result.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from ottla.bench import environment
from ottla.bench.figures import OTTLA, Figure, Goal, Sample, Table, baseline_first
from ottla.bench.free_memory import touch_free_memory
from ottla.bench.report import Report, Section, as_markdown, save
from ottla.bench.targets.servers import end_on_signals
from ottla.bench.targets.settings import file_system_of, place_of

_QUICK_SCALE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """A measure of the package: its cases, with the same figures of each case."""

    name: str
    title: str
    #: The description of the measurement.
    note: str
    figures: Sequence[Figure]
    #: Case -> target -> a sample for each run.
    samples: Mapping[str, dict[str, list[Sample]]]
    #: (case, metric) -> goal.
    goals: Mapping[tuple[str, str], Goal] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """Return a table for each case; the first one has the note."""
        return [
            Table(
                name=f"{self.name}-{case}",
                title=f"{self.title}: {case}",
                note="" if number else self.note,
                figures=[
                    replace(figure, goal=self.goals.get((case, figure.metric))) for figure in self.figures
                ],
                samples=samples,
            )
            for number, (case, samples) in enumerate(self.samples.items())
        ]


def of_ottla(runs: int, measure: Callable[[], Mapping[str, float]]) -> dict[str, list[Sample]]:
    """Return the samples of a case without Kafka."""
    return {OTTLA: [dict(measure()) for _ in range(runs)]}


class Measure(Protocol):
    """A function that makes the cases of one measure."""

    def __call__(self, folder: Path, *, runs: int, scale: float) -> Cases:
        """Measure in `folder`; `scale` is the part of a whole run's volume."""


def run(program: str, measures: Mapping[str, Measure], *, description: str | None) -> None:
    """Read the command line, measure, print and save. `description` begins with one line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m ottla.bench.internals.{program}", description=(description or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one run of a tenth of the volume")
    parser.add_argument("--runs", type=int, metavar="N", help="measured runs; medians are shown (default: 3)")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(measures),
        help="measure only this table; may be repeated (default: all)",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="the folder of the files (default: $TMPDIR, or /tmp)"
    )
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="measure even if the tree differs from its commit; the report notes it",
    )
    parser.add_argument("--no-save", action="store_true", help="print the result without saving it")
    options = parser.parse_args()
    end_on_signals()
    try:
        where = environment.current(allow_dirty=options.allow_dirty)
    except environment.DirtyTree as error:
        sys.exit(str(error))
    runs = options.runs or (1 if options.quick else 3)
    scale = _QUICK_SCALE if options.quick else 1.0
    folder = Path(tempfile.mkdtemp(prefix=f"ottla-{program}-", dir=options.data_dir))
    if not options.quick:
        touched = touch_free_memory(folder, say=lambda text: print(text, file=sys.stderr, flush=True))
        where = replace(where, touched_bytes=touched)
    file_system = file_system_of(folder)
    tables: list[Table] = []
    began = time.monotonic()

    def report() -> Report:
        return _report(program, where, file_system, tables, runs=runs, duration_s=time.monotonic() - began)

    try:
        for name in options.only or measures:
            tables += measures[name](folder, runs=runs, scale=scale).tables()
            print(f"{time.monotonic() - began:.0f} s  {name}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(as_markdown(report()))
    if not options.no_save:
        for path in save(report()):
            print(f"written: {path}")


def _report(
    program: str,
    where: environment.Environment,
    file_system: str,
    tables: Sequence[Table],
    *,
    runs: int,
    duration_s: float,
) -> Report:
    """Return the result; Kafka is in it if a measure has one."""
    targets = {target for table in tables for target in table.samples}
    return Report(
        program=program,
        environment=where,
        runs=runs,
        seconds=None,
        duration_s=duration_s,
        headlines=[],
        sections=[
            Section(
                settings="",
                place=place_of(file_system),
                file_system=file_system,
                properties={},
                tables=tables,
            )
        ],
        targets=dict.fromkeys(baseline_first(targets), ""),
    )
