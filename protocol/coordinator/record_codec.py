"""Keys and values of `__consumer_offsets` <-> bytes."""

from struct import Struct
from typing import NamedTuple

from protocol.codec import decode_struct, encode_struct
from protocol.coordinator.group_records import (
    GROUP_METADATA_VALUE_VERSION,
    OFFSET_COMMIT_VALUE_VERSION,
    OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY,
    GroupKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.errors import MalformedMessage

_PREFIX = Struct(">h")

_SCHEMAS: dict[int, tuple[type[GroupKey], type[GroupValue]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
}


class GroupRecord(NamedTuple):
    """One record of `__consumer_offsets`; without a value it is a tombstone."""

    key: GroupKey
    value: GroupValue | None


class UnknownRecordKind(Exception):
    """A record of a kind or a version that this broker does not know; a newer one may have written it."""


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """(key bytes, value bytes or None), in the versions that Kafka 4.3 writes."""
    key = _PREFIX.pack(record.key.__api_key__) + encode_struct(type(record.key), 0, record.key)
    if record.value is None:
        return key, None
    version = _version_to_write(record.value)
    return key, _PREFIX.pack(version) + encode_struct(type(record.value), version, record.value)


def _version_to_write(value: GroupValue) -> int:
    if isinstance(value, GroupMetadataValue):
        return GROUP_METADATA_VALUE_VERSION
    return (
        OFFSET_COMMIT_VALUE_VERSION
        if value.expire_timestamp == -1
        else OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY
    )


def decode(key: bytes | memoryview | None, value: bytes | memoryview | None) -> GroupRecord:
    """The record behind these bytes. Raises UnknownRecordKind, or MalformedMessage for bytes that lie."""
    if key is None:
        raise MalformedMessage("a record of __consumer_offsets has no key")
    kind, body = _split(key)
    if kind not in _SCHEMAS:
        raise UnknownRecordKind(f"record kind {kind}")
    key_class, value_class = _SCHEMAS[kind]
    decoded_key: GroupKey = decode_struct(key_class, 0, body)
    if value is None:
        return GroupRecord(decoded_key, None)
    version, body = _split(value)
    if version not in value_class.__versions__:
        raise UnknownRecordKind(f"{value_class.__name__} version {version}")
    decoded_value: GroupValue = decode_struct(value_class, version, body)
    return GroupRecord(decoded_key, decoded_value)


def _split(data: bytes | memoryview) -> tuple[int, memoryview]:
    if len(data) < _PREFIX.size:
        raise MalformedMessage("a record of __consumer_offsets is shorter than its prefix")
    view = memoryview(data)
    return _PREFIX.unpack_from(view)[0], view[_PREFIX.size :]
