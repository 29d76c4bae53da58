"""Reading: a task's work: the records of its parts, by their offsets, as Arrow columns, a few MiB at a time.

Control records are left out, as by every consumer, and for read_committed the records of aborted transactions.

Only the lengths of records are read one by one: each says where the next one begins. All else is decoded for
thousands of records at once: varints by numpy, keys and values by Arrow, which copies each of them once.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ottla.protocol.errors import InvalidRecord, KafkaError
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.record import payload_of, read_headers
from ottla.protocol.records.varint import read_varint
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError
from ottla.remote.history.copy_batches import CopyBatches
from ottla.remote.plugins import storage_manager_of
from ottla.remote.spark_source.planning import Part
from ottla.remote.storage_manager import RemoteStorageManager

#: The number of stores that a Python worker keeps open for its next task.
_STORES: Final = 4
Integers = NDArray[np.int64]
Octets = NDArray[np.uint8]

#: The numbers of rows and bytes at which rows are handed on: the JVM holds some of these batches at a time.
_MAX_ROWS: Final = 16_384
_MAX_BYTES: Final = 8 * 1024 * 1024
#: Bits of the longest varint.
_MAX_VARINT_BITS: Final = 70
#: Arrow's views contain values of up to this size; of longer ones they have the place.
_INLINE_BYTES: Final = 12
_VIEW: Final = np.dtype([("size", "<i4"), ("head", "u1", (4,)), ("buffer", "<i4"), ("place", "<i4")])
_MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000


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


class Place(NamedTuple):
    """The partition from which rows come, and the wanted offsets [start_offset, end_offset)."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class Rows:
    """Records of one partition, gathered until there are enough for a batch of rows."""

    def __init__(self, place: Place, columns: Collection[str]) -> None:
        self._place = place
        self._columns = columns
        self._clear()

    def _clear(self) -> None:
        self._payloads: list[bytes] = []
        self._headers: list[BatchHeader] = []
        #: The positions at which each record begins, behind its length, and ends, in all payloads together.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the gathered records should be taken."""
        return len(self._starts) >= _MAX_ROWS or self._size_bytes >= _MAX_BYTES

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Add the records of a batch. Raises InvalidRecord, CorruptMessage, UnsupportedCompressionType."""
        if header.records_count <= 0:
            return
        payload = payload_of(header, batch)
        start, at = self._size_bytes, 0
        try:
            for _ in range(header.records_count):
                size, at = read_varint(payload, at)
                self._starts.append(start + at)
                at += size
                self._ends.append(start + at)
        except IndexError:
            at = -1
        if at != len(payload):
            raise InvalidRecord(
                f"The batch at offset {header.base_offset} is shorter or longer than its records"
            )
        self._payloads.append(payload)
        self._headers.append(header)
        self._size_bytes += len(payload)

    def take(self) -> dict[str, pa.Array]:
        """Return the columns of the wanted records, and forget these; all empty if there are none.

        Raises InvalidRecord.
        """
        # Short values are read with what is behind them.
        data = b"".join([*self._payloads, bytes(_INLINE_BYTES)])
        parsed = _parse(data, np.array(self._starts, np.int64), np.array(self._ends, np.int64), self._headers)
        self._clear()
        wanted = (parsed.offset >= self._place.start_offset) & (parsed.offset < self._place.end_offset)
        rows = parsed if wanted.all() else _Parsed(data, *(each[wanted] for each in parsed[1:]))
        return {name: _COLUMNS[name](rows, self._place) for name in self._columns}


class _Parsed(NamedTuple):
    """The parts of some records; of values and keys their places in `data`, and sizes, -1 for null."""

    data: bytes
    offset: Integers
    timestamp: Integers
    timestamp_type: Integers
    leader_epoch: Integers
    key: Integers
    key_size: Integers
    value: Integers
    value_size: Integers
    headers: Integers
    end: Integers


def _parse(data: bytes, starts: Integers, ends: Integers, headers: list[BatchHeader]) -> _Parsed:
    octets = np.frombuffer(data, np.uint8)
    batch = np.repeat(np.arange(len(headers)), [each.records_count for each in headers])
    try:
        time_delta, at = _varints(octets, starts + 1)  # after the attributes, which are unused
        offset_delta, at = _varints(octets, at)
        key_size, key = _varints(octets, at)
        value_size, value = _varints(octets, _behind(key, key_size, ends))
        at = _behind(value, value_size, ends)
        # Without headers the record ends with their count, a zero.
        if np.any((octets[at] == 0) & (at + 1 != ends)) or np.any(at >= ends):
            raise IndexError
    except IndexError:
        raise InvalidRecord(
            f"A record behind offset {headers[0].base_offset} is longer or shorter than it says"
        ) from None
    times = np.array([_times_of(each) for each in headers], np.int64).reshape(-1, 2)[batch]
    return _Parsed(
        data,
        offset=_each(headers, batch, lambda header: header.base_offset) + offset_delta,
        timestamp=times[:, 0] + time_delta * times[:, 1],
        timestamp_type=1 - times[:, 1],
        leader_epoch=_each(headers, batch, lambda header: header.partition_leader_epoch),
        key=key,
        key_size=key_size,
        value=value,
        value_size=value_size,
        headers=at,
        end=ends,
    )


def _times_of(header: BatchHeader) -> tuple[int, int]:
    """Return (the base of the batch's record timestamps, 1 if a record's delta is added to it, else 0)."""
    return (header.max_timestamp, 0) if header.is_log_append_time else (header.base_timestamp, 1)


def _each(headers: list[BatchHeader], batch: Integers, field: Callable[[BatchHeader], int]) -> Integers:
    return np.array([field(each) for each in headers], np.int64)[batch]


def _varints(octets: Octets, at: Integers) -> tuple[Integers, Integers]:
    """Return the zigzag integers at these places, and the places behind them. Raises IndexError."""
    octet = octets[at]
    raw = (octet & 0x7F).astype(np.uint64)
    behind = at + 1
    longer = np.flatnonzero(octet >= 0x80)
    shift = 7
    while len(longer):
        if shift >= _MAX_VARINT_BITS:
            raise IndexError
        octet = octets[behind[longer]]
        raw[longer] |= (octet & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[longer] += 1
        longer = longer[octet >= 0x80]
        shift += 7
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), behind


def _behind(at: Integers, size: Integers, ends: Integers) -> Integers:
    """Return the places behind these keys or values. Raises IndexError."""
    if np.any(size > ends - at) or np.any(size < -1):
        raise IndexError
    return at + np.maximum(size, 0)


# -- Arrow -----------------------------------------------------------------------------------------------


def _binary(data: bytes, at: Integers, size: Integers) -> pa.Array:
    """Return keys or values as a column: by views into `data`, which Arrow then copies into one column."""
    count = len(at)
    octets = np.frombuffer(data, np.uint8)
    views = np.zeros(count, _VIEW)
    views["size"] = np.maximum(size, 0)
    views["place"] = at
    views["head"] = octets[at[:, np.newaxis] + np.arange(4)]
    short = np.flatnonzero(size <= _INLINE_BYTES)
    columns = np.arange(_INLINE_BYTES)
    inline = octets[at[short, np.newaxis] + columns]
    inline[columns >= size[short, np.newaxis]] = 0
    views.view(np.uint8).reshape(count, _VIEW.itemsize)[short, 4:] = inline
    buffers = [_validity(size >= 0), pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


def _validity(is_valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _headers(rows: _Parsed, _: Place) -> pa.Array:
    """Return a list of (key, value) of each record; null without headers, as Spark's Kafka connector has it."""
    names: list[str] = []
    values: list[bytes | None] = []
    ends = [0]
    for at, end in zip(rows.headers.tolist(), rows.end.tolist(), strict=True):
        if end > at + 1:
            try:
                found, behind = read_headers(rows.data, at, end)
            except IndexError:
                behind = -1
            if behind != end:
                raise InvalidRecord("A record's headers are longer or shorter than it says")
            for name, value in found:
                names.append(name)
                values.append(value)
        ends.append(len(names))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], names=["key", "value"]
    )
    has_none = pa.array(np.diff(ends) == 0)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, mask=has_none)


def _timestamp(rows: _Parsed, place: Place) -> pa.Array:
    if np.any((rows.timestamp > _MAX_TIMESTAMP_MS) | (rows.timestamp < -_MAX_TIMESTAMP_MS)):
        raise InvalidRecord(
            f"{place.topic}-{place.partition} has timestamps that are no time in milliseconds: "
            "leave the column out, as by .schema('offset long, value binary')"
        )
    return pa.array(rows.timestamp * 1000).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


#: The columns by name, as Spark's Kafka connector names them.
_COLUMNS: Final[Mapping[str, Callable[[_Parsed, Place], pa.Array]]] = MappingProxyType(
    {
        "key": lambda rows, _: _binary(rows.data, rows.key, rows.key_size),
        "value": lambda rows, _: _binary(rows.data, rows.value, rows.value_size),
        "topic": lambda rows, place: pa.repeat(place.topic, len(rows.offset)),
        "partition": lambda rows, place: pa.repeat(pa.scalar(place.partition, pa.int32()), len(rows.offset)),
        "offset": lambda rows, _: pa.array(rows.offset),
        "timestamp": _timestamp,
        "timestampType": lambda rows, _: pa.array(rows.timestamp_type, pa.int32()),
        "headers": _headers,
        "leaderEpoch": lambda rows, _: pa.array(rows.leader_epoch, pa.int32()),
    }
)
