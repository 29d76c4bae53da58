"""Fetch, on the leader: the request advances its replica's progress, and is answered at once or delayed.

The progress of a majority advances the high watermark (`high_watermark`), before the response is built: a follower
whose Fetch commits a record learns of that in the response to this Fetch.
Source: KafkaRaftClient.handleFetchRequest, tryCompleteFetchRequest of Kafka 4.3.1.
"""

from ottla.controller.raft import delayed_fetches, fetch_responses, high_watermark
from ottla.controller.raft.core import Core, DelayedFetch
from ottla.controller.raft.log import Valid
from ottla.controller.raft.messages import fetch_response, is_other_cluster, only_partition
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData


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
        row = _answer(core, asked, replica, max_bytes=request.max_bytes)
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


def _answer(core: Core, asked: FetchPartition, replica: ReplicaKey, *, max_bytes: int) -> PartitionData:
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
