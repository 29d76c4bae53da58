"""FetchSnapshot, the leader's response (KIP-630): a chunk of a snapshot's file, from a position on.

Source: KafkaRaftClient.handleFetchSnapshotRequest of Kafka 4.3.1.
"""

from ottla.controller.raft import fetch_responses, high_watermark
from ottla.controller.raft.core import Core
from ottla.controller.raft.messages import fetch_snapshot_response, is_other_cluster, only_partition
from ottla.controller.raft.types import BOOTSTRAP_SNAPSHOT, PARTITION, OffsetAndEpoch, ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshot,
    PartitionSnapshotResponse,
    SnapshotId,
    TopicSnapshotResponse,
)


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
        return _unknown(request)
    row = _answer(core, asked, replica_id=request.replica_id, max_bytes=request.max_bytes)
    return fetch_snapshot_response(core, row, listener_name=listener_name)


def _unknown(request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    topic = request.topics[0]
    row = PartitionSnapshotResponse(
        index=topic.partitions[0].partition, error_code=ErrorCode.unknown_topic_or_partition
    )
    return FetchSnapshotResponse(topics=[TopicSnapshotResponse(name=topic.name, partitions=[row])])


def _answer(
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
