"""Metadata records: held against the bytes that Kafka 4.4.0 writes, and against broken bytes.

About KIP-500.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_cases import CASES, as_read, kafka_name, versions

from ottla.metadata.frame import UnknownMetadataRecord, decode_record, encode_record
from ottla.metadata.image import InvalidMetadata
from ottla.metadata.records import RECORD_CLASSES, MetadataRecord, NoOpRecord

GOLDEN = [
    line.split() for line in Path(__file__).with_name("golden.txt").read_text(encoding="utf-8").splitlines()
]
ALL = [(record, version) for record in CASES for version in versions(record)]


def test_there_are_the_27_types_of_kafka_4_4_0():
    assert sorted(RECORD_CLASSES) == [n for n in range(30) if n not in (6, 13, 16)]
    assert {type(record) for record in CASES} == set(RECORD_CLASSES.values())


@pytest.mark.parametrize(
    ("row", "record", "version"),
    [(row, record, version) for row, (record, version) in zip(GOLDEN, ALL, strict=True)],
    ids=[f"{row[0]}-{row[1]}" for row in GOLDEN],
)
def test_bytes_are_kafkas(row: list[str], record: MetadataRecord, version: int):
    assert row[:2] == [kafka_name(record), str(version)]
    golden = bytes.fromhex(row[2])
    assert encode_record(record, version) == golden
    assert decode_record(golden) == as_read(record, version)


@given(st.binary(max_size=60))
def test_broken_bytes_raise_nothing_else(data: bytes):
    try:
        record = decode_record(data)
    except InvalidMetadata:
        return
    assert isinstance(record, MetadataRecord)


@given(st.sampled_from(GOLDEN), st.data())
def test_cut_or_lengthened_records_are_refused(row: list[str], data: st.DataObject):
    golden = bytes.fromhex(row[2])
    end = data.draw(st.integers(0, len(golden) - 1))
    with pytest.raises(InvalidMetadata):
        decode_record(golden[:end])
    with pytest.raises(InvalidMetadata):
        decode_record(golden + b"\x00")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x02\x14\x00\x00", "frame version 2"),
        (b"\x01\x06\x00\x00", "type 6, version 0"),  # never released
        (b"\x01\x1e\x00\x00", "type 30, version 0"),
        (b"\x01\x03\x03\x00", "type 3, version 3"),
    ],
)
def test_records_of_newer_software_are_distinguished(data: bytes, said: str):
    with pytest.raises(UnknownMetadataRecord, match=said):
        decode_record(data)


def test_no_record_carries_more_than_its_frame_says():
    assert encode_record(NoOpRecord(), 0) == b"\x01\x14\x00\x00"
