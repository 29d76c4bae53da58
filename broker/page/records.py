"""Records of one partition, by offset, timestamp or key, in both tiers: read from its leader as a consumer reads them.

    offset      given, or that of the first record from a timestamp on (ListOffsets), or the last records
    Fetch       at the leader, until there are enough records, or bytes, or time is over
    batches     decompressed in a thread, within bounds; their records decoded in turns of the loop

All is bounded: the records, the bytes that are read, the time, and of each key and value the part that is sent.
What is left out is said, with the offset at which a further request continues.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.broker.cluster_client.errors import error_name
from ottla.broker.cluster_client.offsets import Offsets, offsets_request
from ottla.broker.page.query import CannotShow, Query
from ottla.broker.page.sources import Sources
from ottla.broker.page.topics import topic_named
from ottla.metadata.image import TopicImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.protocol.records.batch import BatchHeader, batches
from ottla.protocol.records.control import control_type
from ottla.protocol.records.record import Bounds, Record, decode_records, payload_of
from ottla.protocol.special_timestamps import EARLIEST, EARLIEST_LOCAL, LATEST
from ottla.protocol.types import MAX_PARTITION, TopicPartition
from ottla.runtime import Pool
from ottla.runtime.turns import in_turns

_DEFAULT_RECORDS: Final = 25
_MOST_RECORDS: Final = 50
#: The bytes of one Fetch, and of all that one request to the page reads.
_FETCH_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 16 * 1024 * 1024
#: The time that one request to the page reads, and that one Fetch waits, for the remote tier mostly.
_READ_S: Final = 5.0
_FETCH_WAIT_MS: Final = 500
#: A batch that holds more than this is not opened.
_BOUNDS: Final = Bounds(max_bytes=16 * 1024 * 1024, max_records=200_000)
#: The bytes of a key, a value and a header that are sent.
_KEY_BYTES: Final = 512
_VALUE_BYTES: Final = 16 * 1024
_HEADERS: Final = 50
_HEADER_BYTES: Final = 512
#: The bytes of keys, values and headers of one response.
_SHOWN_BYTES: Final = 512 * 1024
_HEX_BYTES: Final = 256
_MOST_KEY_BYTES: Final = 4096
_FETCH_VERSIONS: Final = range(11, 19)
_CONSUMER: Final = -1
_ALL_SESSIONS: Final = -1


@dataclass(slots=True, kw_only=True)
class _Reading:
    """The records that one request has found so far, and where it continues."""

    offset: int
    most: int
    key: bytes | None
    local_log_start_offset: int | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    scanned: int = 0
    read_bytes: int = 0
    shown_bytes: int = 0
    problem: str | None = None
    last_stable_offset: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether there are enough records, or bytes."""
        return len(self.rows) >= self.most or self.shown_bytes >= _SHOWN_BYTES


async def records(sources: Sources, query: Query) -> dict[str, Any]:
    """Some records of a partition from an offset or a timestamp on; with `key` those of this key only."""
    name, index = query.required("topic"), query.number("partition", 0, most=MAX_PARTITION)
    offset, timestamp_ms = query.optional_number("offset"), query.optional_number("timestamp")
    most, key = query.number("count", _DEFAULT_RECORDS, least=1, most=_MOST_RECORDS), query.text("key")
    query.check_all_read()
    if offset is not None and timestamp_ms is not None:
        raise CannotShow(400, "Records are found by offset or by timestamp, not by both.")
    if len(key) > _MOST_KEY_BYTES:
        raise CannotShow(400, f"A key that is looked for has at most {_MOST_KEY_BYTES} characters.")
    image = topic_named(sources, name)
    row = image.partitions.get(index)
    if row is None:
        raise CannotShow(404, f"The topic {name} has no partition {index}.")
    if row.leader is None:
        raise CannotShow(503, f"{name}-{index} has no leader now: nothing is read there.")
    at = TopicPartition(name, index)
    deadline = sources.runtime.monotonic() + _READ_S
    start = await _offset_at(sources, row.leader, at, EARLIEST)
    local_start = await _offset_at(sources, row.leader, at, EARLIEST_LOCAL)
    end = await _offset_at(sources, row.leader, at, LATEST)
    if timestamp_ms is not None:
        offset = await _offset_at(sources, row.leader, at, timestamp_ms)
        offset = end if offset is None else offset
    elif offset is None:
        offset = max(start or 0, (end or 0) - most)
    reading = _Reading(
        offset=max(offset or 0, start or 0),
        most=most,
        key=key.encode() if key else None,
        local_log_start_offset=local_start,
    )
    while not reading.is_full and reading.problem is None and reading.offset < (end or 0):
        left_s = deadline - sources.runtime.monotonic()
        if left_s <= 0 or reading.read_bytes >= _READ_BYTES:
            break
        await _read(sources, row.leader, image, index, reading, timeout_s=left_s)
    return {
        "topic": name,
        "partition": index,
        "leader": row.leader,
        "log_start_offset": start,
        "local_log_start_offset": local_start,
        "high_watermark": end,
        "last_stable_offset": reading.last_stable_offset,
        "records": reading.rows,
        "scanned": reading.scanned,
        "next_offset": reading.offset if reading.offset < (end or 0) else None,
        "problem": reading.problem,
    }


async def _offset_at(sources: Sources, leader: int, at: TopicPartition, timestamp: int) -> int | None:
    """The leader's offset at a timestamp, which may be a special one; None: the log has none."""
    offsets = Offsets()
    offsets.add(
        await sources.ask(
            leader, offsets_request([(at, -1)], timestamp, timeout_ms=2_000), ListOffsetsResponse
        )
    )
    for error in offsets.errors.values():
        raise CannotShow(503, str(error))
    return offsets.found.get(at)


async def _read(
    sources: Sources, leader: int, image: TopicImage, index: int, reading: _Reading, *, timeout_s: float
) -> None:
    """Fetch once, and add the records that it has."""
    partition = FetchPartition(partition=index, fetch_offset=reading.offset, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        session_epoch=_ALL_SESSIONS,
        topics=[FetchTopic(topic=image.name, topic_id=image.topic_id, partitions=[partition])],
    )
    response = await sources.ask(
        leader, request, FetchResponse, versions=_FETCH_VERSIONS, timeout_s=timeout_s
    )
    rows: list[PartitionData] = [row for topic in response.responses for row in topic.partitions]
    code = response.error_code or (rows[0].error_code if rows else ErrorCode.unknown_server_error)
    if code:
        reading.problem = f"The leader {leader} does not give these records: {error_name(code)}."
        return
    reading.last_stable_offset = rows[0].last_stable_offset
    view = memoryview(rows[0].records or b"")
    reading.read_bytes += len(view)
    try:
        for header, batch in batches(view):
            if header.next_offset <= reading.offset:
                continue
            if reading.is_full:
                return
            await _open(sources, header, batch, reading)
    except KafkaError as error:  # of a header: where the next batch begins is not known
        reading.problem = (
            f"The records of the leader {leader} from {reading.offset} on cannot be read: {error}."
        )


async def _open(sources: Sources, header: BatchHeader, batch: memoryview, reading: _Reading) -> None:
    """Add the records of one batch."""
    found: Iterator[Record] = iter(())
    try:
        if header.records_count:
            payload = await sources.runtime.run_blocking(
                payload_of, header, batch, _BOUNDS, pool=Pool.LOOK_UPS
            )
            found = decode_records(payload, header)
        await in_turns(sources.runtime, _add(found, header, reading))
    except KafkaError as error:
        # Others of the partition are shown all the same.
        reading.rows.append(
            {"offset": header.base_offset, "end_offset": header.next_offset, "unreadable": str(error)}
        )
        reading.offset = header.next_offset
    if not reading.is_full:
        reading.offset = header.next_offset


def _add(found: Iterator[Record], header: BatchHeader, reading: _Reading) -> Iterator[None]:
    for record in found:
        if record.offset < reading.offset:
            yield
            continue
        reading.offset = record.offset + 1
        reading.scanned += 1
        if reading.key is None or (record.key == reading.key and not header.is_control):
            row = _row(record, header, reading)
            reading.shown_bytes += _shown(row)
            reading.rows.append(row)
            if reading.is_full:
                return
        yield


def _row(record: Record, header: BatchHeader, reading: _Reading) -> dict[str, Any]:
    local_start = reading.local_log_start_offset
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "is_append_time": header.is_log_append_time,
        "leader_epoch": header.partition_leader_epoch,
        "tier": "remote" if local_start is not None and record.offset < local_start else "local",
        "control": _control(record) if header.is_control else None,
        "is_transactional": header.is_transactional,
        "producer_id": header.producer_id if header.has_producer_id else None,
        "compression": header.compression.name.lower(),
        "key": shown(record.key, _KEY_BYTES),
        "value": shown(record.value, _VALUE_BYTES),
        "header_count": len(record.headers),
        "headers": [
            [shown(name.encode(), _HEADER_BYTES), shown(value, _HEADER_BYTES)]
            for name, value in record.headers[:_HEADERS]
        ],
    }


def _control(record: Record) -> str:
    kind = control_type(record.key)
    return "unknown" if kind is None else kind.name


def shown(data: bytes | None, most: int) -> dict[str, Any] | None:
    r"""The bytes for the page: as text if they are UTF-8, else in hexadecimal digits, at most `most` of them.

    >>> shown("Zoë".encode(), 3), shown(b"\xff\x00", 9)
    ({'bytes': 4, 'text': 'Zo'}, {'bytes': 2, 'hex': 'ff00'})
    """
    if data is None:
        return None
    try:
        # An incomplete character at the cut is no error, and is left out.
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:most], final=len(data) <= most)
    except UnicodeDecodeError:
        return {"bytes": len(data), "hex": data[: min(most, _HEX_BYTES)].hex()}
    return {"bytes": len(data), "text": text}


def _shown(row: dict[str, Any]) -> int:
    parts = [row["key"], row["value"], *(part for header in row["headers"] for part in header)]
    return sum(len(part.get("text") or part.get("hex") or "") for part in parts if part is not None)
