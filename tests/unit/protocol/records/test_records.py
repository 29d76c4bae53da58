"""Records inside batches: round trips, Kafka's own bytes, and bytes that are nothing of the kind."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_support import KAFKA_BATCHES, NOW, batch_of

from ottla.protocol.errors import CorruptMessage, InvalidRecord, KafkaError
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, crc_is_valid, read_header
from ottla.protocol.records.builder import (
    build_batch,
    build_batch_of_pairs,
    build_batch_of_values,
    build_empty_batch,
    payload_of_values,
    simple_records,
)
from ottla.protocol.records.compression import Compression, TooLargeToOpen
from ottla.protocol.records.record import (
    OF_BROKERS,
    Bounds,
    Record,
    decode_records,
    decode_times,
    keys_of,
    largest_timestamp,
    latest_time,
    payload_of,
    records,
    times_of,
    values_of,
)
from ottla.protocol.records.varint import encode_varint, read_varint, read_varlong

#: What the batches of the five codecs in that file hold.
KAFKA_RECORDS = [
    Record(100, NOW, b"k", b"v"),
    Record(101, NOW - 1000, None, b"value value value value value", (("hé", None), ("", b"\x01\x02\xff"))),
    Record(105, NOW + 99_999, b"", None),
]


def keys_in(rows):
    return [(record.offset, record.key, record.value is not None) for record in rows]


@pytest.mark.parametrize("codec", list(Compression))
def test_kafkas_batches_are_read(codec):
    batch = KAFKA_BATCHES[codec.name.lower()]
    header = read_header(batch)
    assert crc_is_valid(batch)
    assert header.compression is codec
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (100, 105, 5)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 99_999)
    assert list(records(batch)) == KAFKA_RECORDS


@pytest.mark.parametrize("codec", list(Compression))
def test_our_batches_are_kafkas(codec):
    ours = build_batch(
        KAFKA_RECORDS,
        base_offset=100,
        leader_epoch=5,
        compression=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        is_transactional=True,
    )
    kafkas = KAFKA_BATCHES[codec.name.lower()]
    assert payload_of(read_header(ours), ours) == payload_of(read_header(kafkas), kafkas)
    assert ours[21:HEADER_SIZE_BYTES] == kafkas[21:HEADER_SIZE_BYTES]
    if codec in (Compression.NONE, Compression.SNAPPY):  # the others' bytes change with their libraries
        assert ours == kafkas


headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=3).map(tuple)
record_lists = st.lists(
    st.tuples(
        st.integers(1, 300),  # distance from the offset before
        st.integers(-1, 2**42),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        headers,
    ),
    min_size=1,
    max_size=20,
)


def at_offsets(rows, base_offset):
    offset = base_offset - 1
    result = []
    for distance, timestamp, key, value, row_headers in rows:
        offset += distance
        result.append(Record(offset, timestamp, key, value, row_headers))
    return result


@given(record_lists, st.sampled_from(Compression), st.integers(0, 2**50))
def test_round_trip(rows, codec, base_offset):
    written = at_offsets(rows, base_offset)
    batch = build_batch(written, base_offset=base_offset, compression=codec)
    header = read_header(batch)
    assert crc_is_valid(batch)
    assert header.size_bytes == len(batch)
    assert header.last_offset == written[-1].offset
    assert header.max_timestamp == max(record.timestamp for record in written)
    assert list(records(batch)) == written
    assert list(records(memoryview(batch))) == written
    assert list(keys_of(memoryview(batch))) == keys_in(written)
    assert values_of(memoryview(batch)) == [record.value for record in written]


def test_log_append_time_is_the_time_of_all_records():
    batch = build_batch([Record(0, 5, None, b""), Record(1, 9, None, b"")], log_append_time_ms=NOW)
    assert read_header(batch).is_log_append_time
    assert [record.timestamp for record in records(batch)] == [NOW, NOW]


# KIP-534
def test_delete_horizon_is_the_base_of_timestamps():
    batch = build_batch([Record(0, NOW, b"k", None)], delete_horizon_ms=NOW + 86_400_000)
    assert read_header(batch).delete_horizon_ms == NOW + 86_400_000
    assert [record.timestamp for record in records(batch)] == [NOW]


def test_last_offset_may_be_beyond_the_last_record():
    batch = build_batch([Record(12, NOW, b"k", b"v")], base_offset=10, last_offset=19)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.records_count) == (10, 19, 1)


def test_offsets_have_to_ascend():
    with pytest.raises(AssertionError):
        build_batch([Record(0, NOW, b"k", b"v"), Record(0, NOW, b"k", b"v")])
    with pytest.raises(AssertionError):
        build_batch([Record(4, NOW, b"k", b"v")], base_offset=5)


def test_empty_batch_keeps_the_producers_state():
    full = read_header(
        build_batch(
            [Record(5, NOW, b"k", b"v"), Record(6, NOW + 1, b"k", b"v")],
            base_offset=5,
            leader_epoch=2,
            compression=Compression.GZIP,
            producer_id=1,
            producer_epoch=0,
            base_sequence=8,
            is_transactional=True,
        )
    )
    batch = build_empty_batch(full)
    header = read_header(batch)
    assert crc_is_valid(batch)
    assert list(records(batch)) == []
    assert len(batch) == HEADER_SIZE_BYTES
    assert (header.base_offset, header.last_offset, header.last_sequence, header.max_timestamp) == (
        5,
        6,
        9,
        NOW + 1,
    )
    assert header.is_transactional
    assert not header.is_compressed


def test_simple_records():
    assert simple_records([(b"a", b"1"), (b"b", None)], timestamp=NOW, base_offset=3) == [
        Record(3, NOW, b"a", b"1"),
        Record(4, NOW, b"b", None),
    ]


#: Short ones of any bytes, and ones about as long as a compressed block, which draw only a byte and their length.
_VALUES = st.binary(max_size=80) | st.builds(
    bytes.__mul__, st.binary(min_size=1, max_size=1), st.integers(8190, 8194)
)


@given(
    st.lists(st.tuples(_VALUES, st.none() | _VALUES), min_size=1, max_size=5),
    st.integers(1, 100),
    st.sampled_from(Compression),
)
def test_a_batch_of_pairs_is_the_general_one(
    pairs: list[tuple[bytes, bytes | None]], times: int, compression: Compression
):
    pairs = pairs * times
    built = build_batch_of_pairs(pairs, timestamp=NOW, compression=compression)
    assert built == build_batch(simple_records(pairs, timestamp=NOW), compression=compression)


@given(st.lists(_VALUES, min_size=1, max_size=5), st.integers(1, 100), st.integers(0, 2**50))
def test_a_batch_of_values_is_the_general_one(values: list[bytes], times: int, base_offset: int):
    values = values * times
    rows = simple_records([(None, value) for value in values], timestamp=NOW, base_offset=base_offset)
    built = build_batch_of_values(values, base_offset=base_offset, leader_epoch=7, timestamp=NOW)
    assert built == build_batch(rows, base_offset=base_offset, leader_epoch=7)
    half = len(values) // 2
    halves = payload_of_values(values[:half]) + payload_of_values(values[half:], first_delta=half)
    assert halves == payload_of_values(values)


@pytest.mark.parametrize(("payload", "count"), [
    ("", 1),                          # nothing there
    ("0e 00 00 00 02 6b 02 76 00", 1),  # says 7 bytes, has 8
    ("12 00 00 00 02 6b 02 76 00", 1),  # says 9 bytes, has 8
    ("10 00 00 00 02 6b 02 76 00 00", 1),  # a byte too many
    ("10 00 00 00 02 6b 02 76 00", 2),  # a record too few
    ("10 00 00 00 02 6b 02 76 00", -1),
    ("10 00 00 00 7e 6b 02 76 00", 1),  # the key reaches beyond the record
    ("10 00 00 00 02 6b 7e 76 00", 1),  # the value does
    ("10 00 00 00 02 6b 02 76 01", 1),  # -1 headers
    ("10 00 00 00 02 6b 02 76 7e", 1),  # 63 headers in no bytes
    ("14 00 00 00 02 6b 02 76 02 01 01", 1),  # a header without a key
    ("80 80 80 80 80 01 00", 1),        # a length of six bytes
    ("01", 1),                        # a length of -1
])  # fmt: skip
def test_malformed_records(payload, count):
    with pytest.raises(InvalidRecord):
        list(records(batch_of(bytes.fromhex(payload), count=count)))
    with pytest.raises(InvalidRecord):
        values_of(batch_of(bytes.fromhex(payload), count=count))
    assert largest_timestamp(bytes.fromhex(payload), count=count, base_timestamp=NOW) is None


def test_well_formed_by_hand():
    payload = bytes.fromhex("10 00 00 00 02 6b 02 76 00")
    assert list(records(batch_of(payload))) == [Record(0, NOW, b"k", b"v")]


def test_header_keys_that_are_not_utf8_are_read_as_java_does():
    payload = bytes.fromhex("16 00 00 00 01 01 02 04 ff 61 02 78")
    assert list(records(batch_of(payload))) == [Record(0, NOW, None, None, (("\ufffda", b"x"),))]


@given(st.binary(max_size=150), st.integers(0, 7), st.integers(-1, 5))
def test_random_payloads_raise_nothing_else(payload, attributes, count):
    try:
        list(records(batch_of(payload, count=count, attributes=attributes), Bounds(max_bytes=10_000)))
    except (CorruptMessage, InvalidRecord):
        pass
    except KafkaError:
        assert attributes > 4  # an unknown codec


@given(record_lists, st.sampled_from(Compression), st.data())
def test_mutated_batches_raise_nothing_else(rows, codec, data):
    batch = bytearray(build_batch(at_offsets(rows, 0), compression=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_SIZE_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptMessage, InvalidRecord):
        whole = list(records(batch))
        assert list(keys_of(batch)) == keys_in(whole)
        assert values_of(batch) == [record.value for record in whole]
    with contextlib.suppress(CorruptMessage, InvalidRecord):
        list(keys_of(batch))
    with contextlib.suppress(CorruptMessage, InvalidRecord):
        values_of(batch)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value):
    encoded = encode_varint(value)
    assert read_varlong(encoded, 0) == (value, len(encoded))


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_varint_round_trip(value, prefix):
    encoded = encode_varint(value)
    assert len(encoded) <= 5
    assert read_varint(prefix + encoded, len(prefix)) == (value, len(prefix) + len(encoded))


def test_varint_bounds_are_javas():
    assert read_varint(b"\xff\xff\xff\xff\x7f", 0)[1] == 5  # bits above the 32nd are cut off
    with pytest.raises(InvalidRecord):
        read_varint(b"\xff\xff\xff\xff\xff\x00", 0)
    with pytest.raises(InvalidRecord):
        read_varlong(b"\xff" * 10 + b"\x00", 0)
    with pytest.raises(IndexError):
        read_varint(b"\xff\xff", 0)


def test_a_header_that_promises_more_than_there_is():
    batch = bytearray(build_batch([Record(0, NOW, b"k", b"v")]))
    struct.pack_into(">i", batch, 8, 10_000)
    with pytest.raises(InvalidRecord):
        list(records(batch))


small_bytes = st.none() | st.binary(max_size=4) | st.sampled_from([bytes(70), bytes(9_000)])


@given(
    st.lists(st.tuples(st.integers(-1, 2**42), small_bytes, small_bytes), min_size=1, max_size=5),
    st.booleans(),
    st.data(),
)
def test_the_largest_timestamp_is_that_of_sound_records(rows, is_mutated, data):
    headers = (("h", b"x"),) if len(rows) % 2 else ()
    batch = build_batch([Record(offset, *row, headers) for offset, row in enumerate(rows)])
    header = read_header(batch)
    payload = bytearray(payload_of(header, batch))
    if is_mutated:
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = largest_timestamp(bytes(payload), count=len(rows), base_timestamp=header.base_timestamp)
    try:
        parsed = list(decode_records(bytes(payload), header))
    except InvalidRecord:
        assert found is None
    else:
        is_usual = [record.offset for record in parsed] == list(range(len(rows)))
        assert found == (max(-1, *(record.timestamp for record in parsed)) if is_usual else None)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_the_largest_timestamp_of_random_bytes(payload, count):
    header = read_header(batch_of(payload, count=count))
    found = largest_timestamp(payload, count=count, base_timestamp=header.base_timestamp)
    if found is not None:
        assert len(list(decode_records(payload, header))) == count


@given(st.binary(max_size=60), st.integers(0, 9))
def test_the_latest_time_of_random_bytes(payload, count):
    """The scan skips nothing but the offsets."""
    header = read_header(batch_of(payload, count=count))
    try:
        times = [timestamp for _, timestamp in decode_times(payload, header)]
    except InvalidRecord:
        return
    assert latest_time(payload, header) == max([-1, *times])


@pytest.mark.parametrize("bad", [b"", b"\x0c\0\0", b"\1\0\0", b"\2\0\0\0", encode_varint(40) + bytes(30)])
def test_the_latest_time_of_records_that_are_not_sound(bad):
    with pytest.raises(InvalidRecord):
        latest_time(bad, read_header(batch_of(bad, count=1)))


OPENERS = {
    "records": lambda batch, bounds: list(records(batch, bounds)),
    "keys_of": lambda batch, bounds: list(keys_of(batch, bounds)),
    "values_of": values_of,
    "times_of": lambda batch, bounds: list(times_of(batch, bounds)),
}


@pytest.mark.parametrize("opens", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("codec", Compression)
def test_every_opener_has_bounds(opens, codec):
    batch = build_batch([Record(offset, NOW, b"k", bytes(1000)) for offset in range(20)], compression=codec)
    size = len(payload_of(read_header(batch), batch))
    assert len(opens(batch, Bounds(max_bytes=size, max_records=20, max_record_bytes=1010))) == 20
    with pytest.raises(TooLargeToOpen, match="20 records, more than 19"):
        opens(batch, Bounds(max_records=19))
    if codec is Compression.NONE:  # its sender has sent all of its bytes
        assert len(opens(batch, Bounds(max_bytes=1, max_record_bytes=1))) == 20
        return
    with pytest.raises(TooLargeToOpen, match="decompresses to more than"):
        opens(batch, Bounds(max_bytes=size - 1))
    with pytest.raises(TooLargeToOpen, match=r"more than max\.decompressed\.message\.bytes 999"):
        opens(batch, Bounds(max_record_bytes=999))


def test_a_count_is_refused_before_anything_is_decompressed():
    payload = b"no codec reads this"
    with pytest.raises(TooLargeToOpen):
        list(records(batch_of(payload, count=OF_BROKERS.max_records + 1, attributes=4), OF_BROKERS))
    with pytest.raises(CorruptMessage):
        list(records(batch_of(payload, count=OF_BROKERS.max_records, attributes=4), OF_BROKERS))
