"""`ottla bench compare`: results of any runs, of workloads and of the programs in bench, compared by Spark SQL."""

from collections.abc import Sequence
from pathlib import Path

import click

from ottla.bench.aggregation.comparison import NothingToCompare, as_markdown
from ottla.bench.aggregation.comparison import compare as compared
from ottla.bench.aggregation.files import SUMMARY
from ottla.bench.generators.shipping import ship_bench
from ottla.bench.report import Report, from_json
from ottla.bench.spark.session import SparkCannotStart, spark_session


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULT...", type=click.Path(path_type=Path))
@click.option("--master", default="local[2]", show_default=True, help="The Spark master.")
def compare(results: Sequence[Path], master: str) -> None:
    """Compare results: medians, spread, ratio, and whether the difference exceeds the noise.

    RESULT is a folder of `ottla bench run`, or a file of bench/results. The targets of one result are compared with its
    baseline; the same targets of several results with the first one of them.
    """
    try:
        paths = list(dict.fromkeys(results))
        reports = list(zip(names_of(paths), map(read_result, paths), strict=True))
        with spark_session(master, name="ottla bench compare") as spark:
            ship_bench(spark.sparkContext)
            click.echo(as_markdown(compared(spark, reports)))
    except (NothingToCompare, SparkCannotStart) as error:
        raise click.ClickException(str(error)) from error


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the names of the folders or files; the paths themselves where two have the same name."""
    names = [path.resolve().parent.name if path.name == SUMMARY else path.resolve().stem for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def read_result(path: Path) -> Report:
    """Read a result folder's summary, or a result file. Raises a ClickException that says what the path is instead."""
    file = path / SUMMARY if path.is_dir() else path
    try:
        report = from_json(file.read_text())
    except OSError as error:
        raise click.ClickException(f"{path} is no result: {file}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(f"{path} is no result: {file} is not JSON of `ottla bench run`") from error
    if report is None:
        raise click.ClickException(f"{path} is of another format: measure it again")
    return report
