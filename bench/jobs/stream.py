"""CONNECTOR_STREAM: copies a topic by structured streaming, stopped after about half of it and started again.

The first query has a trigger of a day: it runs one batch and is idle when it is stopped. So the second one,
from the same checkpoint, has nothing to repeat, and each record is in the copy once. Kafka's sink repeats a
batch that was interrupted.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.bench.figures import LoadFailed
from ottla.bench.generators.cluster import ClusterReader
from ottla.bench.generators.rows import Kind, Row
from ottla.bench.jobs.arrivals import Arrivals
from ottla.bench.jobs.client import JobClient
from ottla.bench.jobs.options import source_options
from ottla.bench.jobs.read import connector_frame
from ottla.bench.jobs.verify import verified
from ottla.bench.spark.errors import reason_of
from ottla.bench.workloads.model import SparkJob

_MOST: Final = "maxOffsetsPerTrigger"
_POLL_S: Final = 0.1


def stream(
    spark: SparkSession, job: SparkJob, bootstrap: str, *, topic: str, to: str, client: JobClient
) -> Iterator[Row]:
    """Copy the records that are in `topic` now to the same partitions of `to`, then verify the copy.

    The rows of seconds are of the copying only. Raises LoadFailed.
    """
    reader = ClusterReader(bootstrap)
    count = sum(reader.read([topic]).ends[topic].values())
    options = {_MOST: str(max(1, count // 2)), **source_options(job)}
    source = spark.readStream.format("kafka").options(**options).option("kafka.bootstrap.servers", bootstrap)
    records = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    with tempfile.TemporaryDirectory(prefix="ottla-checkpoint-") as folder, Arrivals(reader, to) as arrivals:
        sink = records.select("key", "value", "partition").writeStream.format("kafka").option("topic", to)
        sink = sink.option("kafka.bootstrap.servers", bootstrap)
        sink = sink.option("checkpointLocation", str(Path(folder, "checkpoint")))
        _run_one_batch(sink)
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
    ended = client.ended(to)
    if arrivals.records < count:
        raise LoadFailed(f"{to} has {arrivals.records} records more, and {topic} has {count}")
    rows = verified(connector_frame(spark, job, bootstrap, topic=to), client=client, topic=to)
    read = [row for row in rows if row.kind is Kind.SECOND]
    total_bytes, total = (
        sum(getattr(row, name) or 0 for row in read) for name in ("payload_bytes", "records")
    )
    tally = client.tally(to)
    arrivals.note_in(tally, value_bytes=total_bytes / max(1, total))
    yield from tally.rows()
    yield ended
    yield from (row for row in rows if row.kind is not Kind.SECOND)


def _run_one_batch(sink: DataStreamWriter) -> None:
    query: StreamingQuery = sink.trigger(processingTime="1 day").start()
    while query.isActive and not query.recentProgress:
        time.sleep(_POLL_S)
    has_run = bool(query.recentProgress)
    query.stop()
    if (error := query.exception()) is not None:
        raise LoadFailed(f"the stream failed: {reason_of(str(error))}")
    if not has_run:
        raise LoadFailed("the stream was cancelled in its first batch")
