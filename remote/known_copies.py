"""The copies that `__remote_log_metadata` names, folded from its records, of any number of partitions.

As the caches of brokers (`remote/metadata_cache.py`), but without indexes, and copies that were deleted are
remembered: what is left of these in the store may be removed.
"""

from collections.abc import Iterator

from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
    is_segment_transition,
)
from ottla.remote.topic_metadata.records import Change

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class KnownCopies:
    """The state of every copy that records of `__remote_log_metadata` name, deleted ones included.

    Records must be applied in the order of each metadata partition.
    """

    def __init__(self) -> None:
        #: Copies in every state but DELETE_SEGMENT_FINISHED.
        self.copies: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self.deleted: set[RemoteLogSegmentId] = set()
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteState] = {}
        #: Every partition of which there was a record.
        self.partitions: set[TopicIdPartition] = set()
        #: The number of records that this version cannot read: the copies that they name may be missing here.
        self.unread_count = 0
        #: The number of records that retention, or an operator, has removed from the topic: their copies may
        #: be missing.
        self.removed_count = 0

    def apply(self, change: Change) -> None:
        """Apply a record; one that does not fit is ignored, as brokers do."""
        match change:
            case RemoteLogSegmentMetadata():
                self.partitions.add(change.partition)
                if change.segment_id not in self.deleted:
                    self.copies.setdefault(change.segment_id, change)
            case RemoteLogSegmentMetadataUpdate():
                copy = self.copies.get(change.segment_id)
                if copy is None or not is_segment_transition(copy.state, change.state):
                    return
                if change.state is _DELETED:
                    del self.copies[change.segment_id]
                    self.deleted.add(change.segment_id)
                else:
                    self.copies[change.segment_id] = copy.updated(change)
            case RemotePartitionDeleteMetadata():
                self.partitions.add(change.partition)
                is_finished = change.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
                if is_finished and any(each.partition == change.partition for each in self.copies):
                    return  # begun while the remover wrote this record: refused
                self.deletions[change.partition] = change.state

    def by_partition(self) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
        """Return the copies of each partition by start offset."""
        found: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
        for copy in sorted(
            self.copies.values(),
            key=lambda each: (each.start_offset, each.end_offset, each.event_timestamp_ms),
        ):
            found.setdefault(copy.partition, []).append(copy)
        return found

    def in_state(self, state: RemoteLogSegmentState) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the copies in this state."""
        return (copy for copy in self.copies.values() if copy.state is state)
