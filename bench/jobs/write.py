"""CONNECTOR_WRITE: records into a topic with Spark's Kafka connector, in one batch."""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from ottla.bench.figures import LoadFailed
from ottla.bench.generators.cluster import ClusterReader
from ottla.bench.generators.records import Values, shown_stream, stream_id
from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.generators.running import now_us
from ottla.bench.jobs.arrivals import Arrivals
from ottla.bench.jobs.client import JobClient
from ottla.bench.jobs.options import DEFAULT_SIZE, RECORDS, SIZE, source_options
from ottla.bench.spark.session import slots
from ottla.bench.workloads.model import RecordSize, SparkJob

#: The number of values in a batch between Python and the JVM.
_BATCH: Final = 2000


def write(
    spark: SparkSession, job: SparkJob, bootstrap: str, *, topic: str, client: JobClient
) -> Iterator[Row]:
    """Write records by tasks that each have a stream of their own, to the partitions in turn.

    Raises LoadFailed if the topic does not have as many records more as were written.
    """
    count, size = int(job.options[RECORDS]), int(job.options.get(SIZE, DEFAULT_SIZE))
    tasks = min(slots(spark), count)
    reader = ClusterReader(bootstrap)
    partitions = len(reader.read([topic]).ends[topic])
    streams = [stream_id(f"{topic}/{client.phase}/{client.name}/{task}") for task in range(tasks)]
    law = RecordSize(mean=size, least=size, most=size)

    def values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                yield from _stamped(
                    Values(law, stream=streams[task], slots=_BATCH), _share(count, tasks, task), partitions
                )

    with Arrivals(reader, topic) as arrivals:
        frame = spark.range(0, tasks, 1, tasks).mapInArrow(values, "value binary, partition int")
        writer = frame.write.format("kafka").options(**source_options(job))
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    if arrivals.records != count:
        raise LoadFailed(f"{topic} has {arrivals.records} records more, and Spark wrote {count}")
    yield client.ended(topic)
    tally = client.tally(topic)
    arrivals.note_in(tally, value_bytes=size)
    yield from tally.rows()
    written = client.tally(topic, Role.PRODUCER)
    for task, stream in enumerate(streams):
        share = _share(count, tasks, task)
        for partition in range(min(partitions, share)):
            records = len(range(partition, share, partitions))
            yield written.row(
                Kind.STREAM,
                partition=partition,
                stream=shown_stream(stream),
                first_sequence=partition,
                next_sequence=partition + (records - 1) * partitions + 1,
                distinct_records=records,
            )


def _share(count: int, tasks: int, task: int) -> int:
    return len(range(task, count, tasks))


def _stamped(values: Values, count: int, partitions: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of one stream."""
    for first in range(0, count, len(values)):
        sequences = np.arange(first, min(first + len(values), count))
        values.stamp(0, sequences, np.full(len(sequences), now_us()))
        column = pa.array([values.value(slot) for slot in range(len(sequences))], pa.binary())
        chosen = pa.array((sequences % partitions).astype(np.int32), pa.int32())
        yield pa.RecordBatch.from_arrays([column, chosen], ["value", "partition"])
