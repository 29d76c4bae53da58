"""The resources that brokers and stores used in a phase, from samples taken from outside once a second."""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.bench.aggregation.files import MEASURED
from ottla.bench.targets.sampling import SCHEMA
from ottla.bench.targets.stores import STORE_NODE

SAMPLES: Final = "samples.parquet"
#: The schema of a sample of one node, a broker, a controller or the object store, in one second.
SAMPLE_SCHEMA: Final = f"{MEASURED}, {SCHEMA}"
#: The columns that are summed over the seconds; of memory the most of one node counts, of the tier its size
#: at the end.
_SUMS: Final = ("cpu_s", "read_bytes", "written_bytes", "received_bytes", "sent_bytes")
_PEAKS: Final = ("private_bytes", "resident_bytes")
_PHASE: Final = ("target", "run", "phase")


def read_samples(spark: SparkSession, folder: Path) -> DataFrame:
    """Read all samples; none of targets whose processes are elsewhere."""
    if not (folder / SAMPLES).exists():
        return spark.createDataFrame([], SAMPLE_SCHEMA)
    return spark.read.parquet(str(folder / SAMPLES))


def servers(samples: DataFrame) -> DataFrame:
    """Return one row for each phase with the use of the brokers and of the store.

    Columns: of all brokers cpu_s, read_bytes, ..., of the largest private_bytes and resident_bytes; of the
    store store_cpu_s and tiered_bytes. Controllers that are no brokers do not count.
    """
    brokers = samples.where(F.col("node").startswith("broker"))
    used = brokers.groupBy(*_PHASE).agg(
        *(F.sum(name).alias(name) for name in _SUMS), *(F.max(name).alias(name) for name in _PEAKS)
    )
    store = (
        samples.where(F.col("node") == STORE_NODE)
        .groupBy(*_PHASE)
        .agg(
            F.max_by("tiered_bytes", F.when(F.col("tiered_bytes").isNotNull(), F.col("second"))).alias(
                "tiered_bytes"
            ),
            F.sum("cpu_s").alias("store_cpu_s"),
        )
    )
    return used.join(store, list(_PHASE), "full")
