"""Records of streams groups in `__consumer_offsets` (KIP-1071): record types 17 to 23.

Source: the coordinator-value schemas of Kafka 4.4.0.
"""

from dataclasses import field
from typing import ClassVar

from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class


@schema_class
class LastAssignmentConfig:
    """A configuration that the last assignment used."""

    key: str = field(default="", metadata={"kafka_type": "string"})
    value: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class Endpoint:
    """A member's endpoint for interactive queries."""

    host: str = field(default="", metadata={"kafka_type": "string"})
    port: int = field(default=0, metadata={"kafka_type": "uint16"})


@schema_class
class KeyValue:
    """A client tag: key and value."""

    key: str = field(default="", metadata={"kafka_type": "string"})
    value: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class TaskIds:
    """Tasks of one subtopology."""

    subtopology_id: str = field(default="", metadata={"kafka_type": "string"})
    partitions: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})


@schema_class
class AssignedTaskIds:
    """Tasks of one subtopology, active ones with the epoch in which each was assigned."""

    subtopology_id: str = field(default="", metadata={"kafka_type": "string"})
    partitions: list[int] = field(default_factory=list, metadata={"kafka_type": "int32"})
    assignment_epochs: list[int] | None = field(
        default=None, metadata={"kafka_type": "int32", "nullable": "0+", "tag": 0}
    )


@schema_class
class TopicConfig:
    """A configuration of an internal topic: its key and value."""

    key: str = field(default="", metadata={"kafka_type": "string"})
    value: str = field(default="", metadata={"kafka_type": "string"})


@schema_class
class TopicInfo:
    """An internal topic of a streams group's topology: its partitions, replication factor and configurations."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    partitions: int = field(default=0, metadata={"kafka_type": "int32"})
    replication_factor: int = field(default=0, metadata={"kafka_type": "int16"})
    topic_configs: list[TopicConfig] = field(default_factory=list)


@schema_class
class CopartitionGroup:
    """Topics that must have the same number of partitions, as indexes into the lists of the subtopology."""

    source_topics: list[int] = field(default_factory=list, metadata={"kafka_type": "int16"})
    source_topic_regex: list[int] = field(default_factory=list, metadata={"kafka_type": "int16"})
    repartition_source_topics: list[int] = field(default_factory=list, metadata={"kafka_type": "int16"})


@schema_class
class Subtopology:
    """A subtopology: topics that the same tasks process."""

    subtopology_id: str = field(default="", metadata={"kafka_type": "string"})
    source_topics: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})
    source_topic_regex: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list, metadata={"kafka_type": "string"})
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)
    copartition_groups: list[CopartitionGroup] = field(default_factory=list)


@schema_class
class StreamsGroupMetadataValue(Record):
    """The value of a streams group's record: the group's epoch."""

    __api_key__: ClassVar[int] = 17
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    metadata_hash: int = field(default=0, metadata={"kafka_type": "int64"})
    validated_topology_epoch: int = field(default=-1, metadata={"kafka_type": "int32", "tag": 0})
    last_assignment_configs: list[LastAssignmentConfig] | None = field(
        default=None, metadata={"nullable": "0+", "tag": 1}
    )
    #: The topology's epoch whose description is stored, and the one whose description could not be.
    stored_description_topology_epoch: int = field(default=-1, metadata={"kafka_type": "int32", "tag": 2})
    failed_description_topology_epoch: int = field(default=-1, metadata={"kafka_type": "int32", "tag": 3})


@schema_class
class StreamsGroupMemberMetadataValue(Record):
    """A member: one thread of an application."""

    __api_key__: ClassVar[int] = 19
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    instance_id: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    rack_id: str | None = field(default=None, metadata={"kafka_type": "string", "nullable": "0+"})
    client_id: str = field(default="", metadata={"kafka_type": "string"})
    client_host: str = field(default="", metadata={"kafka_type": "string"})
    rebalance_timeout_ms: int = field(default=-1, metadata={"kafka_type": "int32"})
    topology_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    process_id: str = field(default="", metadata={"kafka_type": "string"})
    user_endpoint: Endpoint | None = field(default=None, metadata={"nullable": "0+"})
    client_tags: list[KeyValue] = field(default_factory=list)


@schema_class
class StreamsGroupTargetAssignmentMetadataValue(Record):
    """The group epoch for which the target assignment was computed."""

    __api_key__: ClassVar[int] = 20
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    assignment_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    assignment_timestamp: int = field(default=0, metadata={"kafka_type": "int64", "tag": 0})


@schema_class
class StreamsGroupTargetAssignmentMemberValue(Record):
    """A member's target assignment of tasks."""

    __api_key__: ClassVar[int] = 21
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)


@schema_class
class StreamsGroupCurrentMemberAssignmentValue(Record):
    """A member's current tasks, and those that it must revoke."""

    __api_key__: ClassVar[int] = 22
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    member_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    previous_member_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    state: int = field(default=0, metadata={"kafka_type": "int8"})
    active_tasks: list[AssignedTaskIds] = field(default_factory=list)
    standby_tasks: list[AssignedTaskIds] = field(default_factory=list)
    warmup_tasks: list[AssignedTaskIds] = field(default_factory=list)
    active_tasks_pending_revocation: list[AssignedTaskIds] = field(default_factory=list)
    standby_tasks_pending_revocation: list[AssignedTaskIds] = field(default_factory=list)
    warmup_tasks_pending_revocation: list[AssignedTaskIds] = field(default_factory=list)


@schema_class
class StreamsGroupTopologyValue(Record):
    """The application's topology, as sent by its members."""

    __api_key__: ClassVar[int] = 23
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0

    epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    subtopologies: list[Subtopology] = field(default_factory=list)
