"""Batches with a right CRC whose header is not true, or that take seconds or gigabytes to open without bounds."""

from collections.abc import Iterator

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import assemble, build_batch
from ottla.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression, compress
from ottla.protocol.records.record import MAX_RECORDS, Record, payload_of
from ottla.protocol.records.varint import encode_varint
from ottla.storage.validation import FULLY_CHECKED

NOW_MS = 1_700_000_000_000
#: Records of a batch that is not opened when it is produced.
MANY = FULLY_CHECKED + 1
#: Without key and value.
SMALLEST_RECORD = bytes.fromhex("0c 00 00 00 01 01 00")


def batch_of(
    payload: bytes,
    *,
    count: int,
    codec: Compression = Compression.ZSTD,
    is_compressed: bool = False,
    base_timestamp: int = NOW_MS,
    max_timestamp: int = NOW_MS,
    attributes: int = 0,
    producer_id: int = -1,
) -> bytes:
    """A batch of these bytes, whose header claims `count` records, and these timestamps."""
    return assemble(
        payload if is_compressed else compress(codec, payload),
        base_offset=0,
        leader_epoch=-1,
        attributes=codec | attributes,
        last_offset_delta=max(count - 1, 0),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=-1,
        records_count=count,
    )


def bombs(codec: Compression) -> Iterator[tuple[bytes, int, bool]]:
    """The arguments of `batch_of`, payload, count, `is_compressed`, of one of each kind."""
    yield SMALLEST_RECORD * (MAX_RECORDS + 1), MAX_RECORDS + 1, False
    yield SMALLEST_RECORD, 2**31 - 1, False
    value = bytes(MAX_DECOMPRESSED_BYTES)
    body = b"\0\0\0\1" + encode_varint(len(value)) + value + b"\0"
    record = encode_varint(len(body)) + body
    yield record, 1, False
    # Frames, members or streams behind each other, each of which is within the bounds.
    half = len(record) // 2
    yield compress(codec, record[:half]) + compress(codec, record[half:]), 1, True


def understated_batch(
    count: int = MANY,
    *,
    base_ms: int,
    last_ms: int,
    claimed_ms: int,
    codec: Compression = Compression.NONE,
) -> bytearray:
    """Records of `base_ms`, but the last but one, of `last_ms`, whose header claims `claimed_ms`,
    as kafka-go's Conn does.
    """
    times = [*range(base_ms, base_ms + count - 2), last_ms, base_ms]
    return batch_claiming(times, claimed_ms=claimed_ms, codec=codec)


def batch_claiming(
    times: list[int], *, claimed_ms: int, codec: Compression = Compression.NONE, value: bytes = b"v"
) -> bytearray:
    """Records of these times, whose header claims that `claimed_ms` is the largest."""
    true = build_batch([Record(at, time, None, value) for at, time in enumerate(times)])
    header = read_header(true)
    payload = payload_of(header, true)
    return bytearray(
        batch_of(
            payload,
            count=len(times),
            codec=codec,
            base_timestamp=header.base_timestamp,
            max_timestamp=claimed_ms,
        )
    )
