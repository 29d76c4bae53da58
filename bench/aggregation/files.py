"""The files of a result folder, as Spark's DataFrames."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users call it

from bench.generators.rows import SCHEMA, Row

ROWS: Final = "rows.parquet"
SECONDS: Final = "seconds.parquet"
SUMMARY: Final = "summary.json"
#: What each row, and each sample from outside, belongs to.
MEASURED: Final = "target string, run int, phase string"


def write_rows(
    spark: SparkSession, rows: Sequence[Row], folder: Path, *, target: str, run: int, phase: str
) -> None:
    """Append what the tasks of a phase have yielded."""
    values = [(target, run, phase, *map(_plain, row.values())) for row in rows]
    frame = spark.createDataFrame(values, f"{MEASURED}, {SCHEMA}")
    frame.coalesce(1).write.mode("append").parquet(str(folder / ROWS))


def _plain(value: object) -> object:
    """Spark's pickler knows no enumerations."""
    return value.value if isinstance(value, Enum) else value


def read_rows(spark: SparkSession, folder: Path) -> DataFrame:
    """All rows; none if no phase came to its end."""
    schema = f"{MEASURED}, {SCHEMA}"
    if not (folder / ROWS).exists():
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(str(folder / ROWS))


def write_seconds(seconds: DataFrame, folder: Path) -> None:
    """Replace seconds.parquet, in the order in which it is read."""
    ordered = seconds.drop("latency").orderBy("target", "run", "phase", "role", "second")
    ordered.coalesce(1).write.mode("overwrite").parquet(str(folder / SECONDS))


def labelled(rows: DataFrame, labels: DataFrame) -> DataFrame:
    """Rows with `clients`, the group of equal clients, and `label`, how it is shown (`bench.aggregation.loads`)."""
    grouped = rows.withColumn("clients", F.regexp_extract("client", r"^[a-z]+-\d+", 0))
    with_labels = grouped.join(F.broadcast(labels), ["phase", "clients"], "left")
    return with_labels.withColumn("label", F.coalesce("label", "role"))
