"""Records of classic groups in `__consumer_offsets`: committed offsets and group metadata.

Kinds 0 and 1 are committed offsets (brokers before 0.9 wrote 0), kind 2 is a group's generation.
Kinds 3 and up belong to the newer group types (KIP-848, KIP-932, KIP-1071).

Source: the coordinator-key and coordinator-value schemas of Kafka 4.3.1.
"""

from dataclasses import field
from typing import ClassVar, Final
from uuid import UUID

from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class
from ottla.protocol.types import ZERO_UUID

#: The version of a committed offset's value that is written: the first one with a topic id.
OFFSET_COMMIT_VALUE_VERSION: Final = 4
#: The only version with an expiry of its own; written for commits that request one (v2-4 requests).
OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY: Final = 1
#: The version of a group's value that is written: brokers from 2.3 on can read it (KIP-915).
GROUP_METADATA_VALUE_VERSION: Final = 3


@schema_class
class OffsetCommitKey(Record):
    """Key of a committed offset: group, topic and partition."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[Versions] = Versions(0, 0)

    group: str = field(default="", metadata={"kafka_type": "string"})
    topic: str = field(default="", metadata={"kafka_type": "string"})
    partition: int = field(default=0, metadata={"kafka_type": "int32"})


@schema_class
class OffsetCommitValue(Record):
    """A committed offset. `leader_epoch` and `expire_timestamp` are -1 where there is none."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[Versions] = Versions(0, 4)
    __flexible_from__: ClassVar[int | None] = 4

    offset: int = field(default=0, metadata={"kafka_type": "int64"})
    leader_epoch: int = field(default=-1, metadata={"kafka_type": "int32", "versions": "3+"})
    metadata: str = field(default="", metadata={"kafka_type": "string"})
    commit_timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
    expire_timestamp: int = field(default=-1, metadata={"kafka_type": "int64", "versions": "1"})
    #: The topic's id at the commit: a topic created later under the same name does not inherit the offset.
    topic_id: UUID = field(
        default=ZERO_UUID, metadata={"kafka_type": "uuid", "versions": "4+", "tag": 0, "tag_versions": "4+"}
    )


@schema_class
class GroupMetadataKey(Record):
    """Key of a group's metadata: the group id."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[Versions] = Versions(0, 0)

    group: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class MemberMetadata:
    """A member of a group's generation, with its subscription to the chosen protocol and its assignment."""

    member_id: str = field(default="", metadata={"kafka_type": "string"})
    group_instance_id: str | None = field(
        default=None, metadata={"kafka_type": "string", "versions": "3+", "nullable": "3+"}
    )
    client_id: str = field(default="", metadata={"kafka_type": "string"})
    client_host: str = field(default="", metadata={"kafka_type": "string"})
    #: Milliseconds; -1 in old records: the session timeout.
    rebalance_timeout: int = field(default=-1, metadata={"kafka_type": "int32", "versions": "1+"})
    #: Milliseconds.
    session_timeout: int = field(default=0, metadata={"kafka_type": "int32"})
    subscription: bytes = field(default=b"", metadata={"kafka_type": "bytes"})
    assignment: bytes = field(default=b"", metadata={"kafka_type": "bytes"})


@schema_class
class GroupMetadataValue(Record):
    """A generation of a group, with the assignment made by its leader; without members for an empty group."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[Versions] = Versions(0, 4)
    __flexible_from__: ClassVar[int | None] = 4

    #: "" for a group that only commits offsets.
    protocol_type: str = field(default="", metadata={"kafka_type": "string"})
    generation: int = field(default=0, metadata={"kafka_type": "int32"})
    protocol: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    leader: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    #: When the group entered its current state; -1 in old records.
    current_state_timestamp: int = field(default=-1, metadata={"kafka_type": "int64", "versions": "2+"})
    members: list[MemberMetadata] = field(default_factory=list)


GroupKey = OffsetCommitKey | GroupMetadataKey
GroupValue = OffsetCommitValue | GroupMetadataValue
