"""Records of groups of the new consumer protocol in `__consumer_offsets` (KIP-848): kinds 3 to 8, and 16.

Source: the coordinator-value schemas of Kafka 4.3.1.
"""

from dataclasses import field
from typing import ClassVar
from uuid import UUID

from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class
from ottla.protocol.types import ZERO_UUID


@schema_class
class PartitionMetadata:
    """The racks that have a replica of the partition."""

    partition: int = field(default=0, metadata={"kafka_type": "int32"})
    racks: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})


@schema_class
class TopicMetadata:
    """A topic and the racks of its partitions."""

    topic_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    topic_name: str = field(default="", metadata={"kafka_type": "string"})
    num_partitions: int = field(default=0, metadata={"kafka_type": "int32"})
    partition_metadata: list[PartitionMetadata] = field(default_factory=list)


@schema_class
class ClassicProtocol:
    """An assignor that the member supports."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    metadata: bytes = field(default=b"", metadata={"kafka_type": "bytes"})


@schema_class
class ClassicMemberMetadata:
    """The JoinGroup data of a member that uses the classic protocol."""

    session_timeout_ms: int = field(default=0, metadata={"kafka_type": "int32"})
    supported_protocols: list[ClassicProtocol] = field(default_factory=list)


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
    assignment_epochs: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 0}
    )


@schema_class
class ConsumerGroupMetadataValue(Record):
    """A group and its epoch, which increases when members or their subscriptions change."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    metadata_hash: int = field(default=0, metadata={"kafka_type": "int64", "tag": 0})


@schema_class
class ConsumerGroupPartitionMetadataValue(Record):
    """Metadata of the subscribed topics, as last seen by the coordinator (until 4.0)."""

    __api_key__: ClassVar[int] = 4
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    topics: list[TopicMetadata] = field(default_factory=list)


@schema_class
class ConsumerGroupMemberMetadataValue(Record):
    """The value of a member's record: the member of a consumer group and its subscription."""

    __api_key__: ClassVar[int] = 5
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    instance_id: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    rack_id: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    client_id: str = field(default="", metadata={"kafka_type": "string"})
    client_host: str = field(default="", metadata={"kafka_type": "string"})
    subscribed_topic_names: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})
    subscribed_topic_regex: str | None = field(
        default=None, metadata={"kafka_type": "string", "nullable": "0+"}
    )
    rebalance_timeout_ms: int = field(default=-1, metadata={"kafka_type": "int32"})
    server_assignor: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    #: None for a member of the new protocol.
    classic_member_metadata: ClassicMemberMetadata | None = field(
        default_factory=ClassicMemberMetadata, metadata={"nullable": "0+", "tag": 0}
    )


@schema_class
class ConsumerGroupTargetAssignmentMetadataValue(Record):
    """The group epoch for which the target assignment was computed."""

    __api_key__: ClassVar[int] = 6
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    assignment_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    assignment_timestamp: int = field(default=0, metadata={"kafka_type": "int64", "tag": 0})


@schema_class
class ConsumerGroupTargetAssignmentMemberValue(Record):
    """A member's target assignment: its partitions once all members have reached the epoch."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    topic_partitions: list[TopicPartition] = field(default_factory=list)


@schema_class
class ConsumerGroupCurrentMemberAssignmentValue(Record):
    """A member's current assignment, and the partitions that it must revoke."""

    __api_key__: ClassVar[int] = 8
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    member_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    previous_member_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    state: int = field(default=0, metadata={"kafka_type": "int8"})
    assigned_partitions: list[TopicPartitions] = field(default_factory=list)
    partitions_pending_revocation: list[TopicPartitions] = field(default_factory=list)


@schema_class
class ConsumerGroupRegularExpressionValue(Record):
    """The topics that a regular expression matched when it was last resolved."""

    __api_key__: ClassVar[int] = 16
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    topics: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})
    version: int = field(default=0, metadata={"kafka_type": "int64"})
    timestamp: int = field(default=0, metadata={"kafka_type": "int64"})
