"""Reading: a task's work: the records of its parts, in the order of their offsets, as columns.

Control records are left out, as by every consumer, and for read_committed the records of aborted transactions.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from ottla.protocol.errors import KafkaError
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError
from ottla.remote.history.copy_batches import CopyBatches
from ottla.remote.plugins import storage_manager_of
from ottla.remote.spark_source.columns import Place, Rows
from ottla.remote.spark_source.planning import Part
from ottla.remote.storage_manager import RemoteStorageManager

#: The number of stores that a Python worker keeps open for its next task.
_STORES: Final = 4


def store_of(properties: Mapping[str, str]) -> RemoteStorageManager:
    """Return the store of these properties, opened once in a process. Raises InvalidConfig."""
    return _opened(tuple(sorted(properties.items())))


@lru_cache(maxsize=_STORES)
def _opened(properties: tuple[tuple[str, str], ...]) -> RemoteStorageManager:
    return storage_manager_of(dict(properties))


def read_parts(
    store: RemoteStorageManager, parts: Iterable[Part], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these parts. Raises RemoteStorageError."""
    with CopyBatches(store, sleep=time.sleep) as batches:
        for part in parts:
            try:
                for columns in _columns_of(part, batches, schema.names):
                    yield pa.RecordBatch.from_arrays(
                        [columns[each.name].cast(each.type) for each in schema], schema=schema
                    )
            except RemoteResourceNotFound as error:
                raise RemoteStorageError(
                    f"{part.copy.segment_id} is not in the store any more, perhaps retention has deleted it: "
                    f"read again. {error}"
                ) from error
            except KafkaError as error:
                raise RemoteStorageError(
                    f"{part.copy.segment_id} has records that cannot be read: {error}"
                ) from error


def _columns_of(part: Part, batches: CopyBatches, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
    topic, number = part.copy.partition.topic_partition
    rows = Rows(Place(topic, number, part.start_offset, part.end_offset), names)
    found = batches.of(
        part.copy,
        start_offset=part.start_offset,
        end_offset=part.end_offset,
        min_timestamp_ms=part.min_timestamp_ms,
    )
    for header, batch in found:
        if not header.is_control and not part.is_aborted(header):
            rows.add(header, batch)
            if rows.is_full:
                yield rows.take()
    yield rows.take()
