"""The four kinds of record in `__remote_log_metadata`, the topic of Kafka's TopicBasedRemoteLogMetadataManager.

A segment's metadata record is written before the copy, its later states as updates; the deletion of a topic's
partition has states of its own. A segment's `end_offset` is inclusive: the offset of its last record.

Source: KIP-405 and the schemas of Kafka 4.3.1's storage module.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from types import MappingProxyType
from typing import ClassVar, Final
from uuid import UUID

from ottla.protocol.schema import Record, Versions
from ottla.protocol.schema_class import schema_class
from ottla.protocol.types import ZERO_UUID


class RemoteLogSegmentState(IntEnum):
    """The state of a segment's copy in the remote tier."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """The progress of a partition's deletion in the remote tier."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class RemoteLogMetadataRecord(Record):
    """One entry of the topic; all of them have compact lengths and tagged fields."""

    __slots__ = ()
    __versions__: ClassVar[Versions] = Versions(0, 0)
    __flexible_from__: ClassVar[int | None] = 0


@schema_class
class TopicIdPartitionEntry:
    """A partition, by name and id of its topic."""

    name: str = field(default="", metadata={"kafka_type": "string"})
    id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    partition: int = field(default=0, metadata={"kafka_type": "int32"})


@schema_class
class RemoteLogSegmentIdEntry:
    """The id of a segment's copy: each attempt to copy a segment has an id of its own."""

    topic_id_partition: TopicIdPartitionEntry = field(default_factory=TopicIdPartitionEntry)
    id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})


@schema_class
class SegmentLeaderEpochEntry:
    """The offset at which a leader epoch starts within the segment."""

    leader_epoch: int = field(default=0, metadata={"kafka_type": "int32"})
    offset: int = field(default=0, metadata={"kafka_type": "int64"})


@schema_class
class RemoteLogSegmentMetadataRecord(RemoteLogMetadataRecord):
    """A segment is about to be copied."""

    __api_key__: ClassVar[int] = 0

    remote_log_segment_id: RemoteLogSegmentIdEntry = field(default_factory=RemoteLogSegmentIdEntry)
    start_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    #: Inclusive.
    end_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    max_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    #: When the broker created this record.
    event_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = field(default_factory=list)
    segment_size_in_bytes: int = field(default=0, metadata={"kafka_type": "int32"})
    #: Custom metadata of the RemoteStorageManager, which later calls pass back to it.
    custom_metadata: bytes | None = field(default=None, metadata={"kafka_type": "bytes", "nullable": "0+"})
    #: A RemoteLogSegmentState.
    remote_log_segment_state: int = field(default=0, metadata={"kafka_type": "int8"})
    txn_index_empty: bool = field(default=False, metadata={"kafka_type": "bool", "tag": 0})


@schema_class
class RemoteLogSegmentMetadataUpdateRecord(RemoteLogMetadataRecord):
    """A copy has changed its state."""

    __api_key__: ClassVar[int] = 1

    remote_log_segment_id: RemoteLogSegmentIdEntry = field(default_factory=RemoteLogSegmentIdEntry)
    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    event_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    custom_metadata: bytes | None = field(default=None, metadata={"kafka_type": "bytes", "nullable": "0+"})
    #: A RemoteLogSegmentState.
    remote_log_segment_state: int = field(default=0, metadata={"kafka_type": "int8"})


@schema_class
class RemotePartitionDeleteMetadataRecord(RemoteLogMetadataRecord):
    """The deletion of a partition's copies has changed its state."""

    __api_key__: ClassVar[int] = 2

    topic_id_partition: TopicIdPartitionEntry = field(default_factory=TopicIdPartitionEntry)
    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    event_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    #: A RemotePartitionDeleteState.
    remote_partition_delete_state: int = field(default=0, metadata={"kafka_type": "int8"})


@schema_class
class RemoteLogSegmentMetadataSnapshotRecord(RemoteLogMetadataRecord):
    """A segment in the snapshot of one partition; the record does not name the partition."""

    __api_key__: ClassVar[int] = 3

    segment_id: UUID = field(default=ZERO_UUID, metadata={"kafka_type": "uuid"})
    start_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    #: Inclusive.
    end_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    broker_id: int = field(default=0, metadata={"kafka_type": "int32"})
    max_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    event_timestamp_ms: int = field(default=0, metadata={"kafka_type": "int64"})
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = field(default_factory=list)
    segment_size_in_bytes: int = field(default=0, metadata={"kafka_type": "int32"})
    custom_metadata: bytes | None = field(default=None, metadata={"kafka_type": "bytes", "nullable": "0+"})
    #: A RemoteLogSegmentState.
    remote_log_segment_state: int = field(default=0, metadata={"kafka_type": "int8"})
    txn_index_empty: bool = field(default=False, metadata={"kafka_type": "bool", "tag": 0})


#: By the record type in the frame.
RECORD_CLASSES: Final[Mapping[int, type[RemoteLogMetadataRecord]]] = MappingProxyType(
    {
        cls.__api_key__: cls
        for cls in (
            RemoteLogSegmentMetadataRecord,
            RemoteLogSegmentMetadataUpdateRecord,
            RemotePartitionDeleteMetadataRecord,
            RemoteLogSegmentMetadataSnapshotRecord,
        )
    }
)
