"""The command line of the programs that measure one process or package: tables, and bench/results/<date>-<program>.{md,json}."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from bench import environment
from bench.internals.storage_report import Section, as_text, preface, save
from bench.report import RESULTS
from bench.targets.servers import end_on_signals
from bench.targets.settings import file_system_of

_QUICK_SCALE: Final = 0.1


class Measure(Protocol):
    """What makes one table."""

    def __call__(self, folder: Path, *, runs: int, scale: float) -> Section:
        """`scale`: of what a whole run does."""


def run(program: str, measures: Mapping[str, Measure], *, description: str | None) -> None:
    """Read the command line, measure, print and save. `description` begins with one line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.internals.{program}", description=(description or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one run of a tenth of the volume")
    parser.add_argument("--runs", type=int, metavar="N", help="measured runs; medians are shown (default: 3)")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(measures),
        help="only this table; may be repeated (default: all)",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="where the files go (default: $TMPDIR, or /tmp)"
    )
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="measure although the tree differs from its commit; the report says so",
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    end_on_signals()
    try:
        where = environment.current(allow_dirty=options.allow_dirty)
    except environment.DirtyTree as error:
        sys.exit(str(error))
    runs = options.runs or (1 if options.quick else 3)
    scale = _QUICK_SCALE if options.quick else 1.0
    folder = Path(tempfile.mkdtemp(prefix=f"ottla-{program}-", dir=options.data_dir))
    file_system = file_system_of(folder)
    sections = []
    began = time.monotonic()
    try:
        print(preface(where, file_system, runs))
        for name in options.only or measures:
            sections.append(measures[name](folder, runs=runs, scale=scale))
            print(as_text(sections[-1]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    if not options.no_save:
        for path in save(program, where, file_system, sections, runs=runs, folder=RESULTS):
            print(f"written: {path}")
