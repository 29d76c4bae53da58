"""Schemas of our own: versions, null, tags and nested structs, against bytes written out by hand."""

import struct
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

import pytest

from ottla.protocol import reader_helpers
from ottla.protocol.codec import decode_struct, encode_struct, prefix_decoder
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.schema import Record, Versions
from ottla.protocol.types import ZERO_UUID


@dataclass(slots=True, kw_only=True)
class Endpoint:
    host: str = field(default="", metadata={"kafka_type": "string"})
    port: int = field(default=0, metadata={"kafka_type": "uint16"})


@dataclass(slots=True, kw_only=True)
class ExampleRecord(Record):
    __api_key__: ClassVar[int] = 99
    __versions__: ClassVar[Versions] = Versions(0, 2)
    __flexible_from__: ClassVar[int | None] = 1

    name: str = field(default="", metadata={"kafka_type": "string"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid", "versions": "1+"})
    old: int = field(default=-1, metadata={"kafka_type": "int64", "versions": "0-1"})
    note: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "1+"})
    endpoint: Endpoint | None = field(default=None, metadata={"versions": "2+", "nullable": "2+"})
    endpoints: list[Endpoint] = field(default_factory=list)
    ids: list[UUID] | None = field(
        default=None, metadata={"kafka_type": "uuid", "versions": "1+", "nullable": "1+", "tag": 3}
    )
    level: int = field(default=7, metadata={"kafka_type": "int8", "tag": 1, "tag_versions": "2+"})
    main: Endpoint = field(default_factory=Endpoint, metadata={"versions": "2+", "tag": 0})


def test_version_0():
    record = ExampleRecord(name="n", old=5, note="", endpoints=[Endpoint(host="h", port=65535)], level=2)
    data = struct.pack(">h1sqhih1sHb", 1, b"n", 5, 0, 1, 1, b"h", 65535, 2)
    assert encode_struct(ExampleRecord, 0, record) == data
    assert decode_struct(ExampleRecord, 0, data) == record


def test_version_1():
    one = UUID(int=1)
    record = ExampleRecord(name="n", topic_id=one, old=5, ids=[one], level=2)
    data = (
        b"\x02n"
        + one.bytes
        + struct.pack(">q", 5)
        + b"\0"
        + b"\x01"
        + b"\x02"
        + b"\x01\x03\x11\x02"
        + one.bytes
    )
    assert encode_struct(ExampleRecord, 1, record) == data
    assert decode_struct(ExampleRecord, 1, data) == record


@pytest.mark.parametrize(("record", "endpoint", "tags"), [
    (ExampleRecord(), b"\xff", b"\0"),
    (ExampleRecord(endpoint=Endpoint(host="h", port=1)), b"\x01\x02h\0\x01\0", b"\0"),
    (ExampleRecord(level=8), b"\xff", b"\x01\x01\x01\x08"),
    (ExampleRecord(level=8, main=Endpoint(port=2), ids=[]), b"\xff",
     b"\x03\x00\x04\x01\0\x02\0\x01\x01\x08\x03\x01\x01"),
])  # fmt: skip
def test_version_2(record, endpoint, tags):
    data = b"\x01" + bytes(16) + b"\0" + endpoint + b"\x01" + tags
    assert encode_struct(ExampleRecord, 2, record) == data
    assert decode_struct(ExampleRecord, 2, data) == record


def test_decoded_defaults_are_not_shared():
    data = encode_struct(ExampleRecord, 2, ExampleRecord())
    first, second = decode_struct(ExampleRecord, 2, data), decode_struct(ExampleRecord, 2, data)
    first.main.port = 1
    first.endpoints.append(Endpoint())
    assert second == ExampleRecord()


@pytest.mark.parametrize("record", [
    ExampleRecord(name=None), ExampleRecord(name="x" * 32768), ExampleRecord(old=2**63), ExampleRecord(note=None),
    ExampleRecord(note="", endpoints=None), ExampleRecord(note="", endpoints=[None]), ExampleRecord(note="", level=128),
    ExampleRecord(note="", level="1"), ExampleRecord(note="\ud800"),
])  # fmt: skip
def test_what_cannot_be_written_is_a_value_error(record):
    with pytest.raises(ValueError, match=r"ExampleRecord v0|bytes"):
        encode_struct(ExampleRecord, 0, record)


def test_strings_have_kafkas_bound_in_flexible_versions_too():
    longest = encode_struct(ExampleRecord, 2, ExampleRecord(name="x" * 32767))
    assert decode_struct(ExampleRecord, 2, longest).name == "x" * 32767
    with pytest.raises(ValueError, match="name has"):
        encode_struct(ExampleRecord, 2, ExampleRecord(name="x" * 32768))
    # 32,768 bytes, in three bytes of compact length.
    assert longest.startswith(b"\x80\x80\x02")
    with pytest.raises(MalformedMessage):
        decode_struct(ExampleRecord, 2, b"\x81\x80\x02x" + longest[3:])


def test_unknown_versions():
    for version in (-1, 3):
        with pytest.raises(LookupError):
            encode_struct(ExampleRecord, version, ExampleRecord())
        with pytest.raises(LookupError):
            decode_struct(ExampleRecord, version, b"")


def test_where_a_message_ends():
    data = encode_struct(ExampleRecord, 2, ExampleRecord(name="n"))
    assert prefix_decoder(ExampleRecord, 2)(b"ab" + data + b"c", 2) == (
        ExampleRecord(name="n"),
        2 + len(data),
    )
    with pytest.raises(MalformedMessage):
        prefix_decoder(ExampleRecord, 2)(data, len(data))


# KIP-893
def test_null_where_it_may_not_be():
    with pytest.raises(MalformedMessage):
        decode_struct(ExampleRecord, 0, b"\xff\xff")


def test_ids_that_are_read_again_are_the_same_objects(monkeypatch: pytest.MonkeyPatch):
    data = encode_struct(ExampleRecord, 2, ExampleRecord(topic_id=UUID(int=77), ids=[UUID(int=78)] * 2))
    first, again = (decode_struct(ExampleRecord, 2, data) for _ in range(2))
    assert first.topic_id is again.topic_id
    assert first.ids is not again.ids
    assert first.ids[0] is first.ids[1] is again.ids[1]
    monkeypatch.setattr(reader_helpers, "MAX_REMEMBERED_UUIDS", len(reader_helpers._read_lately))
    assert reader_helpers.uuid_of(UUID(int=2**100).bytes) == UUID(int=2**100)
    assert len(reader_helpers._read_lately) == 1
    assert decode_struct(ExampleRecord, 2, data) == first


@pytest.mark.parametrize("count", [0, 1, 8, 9, 300])
def test_arrays_of_all_sizes(count: int):
    ids = [UUID(int=2**90 + number) for number in range(count)]
    data = encode_struct(ExampleRecord, 2, ExampleRecord(ids=ids))
    assert decode_struct(ExampleRecord, 2, data).ids == ids
