"""The conversion between metadata of copies and values of `__remote_log_metadata`.

The topic has the offset of a segment's last record; metadata has the end, exclusive.
Source: RemoteLogSegmentMetadataTransform, RemoteLogSegmentMetadataUpdateTransform and
RemotePartitionDeleteMetadataTransform of Kafka 4.3.1.
"""

from typing import assert_never

from ottla.protocol.errors import KafkaError, MalformedMessage
from ottla.protocol.remote.record_codec import decode, encode
from ottla.protocol.remote.records import (
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadataRecord,
    RemotePartitionDeleteState,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from ottla.protocol.types import ZERO_UUID
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.storage.leader_epoch_cache import EpochEntry

#: The meaning of a record of the topic.
Change = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata


def user_partition_of(change: Change) -> TopicIdPartition:
    """Return the partition whose copies the change is about."""
    return (
        change.partition if isinstance(change, RemotePartitionDeleteMetadata) else change.segment_id.partition
    )


def to_value(change: Change) -> bytes:
    """Return the value of the topic's record; its key is null."""
    match change:
        case RemoteLogSegmentMetadata():
            return encode(
                RemoteLogSegmentMetadataRecord(
                    remote_log_segment_id=_id_entry(change.segment_id),
                    start_offset=change.start_offset,
                    end_offset=change.end_offset - 1,
                    broker_id=change.broker_id,
                    max_timestamp_ms=change.max_timestamp_ms,
                    event_timestamp_ms=change.event_timestamp_ms,
                    segment_leader_epochs=_epoch_entries(change),
                    segment_size_in_bytes=change.segment_size_bytes,
                    custom_metadata=change.custom_metadata,
                    remote_log_segment_state=change.state,
                    txn_index_empty=change.is_transaction_index_empty,
                )
            )
        case RemoteLogSegmentMetadataUpdate():
            return encode(
                RemoteLogSegmentMetadataUpdateRecord(
                    remote_log_segment_id=_id_entry(change.segment_id),
                    broker_id=change.broker_id,
                    event_timestamp_ms=change.event_timestamp_ms,
                    custom_metadata=change.custom_metadata,
                    remote_log_segment_state=change.state,
                )
            )
        case RemotePartitionDeleteMetadata():
            return encode(
                RemotePartitionDeleteMetadataRecord(
                    topic_id_partition=_partition_entry(change.partition),
                    broker_id=change.broker_id,
                    event_timestamp_ms=change.event_timestamp_ms,
                    remote_partition_delete_state=change.state,
                )
            )
        case _:
            assert_never(change)


def from_value(value: bytes | memoryview | KafkaError | None) -> Change:
    """Return the meaning of a record.

    Raises MalformedMessage, and UnknownRemoteLogMetadata for one of newer software.

    `value` may be the error by which a record could not be read (`topic.ReadRecord`).
    """
    if isinstance(value, KafkaError):
        raise MalformedMessage(str(value)) from value
    record = decode(value)
    try:
        match record:
            case RemoteLogSegmentMetadataRecord():
                return _metadata(_segment_id(record.remote_log_segment_id), record)
            case RemoteLogSegmentMetadataUpdateRecord():
                return RemoteLogSegmentMetadataUpdate(
                    segment_id=_segment_id(record.remote_log_segment_id),
                    state=RemoteLogSegmentState(record.remote_log_segment_state),
                    broker_id=record.broker_id,
                    event_timestamp_ms=record.event_timestamp_ms,
                    custom_metadata=record.custom_metadata,
                )
            case RemotePartitionDeleteMetadataRecord():
                return RemotePartitionDeleteMetadata(
                    partition=_partition(record.topic_id_partition),
                    state=RemotePartitionDeleteState(record.remote_partition_delete_state),
                    broker_id=record.broker_id,
                    event_timestamp_ms=record.event_timestamp_ms,
                )
            case _:
                raise ValueError(f"{type(record).__name__} is a record of snapshots, not of the topic")
    except ValueError as error:
        raise MalformedMessage(str(error)) from error


def _metadata(
    segment_id: RemoteLogSegmentId, record: RemoteLogSegmentMetadataRecord
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=record.start_offset,
        end_offset=record.end_offset + 1,
        max_timestamp_ms=record.max_timestamp_ms,
        broker_id=record.broker_id,
        event_timestamp_ms=record.event_timestamp_ms,
        segment_size_bytes=record.segment_size_in_bytes,
        leader_epochs=_epochs(record.segment_leader_epochs),
        state=RemoteLogSegmentState(record.remote_log_segment_state),
        custom_metadata=record.custom_metadata,
        is_transaction_index_empty=record.txn_index_empty,
    )


def _partition_entry(partition: TopicIdPartition) -> TopicIdPartitionEntry:
    topic, number = partition.topic_partition
    return TopicIdPartitionEntry(name=topic, id=partition.topic_id, partition=number)


def _partition(entry: TopicIdPartitionEntry) -> TopicIdPartition:
    return TopicIdPartition.checked(entry.id, entry.name, entry.partition)


def _id_entry(segment_id: RemoteLogSegmentId) -> RemoteLogSegmentIdEntry:
    return RemoteLogSegmentIdEntry(
        topic_id_partition=_partition_entry(segment_id.partition), id=segment_id.id
    )


def _segment_id(entry: RemoteLogSegmentIdEntry) -> RemoteLogSegmentId:
    if entry.id == ZERO_UUID:
        raise ValueError("a copy has the id that stands for none")
    return RemoteLogSegmentId(_partition(entry.topic_id_partition), entry.id)


def _epoch_entries(copy: RemoteLogSegmentMetadata) -> list[SegmentLeaderEpochEntry]:
    return [
        SegmentLeaderEpochEntry(leader_epoch=each.epoch, offset=each.start_offset)
        for each in copy.leader_epochs
    ]


def _epochs(entries: list[SegmentLeaderEpochEntry]) -> tuple[EpochEntry, ...]:
    # Kafka writes them in the order of a hash map.
    return tuple(sorted(EpochEntry(each.leader_epoch, each.offset) for each in entries))
