"""Keys and values of `__consumer_offsets` <-> bytes."""

from struct import Struct
from typing import NamedTuple, TypeVar

from protocol.codec import encode_struct, prefix_decoder
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

_V = TypeVar("_V", bound=GroupValue)

_KEYS: dict[int, type[GroupKey]] = {0: OffsetCommitKey, 1: OffsetCommitKey, 2: GroupMetadataKey}


class GroupRecord(NamedTuple):
    """One record of `__consumer_offsets`; without a value it is a tombstone."""

    key: GroupKey
    value: GroupValue | None


class UnknownRecordKind(Exception):
    """A record of a kind or version that this broker does not know; a newer broker may have written it."""


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


def decode(key: bytes | None, value: bytes | None) -> GroupRecord:
    """The record in these bytes. Raises UnknownRecordKind, or MalformedMessage for invalid bytes. Cost: 3 us."""
    decoded_key = decode_key(key)
    if value is None:
        return GroupRecord(decoded_key, None)
    is_offset = isinstance(decoded_key, OffsetCommitKey)
    return GroupRecord(decoded_key, decode_offset(value) if is_offset else decode_group(value))


def decode_key(key: bytes | None) -> GroupKey:
    """The key of a record. Raises as `decode`."""
    if key is None:
        raise MalformedMessage("a record of __consumer_offsets has no key")
    kind = _prefix(key)
    if kind not in _KEYS:
        raise UnknownRecordKind(f"record kind {kind}")
    return prefix_decoder(_KEYS[kind], 0)(key, _PREFIX.size)[0]


def decode_offset(value: bytes) -> OffsetCommitValue:
    """The value of a record whose key is an OffsetCommitKey. Raises as `decode`."""
    return _decode_value(OffsetCommitValue, value)


def decode_group(value: bytes) -> GroupMetadataValue:
    """The value of a record whose key is a GroupMetadataKey. Raises as `decode`. Cost: 5 us a member."""
    return _decode_value(GroupMetadataValue, value)


def _decode_value(cls: type[_V], value: bytes) -> _V:
    version = _prefix(value)
    if version not in cls.__versions__:
        raise UnknownRecordKind(f"{cls.__name__} version {version}")
    return prefix_decoder(cls, version)(value, _PREFIX.size)[0]


def _prefix(data: bytes) -> int:
    if len(data) < _PREFIX.size:
        raise MalformedMessage("a record of __consumer_offsets is shorter than its prefix")
    number: int = _PREFIX.unpack_from(data)[0]
    return number
