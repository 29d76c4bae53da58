"""Append as follower: copies another replica's batches and adopts its offsets (a leader's, or a moving log's).

Source: UnifiedLog.appendAsFollower and ReplicaFetcherThread.processPartitionData of Kafka.
"""

from storage.log import AppendInfo, Log, UnexpectedAppendOffset


def append_copy(log: Log, records: memoryview, *, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append whole batches unchanged.

    Raises CorruptMessage (nothing is written then), UnexpectedAppendOffset, KafkaStorageError.
    """
    try:
        return log.append_as_follower(records, leader_epoch=leader_epoch, now_ms=now_ms)
    except UnexpectedAppendOffset as error:
        # The other log starts within a batch (DeleteRecords): an empty log takes the whole batch.
        is_empty = log.log_end_offset == log.log_start_offset
        if not (is_empty and error.first_offset < log.log_end_offset <= error.last_offset):
            raise
        log.truncate_fully_and_start_at(error.first_offset, now_ms=now_ms)
        return log.append_as_follower(records, leader_epoch=leader_epoch, now_ms=now_ms)


def adopt_offsets(log: Log, *, high_watermark: int, log_start_offset: int, reason: str) -> bool:
    """Adopt the other replica's high watermark and log start offset, limited to this log; whether one has moved.

    Keeps log start offset <= high watermark <= log end offset.
    """
    has_moved = log.maybe_increment_high_watermark(min(high_watermark, log.log_end_offset))
    has_moved |= log.maybe_increment_log_start_offset(
        min(log_start_offset, log.high_watermark), reason=reason
    )
    return has_moved
