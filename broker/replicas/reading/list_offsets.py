"""ListOffsets of one partition (ReplicaManager.fetchOffset): log start, log end, or the first offset at a timestamp.

Source: KIP-79, KIP-207; Kafka's Partition.fetchOffsetForTimestamp and UnifiedLog.fetchOffsetByTimestamp.
"""

from ottla.broker.replicas.partition import Partition
from ottla.protocol.errors import OffsetNotAvailable, RequestTimedOut
from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from ottla.runtime import Pool, Runtime
from ottla.storage.index import TimestampOffset
from ottla.storage.log import Log
from ottla.storage.time_search import TimeSearch


def is_searched(timestamp: int) -> bool:
    """Whether the offset has to be found in the records, by a `search`."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


async def search(
    partition: Partition, timestamp: int, runtime: Runtime, *, deadline_s: float
) -> TimestampOffset | None:
    """Search the local log for a time in ms, or for the largest timestamp, in threads; None: there is no such record.

    Cancelled with its client. Raises RequestTimedOut after `deadline_s`, of `Runtime.monotonic`: the next
    search continues; KafkaStorageError, InvalidRecord, CorruptMessage.
    """
    is_over = False
    found = TimeSearch(
        partition.log.reader,
        None if timestamp == MAX_TIMESTAMP else timestamp,
        is_cancelled=lambda: is_over,
    )
    try:
        while not await runtime.run_blocking(found.step, pool=Pool.LOOK_UPS):
            if runtime.monotonic() >= deadline_s:
                raise RequestTimedOut(f"{partition}: the search for a timestamp is not complete")
    finally:
        is_over = True  # the connection is closed
    return found.found


def offset_for_timestamp(
    partition: Partition,
    timestamp: int,
    *,
    found: TimestampOffset | None,
    is_read_committed: bool | None,
) -> TimestampOffset | None:
    """Answer one row of ListOffsets: a time in ms, or one of the special ones above. None: no such offset.

    `found` is the result of a `search`, if the timestamp `is_searched`. `is_read_committed` None stands for a replica,
    which sees up to the log end. Raises OffsetNotAvailable while a new leader's high watermark is below its epoch's
    start offset: consumers may have seen a larger one from an older leader (KIP-207).
    """
    log = partition.log
    if timestamp == EARLIEST:
        return _earliest(log)
    if timestamp == EARLIEST_LOCAL:
        start = log.local_log_start_offset
        return TimestampOffset(timestamp=-1, offset=start, leader_epoch=log.epoch_for_offset(start))
    if timestamp == LATEST_TIERED:
        return _latest_tiered(log)
    if is_read_committed is None:
        end = log.log_end_offset
    else:
        end = partition.readable_end(is_read_committed=is_read_committed)
    if timestamp == LATEST:
        if is_read_committed is not None:
            check_high_watermark_is_known(partition)
        return TimestampOffset(timestamp=-1, offset=end, leader_epoch=partition.leader_epoch)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        found = _earliest_pending_upload(log)
        if found is None or is_read_committed is None:
            # A replica begins there, also if nothing is left to be copied: if all other records are tiered.
            return found
    if found is None or found.offset >= end:
        if is_read_committed is not None:
            check_high_watermark_is_known(partition)
        return None
    return found


def check_high_watermark_is_known(partition: Partition) -> None:
    """Raise OffsetNotAvailable while consumers may have seen a larger high watermark than this leader's (KIP-207)."""
    high_watermark, leader = partition.log.high_watermark, partition.leader
    if leader is not None and leader.state.start_offset > high_watermark:
        raise OffsetNotAvailable(
            f"{partition}: the high watermark {high_watermark} has not reached this epoch's start "
            f"{leader.state.start_offset}"
        )


def _latest_tiered(log: Log) -> TimestampOffset | None:
    """The last offset in the remote tier (KIP-1005); None while it is unknown, or there is none."""
    end = log.offsets.remote_end_offset
    if not log.is_tiered or not end:
        return None
    return TimestampOffset(timestamp=-1, offset=end - 1, leader_epoch=log.epoch_for_offset(end - 1))


def _earliest_pending_upload(log: Log) -> TimestampOffset | None:
    """The first local offset that is not in the remote tier (KIP-1023); None while it is unknown.

    While it is unknown, it is the log start if the log is known to be local from there on. A consumer gets no
    offset where nothing is left to be copied, as in Kafka, where a replica gets none, either
    (`offset_for_timestamp`).
    """
    if not log.is_tiered:
        return None
    offset = log.offsets.earliest_pending_upload_offset
    if offset is None:
        return _earliest(log) if log.local_log_start_offset == log.log_start_offset else None
    # A Fetch from before the local log start would be refused. Kafka limits it so in LocalLeaderEndPoint
    # only, and not where a follower asks (UnifiedLog).
    offset = max(offset, log.local_log_start_offset)
    return TimestampOffset(timestamp=-1, offset=offset, leader_epoch=log.epoch_for_offset(offset))


def _earliest(log: Log) -> TimestampOffset:
    start = log.log_start_offset
    first = log.leader_epochs.earliest
    # The oldest known epoch may start after the log start, if older records have no epoch.
    epoch = first.epoch if first is not None and first.start_offset <= start else None
    return TimestampOffset(timestamp=-1, offset=start, leader_epoch=epoch)
