"""Delivery of the records of a run: acknowledged, lost, seen twice, seen in another order, corrupt.

A record is lost if its producer has an acknowledgement and a reader of the whole stream has not seen it. Streams are
counted, not listed: unacknowledged records that were written nevertheless can hide as many lost ones, so that
the count is the least number of them.
"""

from collections.abc import Collection
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ottla.bench.generators.rows import Kind, Role

_PHASE: Final = ("target", "run", "phase")
#: The faults that readers count beside the records that they have seen.
FAULTS: Final = ("duplicates", "out_of_order", "corrupt")


def delivered(
    rows: DataFrame, readings: DataFrame, *, stopped: Collection[tuple[str, int, str]] = ()
) -> DataFrame:
    """Return one row for each phase with streams: target, run, phase, acknowledged, to_read, lost, and FAULTS.

    `rows` are labelled, `readings` of the schema READINGS (`ottla.bench.aggregation.loads`). Columns are null
    where there was no producer, or no reader. `stopped` names the phases that were stopped: what their
    readers have not seen is not lost.
    """
    streams = rows.where(F.col("kind") == Kind.STREAM.value)
    produced = streams.where(F.col("role") == Role.PRODUCER.value)
    acknowledged = produced.groupBy(*_PHASE).agg(F.sum("distinct_records").alias("acknowledged"))
    faults = (
        streams.where(F.col("role") != Role.PRODUCER.value)
        .groupBy(*_PHASE)
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in FAULTS))
    )
    complete = _complete(rows, stopped)
    missed = _missed(produced, streams.where(F.col("role") == Role.CONSUMER.value), readings, complete)
    joined = acknowledged.join(faults, list(_PHASE), "full").join(missed, list(_PHASE), "full")
    # A reader that has seen nothing has no row of a stream, but it has seen no fault either.
    return joined.select(
        *_PHASE,
        "acknowledged",
        "to_read",
        "lost",
        *(
            F.when(F.col("lost").isNotNull(), F.coalesce(name, F.lit(0))).otherwise(F.col(name)).alias(name)
            for name in FAULTS
        ),
    )


def _complete(rows: DataFrame, stopped: Collection[tuple[str, int, str]]) -> DataFrame:
    """Return the phases that have come to their end."""
    ran = rows.where(F.col("kind") == Kind.CLIENT.value).select(*_PHASE).distinct()
    for target, run, phase in stopped:
        ran = ran.where(~((F.col("target") == target) & (F.col("run") == run) & (F.col("phase") == phase)))
    return ran


def _missed(produced: DataFrame, consumed: DataFrame, readings: DataFrame, complete: DataFrame) -> DataFrame:
    """Return, for each phase with readers of whole streams, the number of records to see, and of those not seen."""
    acknowledged = produced.select(
        "target",
        "run",
        F.col("phase").alias("stream_phase"),
        F.col("clients").alias("producers"),
        "stream",
        "partition",
        F.col("distinct_records").alias("acknowledged"),
    )
    expected = acknowledged.join(F.broadcast(readings), ["stream_phase", "producers"]).join(
        complete, list(_PHASE)
    )
    seen = consumed.select(
        *_PHASE,
        "clients",
        "client",
        F.col("stream").alias("seen_stream"),
        F.col("partition").alias("seen_partition"),
        F.col("distinct_records").alias("seen"),
    )
    is_read = (
        (F.col("readers") == F.col("clients"))
        & (F.col("reader").isNull() | (F.col("reader") == F.col("client")))
        & (F.col("stream") == F.col("seen_stream"))
        & (F.col("partition") == F.col("seen_partition"))
    )
    same_phase = [F.col(f"expected.{name}") == F.col(f"seen.{name}") for name in _PHASE]
    both = expected.alias("expected").join(seen.alias("seen"), [*same_phase, is_read], "left")
    reader = [f"expected.{name}" for name in (*_PHASE, "readers", "reader", "stream", "partition")]
    by_reader = both.groupBy(*reader, "acknowledged").agg(
        F.coalesce(F.sum("seen.seen"), F.lit(0)).alias("seen")
    )
    lost = F.greatest(F.lit(0), F.col("acknowledged") - F.col("seen"))
    return by_reader.groupBy(*_PHASE).agg(F.sum("acknowledged").alias("to_read"), F.sum(lost).alias("lost"))
