"""Keys and values of `__share_group_state` <-> messages (KIP-932), for tools that only read them.

    key     kind (int16): 0 is a snapshot, 1 an update to the previous snapshot | group, topic id, partition
    value   version (int16) | the delivery state of the partition's records

Source: the coordinator-key and coordinator-value schemas of Kafka 4.3.1's share coordinator.
"""

from dataclasses import field
from typing import ClassVar, Final, NamedTuple
from uuid import UUID

from ottla.protocol.codec import decode_struct
from ottla.protocol.coordinator import split_prefix
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.schema import Message, Record, Versions
from ottla.protocol.schema_class import schema_class
from ottla.protocol.types import ZERO_UUID

_TOPIC: Final = "__share_group_state"


@schema_class
class SharePartitionKey(Message):
    """Key of both kinds: share group, topic id and partition."""

    __versions__: ClassVar[Versions] = Versions(0, 0)

    group_id: str = field(default="", metadata={"kafka_type": "string"})
    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    partition: int = field(default=0, metadata={"kafka_type": "int32"})


@schema_class
class StateBatch:
    """A range of consecutive records in the same delivery state."""

    first_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    #: Inclusive.
    last_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    #: 0 available, 2 acknowledged, 4 archived.
    delivery_state: int = field(default=0, metadata={"kafka_type": "int8"})
    delivery_count: int = field(default=0, metadata={"kafka_type": "int16"})


@schema_class
class ShareSnapshotValue(Record):
    """The complete state of the partition."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    snapshot_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    state_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    leader_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    start_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    delivery_complete_count: int = field(default=-1, metadata={"kafka_type": "int32", "tag": 0})
    create_timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
    write_timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
    state_batches: list[StateBatch] = field(default_factory=list)


@schema_class
class ShareUpdateValue(Record):
    """The changes since the snapshot of this epoch; a start offset of -1 means unchanged."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    snapshot_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    leader_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    start_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    delivery_complete_count: int = field(default=-1, metadata={"kafka_type": "int32", "tag": 0})
    state_batches: list[StateBatch] = field(default_factory=list)


_VALUES: Final[tuple[type[ShareSnapshotValue | ShareUpdateValue], ...]] = (
    ShareSnapshotValue,
    ShareUpdateValue,
)


class ShareStateRecord(NamedTuple):
    """A record of `__share_group_state`; without a value it is a tombstone of the snapshot or update."""

    #: "ShareSnapshotKey" or "ShareUpdateKey".
    kind: str
    key: SharePartitionKey
    value: ShareSnapshotValue | ShareUpdateValue | None


class UnknownShareStateRecord(Exception):
    """A record of a kind or version that this software does not know; newer software may have written it."""


def decode(key: bytes | None, value: bytes | None) -> ShareStateRecord:
    """The record in these bytes. Raises UnknownShareStateRecord, or MalformedMessage for invalid bytes."""
    if key is None:
        raise MalformedMessage(f"a record of {_TOPIC} has no key")
    number, body = split_prefix(key, _TOPIC)
    if not 0 <= number < len(_VALUES):
        raise UnknownShareStateRecord(f"record kind {number}")
    cls = _VALUES[number]
    kind = cls.__name__.removesuffix("Value") + "Key"
    decoded_key = decode_struct(SharePartitionKey, 0, body)
    if value is None:
        return ShareStateRecord(kind, decoded_key, None)
    version, body = split_prefix(value, _TOPIC)
    if version not in cls.__versions__:
        raise UnknownShareStateRecord(f"{cls.__name__} version {version}")
    return ShareStateRecord(kind, decoded_key, decode_struct(cls, version, body))
