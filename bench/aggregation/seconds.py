"""Rows of clients, merged per second and per phase."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ottla.bench.generators.histograms import PERCENTILES, merged, percentiles_s
from ottla.bench.generators.rows import Kind

if TYPE_CHECKING:
    from pandas import DataFrame as Batch

#: The columns by which rows are merged: `role` is the label of a load.
_LOAD: Final = ("target", "run", "phase", "role")
_COUNTS: Final = ("records", "payload_bytes", "errors")
_MERGED: Final = ", ".join(f"{name} double" for name in PERCENTILES)


def per_second(rows: DataFrame) -> DataFrame:
    """Return one row for each load and second up to the phase's last one, zeros where nothing was done.

    The rows must be labelled.

    Columns: target, run, phase, role, second, records, payload_bytes, errors, latency, and PERCENTILES.
    """
    found = rows.where(F.col("kind") == Kind.SECOND.value).withColumn("role", F.col("label"))
    summed = found.groupBy(*_LOAD, "second").agg(*_sums(), F.collect_list("latency").alias("latencies"))
    last = found.groupBy("target", "run", "phase").agg(F.max("second").alias("last"))
    every = (
        summed.select(*_LOAD)
        .distinct()
        .join(last, ["target", "run", "phase"])
        .select(*_LOAD, F.explode(F.sequence(F.lit(0), "last")).alias("second"))
    )
    filled = every.join(summed, [*_LOAD, "second"], "left").fillna(0, list(_COUNTS))
    return _with_percentiles(filled)


def per_phase(seconds: DataFrame, rows: DataFrame) -> DataFrame:
    """Return one row for each load: its counts, percentiles over all its records, its clients' time and CPU."""
    counts = seconds.groupBy(*_LOAD).agg(
        *_sums(), F.collect_list("latency").alias("latencies"), F.max("second").alias("last_second")
    )
    clients = (
        rows.where(F.col("kind") == Kind.CLIENT.value)
        .withColumn("role", F.col("label"))
        .groupBy(*_LOAD)
        .agg(
            (F.max("end_s") - F.min("begin_s")).alias("took_s"),
            F.sum("cpu_s").alias("client_cpu_s"),
            F.count("*").alias("clients"),
            F.collect_list("latency").alias("lateness"),
        )
    )
    clients = _with_lateness(clients)
    # Idle connections have clients only.
    both = clients.join(counts, list(_LOAD), "full").fillna(0, list(_COUNTS))
    return _with_percentiles(both)


def _with_lateness(clients: DataFrame) -> DataFrame:
    """Replace `lateness`, an array of histograms, by the p99 of how late records were sent."""
    kept = clients.drop("lateness").schema.simpleString().removeprefix("struct<").removesuffix(">")
    return clients.mapInPandas(_merge_lateness, f"{kept}, late_s double")


def _merge_lateness(batches: "Iterator[Batch]") -> "Iterator[Batch]":
    for batch in batches:
        batch["late_s"] = [percentiles_s(merged(each))["p99_s"] for each in batch.pop("lateness")]
        yield batch


def _sums() -> list[Column]:
    return [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS]


def _with_percentiles(frame: DataFrame) -> DataFrame:
    """Replace `latencies`, an array of histograms, by `latency`, their sum, and its percentiles."""
    kept = frame.drop("latencies").schema
    schema = f"{kept.simpleString().removeprefix('struct<').removesuffix('>')}, latency binary, {_MERGED}"
    return frame.mapInPandas(_merge_each, schema)


def _merge_each(batches: "Iterator[Batch]") -> "Iterator[Batch]":
    for batch in batches:
        latencies = batch.pop("latencies")
        totals = [merged(each if each is not None else ()) for each in latencies]
        batch["latency"] = [total.encode() if total.total_count else None for total in totals]
        found = [percentiles_s(total) for total in totals]
        for name in PERCENTILES:
            batch[name] = [each[name] for each in found]
        yield batch
