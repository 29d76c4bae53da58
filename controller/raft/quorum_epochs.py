"""BeginQuorumEpoch and EndQuorumEpoch, both sides: a leader announces that it leads, or that it has resigned.

Begin is repeated to the voters that do not fetch: they may not know yet which candidate has won. End lets a voter start
an election before its fetch timeout: the one with the longest log at once, the others after pauses that double, so
that they do not split the vote.
Source: KIP-595, KIP-853; KafkaRaftClient.handleBeginQuorumEpochRequest, handleEndQuorumEpochRequest of Kafka 4.3.1.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ottla.controller.raft.core import Core
from ottla.controller.raft.discovery import (
    Outcome,
    error_of,
    handle_common_response,
    handle_unexpected_error,
    maybe_transition,
)
from ottla.controller.raft.messages import (
    address_of,
    begin_request,
    begin_response,
    end_request,
    end_response,
    endpoints_of,
    is_other_cluster,
    is_valid_voter_key,
    node_of,
    only_partition,
    validate_voter_only_request,
)
from ottla.controller.raft.roles import Follower, Leader, Resigned
from ottla.controller.raft.types import NEVER_MS, ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from ottla.protocol.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    PartitionData,
)


def handle_begin_quorum_epoch_request(
    core: Core, request: BeginQuorumEpochRequest, *, listener_name: str
) -> BeginQuorumEpochResponse:
    """Handle BeginQuorumEpoch: the sender leads the epoch, so follow it."""
    if is_other_cluster(core, request.cluster_id):
        return BeginQuorumEpochResponse(error_code=ErrorCode.inconsistent_cluster_id)
    asked = only_partition(request.topics)
    if asked is None:
        return BeginQuorumEpochResponse(error_code=ErrorCode.invalid_request)
    error = validate_voter_only_request(core, epoch=asked.leader_epoch, sender_id=asked.leader_id)
    if error is None:
        error = _maybe_transition(
            core, request.leader_endpoints, leader_id=asked.leader_id, epoch=asked.leader_epoch
        )
    if error is None and not is_valid_voter_key(core, request.voter_id, asked.voter_directory_id):
        error = ErrorCode.invalid_voter_key
    return begin_response(core, error or ErrorCode.none, listener_name=listener_name)


def handle_end_quorum_epoch_request(
    core: Core, request: EndQuorumEpochRequest, *, listener_name: str
) -> EndQuorumEpochResponse:
    """Handle EndQuorumEpoch: the leader has resigned; start an election after this voter's pause."""
    if is_other_cluster(core, request.cluster_id):
        return EndQuorumEpochResponse(error_code=ErrorCode.inconsistent_cluster_id)
    asked = only_partition(request.topics)
    if asked is None:
        return EndQuorumEpochResponse(error_code=ErrorCode.invalid_request)
    error = validate_voter_only_request(core, epoch=asked.leader_epoch, sender_id=asked.leader_id)
    if error is None:
        error = _maybe_transition(
            core, request.leader_endpoints, leader_id=asked.leader_id, epoch=asked.leader_epoch
        )
    if error is None and isinstance(core.role, Follower) and core.role.leader_id == asked.leader_id:
        pause_ms = end_epoch_election_backoff_ms(
            _preferred_successors(asked),
            core.local_key,
            election_backoff_max_ms=core.settings.election_backoff_max_ms,
        )
        core.role.fetch_deadline_ms = core.now_ms + pause_ms
    return end_response(core, error or ErrorCode.none, listener_name=listener_name)


def _maybe_transition(
    core: Core, listeners: Sequence[Any], *, leader_id: int, epoch: int
) -> ErrorCode | None:
    endpoints = endpoints_of(listeners) or core.voters.endpoints(leader_id)
    # A Kafka node stops when messages name two leaders of one epoch; this one refuses the second.
    is_possible = maybe_transition(core, leader_id=leader_id, epoch=epoch, endpoints=endpoints)
    return None if is_possible else ErrorCode.invalid_request


def _preferred_successors(asked: PartitionData) -> list[ReplicaKey]:
    if asked.preferred_candidates:
        return [
            ReplicaKey(each.candidate_id, each.candidate_directory_id) for each in asked.preferred_candidates
        ]
    return [ReplicaKey(id) for id in asked.preferred_successors]


def end_epoch_election_backoff_ms(
    successors: Sequence[ReplicaKey], me: ReplicaKey, *, election_backoff_max_ms: int
) -> int:
    """The ms that a voter waits before it starts an election, by its place among the preferred successors.

    The first does not wait. The pause doubles with each place after the second, up to the maximum; a voter that is
    not among them waits for the maximum. An empty list names no order: no voter waits.

    >>> keys = [ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)]
    >>> [end_epoch_election_backoff_ms(keys, ReplicaKey(id), election_backoff_max_ms=1000) for id in (1, 2, 3, 4)]
    [0, 250, 500, 1000]
    """
    place = next((place for place, key in enumerate(successors) if key.matches(me)), len(successors))
    if place == 0:
        return 0
    if place == len(successors):
        return election_backoff_max_ms
    base_ms = election_backoff_max_ms >> (len(successors) - 1)
    return min(election_backoff_max_ms, base_ms << (place - 1))


def maybe_send_begin_quorum_epoch_requests(core: Core) -> int:
    """Send BeginQuorumEpoch to voters that do not fetch; returns when to check again."""
    role = core.role
    assert isinstance(role, Leader), role
    if core.now_ms >= role.begin_quorum_at_ms:
        interval_ms = core.settings.fetch_timeout_ms // 2
        for voter in role.followers.voters_not_fetching(since_ms=core.now_ms - interval_ms):
            core.send_to_voter(voter.id, partial(begin_request, core, voter))
        role.begin_quorum_at_ms = core.now_ms + interval_ms
    return role.begin_quorum_at_ms


def maybe_send_end_quorum_epoch_requests(core: Core) -> int:
    """Send EndQuorumEpoch to voters that have not acknowledged it; returns when to retry."""
    role = core.role
    assert isinstance(role, Resigned), role
    again_ms = NEVER_MS
    for voter_id in sorted(role.unacknowledged & set(core.voters.ids)):
        at_ms = core.send_to_voter(voter_id, lambda: end_request(core, role.preferred_successors))
        again_ms = min(again_ms, at_ms)
    return again_ms


def handle_quorum_epoch_response(
    core: Core, sender_id: int, response: BeginQuorumEpochResponse | EndQuorumEpochResponse
) -> Outcome:
    """Handle a voter's response to BeginQuorumEpoch or EndQuorumEpoch."""
    error = error_of(response.error_code)
    row = only_partition(response.topics)
    if error is ErrorCode.none and row is not None:
        leader_id = node_of(row.leader_id)
        endpoints = core.endpoints_of(leader_id, address_of(leader_id, response.node_endpoints))
        error = error_of(row.error_code)
        outcome = handle_common_response(
            core, error, leader_id=leader_id, epoch=row.leader_epoch, endpoints=endpoints
        )
        if outcome is not Outcome.CONTINUE:
            return outcome
        if error is ErrorCode.none:
            if isinstance(response, EndQuorumEpochResponse) and isinstance(core.role, Resigned):
                core.role.unacknowledged.discard(sender_id)
            return Outcome.DONE
    return handle_unexpected_error(core, sender_id, response, error)
