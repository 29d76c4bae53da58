"""Frames of records, verified by the tasks that read them: each yields its rows once, and no record leaves it."""

import pickle
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from ottla.bench.generators.records import Stamps
from ottla.bench.generators.rows import Role, Row
from ottla.bench.generators.running import now_us
from ottla.bench.generators.streams import Streams, joined
from ottla.bench.jobs.client import JobClient

_ROWS: Final = "rows"
_NO_LATENCIES: Final = np.empty(0, np.int64)


def verified(records: DataFrame, *, client: JobClient, topic: str) -> list[Row]:
    """Read all of `records`, a frame of partition and value, and verify the stamps of `ottla.bench.generators`.

    The records of a partition may be in several tasks. The executors have the bench package (`ship_bench`).
    """

    def verify(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(_rows_of(batches, client=client, topic=topic))
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(rows)], pa.binary())], [_ROWS])

    parts = records.select("partition", "value").mapInArrow(verify, f"{_ROWS} binary").collect()
    return list(joined(row for part in parts for row in pickle.loads(part[_ROWS])))


def _rows_of(batches: Iterable[pa.RecordBatch], *, client: JobClient, topic: str) -> Iterator[Row]:
    tally, seen = client.tally(topic), Streams()
    for batch in batches:
        partitions = batch.column("partition").to_numpy().astype(np.int64)
        addresses, sizes = _values(batch.column("value"))
        seen.note(Stamps(addresses, sizes), partitions)
        tally.note(
            now_us=now_us(), records=len(sizes), payload_bytes=int(sizes.sum()), latencies_us=_NO_LATENCIES
        )
    yield from tally.rows()
    yield from seen.rows(client.tally(topic, Role.CONSUMER))


def _values(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the addresses and sizes of binary values; zeros for null."""
    _, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    ends = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    addresses = ends[:-1] + (data.address if data is not None else 0)
    sizes = np.diff(ends)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        addresses[is_null] = sizes[is_null] = 0
    return addresses, sizes
