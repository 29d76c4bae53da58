"""A real log with a remote tier: segments are copied to a store, and removed locally, when a test says so.

As `tiered_replicas`, for one log without brokers. The metadata is in memory.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.remote.checked_copies import CheckedCopies
from ottla.remote.lineage import remote_end_offset, without_empty_epochs
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager
from ottla.storage.log import Log
from ottla.storage.tiered_log import SegmentToCopy
from ottla.stories.partition.remote_metadata import Metadata


@dataclass
class PartitionOfLog:
    """The partition of a log, as readers and tasks of the remote tier see it (TieredPartition)."""

    log: Log
    topic_id: UUID
    is_leader: bool = True
    leader_epoch: int = 0
    replicas: tuple[int, ...] = (1,)
    isr: tuple[int, ...] = (1,)
    is_deleted: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the index of the partition."""
        return self.log.topic_partition

    @property
    def id(self) -> TopicIdPartition:
        """The partition with the id of its topic."""
        return TopicIdPartition(self.topic_id, self.topic_partition)

    def notice_retention(self) -> bool:
        """Implement the method of TieredPartition: no follower is notified."""
        return False


class Tier:
    """A store and the metadata of its copies."""

    def __init__(self, store: RemoteStorageManager, metadata: Metadata | None = None) -> None:
        self.store = store
        self.metadata = metadata or Metadata()
        self._copies = 0

    def copy_closed_segments(
        self,
        log: Log,
        partition: TopicIdPartition,
        *,
        broker_id: int = 1,
        store: RemoteStorageManager | None = None,
    ) -> list[RemoteLogSegmentMetadata]:
        """Copy what has no copy yet, as a copy task would; the log knows its new remote end.

        `store`: the broker's view of the store.
        """
        self.learn_remote_end(log, partition)
        start = max(log.local_log_start_offset, log.offsets.remote_end_offset or 0)
        found = [
            self._copy(
                partition, segment, broker_id, CheckedCopies(store or self.store, log.files.file_system)
            )
            for segment in log.segments_to_copy(start)
        ]
        self.learn_remote_end(log, partition)
        return found

    def _copy(
        self,
        partition: TopicIdPartition,
        segment: SegmentToCopy,
        broker_id: int,
        store: RemoteStorageManager,
    ) -> RemoteLogSegmentMetadata:
        self._copies += 1
        if segment.snapshot_job is not None:
            segment.snapshot_job.run()
        times = segment.read_times()
        copy = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, UUID(int=self._copies)),
            start_offset=segment.base_offset,
            end_offset=segment.end_offset,
            max_timestamp_ms=times.largest,
            broker_id=broker_id,
            event_timestamp_ms=0,
            segment_size_bytes=segment.size_bytes,
            leader_epochs=tuple(segment.leader_epochs),
            is_transaction_index_empty=segment.transaction_index is None,
        )
        cache = self.metadata.cache(partition)
        cache.add(copy)
        custom = store.copy_log_segment_data(
            copy,
            LogSegmentData(
                log_segment=segment.log_segment,
                offset_index=segment.offset_index,
                time_index=segment.time_index,
                transaction_index=segment.transaction_index,
                producer_snapshot=segment.producer_snapshot,
                leader_epoch_index=segment.leader_epoch_checkpoint,
                time_index_of_records=times.time_index,
            ),
        )
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=copy.segment_id,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            broker_id=broker_id,
            event_timestamp_ms=0,
            custom_metadata=custom,
        )
        cache.update(update)
        return copy.updated(update)

    def learn_remote_end(self, log: Log, partition: TopicIdPartition) -> None:
        """Set the remote end offset, as the tasks of leaders and followers do."""
        log.update_remote_end_offset(
            remote_end_offset(
                without_empty_epochs(log.leader_epochs.entries),
                self.metadata.cache(partition),
                local_log_start_offset=log.local_log_start_offset,
                log_end_offset=log.log_end_offset,
            )
        )


def remove_local_segments(log: Log, before_offset: int) -> None:
    """Local retention removes the copied segments that end at or before `before_offset`."""
    kept = sum(
        segment.size for segment in log.segments if (log.segments.end_of(segment) or 2**63) > before_offset
    )
    config = log.config
    log.update_config(replace(config, local_retention_bytes=max(1, kept), retention_bytes=2**62))
    log.apply_retention(0)
    log.update_config(config)
