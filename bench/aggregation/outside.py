"""What brokers and stores needed in a phase, from samples taken from outside once a second."""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users call it

from bench.aggregation.files import MEASURED

SAMPLES: Final = "samples.parquet"
#: Of one second of one node: a broker, or the object store.
SCHEMA: Final = (
    f"{MEASURED}, node string, second int, cpu_s double, private_bytes long, resident_bytes long, read_bytes long, "
    "written_bytes long, received_bytes long, sent_bytes long, tiered_bytes long"
)
#: Counted up over the seconds and the nodes; of memory the most of one node counts, of the tier its size at the end.
_SUMS: Final = ("cpu_s", "read_bytes", "written_bytes", "received_bytes", "sent_bytes")
_PEAKS: Final = ("private_bytes", "resident_bytes")
_PHASE: Final = ("target", "run", "phase")


def read_samples(spark: SparkSession, folder: Path) -> DataFrame:
    """All samples; none of targets whose processes are elsewhere."""
    if not (folder / SAMPLES).exists():
        return spark.createDataFrame([], SCHEMA)
    return spark.read.parquet(str(folder / SAMPLES))


def servers(samples: DataFrame) -> DataFrame:
    """One row for each phase: target, run, phase, cpu_s, private_bytes, resident_bytes, read_bytes, ..., tiered_bytes."""
    tiered = (
        samples.where(F.col("tiered_bytes").isNotNull())
        .groupBy(*_PHASE)
        .agg(F.max_by("tiered_bytes", "second").alias("tiered_bytes"))
    )
    used = samples.groupBy(*_PHASE).agg(
        *(F.sum(name).alias(name) for name in _SUMS), *(F.max(name).alias(name) for name in _PEAKS)
    )
    return used.join(tiered, list(_PHASE), "left")
