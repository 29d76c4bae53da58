"""The records in a batch: each has a zigzag length, then attributes, deltas, key, value and headers.

Slow compared with everything in `batch` (about 2 us a record), and only for callers that need the records themselves:
coordinators, compaction, timestamp lookup, deep validation, tools.

A batch is opened by `payload_of`, and by nothing else: a few bytes may claim, and hold, gigabytes and
millions of records, so every caller has `Bounds`, and the numbers in the header are checked before anything
is decompressed.

Whatever the bytes, only CorruptMessage (codec), InvalidRecord (structure; TooLargeToOpen: the bounds) and
UnsupportedCompressionType are raised. Source: Kafka's DefaultRecord and DefaultRecordBatch.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.protocol.errors import InvalidRecord
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, NO_TIMESTAMP, BatchHeader, read_header
from ottla.protocol.records.compression import MAX_DECOMPRESSED_BYTES, TooLargeToOpen, decompress
from ottla.protocol.records.varint import read_varint, read_varlong

#: Most records of one batch: the largest `batch.num.messages` of librdkafka. They are read within two seconds.
MAX_RECORDS: Final = 1_000_000
#: Kafka's default of `max.decompressed.message.bytes`: the largest array of Java.
MAX_RECORD_BYTES: Final = 2**31 - 1 - 8

#: Name and value; a header's value may be null.
Header = tuple[str, bytes | None]

#: Absolute offset, key, whether the value is not null.
RecordKey = tuple[int, bytes | None, bool]


class Record(NamedTuple):
    """One record; `offset` is absolute, `timestamp` in ms (-1: none)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class Bounds(NamedTuple):
    """The most that a batch may hold for the reader that opens it; TooLargeToOpen is raised beyond it."""

    #: Of all its records, decompressed: the memory that opening it takes.
    max_bytes: int = MAX_DECOMPRESSED_BYTES
    #: By its header: the time that reading them takes.
    max_records: int = MAX_RECORDS
    #: Of one record of a compressed batch: `max.decompressed.message.bytes` of the topic.
    max_record_bytes: int = MAX_RECORD_BYTES


#: For batches of any topic.
ANY_BATCH: Final = Bounds()
#: For logs that only brokers write: a batch of theirs has at most `max.message.bytes`, and records of 50 bytes or more.
OF_BROKERS: Final = Bounds(max_bytes=32 * 1024 * 1024, max_records=100_000)
#: For a transaction marker, which is one small record.
OF_MARKERS: Final = Bounds(max_bytes=64 * 1024, max_records=1)


def records(batch: memoryview | bytes, bounds: Bounds = ANY_BATCH) -> Iterator[Record]:
    """The records of exactly one batch, in order. The CRC is not checked.

    A batch without records, all removed by compaction, yields none.
    """
    header = read_header(batch)
    if header.records_count == 0:
        return iter(())
    return decode_records(payload_of(header, batch, bounds), header)


def payload_of(header: BatchHeader, batch: memoryview | bytes, bounds: Bounds = ANY_BATCH) -> bytes:
    """Return the bytes of a batch's records, decompressed. Batches are opened by this function only."""
    if len(batch) < header.size_bytes:
        raise InvalidRecord(f"A batch of {header.size_bytes} bytes is cut off after {len(batch)}")
    if header.records_count > bounds.max_records:
        raise TooLargeToOpen(f"A batch of {header.records_count} records, more than {bounds.max_records}")
    compressed = memoryview(batch)[HEADER_SIZE_BYTES : header.size_bytes]
    if not header.is_compressed:
        return bytes(compressed)
    payload = decompress(header.compression, compressed, max_bytes=bounds.max_bytes)
    if len(payload) > bounds.max_record_bytes:
        _check_sizes(payload, bounds.max_record_bytes)
    return payload


def _check_sizes(payload: bytes, max_record_bytes: int) -> None:
    """Raise TooLargeToOpen if a record is too large. What is malformed is left to the parser."""
    position = 0
    try:
        while position < len(payload):
            size, position = read_varint(payload, position)
            if size > max_record_bytes:
                raise TooLargeToOpen(
                    f"A record of {size} bytes, more than max.decompressed.message.bytes {max_record_bytes}"
                )
            position += max(size, 0)
    except IndexError:
        pass


def decode_records(data: bytes, header: BatchHeader) -> Iterator[Record]:  # noqa: C901
    """The records in the decompressed bytes of `header`'s batch.

    Raises InvalidRecord unless the bytes are exactly as many records as the header says.
    Varints of one byte, and sizes of two, are decoded inline: 1.4 us a record of 100 bytes.
    """
    count = header.records_count
    if count < 0:
        raise InvalidRecord(f"A batch cannot have {count} records")
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    log_append_time = header.max_timestamp if header.is_log_append_time else None
    position = 0
    end = len(data)
    try:
        for _ in range(count):
            if (byte := data[position]) < 0x80:
                record_end = position + 1 + ((byte >> 1) ^ -(byte & 1))
                position += 1
            elif (second := data[position + 1]) < 0x80:
                position += 2
                record_end = position + ((byte >> 1 & 0x3F | second << 6) ^ -(byte & 1))
            else:
                size, position = read_varint(data, position)
                record_end = position + size
            if record_end > end:
                raise InvalidRecord(f"A record up to byte {record_end} where there are {end}")
            if (byte := data[position + 1]) < 0x80:  # after the attributes, which are unused
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                position += 2
            else:
                timestamp, position = read_varlong(data, position + 1)
                timestamp += base_timestamp
            if (byte := data[position]) < 0x80:
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
                position += 1
            else:
                offset, position = read_varint(data, position)
                offset += base_offset
            if (byte := data[position]) < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = read_varint(data, position)
            if size < 0:
                key = None
            else:
                key = data[position : position + size]
                position += size
            if (byte := data[position]) < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            elif (second := data[position + 1]) < 0x80:
                size = (byte >> 1 & 0x3F | second << 6) ^ -(byte & 1)
                position += 2
            else:
                size, position = read_varint(data, position)
            if size < 0:
                value = None
            else:
                value = data[position : position + size]
                position += size
            if data[position] == 0:
                position += 1
                headers: tuple[Header, ...] = ()
            else:
                headers, position = read_headers(data, position, record_end)
            # A slice past the end is shorter, without an error; the position is past the end then, too.
            if position != record_end:
                raise InvalidRecord("A record is longer or shorter than it says")
            yield Record(
                offset, timestamp if log_append_time is None else log_append_time, key, value, headers
            )
    except IndexError:
        raise InvalidRecord(f"The batch ends before its {count} records do") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes follow the batch's {count} records")


def keys_of(batch: memoryview | bytes, bounds: Bounds = ANY_BATCH) -> Iterator[RecordKey]:
    """Offset, key and presence of a value of exactly one batch's records, for compaction: half the time of `records`.

    Raises as `records`, except for errors in the skipped parts: timestamps, values and headers.
    """
    header = read_header(batch)
    if header.records_count == 0:
        return iter(())
    return _decode_keys(payload_of(header, batch, bounds), header)


def _decode_keys(data: bytes, header: BatchHeader) -> Iterator[RecordKey]:
    base_offset = header.base_offset
    position = 0
    end = len(data)
    try:
        for _ in range(header.records_count):
            if (byte := data[position]) < 0x80:
                position += 1
                record_end = position + ((byte >> 1) ^ -(byte & 1))
            elif (second := data[position + 1]) < 0x80:
                position += 2
                record_end = position + ((byte >> 1 & 0x3F | second << 6) ^ -(byte & 1))
            else:
                size, position = read_varint(data, position)
                record_end = position + size
            position += 1  # the attributes
            while data[position] >= 0x80:
                position += 1
            position += 1  # the timestamp
            if (byte := data[position]) < 0x80:
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
                position += 1
            else:
                offset, position = read_varint(data, position)
                offset += base_offset
            if (byte := data[position]) < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = read_varint(data, position)
            key = None
            if size >= 0:
                key = data[position : position + size]
                position += size
            if not position < record_end <= end:
                raise InvalidRecord("A record is longer or shorter than it says")
            yield offset, key, not data[position] & 1  # the length of a null value is negative
            position = record_end
    except IndexError:
        raise InvalidRecord(f"The batch ends before its {header.records_count} records do") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes follow the batch's {header.records_count} records")


def times_of(batch: memoryview | bytes, bounds: Bounds = ANY_BATCH) -> Iterator[tuple[int, int]]:
    """Iterate over (offset, timestamp) of exactly one batch's records, in order: a third of the time of `records`.

    Raises as `records`, except for errors in the skipped parts: keys, values and headers.
    """
    header = read_header(batch)
    if header.records_count == 0:
        return iter(())
    return decode_times(payload_of(header, batch, bounds), header)


def decode_times(data: bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Iterate over (offset, timestamp) of the records in the decompressed bytes of `header`'s batch."""
    if header.records_count < 0:
        raise InvalidRecord(f"A batch cannot have {header.records_count} records")
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    is_log_append_time, max_timestamp = header.is_log_append_time, header.max_timestamp
    position = 0
    end = len(data)
    try:
        for _ in range(header.records_count):
            if (byte := data[position]) < 0x80:
                position += 1
                record_end = position + ((byte >> 1) ^ -(byte & 1))
            elif (second := data[position + 1]) < 0x80:
                position += 2
                record_end = position + ((byte >> 1 & 0x3F | second << 6) ^ -(byte & 1))
            else:
                size, position = read_varint(data, position)
                record_end = position + size
            if (byte := data[position + 1]) < 0x80:  # after the attributes, which are unused
                timestamp = (byte >> 1) ^ -(byte & 1)
                position += 2
            else:
                timestamp, position = read_varlong(data, position + 1)
            if (byte := data[position]) < 0x80:
                offset = (byte >> 1) ^ -(byte & 1)
            else:
                offset, position = read_varint(data, position)
            if not position < record_end <= end:
                raise InvalidRecord("A record is longer or shorter than it says")
            yield base_offset + offset, max_timestamp if is_log_append_time else base_timestamp + timestamp
            position = record_end
    except IndexError:
        raise InvalidRecord(f"The batch ends before its {header.records_count} records do") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes follow the batch's {header.records_count} records")


def latest_time(data: bytes, header: BatchHeader) -> int:
    """The largest timestamp in the decompressed bytes of `header`'s batch; -1 without any.

    It is for batches that were never opened. Raises as `times_of`. 0.15 us a record, half of `times_of`.
    """
    count, base_timestamp = header.records_count, header.base_timestamp
    if count < 0:
        raise InvalidRecord(f"A batch cannot have {count} records")
    latest = NO_TIMESTAMP - base_timestamp
    position = 0
    try:
        for _ in range(count):
            if (byte := data[position]) < 0x80:
                position += 1
                record_end = position + ((byte >> 1) ^ -(byte & 1))
            elif (second := data[position + 1]) < 0x80:
                position += 2
                record_end = position + ((byte >> 1 & 0x3F | second << 6) ^ -(byte & 1))
            else:
                size, position = read_varint(data, position)
                record_end = position + size
            if (byte := data[position + 1]) < 0x80:  # after the attributes, which are unused
                delta = (byte >> 1) ^ -(byte & 1)
                position += 2
            elif (second := data[position + 2]) < 0x80:
                delta = (byte >> 1 & 0x3F | second << 6) ^ -(byte & 1)
                position += 3
            else:
                delta, position = read_varlong(data, position + 1)
            if delta > latest:  # noqa: PLR1730 (a call of max() is a quarter of the time)
                latest = delta
            if position >= record_end:
                raise InvalidRecord("A record is longer than it says")
            position = record_end
    except IndexError:
        raise InvalidRecord(f"The batch ends before its {count} records do") from None
    if position != len(data):
        raise InvalidRecord(f"The batch has {len(data)} bytes, and its {count} records {position}")
    if header.is_log_append_time and count:
        return header.max_timestamp
    return base_timestamp + latest


def largest_timestamp(  # noqa: C901 (a hot loop)
    data: bytes | memoryview, *, count: int, base_timestamp: int
) -> int | None:
    """The largest timestamp of at most 64 records, if they are sound; None: `decode_records` decides what is wrong.

    Sound are exactly `count` records, whose offsets follow each other from the base offset on. 0.3 us a record.
    """
    largest = NO_TIMESTAMP
    position = 0
    try:
        for number in range(0, 2 * count, 2):  # the offset delta as it is written: zigzag, in one byte
            if (byte := data[position]) < 0x80:
                position += 1
                record_end = position + (byte >> 1)
            elif (second := data[position + 1]) < 0x80:
                position += 2
                record_end = position + (byte >> 1 & 0x3F | second << 6)
            else:
                size, position = read_varint(data, position)
                record_end, byte = position + size, 0
            if byte & 1:  # negative
                return None
            if not (byte := data[position + 1]):  # after the attributes, which are unused
                timestamp = base_timestamp
                position += 2
            elif byte < 0x80:
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                position += 2
            else:
                timestamp, position = read_varlong(data, position + 1)
                timestamp += base_timestamp
            if timestamp > largest:  # noqa: PLR1730 (a call of max() is a tenth of the time)
                largest = timestamp
            if data[position] != number:
                return None
            if (byte := data[position + 1]) == 1:  # no key
                position += 2
            elif byte < 0x80:
                position += 2 + (0 if byte & 1 else byte >> 1)
            else:
                size, position = read_varint(data, position + 1)
                position += max(0, size)
            if (byte := data[position]) < 0x80:
                position += 1 + (0 if byte & 1 else byte >> 1)
            elif (second := data[position + 1]) < 0x80 and not byte & 1:
                position += 2 + (byte >> 1 & 0x3F | second << 6)
            else:
                size, position = read_varint(data, position)
                position += max(0, size)
            if data[position]:
                _, position = read_headers(data, position, record_end)
            else:
                position += 1
            if position != record_end:
                return None
    except (IndexError, InvalidRecord):
        return None
    return largest if position == len(data) else None


def values_of(batch: memoryview | bytes, bounds: Bounds = ANY_BATCH) -> list[bytes | None]:
    """The values of exactly one batch's records, in order: a third of the time of `records`.

    For logs whose records have no keys. Raises as `records`, except for errors in the skipped timestamps and offsets.
    """
    header = read_header(batch)
    if header.records_count == 0:
        return []
    return _decode_values(payload_of(header, batch, bounds), header.records_count)


def _decode_values(data: bytes, count: int) -> list[bytes | None]:  # noqa: C901
    if count < 0:
        raise InvalidRecord(f"A batch cannot have {count} records")
    values: list[bytes | None] = []
    position = 0
    end = len(data)
    try:
        for _ in range(count):
            if (byte := data[position]) < 0x80:
                position += 1
                record_end = position + ((byte >> 1) ^ -(byte & 1))
            elif (second := data[position + 1]) < 0x80:
                position += 2
                record_end = position + ((byte >> 1 & 0x3F | second << 6) ^ -(byte & 1))
            else:
                size, position = read_varint(data, position)
                record_end = position + size
            position += 1  # the attributes
            while data[position] >= 0x80:
                position += 1
            position += 1  # the timestamp
            while data[position] >= 0x80:
                position += 1
            position += 1  # the offset
            size, position = (-1, position + 1) if data[position] == 1 else read_varint(data, position)
            if size > 0:
                position += size  # the key
            if (byte := data[position]) < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            elif (second := data[position + 1]) < 0x80:
                size = (byte >> 1 & 0x3F | second << 6) ^ -(byte & 1)
                position += 2
            else:
                size, position = read_varint(data, position)
            if size < 0:
                values.append(None)
            else:
                values.append(data[position : position + size])
                position += size
            if data[position] == 0:
                position += 1
            else:
                _, position = read_headers(data, position, record_end)
            if position != record_end:
                raise InvalidRecord("A record is longer or shorter than it says")
    except IndexError:
        raise InvalidRecord(f"The batch ends before its {count} records do") from None
    if position != end:
        raise InvalidRecord(f"{end - position} bytes follow the batch's {count} records")
    return values


def read_headers(data: bytes | memoryview, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    """The headers of the record that ends at `end`, whose count is at `position`; and where they end.

    Raises InvalidRecord, IndexError.
    """
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:
        raise InvalidRecord(f"{count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        key_size, position = read_varint(data, position)
        if key_size < 0:
            raise InvalidRecord("A header without a key")
        key = str(data[position : position + key_size], "utf-8", "replace")
        position += key_size
        value_size, position = read_varint(data, position)
        if value_size < 0:
            headers.append((key, None))
        else:
            headers.append((key, bytes(data[position : position + value_size])))
            position += value_size
        if position > end:
            raise InvalidRecord("A header reaches beyond its record")
    return tuple(headers), position
