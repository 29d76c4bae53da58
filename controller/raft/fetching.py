"""Fetch, as the leader answers it (KIP-595; versions 17 and 18: KIP-853, KIP-1166).

One question says three things: "my log ends at this offset, with a record of this epoch" - so everything before it
is stored there; "I follow you in this epoch"; "I know this much to be committed". The answer is one of

| the follower's log | answer |
|---|---|
| is the beginning of ours | records, or none |
| has records that ours has not | `diverging_epoch`: cut there, and ask again |
| ends before ours begins, or is empty while we have a snapshot | `snapshot_id`: fetch that first |

and always the high watermark. An answer without any news is held back until there is some or `max_wait_ms` is over.
"""

from typing import Final

from controller.raft.core import Core
from controller.raft.log import Diverging, NeedsSnapshot, Valid, Validation
from controller.raft.roles import Leader
from controller.raft.types import BOOTSTRAP_SNAPSHOT, NOBODY, PARTITION
from protocol.error_code import ErrorCode
from protocol.messages.fetch import EpochEndOffset, FetchPartition, FetchRequest, PartitionData, SnapshotId

#: Of records or of a snapshot in one answer, whatever was asked for: it is read at once, by who has votes to answer.
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024


def bounded(max_bytes: int) -> int:
    """How many bytes an answer may have to a request that names so many."""
    return min(max(max_bytes, 1), MAX_ANSWER_BYTES)


def replica_id(request: FetchRequest) -> int:
    """Who asks; negative for a consumer. Its place changed with version 15."""
    return request.replica_id if request.replica_id >= 0 else request.replica_state.replica_id


def is_absurd(request: FetchRequest, asked: FetchPartition) -> bool:
    """Whether no replica could have asked so."""
    return (
        request.max_wait_ms < 0
        or asked.fetch_offset < 0
        or asked.last_fetched_epoch < 0
        or asked.last_fetched_epoch > asked.current_leader_epoch
    )


def leader_error(core: Core, epoch: int) -> ErrorCode | None:
    """Why a request that only the leader of `epoch` can serve is refused; None if this node is that leader."""
    if epoch < core.epoch:
        return ErrorCode.fenced_leader_epoch
    if epoch > core.epoch:
        return ErrorCode.unknown_leader_epoch
    if not isinstance(core.role, Leader):
        return ErrorCode.not_leader_or_follower
    return ErrorCode.broker_not_available if core.shutdown_deadline_ms is not None else None


def validate(core: Core, asked: FetchPartition) -> Validation:
    """What the follower's log is to ours."""
    latest = core.log.latest_snapshot
    if asked.fetch_offset == 0 and latest is not None and latest != BOOTSTRAP_SNAPSHOT:
        # An empty log: a snapshot is shorter than the history that it sums up.
        return NeedsSnapshot(latest)
    return core.log.validate(asked.fetch_offset, asked.last_fetched_epoch)


def row_for(
    core: Core, role: Leader, validation: Validation, asked: FetchPartition, *, max_bytes: int
) -> PartitionData:
    """The leader's answer."""
    row = PartitionData(
        partition_index=PARTITION,
        log_start_offset=core.log.log_start_offset,
        high_watermark=NOBODY if role.high_watermark is None else role.high_watermark,
        records=b"",
    )
    match validation:
        case Valid():
            row.records = core.log.read(asked.fetch_offset, max_bytes=bounded(max_bytes))
        case Diverging(end):
            row.diverging_epoch = EpochEndOffset(epoch=end.epoch, end_offset=end.offset)
        case NeedsSnapshot(snapshot):
            row.snapshot_id = SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch)
    return row


def error_row(core: Core, error: ErrorCode) -> PartitionData:
    """A refusal."""
    return PartitionData(
        partition_index=PARTITION,
        error_code=error,
        log_start_offset=core.log.log_start_offset,
        high_watermark=NOBODY,
        records=b"",
    )


def is_news(row: PartitionData, asked: FetchPartition) -> bool:
    """Records, a place to cut at, a snapshot, or a high watermark that the follower does not know (KIP-1166)."""
    return (
        bool(row.records)
        or row.diverging_epoch != EpochEndOffset()
        or row.snapshot_id != SnapshotId()
        or asked.high_watermark < row.high_watermark
    )
