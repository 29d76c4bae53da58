"""The decisions of the copy task: the next segment to copy, and the step after a copy; `copy_task` carries them out.

    [ copied ........... ][ next ][ later ][ closed, with an open transaction ][ active ]
                          ^ max(remote end, log start)      ^ last stable offset

A segment is copied when it is closed, everything in it is committed and decided, and it is old enough or followed by
enough (KIP-1241): as long as the local tier serves it, its copy is of no use but is paid for. Segments are copied in
order, so that what is copied has no hole.

Source: RLMCopyTask.candidateLogSegments, isEligibleForUpload and copyLogSegment of Kafka 4.4.0.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, takewhile
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.remote.errors import DamagedSegment, RetriableRemoteStorageError
from ottla.remote.log_manager.partition_state import Attempt, PartitionState
from ottla.remote.log_manager.segment_transfers import TransferAbandoned
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import LogSegmentData
from ottla.storage.log import Log
from ottla.storage.segment import Segment
from ottla.storage.tiered_log import SegmentToCopy, segments_to_copy


def is_copying(log: Log) -> bool:
    """Whether the topic's segments are copied; remote.log.copy.disable leaves copies as they are (KIP-950)."""
    return log.is_tiered and not log.config.remote_log_copy_disable


def next_segment(log: Log) -> SegmentToCopy | None:
    """Return the first segment to copy; None: all that can be are copied. The remote end must be known."""
    from_offset = log.offsets.earliest_pending_upload_offset
    assert from_offset is not None, log.offsets
    if not is_copying(log) or from_offset >= log.segments.active.base_offset:
        return None
    found = segments_to_copy(
        log.files,
        log.leader_epochs,
        from_offset=from_offset,
        end_offset=log.last_stable_offset,
        max_count=1,
    )
    if not found:
        return None
    segment = found[0]
    # What is copied ascends, and nothing in it can be truncated or aborted any more.
    assert from_offset < segment.end_offset <= log.last_stable_offset, (segment, log.offsets)
    assert segment.base_offset < segment.end_offset <= log.segments.active.base_offset, segment
    return segment


def is_copied_at_once(config: LogConfig) -> bool:
    """Whether a closed segment needs no age and no newer records to be copied: the default."""
    return config.effective_remote_copy_lag_ms == 0 or config.effective_remote_copy_lag_bytes == 0


def is_due(config: LogConfig, *, age_ms: Callable[[], int], newer_sizes: Iterable[int]) -> bool:
    """Whether a closed segment of this age, with segments of these sizes after it, is to be copied (KIP-1241).

    A negative age is that of a timestamp in the future, which would keep the segment for as long as it lies ahead.
    Cost: the age may need the disk, and is asked for only if the topic has a lag of time; of the sizes as many are
    read as reach the lag of bytes.
    """
    if is_copied_at_once(config):
        return True
    lag_ms, lag_bytes = config.effective_remote_copy_lag_ms, config.effective_remote_copy_lag_bytes
    if lag_ms is not None and not 0 <= age_ms() < lag_ms:
        return True
    return lag_bytes is not None and any(total >= lag_bytes for total in accumulate(newer_sizes))


def next_closed(log: Log) -> Segment | None:
    """Return the closed segment that is copied next; None without one. The remote end must be known."""
    from_offset = log.offsets.earliest_pending_upload_offset
    assert from_offset is not None, log.offsets
    segment = log.segments.floor(from_offset) or log.segments.first
    return None if segment is log.segments.active else segment


def sizes_after(log: Log, segment: Segment) -> Iterator[int]:
    """Yield the sizes of the segments after this one, the newest first."""
    return (each.size for each in takewhile(lambda each: each is not segment, reversed(log.segments)))


def copy_lag(log: Log) -> tuple[int, int]:
    """Return (bytes, segments) of closed segments that are in the local tier only."""
    from_offset = log.offsets.earliest_pending_upload_offset
    waiting = [] if from_offset is None else [
        each for each in log.segments.from_offset(from_offset) if each is not log.segments.active
    ]  # fmt: skip
    if waiting and from_offset is not None and (log.segments.end_of(waiting[0]) or 0) <= from_offset:
        waiting.pop(0)
    return sum(each.size for each in waiting), len(waiting)


def is_wanted(state: PartitionState, attempt: Attempt) -> bool:
    """Whether the copy may become part of the remote tier: this broker leads, and the segment is its log's.

    A copy of what was truncated meanwhile would be of another lineage. One of what another leader has copied
    meanwhile, or of what is before the log start by now, would never be read. One behind what is copied would
    leave a hole.
    """
    log = state.partition.log
    pending = log.offsets.earliest_pending_upload_offset
    return (
        state.leads
        and is_copying(log)
        and attempt.segment.is_current(log)
        and pending is not None
        and attempt.segment.base_offset <= pending < attempt.segment.end_offset
    )


def metadata_of(
    segment: SegmentToCopy,
    *,
    partition: TopicIdPartition,
    copy_id: UUID,
    max_timestamp_ms: int,
    node_id: int,
    now_ms: int,
) -> RemoteLogSegmentMetadata:
    """Return the metadata of a new copy, in state COPY_SEGMENT_STARTED."""
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, copy_id),
        start_offset=segment.base_offset,
        end_offset=segment.end_offset,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=node_id,
        event_timestamp_ms=now_ms,
        segment_size_bytes=segment.size_bytes,
        leader_epochs=tuple(segment.leader_epochs),
        is_transaction_index_empty=segment.transaction_index is None,
    )


def data_of(attempt: Attempt) -> LogSegmentData:
    """Return the files and bytes that the store copies for a segment."""
    segment = attempt.segment
    assert segment.size_bytes == attempt.metadata.segment_size_bytes, attempt
    return LogSegmentData(
        log_segment=segment.log_segment,
        offset_index=segment.offset_index,
        time_index=segment.time_index,
        transaction_index=segment.transaction_index,
        producer_snapshot=segment.producer_snapshot,
        leader_epoch_index=segment.leader_epoch_checkpoint,
        time_index_of_records=attempt.time_index_of_records,
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class Finish:
    """Decision: store COPY_SEGMENT_FINISHED, the segment is copied."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Repeat:
    """Decision: copy again after a back-off, under the same id; the store overwrites the rest of the failed call.

    A damaged segment is read again after the longest back-off: the disk may have returned wrong bytes once.
    """


@dataclass(slots=True, frozen=True, kw_only=True)
class Discard:
    """Decision: delete the copy from the store."""

    #: No further segment of the partition is copied in this leader epoch: its copy would end the same way.
    stops_copying: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class Leave:
    """Decision: leave the copy to the abandoned call of the store, which still writes.

    Its objects are deleted when that call ends (`segment_transfers`); the segment is copied under another id.
    """


Decision = Finish | Repeat | Discard | Leave


def after_copy(custom_metadata: bytes | None, *, is_wanted: bool, custom_metadata_max_bytes: int) -> Decision:
    """Return the decision after the store has copied the segment."""
    assert custom_metadata_max_bytes >= 0, custom_metadata_max_bytes
    if not is_wanted:
        return Discard()
    if custom_metadata is not None and len(custom_metadata) > custom_metadata_max_bytes:
        return Discard(stops_copying=True)
    return Finish()


def after_failure(error: Exception, *, is_wanted: bool) -> Decision:
    """Return the decision after the store has failed to copy the segment.

    Kafka leaves a copy that has failed with a retriable error as COPY_SEGMENT_STARTED, and copies under another id.
    """
    match error:
        case TransferAbandoned():
            return Leave()
        case DamagedSegment() | RetriableRemoteStorageError() if is_wanted:
            return Repeat()
        case _:
            return Discard()
