"""The files of a result folder, as Spark's DataFrames."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.bench.generators.rows import SCHEMA, Row

ROWS: Final = "rows.parquet"
SECONDS: Final = "seconds.parquet"
SUMMARY: Final = "summary.json"
#: The columns that each row, and each sample from outside, is labelled with.
MEASURED: Final = "target string, run int, phase string"
_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "binary": pa.binary(),
}


def write_rows(rows: Sequence[Row], folder: Path, *, target: str, run: int, phase: str) -> None:
    """Append the rows that the tasks of a phase have yielded."""
    values = [(target, run, phase, *row.values()) for row in rows]
    append(values, f"{MEASURED}, {SCHEMA}", folder / ROWS)


def append(values: Sequence[tuple[object, ...]], schema: str, folder: Path) -> None:
    """Write another Parquet file of a schema in Spark's language.

    Without Spark, which takes a second and a core for it, between the phases of a run.
    """
    folder.mkdir(exist_ok=True)
    fields = [pa.field(name, _ARROW[kind]) for name, kind in (each.split() for each in schema.split(", "))]
    columns = zip(*values, strict=True) if values else [() for _ in fields]
    arrays = [
        pa.array([_plain(value) for value in column], field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    number = sum(1 for _ in folder.glob("*.parquet"))
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=pa.schema(fields)), folder / f"part-{number:05}.parquet"
    )


def _plain(value: object) -> object:
    """Return a value without its enumeration, which Arrow does not know."""
    return value.value if isinstance(value, Enum) else value


def read_rows(spark: SparkSession, folder: Path) -> DataFrame:
    """Read all rows; none if no phase came to its end."""
    schema = f"{MEASURED}, {SCHEMA}"
    if not (folder / ROWS).exists():
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(str(folder / ROWS))


def write_seconds(seconds: DataFrame, folder: Path) -> None:
    """Replace seconds.parquet, in the order in which it is read."""
    ordered = seconds.drop("latency").orderBy("target", "run", "phase", "role", "second")
    ordered.coalesce(1).write.mode("overwrite").parquet(str(folder / SECONDS))


def labelled(rows: DataFrame, labels: DataFrame) -> DataFrame:
    """Add `clients`, the group of equal clients, and `label`, the name under which it is shown, to the rows.

    Both are those of `ottla.bench.aggregation.loads`.
    """
    grouped = rows.withColumn("clients", F.regexp_extract("client", r"^[a-z]+-\d+", 0))
    with_labels = grouped.join(F.broadcast(labels), ["phase", "clients"], "left")
    return with_labels.withColumn("label", F.coalesce("label", "role"))
