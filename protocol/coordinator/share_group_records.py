"""Records of share groups in `__consumer_offsets` (KIP-932): kinds 10 to 15.

Source: the coordinator-value schemas of Kafka 4.3.1.
"""

from dataclasses import field
from typing import ClassVar
from uuid import UUID

from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class
from ottla.protocol.types import ZERO_UUID


@schema_class
class TopicPartition:
    """Partitions of one topic."""

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    partitions: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})


@schema_class
class TopicPartitions:
    """Partitions of one topic, optionally with the epoch in which each was assigned."""

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    partitions: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})


@schema_class
class TopicPartitionsInfo:
    """Partitions of one topic."""

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    topic_name: str = field(default="", metadata={"kafka_type": "string"})
    partitions: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})


@schema_class
class TopicInfo:
    """The id and name of a topic whose state the share group is deleting."""

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    topic_name: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class ShareGroupMemberMetadataValue(Record):
    """The value of a member's record: the member of a share group and its subscription."""

    __api_key__: ClassVar[int] = 10
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    rack_id: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    client_id: str = field(default="", metadata={"kafka_type": "string"})
    client_host: str = field(default="", metadata={"kafka_type": "string"})
    subscribed_topic_names: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})


@schema_class
class ShareGroupMetadataValue(Record):
    """The value of a share group's record: the group's epoch."""

    __api_key__: ClassVar[int] = 11
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    metadata_hash: int = field(default=0, metadata={"kafka_type": "int64"})


@schema_class
class ShareGroupTargetAssignmentMetadataValue(Record):
    """The group epoch for which the target assignment was computed."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    assignment_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    assignment_timestamp: int = field(default=0, metadata={"kafka_type": "int64", "tag": 0})


@schema_class
class ShareGroupTargetAssignmentMemberValue(Record):
    """A member's target assignment."""

    __api_key__: ClassVar[int] = 13
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    topic_partitions: list[TopicPartition] = field(default_factory=list)


@schema_class
class ShareGroupCurrentMemberAssignmentValue(Record):
    """A member's current assignment."""

    __api_key__: ClassVar[int] = 14
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    member_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    previous_member_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    state: int = field(default=0, metadata={"kafka_type": "int8"})
    assigned_partitions: list[TopicPartitions] = field(default_factory=list)


@schema_class
class ShareGroupStatePartitionMetadataValue(Record):
    """The partitions that have state in `__share_group_state`."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    initializing_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    initialized_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    deleting_topics: list[TopicInfo] = field(default_factory=list)
