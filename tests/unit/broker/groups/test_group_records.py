"""Records of the offsets topic against the bytes that Kafka 4.3.1's GroupCoordinatorRecordSerde makes."""

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.codec import decode_struct, encode_struct
from ottla.protocol.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.coordinator.record_codec import GroupRecord, UnknownRecordKind, decode, encode
from ottla.protocol.errors import MalformedMessage

_OFFSET_KEY = "000100016700066f726465727300000003"
_OFFSET_VALUES = {
    0: "0000000000000000002a00037768790000018bcfe5687b",
    1: "0001000000000000002a00037768790000018bcfe5687b0000018bcff4aa3f",
    2: "0002000000000000002a00037768790000018bcfe5687b",
    3: "0003000000000000002a0000000700037768790000018bcfe5687b",
    4: "0004000000000000002a00000007047768790000018bcfe5687b0100100123456789abcdef1122334455667788",
}
_GROUP_KEY = "0002000167"
_GROUP_VALUES = {
    0: "00000008636f6e73756d657200000005000572616e676500036d2d310000000100036d2d31000163000a2f3132372e302e30"
    "2e31000027100000000201020000000103",
    1: "00010008636f6e73756d657200000005000572616e676500036d2d310000000100036d2d31000163000a2f3132372e302e30"
    "2e310000ea60000027100000000201020000000103",
    2: "00020008636f6e73756d657200000005000572616e676500036d2d310000018bcfe5687b0000000100036d2d31000163000a"
    "2f3132372e302e302e310000ea60000027100000000201020000000103",
    3: "00030008636f6e73756d657200000005000572616e676500036d2d310000018bcfe5687b0000000100036d2d310003692d31"
    "000163000a2f3132372e302e302e310000ea60000027100000000201020000000103",
    4: "000409636f6e73756d6572000000050672616e6765046d2d310000018bcfe5687b02046d2d3104692d3102630b2f3132372e"
    "302e302e310000ea600000271003010202030000",
}


def _offset_value(version: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=42,
        leader_epoch=7 if version >= 3 else -1,
        metadata="why",
        commit_timestamp=1_700_000_000_123,
        expire_timestamp=1_700_000_999_999 if version == 1 else -1,
        topic_id=UUID("01234567-89ab-cdef-1122-334455667788") if version >= 4 else UUID(int=0),
    )


def _group_value(version: int) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=5,
        protocol="range",
        leader="m-1",
        current_state_timestamp=1_700_000_000_123 if version >= 2 else -1,
        members=[
            MemberMetadata(
                member_id="m-1",
                group_instance_id="i-1" if version >= 3 else None,
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout=60_000 if version >= 1 else -1,
                session_timeout=10_000,
                subscription=b"\1\2",
                assignment=b"\3",
            )
        ],
    )


@pytest.mark.parametrize("version", range(5))
def test_offset_records_of_all_versions_are_read_as_kafka_wrote_them(version):
    record = decode(bytes.fromhex(_OFFSET_KEY), bytes.fromhex(_OFFSET_VALUES[version]))
    assert record == GroupRecord(
        OffsetCommitKey(group="g", topic="orders", partition=3), _offset_value(version)
    )
    assert encode_struct(OffsetCommitValue, version, record.value).hex() == _OFFSET_VALUES[version][4:]


# KIP-915
@pytest.mark.parametrize("version", range(5))
def test_group_records_of_all_versions_are_read_as_kafka_wrote_them(version):
    record = decode(bytes.fromhex(_GROUP_KEY), bytes.fromhex(_GROUP_VALUES[version]))
    assert record == GroupRecord(GroupMetadataKey(group="g"), _group_value(version))
    assert encode_struct(GroupMetadataValue, version, record.value).hex() == _GROUP_VALUES[version][4:]


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            GroupRecord(OffsetCommitKey(group="g", topic="orders", partition=3), _offset_value(4)),
            _OFFSET_KEY,
            4,
        ),
        (
            GroupRecord(OffsetCommitKey(group="g", topic="orders", partition=3), _offset_value(1)),
            _OFFSET_KEY,
            1,
        ),
        (GroupRecord(OffsetCommitKey(group="g", topic="orders", partition=3), None), _OFFSET_KEY, None),
        (GroupRecord(GroupMetadataKey(group="g"), _group_value(3)), _GROUP_KEY, 3),
        (GroupRecord(GroupMetadataKey(group="g"), None), _GROUP_KEY, None),
    ],
)
def test_records_are_written_in_the_versions_that_kafka_writes(record, key, value):
    values = _OFFSET_VALUES if key == _OFFSET_KEY else _GROUP_VALUES
    written_key, written_value = encode(record)
    assert written_key.hex() == key
    assert (written_value.hex() if written_value is not None else None) == (
        None if value is None else values[value]
    )


def test_the_first_trace_of_a_group_is_kafkas():
    _, value = encode(GroupRecord(GroupMetadataKey(group="g"), GroupMetadataValue(current_state_timestamp=1)))
    assert value is not None
    assert value.hex() == "0003000000000000ffffffff000000000000000100000000"


def test_kind_0_is_an_offset_of_old():
    key = bytes.fromhex("0000" + _OFFSET_KEY[4:])
    record = decode(key, bytes.fromhex(_OFFSET_VALUES[0]))
    assert record.key == OffsetCommitKey(group="g", topic="orders", partition=3)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (None, b"", MalformedMessage),
        (b"", b"", MalformedMessage),
        (b"\0", b"", MalformedMessage),
        (b"\0\3\0\1g", b"\0\0", UnknownRecordKind),  # a consumer group of KIP-848
        (bytes.fromhex(_GROUP_KEY), b"\0\5", UnknownRecordKind),
        (bytes.fromhex(_GROUP_KEY), b"\0", MalformedMessage),
        (bytes.fromhex(_GROUP_KEY)[:-1], None, MalformedMessage),
        (bytes.fromhex(_GROUP_KEY), bytes.fromhex(_GROUP_VALUES[3])[:-1], MalformedMessage),
    ],
)
def test_other_bytes_are_refused(key, value, error):
    with pytest.raises(error):
        decode(key, value)


@given(
    st.binary(max_size=60), st.none() | st.binary(max_size=120), st.sampled_from([b"\0\0", b"\0\1", b"\0\2"])
)
def test_no_bytes_do_more_harm_than_that(key, value, kind):
    with contextlib.suppress(MalformedMessage, UnknownRecordKind):
        decode(kind + key, value)


@given(
    st.builds(
        GroupMetadataValue,
        protocol_type=st.text(max_size=5),
        generation=st.integers(0, 2**31 - 1),
        protocol=st.none() | st.text(max_size=5),
        leader=st.none() | st.text(max_size=5),
        current_state_timestamp=st.integers(-1, 2**60),
        members=st.lists(
            st.builds(
                MemberMetadata,
                member_id=st.text(max_size=5),
                group_instance_id=st.none() | st.text(max_size=5),
                subscription=st.binary(max_size=9),
                assignment=st.binary(max_size=9),
            ),
            max_size=3,
        ),
    )
)
def test_groups_are_restored(value):
    assert decode_struct(GroupMetadataValue, 3, encode_struct(GroupMetadataValue, 3, value)) == value
