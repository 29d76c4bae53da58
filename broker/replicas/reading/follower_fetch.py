"""Follower's Fetch at its leader: the follower's progress, its high watermark, and the replication throttle.

A follower reads up to the log end, and its fetch offset shows how far it has replicated: the leader records that when
the fetch arrives, not when it responds. It responds at once when the follower can advance its high watermark, and when
the fetch opens a session, so that consumers of followers do not wait for replica.fetch.wait.max.ms (KIP-392; with Kafka
4.3.1 they wait). Only where records follow each other closely does a high watermark wait for the next ones, a
millisecond or two at most (`high_watermark_delay.py`).

Records that only the remote tier has are not sent to a follower: it receives OFFSET_MOVED_TO_TIERED_STORAGE
with the log start offset and the high watermark, and continues where the leader's local segments begin
(KIP-405). Kafka's followers know this error from version 14 on; an older one retries.

Source: Kafka's Partition.fetchRecords (updateFollowerFetchState), ReplicaManager.shouldLeaderThrottle and
handleOffsetOutOfRangeError; the high watermark in the request: KIP-1166.
"""

from typing import Final

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.fetch_sessions import FetchedPartition
from ottla.broker.replicas.reading.response_rows import error_row
from ottla.protocol.errors import ErrorCode, KafkaError, OffsetMovedToTieredStorage, OffsetOutOfRange
from ottla.protocol.local_log import LocalLog
from ottla.protocol.messages.fetch import PartitionData
from ottla.storage.log import Log

#: In a request's row: the follower does not report its high watermark (before version 18, and Kafka 4.3.1).
_NOT_REPORTED: Final = 2**63 - 1


def check_follower(partition: Partition, params: FetchParams, *, has_leader_epoch: bool) -> None:
    """Raise unless the sender is a follower of the partition. Raises what `Partition.check_follower` raises."""
    assert params.replica_id is not None
    partition.check_follower(
        params.replica_id,
        None if params.replica_epoch == -1 else params.replica_epoch,
        has_leader_epoch=has_leader_epoch,
    )


def record_progress(
    partition: Partition, fetched: FetchedPartition, params: FetchParams, *, now_ms: int
) -> None:
    """Record how far the follower has replicated, unless its fetch offset is not in the local log.

    In that case the read raises. `LogReads._check_fast` is the fast path of this.

    Precondition: `check_follower`, and the follower's log does not diverge.
    """
    assert params.replica_id is not None
    request, log, leader = fetched.request, partition.log, partition.leader
    assert leader is not None, str(partition)
    if log.local_log_start_offset <= request.fetch_offset <= log.log_end_offset:
        leader.on_follower_fetch(
            params.replica_id,
            fetch_offset=request.fetch_offset,
            log_start_offset=request.log_start_offset,
            local_log=None if request.local_log is None else LocalLog.from_state(request.local_log),
            broker_epoch=params.replica_epoch,
            session=fetched.session,
            now_ms=now_ms,
        )


def is_high_watermark_stale(fetched: FetchedPartition, log: Log) -> bool:
    """Whether the leader's high watermark would advance the follower's.

    A follower that does not report its high watermark has the one last sent in its session. Without a session it
    receives the high watermark with records, or at the timeout: otherwise all of its fetches would be answered at once.
    """
    request = fetched.request
    known = request.high_watermark
    if known == _NOT_REPORTED:
        if fetched.session is None:
            return False
        known = -1 if fetched.high_watermark is None else fetched.high_watermark
    return known < min(log.offsets.high_watermark, request.fetch_offset)


def is_in_remote_tier(fetched: FetchedPartition, error: KafkaError) -> bool:
    """Whether a follower's fetch failed since only the remote tier has the records at its offset.

    Also if no epoch as old or new as its last one is known: its records from there on are not in this log.
    """
    if fetched.partition is None or not isinstance(error, (OffsetMovedToTieredStorage, OffsetOutOfRange)):
        return False
    log = fetched.partition.log
    return log.log_start_offset <= fetched.request.fetch_offset < log.local_log_start_offset


def moved_row(fetched: FetchedPartition, *, version: int) -> PartitionData:
    """The row for `is_in_remote_tier`, with the offsets that Kafka's leaders send."""
    assert fetched.partition is not None
    row = error_row(fetched.key[1], ErrorCode.offset_moved_to_tiered_storage, version=version)
    row.high_watermark = fetched.partition.log.high_watermark
    row.log_start_offset = fetched.partition.log.log_start_offset
    return row
