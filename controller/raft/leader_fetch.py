"""Fetch and FetchSnapshot, on the leader.

A Fetch advances its replica's progress, and is answered at once or delayed. The progress of a majority
advances the high watermark (`high_watermark`), before the response is built: a follower whose Fetch commits a
record learns of that in the response to this Fetch. FetchSnapshot (KIP-630) is answered at once, with a chunk
of a snapshot's file.
Source: KafkaRaftClient.handleFetchRequest, tryCompleteFetchRequest, handleFetchSnapshotRequest of Kafka 4.3.1.
"""

from ottla.controller.raft import delayed_fetches, fetch_responses, high_watermark
from ottla.controller.raft.core import Core, DelayedFetch
from ottla.controller.raft.log import Valid
from ottla.controller.raft.messages import (
    fetch_response,
    fetch_snapshot_response,
    is_other_cluster,
    only_partition,
)
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import BOOTSTRAP_SNAPSHOT, PARTITION, OffsetAndEpoch, ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshot,
    PartitionSnapshotResponse,
    SnapshotId,
    TopicSnapshotResponse,
)


def handle_fetch_request(core: Core, request: FetchRequest, token: object, *, listener_name: str) -> None:
    """Handle Fetch: reply at once, or delay it until there is new data or its `max_wait_ms` is over."""
    if is_other_cluster(core, request.cluster_id):
        return core.reply(token, FetchResponse(error_code=ErrorCode.inconsistent_cluster_id))
    asked = only_partition(request.topics)
    if asked is None:
        return core.reply(token, FetchResponse(error_code=ErrorCode.invalid_request))
    replica = ReplicaKey(fetch_responses.replica_id(request), asked.replica_directory_id)
    if fetch_responses.is_invalid(request, asked):
        row = fetch_responses.error_row(core, ErrorCode.invalid_request)
    else:
        row = _row(core, asked, replica, max_bytes=request.max_bytes)
    is_final = row.error_code != 0 or request.max_wait_ms == 0 or fetch_responses.has_new_data(row, asked)
    delayed = DelayedFetch(
        token=token,
        request=request,
        listener_name=listener_name,
        fetch_offset=asked.fetch_offset,
        deadline_ms=core.now_ms + request.max_wait_ms,
    )
    if is_final or not delayed_fetches.delay(core, delayed):
        core.reply(token, fetch_response(core, row, listener_name=listener_name))
    return None


def _row(core: Core, asked: FetchPartition, replica: ReplicaKey, *, max_bytes: int) -> PartitionData:
    """The row for a Fetch that has just arrived; the replica's progress is updated first."""
    if (error := fetch_responses.validate_leader_only_request(core, asked.current_leader_epoch)) is not None:
        return fetch_responses.error_row(core, error)
    role = core.role
    assert isinstance(role, Leader), role
    if replica.id == core.local_key.id:
        core.log_duplicate_node_id("sends Fetch requests", replica.directory_id)
        return fetch_responses.error_row(core, ErrorCode.unknown_server_error)
    validation = fetch_responses.validate(core, asked)
    if isinstance(validation, Valid) and replica.id >= 0:
        end_offset = core.log.end.offset
        has_majority_contact = role.followers.update_replica_state(
            replica, asked.fetch_offset, leader_end_offset=end_offset, now_ms=core.now_ms
        )
        if has_majority_contact:
            role.check_quorum_deadline_ms = core.now_ms + core.check_quorum_timeout_ms
        high_watermark.advance(core)
    return fetch_responses.partition_row(core, role, validation, asked, max_bytes=max_bytes)


def handle_fetch_snapshot_request(
    core: Core, request: FetchSnapshotRequest, *, listener_name: str
) -> FetchSnapshotResponse:
    """Handle FetchSnapshot: a chunk of the requested snapshot.

    Errors: INVALID_REQUEST unless the request has exactly one partition (none: CVE-2026-83525, Kafka 4.3.1's
    controller stops at that); UNKNOWN_TOPIC_OR_PARTITION for another partition; those of
    `validate_leader_only_request`; SNAPSHOT_NOT_FOUND, also for the bootstrap snapshot; POSITION_OUT_OF_RANGE.
    """
    if is_other_cluster(core, request.cluster_id):
        return FetchSnapshotResponse(error_code=ErrorCode.inconsistent_cluster_id)
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return FetchSnapshotResponse(error_code=ErrorCode.invalid_request)
    asked: PartitionSnapshot | None = only_partition(request.topics)
    if asked is None:
        return _unknown_partition(request)
    row = _snapshot_row(core, asked, replica_id=request.replica_id, max_bytes=request.max_bytes)
    return fetch_snapshot_response(core, row, listener_name=listener_name)


def _unknown_partition(request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    topic = request.topics[0]
    row = PartitionSnapshotResponse(
        index=topic.partitions[0].partition, error_code=ErrorCode.unknown_topic_or_partition
    )
    return FetchSnapshotResponse(topics=[TopicSnapshotResponse(name=topic.name, partitions=[row])])


def _snapshot_row(
    core: Core, asked: PartitionSnapshot, *, replica_id: int, max_bytes: int
) -> PartitionSnapshotResponse:
    if (error := fetch_responses.validate_leader_only_request(core, asked.current_leader_epoch)) is not None:
        return PartitionSnapshotResponse(index=PARTITION, error_code=error)
    snapshot = OffsetAndEpoch(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    chunk = None
    if snapshot != BOOTSTRAP_SNAPSHOT:
        chunk = core.log.snapshot_chunk(
            snapshot, position=max(asked.position, 0), max_bytes=fetch_responses.limited_bytes(max_bytes)
        )
    if chunk is None:
        return PartitionSnapshotResponse(index=PARTITION, error_code=ErrorCode.snapshot_not_found)
    data, size = chunk
    if not 0 <= asked.position < size:
        return PartitionSnapshotResponse(index=PARTITION, error_code=ErrorCode.position_out_of_range)
    if replica_id >= 0 and replica_id != core.local_key.id:
        high_watermark.record_contact(core, ReplicaKey(replica_id, asked.replica_directory_id))
    return PartitionSnapshotResponse(
        index=PARTITION,
        snapshot_id=SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        size=size,
        position=asked.position,
        unaligned_records=data,
    )
