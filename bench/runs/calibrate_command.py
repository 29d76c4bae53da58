"""The command `ottla bench calibrate`: the generator alone, and beside Kafka's own tool. The result is a folder."""

import shlex
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from ottla.bench import environment
from ottla.bench.aggregation.files import SUMMARY
from ottla.bench.environment import DirtyTree
from ottla.bench.figures import LoadFailed
from ottla.bench.generators.null_sink import NullSink
from ottla.bench.harness import scratch
from ottla.bench.page.files import write_page
from ottla.bench.report import Report, Section, as_json, overview
from ottla.bench.runs.calibration import HEADLINES, VERSIONS, Calibration
from ottla.bench.spark.errors import SparkCannotStart
from ottla.bench.spark.session import slots, spark_session
from ottla.bench.targets.started import STARTABLE, started
from ottla.bench.targets.target import TargetError
from ottla.bench.workloads.model import ClusterNeeds

_RUNS: Final = 5
_SECONDS: Final = 5.0
_PARTITIONS: Final = 2


@click.command()
@click.option(
    "--start",
    type=click.Choice(sorted(STARTABLE)),
    default="kafka",
    show_default=True,
    help="The target of the comparison with kafka-producer-perf-test.",
)
@click.option("--master", default="local[2]", show_default=True, help="The Spark master.")
@click.option("--runs", type=click.IntRange(min=1), default=_RUNS, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=_SECONDS,
    show_default=True,
    help="The approximate time of each load.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-results"),
    show_default=True,
    help="The folder in which the result gets its folder.",
)
@click.option(
    "--allow-dirty",
    "is_dirty_allowed",
    is_flag=True,
    help="Measure even if the tree differs from its commit; the report notes it.",
)
def calibrate(
    *, start: str, master: str, runs: int, seconds: float, out: Path, is_dirty_allowed: bool
) -> None:
    """Measure the load generator: against a null sink, and beside kafka-producer-perf-test on one target."""
    began = time.monotonic()
    try:
        report = Report(
            program="calibrate",
            environment=environment.current(allow_dirty=is_dirty_allowed),
            runs=runs,
            seconds=seconds,
            duration_s=0,
            headlines=HEADLINES,
            sections=[],
            targets=VERSIONS,
            title="Calibration of the load generator",
            about="How much the generator itself can do, what it costs, and whether its figures are those of "
            f"Kafka's own tool, here on {STARTABLE[start]}.",
            command=shlex.join(["ottla", "bench", *sys.argv[sys.argv.index("calibrate") :]])
            if "calibrate" in sys.argv
            else "ottla bench calibrate",
        )
        calibration = _measure(start, master=master, runs=runs, seconds=seconds)
    except (DirtyTree, LoadFailed, SparkCannotStart, TargetError) as error:
        raise click.ClickException(str(error)) from error
    section = Section(settings="", place="", file_system="", properties={}, tables=calibration.tables)
    report = replace(report, sections=[section], duration_s=time.monotonic() - began)
    folder = out / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-calibrate"
    folder.mkdir(parents=True)
    (folder / SUMMARY).write_text(as_json(report))
    page = write_page(folder)
    for line in overview(report):
        click.echo(line)
    for sentence in calibration.agreements():
        click.echo(sentence)
    click.echo(f"written: {folder}\n         {page}")


def _measure(start: str, *, master: str, runs: int, seconds: float) -> Calibration:
    """Run all measurements of the calibration. Raises the errors of Spark, of the broker and of loads."""
    with (
        scratch(Path(tempfile.gettempdir()), "calibrate") as folder,
        spark_session(master, name="ottla bench calibrate") as spark,
        NullSink(folder, partitions=_PARTITIONS) as sink,
    ):
        calibration = Calibration(spark=spark, slots=slots(spark), seconds=seconds, say=click.echo)
        target = started(start, ClusterNeeds(), folder / start)
        target.start()
        try:
            for run in range(runs):
                calibration.run_null_sink(sink)
                calibration.run_perf_test(target, run=run)
        finally:
            target.kill()
        return calibration
