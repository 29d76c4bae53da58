"""Fetch, the leader's response (KIP-595; versions 17 and 18: KIP-853, KIP-1166).

A request reports three things: the replica's log end offset with the epoch of its last record, so everything before
that offset is stored there; the epoch in which it follows; the high watermark that it knows. The response has one of

| the follower's log | response |
|---|---|
| is a prefix of the leader's log | records, or none |
| has records that the leader's log lacks | `diverging_epoch`: truncate there, and fetch again |
| ends before the leader's log starts, or is empty while the leader has a snapshot | `snapshot_id`: fetch it first |

and always the high watermark. A response without new data is delayed until there is some, or for `max_wait_ms`.
Source: KafkaRaftClient.tryCompleteFetchRequest, ValidOffsetAndEpoch of Kafka 4.3.1.
"""

from typing import Final, assert_never

from ottla.controller.raft.core import Core
from ottla.controller.raft.log import Diverging, NeedsSnapshot, Valid, Validation
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import BOOTSTRAP_SNAPSHOT, NO_OFFSET, PARTITION
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    PartitionData,
    SnapshotId,
)

#: Of records or of a snapshot in one response, whatever limit the request has: they are read on the actor, and Vote
#: requests wait meanwhile.
MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024


def limited_bytes(max_bytes: int) -> int:
    """The size limit of a response to a request with this `max_bytes`: 1 to MAX_RESPONSE_BYTES."""
    return min(max(max_bytes, 1), MAX_RESPONSE_BYTES)


def replica_id(request: FetchRequest) -> int:
    """The replica that sent the request; negative for a consumer. The field moved in version 15."""
    return request.replica_id if request.replica_id >= 0 else request.replica_state.replica_id


def is_invalid(request: FetchRequest, asked: FetchPartition) -> bool:
    """Whether the request is invalid: no correct replica sends it."""
    return (
        request.max_wait_ms < 0
        or asked.fetch_offset < 0
        or asked.last_fetched_epoch < 0
        or asked.last_fetched_epoch > asked.current_leader_epoch
    )


def validate_leader_only_request(core: Core, epoch: int) -> ErrorCode | None:
    """The error of a request that only the leader of `epoch` can serve; None if this node is that leader."""
    if epoch < core.epoch:
        return ErrorCode.fenced_leader_epoch
    if epoch > core.epoch:
        return ErrorCode.unknown_leader_epoch
    if not isinstance(core.role, Leader):
        return ErrorCode.not_leader_or_follower
    return ErrorCode.broker_not_available if core.shutdown_deadline_ms is not None else None


def validate(core: Core, asked: FetchPartition) -> Validation:
    """Compare the follower's log with this one: a prefix of it, diverging, or in need of a snapshot."""
    latest = core.log.latest_snapshot
    if asked.fetch_offset == 0 and latest is not None and latest != BOOTSTRAP_SNAPSHOT:
        # An empty log: the snapshot is shorter than the history that it replaces.
        return NeedsSnapshot(latest)
    return core.log.validate(asked.fetch_offset, asked.last_fetched_epoch)


def partition_row(
    core: Core, role: Leader, validation: Validation, asked: FetchPartition, *, max_bytes: int
) -> PartitionData:
    """The leader's row of a Fetch response for the metadata partition."""
    row = PartitionData(
        partition_index=PARTITION,
        log_start_offset=core.log.log_start_offset,
        high_watermark=NO_OFFSET if role.high_watermark is None else role.high_watermark,
        records=b"",
    )
    match validation:
        case Valid():
            assert core.log.log_start_offset <= asked.fetch_offset <= core.log.end.offset, (
                asked,
                core.log.end,
            )
            row.records = core.log.read(asked.fetch_offset, max_bytes=limited_bytes(max_bytes))
        case Diverging(end):
            assert end <= core.log.end, (end, core.log.end)
            row.diverging_epoch = EpochEndOffset(epoch=end.epoch, end_offset=end.offset)
        case NeedsSnapshot(snapshot):
            row.snapshot_id = SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch)
        case _:
            assert_never(validation)
    return row


def error_row(core: Core, error: ErrorCode) -> PartitionData:
    """The row with an error and no records."""
    return PartitionData(
        partition_index=PARTITION,
        error_code=error,
        log_start_offset=core.log.log_start_offset,
        high_watermark=NO_OFFSET,
        records=b"",
    )


def has_new_data(row: PartitionData, asked: FetchPartition) -> bool:
    """Records, a diverging epoch, a snapshot, or a high watermark that the follower does not know (KIP-1166)."""
    return (
        bool(row.records)
        or row.diverging_epoch != EpochEndOffset()
        or row.snapshot_id != SnapshotId()
        or asked.high_watermark < row.high_watermark
    )
