"""MemoryRecordsBuilder: record batches that the broker itself writes (offsets, metadata, markers) or rewrites.

Byte for byte the batches of Kafka's MemoryRecordsBuilder for the same records, except for the output of the codecs.
Source: MemoryRecordsBuilder and DefaultRecordBatch of Kafka 4.3.1.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from ottla.protocol.checksum import crc32c
from ottla.protocol.records.batch import (
    ATTRIBUTES_OFFSET,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from ottla.protocol.records.compression import Compression, compress
from ottla.protocol.records.record import Header, Record
from ottla.protocol.records.varint import encode_varint

_BEFORE_CRC = Struct(">qiib")
_CRC = Struct(">I")
_AFTER_CRC = Struct(">hiqqqhii")
_NULL: Final = encode_varint(-1)
_INT32_MAX: Final = 2**31 - 1


def simple_records(
    pairs: Iterable[tuple[bytes | None, bytes | None]], *, timestamp: int, base_offset: int = 0
) -> list[Record]:
    """Keys and values as records with one timestamp and consecutive offsets, as coordinators write them."""
    return [
        Record(offset, timestamp, key, value) for offset, (key, value) in enumerate(pairs, start=base_offset)
    ]


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_control: bool = False,
    is_transactional: bool = False,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """One batch of `records`, at least one, whose offsets ascend from `base_offset` on.

    `last_offset` may be after the last record (after compaction). `log_append_time_ms`, if given, is the timestamp of
    all records. The base timestamp is the first record's, or `delete_horizon_ms` if given (KIP-534).
    About 1.5 us a record.
    """
    base_timestamp = delete_horizon_ms
    payload = bytearray()  # not a list of pieces: a million records would be a hundred megabytes
    count = 0
    previous_offset = base_offset - 1
    max_timestamp = NO_TIMESTAMP
    for offset, timestamp, key, value, headers in records:
        if base_timestamp is None:
            base_timestamp = timestamp
        count += 1
        assert offset > previous_offset, f"{offset=} does not follow {previous_offset=}"
        previous_offset = offset
        max_timestamp = max(max_timestamp, timestamp)
        body = b"".join(
            (
                b"\x00",
                encode_varint(timestamp - base_timestamp),
                encode_varint(offset - base_offset),
                _NULL if key is None else encode_varint(len(key)) + key,
                _NULL if value is None else encode_varint(len(value)) + value,
                _headers(headers) if headers else b"\x00",
            )
        )
        payload += encode_varint(len(body))
        payload += body
    assert count, "a batch of no records is made by build_empty_batch"
    assert base_offset >= 0, f"{base_offset=}"
    if last_offset is None:
        last_offset = previous_offset
    return assemble(
        compress(compression, payload, level=compression_level),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=compression
        | (LOG_APPEND_TIME_FLAG if log_append_time_ms is not None else 0)
        | (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0)
        | (DELETE_HORIZON_FLAG if delete_horizon_ms is not None else 0),
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp or 0,
        max_timestamp=max_timestamp if log_append_time_ms is None else log_append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=count,
    )


def build_batch_of_pairs(
    pairs: Sequence[tuple[bytes, bytes | None]], *, timestamp: int, compression: Compression
) -> bytes:
    """Build a batch of keys and values at one timestamp, as coordinators write it: 0.5 us a record.

    The bytes are those that `build_batch` builds of `simple_records`, at 0.9 us a record.
    """
    assert pairs, "a batch of no records is made by build_empty_batch"
    pieces: list[bytes] = []
    for delta, (key, value) in enumerate(pairs):
        # Attributes and timestamp delta; at the end, no headers.
        head = b"\x00\x00" + encode_varint(delta) + encode_varint(len(key)) + key
        if value is None:
            pieces += (encode_varint(len(head) + 2), head, _NULL, b"\x00")
        else:
            head += encode_varint(len(value))
            pieces += (encode_varint(len(head) + len(value) + 1), head, value, b"\x00")
    return assemble(
        compress(compression, b"".join(pieces)),
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=compression,
        last_offset_delta=len(pairs) - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        records_count=len(pairs),
    )


def build_batch_of_values(
    values: Sequence[bytes], *, base_offset: int, leader_epoch: int, timestamp: int
) -> bytes:
    """Build a batch of records without keys and headers, at one timestamp and consecutive offsets.

    The bytes are those of `build_batch`. 0.5 us a record: one decision may write thousands of records to the
    metadata log.
    """
    return build_batch_of_payload(
        payload_of_values(values),
        records_count=len(values),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        timestamp=timestamp,
    )


def payload_of_values(values: Iterable[bytes], *, first_delta: int = 0) -> bytes:
    """The records of such a batch, from the one at `first_delta` on: known before the batch has its offsets."""
    assert first_delta >= 0, first_delta
    pieces: list[bytes] = []
    for delta, value in enumerate(values, start=first_delta):
        # Attributes, timestamp delta, offset delta, no key, the value; at the end, no headers.
        head = b"\x00\x00" + encode_varint(delta) + _NULL + encode_varint(len(value))
        pieces += (encode_varint(len(head) + len(value) + 1), head, value, b"\x00")
    return b"".join(pieces)


def build_batch_of_payload(
    payload: bytes, *, records_count: int, base_offset: int, leader_epoch: int, timestamp: int
) -> bytes:
    """The batch of all records that `payload_of_values` has encoded. Cost: that of a checksum and a copy."""
    assert records_count, "a batch of no records is made by build_empty_batch"
    # A record of no key, an empty value and no headers has seven bytes.
    assert len(payload) >= 7 * records_count, (len(payload), records_count)
    return assemble(
        payload,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=Compression.NONE,
        last_offset_delta=records_count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        records_count=records_count,
    )


def build_empty_batch(emptied: BatchHeader) -> bytes:
    """The rest of a batch after compaction has removed all its records: the offsets and the producer's state."""
    return assemble(
        b"",
        base_offset=emptied.base_offset,
        leader_epoch=emptied.partition_leader_epoch,
        attributes=emptied.attributes & (LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG),
        last_offset_delta=emptied.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=emptied.max_timestamp,
        producer_id=emptied.producer_id,
        producer_epoch=emptied.producer_epoch,
        base_sequence=emptied.base_sequence,
        records_count=0,
    )


def assemble(
    payload: bytes,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records_count: int,
) -> bytes:
    """A batch of records that are already encoded, and compressed with the codec in `attributes`."""
    assert 0 <= last_offset_delta <= _INT32_MAX, f"{last_offset_delta=}"
    covered = (
        _AFTER_CRC.pack(
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            records_count,
        )
        + payload
    )
    head = _BEFORE_CRC.pack(
        base_offset, HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES + len(payload), leader_epoch, MAGIC
    )
    return b"".join((head, _CRC.pack(crc32c(covered)), covered))


assert _BEFORE_CRC.size + _CRC.size == ATTRIBUTES_OFFSET


def _headers(headers: Sequence[Header]) -> bytes:
    pieces = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode("utf-8", "replace")
        pieces += (encode_varint(len(encoded)), encoded)
        pieces += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)
