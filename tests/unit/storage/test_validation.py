"""Checks of a leader before it appends: Kafka's LogValidator, row by row."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, crc_is_valid, crc_of, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record, largest_timestamp, records
from ottla.storage.appending import AppendOrigin
from ottla.storage.record_checks import MAX_RECORD_ERRORS
from ottla.storage.validation import FULLY_CHECKED, InvalidRecords, InvalidTimestamps, is_one_record, validate

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
CODECS = list(Compression)
DELETE = LogConfig()
COMPACT = LogConfig(cleanup_policy=("compact",))
LOG_APPEND_TIME = LogConfig(message_timestamp_type="LogAppendTime")


def some_records(count=3, *, key=b"k", timestamp=NOW):
    return [Record(i, timestamp + i, key, b"value") for i in range(count)]


def produced(written=None, **fields) -> bytearray:
    return bytearray(build_batch(some_records() if written is None else written, **fields))


def with_field(batch: bytearray, layout: str, position: int, value: int) -> bytearray:
    """The same batch with one header field changed, and the CRC recomputed."""
    struct.pack_into(layout, batch, position, value)
    struct.pack_into(">I", batch, 17, crc_of(batch))
    return batch


def append(batch, config=DELETE, *, first_offset=1000, origin=AppendOrigin.CLIENT, deep=False):
    return validate(
        batch, first_offset=first_offset, now_ms=NOW, config=config, leader_epoch=7, origin=origin, deep=deep
    )


def assert_sound(result, *, first_offset=1000):
    """The buffers are one batch with a right CRC, and the header is theirs."""
    written = b"".join(result.buffers)
    assert read_header(written) == result.header
    assert crc_is_valid(written)
    assert len(written) == result.size_bytes
    assert (result.header.base_offset, result.header.partition_leader_epoch) == (first_offset, 7)
    found = list(records(written))
    assert [record.offset for record in found] == list(range(first_offset, result.header.next_offset))
    return found


# No conversion


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_in_place(codec, deep):
    batch = produced(compression=codec)
    crc = read_header(batch).crc
    result = append(batch, deep=deep)
    assert [bytes(buffer) for buffer in result.buffers] == [bytes(batch)]  # the caller's own bytes
    assert [record.timestamp for record in assert_sound(result)] == [NOW, NOW + 1, NOW + 2]
    assert result.header.crc == crc
    assert (result.max_timestamp, result.log_append_time_ms, result.is_rebuilt) == (NOW + 2, None, False)


def test_bytes_that_cannot_be_patched_are_written_with_a_new_head():
    batch = bytes(produced())
    result = append(batch)
    assert [len(buffer) for buffer in result.buffers] == [16, len(batch) - 16]
    assert_sound(result)
    assert read_header(batch).base_offset == 0


def test_an_incomplete_batch_after_the_batch_is_dropped():
    batch = produced()
    result = append(batch + produced()[:-1])
    assert result.size_bytes == len(batch)
    assert_sound(result)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(codec, readonly):
    batch = produced(compression=codec)
    result = append(bytes(batch) if readonly else batch, LOG_APPEND_TIME)
    assert [record.timestamp for record in assert_sound(result)] == [NOW] * 3
    assert (result.max_timestamp, result.log_append_time_ms, result.is_rebuilt) == (NOW, NOW, False)


def test_log_append_time_ignores_the_producers_clock():
    assert_sound(append(produced(some_records(timestamp=NOW + 10 * HOUR_MS)), LOG_APPEND_TIME))


# The batch as a whole


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("batch", "expected"), [
    (b"",                                                         InvalidRecord),
    (produced()[:40],                                             InvalidRecord),
    (produced()[:-1],                                             InvalidRecord),
    (produced() + produced(),                                     InvalidRecord),  # two batches
    (bytes(100),                                                  CorruptMessage),
    (with_field(produced(), ">b", 16, 1),                         InvalidRecord),  # magic 1
    (with_field(produced(), ">b", 16, 3),                         CorruptMessage),
    (with_field(produced(), ">q", 0, 5),                          InvalidRecord),  # base offset
    (produced()[:-1] + b"x",                                      CorruptMessage),  # CRC
    (with_field(produced(), ">i", 57, 0),                         InvalidRecord),  # count
    (with_field(produced(), ">i", 57, -1),                        InvalidRecord),
    (with_field(produced(), ">i", 57, 2),                         InvalidRecord),
    (with_field(produced(), ">i", 23, 3),                         InvalidRecord),  # last offset delta
    (with_field(produced(), ">i", 23, -1),                        InvalidRecord),
    (produced(is_control=True),                                   InvalidRecord),
    (with_field(produced(), ">h", 21, 5),                         UnsupportedCompressionType),
    (produced(producer_id=1, producer_epoch=0, base_sequence=-1), InvalidRecord),
    (produced(producer_id=1, producer_epoch=-1, base_sequence=0), InvalidRecord),
    (produced(is_transactional=True),                             InvalidRecord),  # without producer id
])  # fmt: skip
def test_refused(batch, expected, deep):
    before = bytes(batch)
    with pytest.raises(expected) as raised:
        append(batch, deep=deep)
    assert type(raised.value) is expected
    assert batch == before


def test_max_message_bytes_is_of_the_whole_batch():
    batch = produced()
    assert_sound(append(bytes(batch), LogConfig(max_message_bytes=len(batch))))
    with pytest.raises(MessageTooLarge):
        append(batch, LogConfig(max_message_bytes=len(batch) - 1))
    assert_sound(append(batch, LogConfig(max_message_bytes=10), origin=AppendOrigin.RAFT_LEADER))


def test_max_message_bytes_holds_after_conversion():
    batch = produced([Record(0, NOW, b"k", bytes(5000))], compression=Compression.GZIP)
    assert len(batch) < 1000
    with pytest.raises(MessageTooLarge):
        append(batch, LogConfig(max_message_bytes=1000, compression_type="uncompressed"))


@pytest.mark.parametrize("origin", [AppendOrigin.COORDINATOR, AppendOrigin.RAFT_LEADER])
def test_brokers_own_batches(origin):
    marker = produced(
        [Record(0, NOW, b"\0\0\0\1", bytes(6))], is_control=True, producer_id=1, producer_epoch=0
    )
    result = append(bytes(marker), origin=origin)
    assert_sound(result)
    assert len(result.buffers) == 1
    assert not append(produced(is_control=True), LogConfig(compression_type="gzip"), origin=origin).is_rebuilt
    with pytest.raises(UnsupportedForMessageFormat):
        append(with_field(produced(), ">b", 16, 1), origin=origin)


# Records


# KIP-467
@pytest.mark.parametrize("codec", CODECS)
def test_compacted_topics_need_keys(codec):
    written = [Record(i, NOW, None if i in (1, 3) else b"k", b"v") for i in range(5)]
    assert_sound(append(produced(written, compression=codec)))
    with pytest.raises(InvalidRecords) as raised:
        append(produced(written, compression=codec), COMPACT)
    assert raised.value.code is ErrorCode.invalid_record
    assert [index for index, _ in raised.value.record_errors] == [1, 3]
    assert_sound(append(produced(compression=codec), COMPACT))


def test_record_errors_are_bounded():
    with pytest.raises(InvalidRecords) as raised:
        append(produced(some_records(MAX_RECORD_ERRORS + 50, key=None)), COMPACT)
    assert len(raised.value.record_errors) == MAX_RECORD_ERRORS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("before_ms", "after_ms", "timestamps", "wrong"), [
    #   before,   after, timestamps relative to now                  indexes
    (     None, HOUR_MS, [0, HOUR_MS, -10**12],                      []),
    (     None, HOUR_MS, [0, HOUR_MS + 1, 5, HOUR_MS + 2],           [1, 3]),
    (  HOUR_MS, HOUR_MS, [-HOUR_MS, 0, HOUR_MS],                     []),
    (  HOUR_MS, HOUR_MS, [-HOUR_MS - 1, 0, HOUR_MS + 1],             [0, 2]),
    (  HOUR_MS,    None, [0, -HOUR_MS - 1, 10**12],                  [1]),
    (        0,       0, [0, 0],                                     []),
    (        0,       0, [0, 1, -1],                                 [1, 2]),
    (  HOUR_MS, HOUR_MS, [-1 - NOW, 0],                              []),      # -1: no timestamp
])  # fmt: skip
def test_timestamp_bounds(codec, before_ms, after_ms, timestamps, wrong):
    config = LogConfig(
        message_timestamp_before_max_ms=2**63 - 1 if before_ms is None else before_ms,
        message_timestamp_after_max_ms=2**63 - 1 if after_ms is None else after_ms,
    )
    batch = produced([Record(i, NOW + at, b"k", b"v") for i, at in enumerate(timestamps)], compression=codec)
    if not wrong:
        assert_sound(append(batch, config))
        return
    with pytest.raises(InvalidTimestamps) as raised:
        append(batch, config)
    assert raised.value.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in raised.value.record_errors] == wrong


def test_producers_cannot_claim_log_append_time():
    batch = produced(log_append_time_ms=NOW)
    with pytest.raises(InvalidTimestamps) as raised:
        append(bytes(batch), LOG_APPEND_TIME)
    assert [index for index, _ in raised.value.record_errors] == [0, 1, 2]
    # On a CreateTime topic the claim is only dropped, as Kafka does.
    result = append(batch)
    assert not result.header.is_log_append_time
    assert_sound(result)


@pytest.mark.parametrize("maximum", [-1, NOW - 5, NOW + 2 * HOUR_MS])
def test_a_wrong_maximum_timestamp_is_corrected(maximum):
    result = append(with_field(produced(), ">q", 35, maximum))
    assert result.max_timestamp == result.header.max_timestamp == NOW + 2
    assert_sound(result)


@pytest.mark.parametrize(
    "payload", [b"", b"\x02", b"\xff" * 30, b"\x01" * 30, b"\x10\0\0\0\2k\2v\0" * 2 + b"\0"]
)
def test_a_payload_without_valid_records(payload):
    batch = produced()[:HEADER_SIZE_BYTES] + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(InvalidRecord):
        append(with_field(batch, ">i", 57, 3))


@pytest.mark.parametrize("codec", CODECS)
def test_impossible_counts(codec):
    """A few bytes cannot use up two billion offsets, in any mode of validation."""
    count = 2**31 - 1
    batch = with_field(produced(some_records(10), compression=codec), ">i", 23, count - 1)
    with pytest.raises(InvalidRecord):
        append(with_field(batch, ">i", 57, count))


def test_what_is_checked_only_with_deep_validation():
    """The limits of the fast path, see the module's docstring."""
    for count in (FULLY_CHECKED, FULLY_CHECKED + 1):
        is_checked = count == FULLY_CHECKED
        garbage = produced(some_records(count), compression=Compression.LZ4)[:HEADER_SIZE_BYTES] + b"not lz4"
        struct.pack_into(">i", garbage, 8, len(garbage) - 12)
        with_field(garbage, ">i", 57, count)
        many = produced(some_records(count))
        many[-1] ^= 0xFF  # the last record's headers
        with_field(many, ">q", 0, 0)
        for batch in (garbage, many):
            if not is_checked:
                assert not append(bytes(batch)).is_rebuilt
            with pytest.raises(InvalidRecord):
                append(bytes(batch), deep=not is_checked)
        largest = read_header(produced(some_records(count))).max_timestamp
        understated = with_field(produced(some_records(count)), ">q", 35, NOW)
        assert append(bytes(understated), deep=True).max_timestamp == largest
        found = append(bytes(understated))
        assert found.max_timestamp == found.header.max_timestamp == (largest if is_checked else NOW)
        assert crc_is_valid(b"".join(found.buffers))


@given(
    st.lists(
        st.tuples(st.integers(-5, 5), st.none() | st.binary(max_size=9), st.binary(max_size=99)), min_size=1
    ),
    st.sampled_from(CODECS),
    st.sampled_from([DELETE, LOG_APPEND_TIME]),
    st.booleans(),
)
def test_sound_batches_become_the_same_with_and_without_deep(rows, codec, config, readonly):
    written = [Record(i, NOW + at, key, value) for i, (at, key, value) in enumerate(rows)]
    batch = bytes(produced(written, compression=codec))
    fast, deep = (
        append(batch if readonly else bytearray(batch), config, deep=deep) for deep in (False, True)
    )
    assert b"".join(fast.buffers) == b"".join(deep.buffers)
    assert fast._replace(buffers=()) == deep._replace(buffers=())
    assert len(assert_sound(fast)) == len(rows)


# Conversion


@pytest.mark.parametrize("is_log_append_time", [False, True])
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", CODECS)
def test_compression_type(source, target, is_log_append_time):
    written = [Record(i, NOW + i, b"k", b"value" * 20, (("h", b"x"),)) for i in range(40)]
    batch = produced(
        written, compression=source, producer_id=5, producer_epoch=1, base_sequence=9, is_transactional=True
    )
    config = LogConfig(
        compression_type=target,
        message_timestamp_type="LogAppendTime" if is_log_append_time else "CreateTime",
    )
    result = append(batch, config)
    header = result.header
    assert header.compression is Compression.of_name(target)
    assert result.is_rebuilt == (source is not header.compression)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9)
    assert header.is_transactional
    time = NOW if is_log_append_time else None
    assert (result.log_append_time_ms, header.is_log_append_time) == (time, is_log_append_time)
    assert [record._replace(offset=record.offset - 1000) for record in assert_sound(result)] == [
        record if time is None else record._replace(timestamp=time) for record in written
    ]


def test_compression_level():
    written = [Record(i, NOW + i, str(i * i).encode(), str(i**5).encode() * 9) for i in range(500)]
    sizes = [
        append(produced(written), LogConfig(compression_type="gzip", compression_gzip_level=level)).size_bytes
        for level in (1, 9)
    ]
    assert sizes[1] < sizes[0]


def test_a_payload_that_does_not_decompress():
    batch = produced(compression=Compression.ZSTD)[:HEADER_SIZE_BYTES] + b"not zstd"
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(InvalidRecord):
        append(with_field(batch, ">i", 57, 3), LogConfig(compression_type="uncompressed"))


@pytest.mark.parametrize("codec", CODECS)
def test_gaps_inside(codec):
    """Inner offsets of old clients: Kafka counts uncompressed records, and fails for compressed ones unless
    the codec changes.
    """
    written = [Record(0, NOW, b"k", b"v"), Record(2, NOW, b"k", b"v"), Record(5, NOW, b"k", b"v")]
    batch = with_field(produced(written, compression=codec), ">i", 23, 2)
    if codec is not Compression.NONE:
        with pytest.raises(InvalidRecord, match="do not follow each other"):
            append(bytes(batch))
    else:
        assert append(bytes(batch)).header.next_offset == 1003
    other = Compression.LZ4 if codec is not Compression.LZ4 else Compression.ZSTD
    result = append(batch, LogConfig(compression_type=other.name.lower()))
    assert result.is_rebuilt
    assert result.header.next_offset == 1003
    assert_sound(result)


@given(
    st.none() | st.binary(max_size=70),
    st.none() | st.binary(max_size=5) | st.sampled_from([bytes(63), bytes(64), bytes(4000), bytes(9000)]),
    st.booleans(),
    st.data(),
)
def test_one_record_is_sound(key, value, is_mutated, data):
    batch = produced([Record(0, NOW, key, value)])
    if is_mutated:
        at = data.draw(st.integers(HEADER_SIZE_BYTES, len(batch) - 1))
        batch[at] ^= 1 << data.draw(st.integers(0, 7))
    found = is_one_record(memoryview(batch))
    if not is_mutated:
        assert found == (value is not None and len(key or b"") < 64 and len(value) < 5000)
    payload = bytes(batch[HEADER_SIZE_BYTES:])
    assert not found or largest_timestamp(payload, count=1, base_timestamp=NOW) == NOW


def test_plain_records_of_all_sizes_are_sound():
    """From one byte of the value on: the lengths of the next size have one byte more."""
    for size in (*range(300), *range(8150, 8220)):
        batch = memoryview(produced([Record(0, NOW, None, bytes(size))]))
        assert is_one_record(batch) == (size <= 8184), size
        for end in (-1, HEADER_SIZE_BYTES + 1 + (size > 57)):
            batch[end] = 1
            payload = bytes(batch[HEADER_SIZE_BYTES:])
            if is_one_record(batch):
                assert largest_timestamp(payload, count=1, base_timestamp=NOW) == NOW
            assert largest_timestamp(memoryview(payload), count=1, base_timestamp=NOW) == largest_timestamp(
                payload, count=1, base_timestamp=NOW
            )


# Random input


@given(st.binary(max_size=120), st.booleans())
def test_random_bytes(data, deep):
    with contextlib.suppress(KafkaError):
        append(data, deep=deep)


@given(st.sampled_from(CODECS), st.data())
def test_mutated_batches_are_refused_or_sound(codec, data):
    batch = produced(some_records(data.draw(st.integers(1, 6))), compression=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc_of(batch))
    config = data.draw(st.sampled_from([DELETE, COMPACT, LOG_APPEND_TIME, LogConfig(compression_type="lz4")]))
    with contextlib.suppress(KafkaError):
        result = append(batch, config, deep=True)
        written = b"".join(result.buffers)
        assert crc_is_valid(written)
        assert read_header(written) == result.header
        assert len(list(records(written))) == result.header.records_count
