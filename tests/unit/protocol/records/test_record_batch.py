"""Headers of record batches: reading, bounds, patching in place."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import CorruptMessage, KafkaError, UnsupportedForMessageFormat
from ottla.protocol.records.batch import (
    HEADER_SIZE_BYTES,
    BatchHeader,
    batches,
    crc_is_valid,
    patch,
    patch_timestamps,
    patched,
    read_header,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record

NOW = 1_700_000_000_000


def a_batch(*, base_offset: int = 0, count: int = 3, **fields: int) -> bytearray:
    """Records of consecutive offsets; `fields` as for build_batch."""
    records = [Record(base_offset + i, NOW + i, b"key", b"value") for i in range(count)]
    return bytearray(build_batch(records, base_offset=base_offset, **fields))


def test_header_fields():
    batch = a_batch(base_offset=10, leader_epoch=4, producer_id=77, producer_epoch=2, base_sequence=5)
    header = read_header(batch)
    assert header == BatchHeader(
        base_offset=10,
        batch_length=len(batch) - 12,
        partition_leader_epoch=4,
        magic=2,
        crc=struct.unpack_from(">I", batch, 17)[0],
        attributes=0,
        last_offset_delta=2,
        base_timestamp=NOW,
        max_timestamp=NOW + 2,
        producer_id=77,
        producer_epoch=2,
        base_sequence=5,
        records_count=3,
    )
    assert (header.last_offset, header.next_offset, header.size_bytes) == (12, 13, len(batch))
    assert header.last_sequence == 7
    assert header.has_producer_id
    assert header.attributes == 0


@pytest.mark.parametrize(("base", "delta", "last"), [
    (          5, 2,          7),
    (2**31 - 2, 1, 2**31 - 1),
    (2**31 - 2, 2,          0),  # on past the largest int32 to 0
    (2**31 - 1, 3,          2),
    (       -1, 4,         -1),  # no sequence at all
])  # fmt: skip
def test_last_sequence_wraps(base, delta, last):
    header = read_header(a_batch(base_sequence=base))._replace(last_offset_delta=delta)
    assert header.last_sequence == last


@pytest.mark.parametrize(("attributes", "true_properties"), [
    (0x00, set()),
    (0x08, {"is_log_append_time"}),
    (0x10, {"is_transactional"}),
    (0x20, {"is_control"}),
    (0x40, {"has_delete_horizon"}),
    (0x04, {"is_compressed"}),
    (0x7B, {"is_log_append_time", "is_transactional", "is_control", "has_delete_horizon", "is_compressed"}),
])  # fmt: skip
def test_attributes(attributes, true_properties):
    header = read_header(a_batch())._replace(attributes=attributes)
    names = ("is_log_append_time", "is_transactional", "is_control", "has_delete_horizon", "is_compressed")
    assert {name for name in names if getattr(header, name)} == true_properties
    assert header.delete_horizon_ms == (NOW if "has_delete_horizon" in true_properties else None)


def test_codec_of_attributes():
    header = read_header(a_batch())
    assert [header._replace(attributes=number).compression for number in range(5)] == list(Compression)
    with pytest.raises(KafkaError):
        _ = header._replace(attributes=5).compression


@pytest.mark.parametrize(("magic", "length", "expected"), [
    (0, 14, UnsupportedForMessageFormat),
    (1, 60, UnsupportedForMessageFormat),
    (1, 13, CorruptMessage),   # shorter than any format
    (2, 48, CorruptMessage),   # shorter than its own header
    (2, -1, CorruptMessage),
    (3, 99, CorruptMessage),
    (0, 0, CorruptMessage),    # what a preallocated file holds
])  # fmt: skip
def test_what_is_no_header(magic, length, expected):
    data = bytearray(100)
    struct.pack_into(">i", data, 8, length)
    data[16] = magic
    with pytest.raises(expected):
        read_header(data)
    with pytest.raises(expected):
        list(batches(memoryview(data)))


def test_header_shorter_than_61_bytes():
    with pytest.raises(CorruptMessage):
        read_header(a_batch()[: HEADER_SIZE_BYTES - 1])
    assert read_header(bytes(7) + a_batch()[:HEADER_SIZE_BYTES], 7).records_count == 3


def test_batches_in_order_without_the_one_that_is_cut_off():
    whole = [a_batch(base_offset=0), a_batch(base_offset=3, count=1), a_batch(base_offset=4)]
    data = b"".join(whole)
    assert [bytes(batch) for _, batch in batches(memoryview(data))] == whole
    for end in range(len(data)):
        found = [header.base_offset for header, _ in batches(memoryview(data)[:end])]
        assert found == [0, 3][: (end >= len(whole[0])) + (end >= len(whole[0]) + len(whole[1]))]


def test_batches_slices_are_views():
    data = memoryview(bytearray(a_batch() + a_batch(base_offset=3)))
    for _, batch in batches(data):
        patch(batch, base_offset=100, leader_epoch=0)
    assert [header.base_offset for header, _ in batches(data)] == [100, 100]


def test_patch_keeps_the_crc():
    batch = a_batch()
    patch(memoryview(batch), base_offset=2**40, leader_epoch=9)
    header = read_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 9)
    assert crc_is_valid(batch)


def test_patched_leaves_the_original_alone():
    batch = bytes(a_batch())
    head, rest = patched(memoryview(batch), base_offset=7, leader_epoch=1)
    assert len(head) == 16
    patch(memoryview(same := bytearray(batch)), base_offset=7, leader_epoch=1)
    assert head + rest == same
    assert read_header(batch).base_offset == 0


def test_patch_timestamps_renews_the_crc_only_if_needed():
    batch = a_batch()
    before = bytes(batch)
    patch_timestamps(batch, max_timestamp=NOW + 2, is_log_append_time=False)
    assert batch == before
    patch_timestamps(batch, max_timestamp=NOW + 50, is_log_append_time=True)
    header = read_header(batch)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW + 50
    assert crc_is_valid(batch)
    assert header.crc != read_header(before).crc


def test_every_flipped_bit_behind_the_crc_is_noticed():
    batch = a_batch(count=1)
    for position in range(17, len(batch)):
        batch[position] ^= 0x10
        assert not crc_is_valid(batch)
        batch[position] ^= 0x10
    assert crc_is_valid(batch)


@given(st.binary(max_size=200), st.integers(-1, 3), st.integers(-5, 200))
def test_random_bytes_raise_nothing_else(data, magic, length):
    mutable = bytearray(data)
    if len(mutable) > 16:
        struct.pack_into(">i", mutable, 8, length)
        mutable[16] = magic & 0xFF
    for buffer in (data, bytes(mutable)):
        try:
            for header, batch in batches(memoryview(buffer)):
                assert len(batch) == header.size_bytes
        except (CorruptMessage, UnsupportedForMessageFormat):
            pass
