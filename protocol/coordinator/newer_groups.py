"""Records of consumer, share and streams groups in `__consumer_offsets`, for tools that only read them.

| kinds | groups |
|---|---|
| 3 to 8, 16 | consumer (KIP-848) |
| 10 to 15 | share (KIP-932) |
| 17 to 23 | streams (KIP-1071) |

A key has the group id, and most have a member id, too. Source: the coordinator-key schemas of Kafka 4.3.1.
"""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from ottla.protocol.codec import decode_struct
from ottla.protocol.coordinator import consumer_group_records as consumer
from ottla.protocol.coordinator import share_group_records as share
from ottla.protocol.coordinator import split_prefix
from ottla.protocol.coordinator import streams_group_records as streams
from ottla.protocol.schema import Message, Record, Versions
from ottla.protocol.schema_class import schema_class

_TOPIC: Final = "__consumer_offsets"


@schema_class
class GroupKey(Message):
    """Key of a group's record: the group id."""

    __versions__: ClassVar[Versions] = Versions(0, 0)

    group_id: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class GroupMemberKey(Message):
    """Key of a member's record: group id and member id."""

    __versions__: ClassVar[Versions] = Versions(0, 0)

    group_id: str = field(default="", metadata={"kafka_type": "string"})
    member_id: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class GroupRegularExpressionKey(Message):
    """Key of a regular expression to which members of the group subscribe."""

    __versions__: ClassVar[Versions] = Versions(0, 0)

    group_id: str = field(default="", metadata={"kafka_type": "string"})
    regular_expression: str = field(default="", metadata={"kafka_type": "string"})


Key = GroupKey | GroupMemberKey | GroupRegularExpressionKey

#: The class of the key by that of the value.
KEYS: Final[Mapping[type[Record], type[Key]]] = MappingProxyType(
    {
        consumer.ConsumerGroupMetadataValue: GroupKey,
        consumer.ConsumerGroupPartitionMetadataValue: GroupKey,
        consumer.ConsumerGroupMemberMetadataValue: GroupMemberKey,
        consumer.ConsumerGroupTargetAssignmentMetadataValue: GroupKey,
        consumer.ConsumerGroupTargetAssignmentMemberValue: GroupMemberKey,
        consumer.ConsumerGroupCurrentMemberAssignmentValue: GroupMemberKey,
        consumer.ConsumerGroupRegularExpressionValue: GroupRegularExpressionKey,
        share.ShareGroupMemberMetadataValue: GroupMemberKey,
        share.ShareGroupMetadataValue: GroupKey,
        share.ShareGroupTargetAssignmentMetadataValue: GroupKey,
        share.ShareGroupTargetAssignmentMemberValue: GroupMemberKey,
        share.ShareGroupCurrentMemberAssignmentValue: GroupMemberKey,
        share.ShareGroupStatePartitionMetadataValue: GroupKey,
        streams.StreamsGroupMetadataValue: GroupKey,
        streams.StreamsGroupMemberMetadataValue: GroupMemberKey,
        streams.StreamsGroupTargetAssignmentMetadataValue: GroupKey,
        streams.StreamsGroupTargetAssignmentMemberValue: GroupMemberKey,
        streams.StreamsGroupCurrentMemberAssignmentValue: GroupMemberKey,
        streams.StreamsGroupTopologyValue: GroupKey,
    }
)
#: The class of the value by kind; the key's class is in `KEYS`.
VALUES: Final[Mapping[int, type[Record]]] = MappingProxyType({cls.__api_key__: cls for cls in KEYS})


class NewerGroupRecord(NamedTuple):
    """A record of a consumer, share or streams group; without a value a tombstone of the entity with this key."""

    kind: int
    key: Key
    value: Record | None


def decode(key: bytes, value: bytes | None) -> NewerGroupRecord | None:
    """The record in these bytes; None if its kind or version is not known. Raises MalformedMessage."""
    kind, body = split_prefix(key, _TOPIC)
    cls = VALUES.get(kind)
    if cls is None:
        return None
    decoded_key: Key = decode_struct(KEYS[cls], 0, body)
    if value is None:
        return NewerGroupRecord(kind, decoded_key, None)
    version, body = split_prefix(value, _TOPIC)
    if version not in cls.__versions__:
        return None
    return NewerGroupRecord(kind, decoded_key, decode_struct(cls, version, body))
