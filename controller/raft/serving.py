"""Fetch and the high watermark, on the leader: replica progress, commits, and the requests that wait for them.

A Fetch advances its replica's progress. The progress of a majority advances the high watermark. That completes the
delayed Fetches, and the voter change in progress.
Source: KafkaRaftClient.handleFetchRequest, LeaderState.maybeUpdateHighWatermark of Kafka 4.3.1.
"""

from collections.abc import Sequence
from typing import Final

from controller.raft import fetch_responses
from controller.raft.core import Core, DelayedFetch, logger
from controller.raft.log import Valid
from controller.raft.messages import fetch_response, is_other_cluster, only_partition, voter_change_response
from controller.raft.roles import Leader
from controller.raft.types import ReplicaKey
from protocol.error_code import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from protocol.records.quorum import QuorumMessage

#: Limit of delayed Fetches, each of another connection; one more is answered at once.
MAX_DELAYED_FETCHES: Final = 10_000


def handle_fetch_request(core: Core, request: FetchRequest, token: object, *, listener_name: str) -> None:
    """Handle Fetch: reply at once, or delay it until there is news or its `max_wait_ms` is over."""
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
    if is_final or len(core.delayed_fetches) >= MAX_DELAYED_FETCHES:
        return core.reply(token, fetch_response(core, row, listener_name=listener_name))
    core.delayed_fetches.append(
        DelayedFetch(
            token=token,
            request=request,
            listener_name=listener_name,
            fetch_offset=asked.fetch_offset,
            deadline_ms=core.now_ms + request.max_wait_ms,
        )
    )
    return None


def append_control(core: Core, messages: Sequence[QuorumMessage]) -> None:
    """Append control records as the leader. A new voter set is in effect at once (KIP-853)."""
    role = core.role
    assert isinstance(role, Leader), role
    base_offset = core.log.append_control(messages, epoch=role.epoch, now_ms=core.now_ms)
    former_voters = core.voters
    core.history.read(base_offset)
    if core.voters != former_voters:
        role.followers.set_voters(core.voters)
        role.check_quorum_deadline_ms = core.now_ms + core.check_quorum_timeout_ms
    appended(core)
    advance(core)


def appended(core: Core) -> None:
    """The leader's log has grown: complete delayed Fetches at once, before the records are durable on the leader."""
    end_offset = core.log.end.offset
    _complete_delayed_fetches(core, [each for each in core.delayed_fetches if each.fetch_offset < end_offset])
    core.flush()


def flushed(core: Core, end_offset: int) -> None:
    """The leader has made its own log durable up to `end_offset`: its own progress as a voter."""
    role = core.role
    assert isinstance(role, Leader), role
    role.followers.flushed(min(end_offset, core.log.end.offset))
    advance(core)


def record_contact(core: Core, replica: ReplicaKey) -> None:
    """Record contact with a replica by another request than Fetch, for check quorum."""
    role = core.role
    assert isinstance(role, Leader), role
    if role.followers.record_contact(replica):
        role.check_quorum_deadline_ms = core.now_ms + core.check_quorum_timeout_ms


def advance(core: Core) -> None:
    """Advance the high watermark to what a majority has stored, and complete the requests that wait for it.

    Invariant: the high watermark never moves back, though the majority's offset may: a new voter set can count a
    replica that has less. It stays unknown until the epoch's own first record is committed.
    """
    role = core.role
    assert isinstance(role, Leader), role
    offset = role.followers.high_watermark_candidate()
    if offset is None or offset <= role.epoch_start_offset or offset <= (role.high_watermark or 0):
        return
    role.high_watermark = offset
    if core.high_watermark is None or offset > core.high_watermark:
        core.update_high_watermark(offset)
    _complete_delayed_fetches(core, list(core.delayed_fetches))
    change = role.voter_change
    if change is not None and change.offset is not None and offset > change.offset:
        end_change(core, ErrorCode.none)
    voters_offset = core.history.voters_offset
    if not core.is_voter and voters_offset is not None and offset > voters_offset:
        logger.info("node %d is no voter any more and resigns from epoch %d", core.local_key.id, core.epoch)
        role.must_resign = True


def expire_delayed_fetches(core: Core) -> None:
    """Complete the delayed Fetches whose `max_wait_ms` is over."""
    _complete_delayed_fetches(
        core, [each for each in core.delayed_fetches if each.deadline_ms <= core.now_ms]
    )


def refuse_delayed_requests(core: Core, former: Leader) -> None:
    """This node has stopped leading: refuse delayed Fetches and the voter change with NOT_LEADER_OR_FOLLOWER."""
    delayed, core.delayed_fetches = core.delayed_fetches, []
    for each in delayed:
        row = fetch_responses.error_row(core, ErrorCode.not_leader_or_follower)
        core.reply(each.token, fetch_response(core, row, listener_name=each.listener_name))
    _end_change_of(core, former, ErrorCode.not_leader_or_follower)


def end_change(core: Core, error: ErrorCode, message: str | None = None) -> None:
    """End the voter change in progress, completed or failed, and answer its request."""
    role = core.role
    assert isinstance(role, Leader), role
    _end_change_of(core, role, error, message)


def _end_change_of(core: Core, role: Leader, error: ErrorCode, message: str | None = None) -> None:
    change, role.voter_change = role.voter_change, None
    if change is not None and change.token is not None:
        core.reply(change.token, voter_change_response(error, message, is_addition=change.is_addition))


def _answer(core: Core, asked: FetchPartition, replica: ReplicaKey, *, max_bytes: int) -> PartitionData:
    """The row for a Fetch that has just arrived; the replica's progress is updated first."""
    if (error := fetch_responses.validate_leader_only_request(core, asked.current_leader_epoch)) is not None:
        return fetch_responses.error_row(core, error)
    role = core.role
    assert isinstance(role, Leader), role
    if replica.id == core.local_key.id:
        core.log_duplicate_node_id("fetches", replica.directory_id)
        return fetch_responses.error_row(core, ErrorCode.unknown_server_error)
    validation = fetch_responses.validate(core, asked)
    if isinstance(validation, Valid) and replica.id >= 0:
        end_offset = core.log.end.offset
        has_majority_contact = role.followers.fetched(
            replica, asked.fetch_offset, leader_end_offset=end_offset, now_ms=core.now_ms
        )
        if has_majority_contact:
            role.check_quorum_deadline_ms = core.now_ms + core.check_quorum_timeout_ms
        advance(core)
    return fetch_responses.partition_row(core, role, validation, asked, max_bytes=max_bytes)


def _complete_delayed_fetches(core: Core, waiting: list[DelayedFetch]) -> None:
    """Complete delayed Fetches. The replicas' progress is not updated again: their logs were known at arrival."""
    role = core.role
    if not waiting or not isinstance(role, Leader):
        return
    gone = {id(each) for each in waiting}
    core.delayed_fetches = [each for each in core.delayed_fetches if id(each) not in gone]
    for each in waiting:
        asked = only_partition(each.request.topics)
        assert asked is not None
        validation = fetch_responses.validate(core, asked)
        row = fetch_responses.partition_row(core, role, validation, asked, max_bytes=each.request.max_bytes)
        core.reply(each.token, fetch_response(core, row, listener_name=each.listener_name))
