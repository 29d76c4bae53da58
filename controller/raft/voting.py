"""Vote and PreVote, both sides (KIP-595, KIP-853, KIP-996).

A standard vote is granted once per epoch, durably, to a candidate whose log is not behind ours. Invariant: an elected
candidate has every committed record, because a majority has each of them and each voter of its majority compares logs.
A pre-vote is an opinion, "this node can be elected", and changes no state. A follower whose Fetch has succeeded refuses
it, so that a node that was partitioned, and returns with a shorter log or a stale epoch, does not raise the epoch.
Source: KafkaRaftClient.handleVoteRequest, EpochState.canGrantVote of Kafka 4.3.1.
"""

from functools import partial
from typing import assert_never

from ottla.controller.raft import transitions
from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.discovery import Outcome, error_of, handle_common_response, handle_unexpected_error
from ottla.controller.raft.messages import (
    address_of,
    is_other_cluster,
    is_valid_voter_key,
    node_of,
    only_partition,
    validate_voter_only_request,
    vote_request,
    vote_response,
)
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from ottla.controller.raft.types import NEVER_MS, OffsetAndEpoch, ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.vote import PartitionData, VoteRequest, VoteResponse


def can_grant_vote(role: Role, candidate: ReplicaKey, *, is_up_to_date: bool, is_pre_vote: bool) -> bool:
    """Whether a replica in this role votes for a candidate of its own epoch.

    | role | pre-vote | vote |
    |---|---|---|
    | Leader | no | no |
    | Follower | if it has never fetched from the leader, and the log is not behind | no |
    | Candidate, Resigned | if the log is not behind | no |
    | Unattached, Prospective | if the log is not behind | again to the candidate that it has voted for; if it has |
    |  |  | not voted and knows no leader: if the log is not behind |
    """
    match role:
        case Leader():
            return False
        case Follower():
            return is_pre_vote and is_up_to_date and not role.has_fetched
        case Candidate() | Resigned():
            return is_pre_vote and is_up_to_date
        case Unattached() | Prospective():
            if is_pre_vote:
                return is_up_to_date
            if role.voted is not None:
                return role.voted.matches(candidate)
            return role.leader_id is None and is_up_to_date
        case _:
            assert_never(role)


def takes_precedence(role: Role, *, local_id: int, rival_id: int) -> bool:
    """Whether this replica precedes another one with an equal log, and so refuses it the pre-vote.

    Followers whose Fetches complete together reach their fetch timeouts together. Each would win the other's pre-vote,
    vote for itself, and refuse the other: a split vote, and a second round an election timeout later. So the smaller id
    waits. Exception: the smaller id has refused this replica's pre-vote already, and is not requested again.
    """
    return (
        isinstance(role, Prospective)
        and local_id > rival_id
        and role.epoch_election.votes.get(rival_id) is not False
    )


def handle_vote_request(core: Core, request: VoteRequest, *, listener_name: str) -> VoteResponse:
    """Handle Vote: grant or refuse it. A later epoch in the request is adopted in both cases."""
    if is_other_cluster(core, request.cluster_id):
        return VoteResponse(error_code=ErrorCode.inconsistent_cluster_id)
    asked = only_partition(request.topics)
    if asked is None:
        return VoteResponse(error_code=ErrorCode.invalid_request)
    error, granted = _decide(core, request.voter_id, asked)
    return vote_response(core, error, granted=granted, listener_name=listener_name)


def _decide(core: Core, voter_id: int, asked: PartitionData) -> tuple[ErrorCode, bool]:
    # A candidate's epoch is new and has no records; a Prospective's epoch is its current one, which may have some.
    newest_record_epoch = asked.replica_epoch - (not asked.pre_vote)
    if asked.last_offset < 0 or asked.last_offset_epoch < 0 or asked.last_offset_epoch > newest_record_epoch:
        return ErrorCode.invalid_request, False
    if (
        error := validate_voter_only_request(core, epoch=asked.replica_epoch, sender_id=asked.replica_id)
    ) is not None:
        return error, False
    if asked.replica_epoch > core.epoch:
        transitions.become_unattached(core, asked.replica_epoch)
    if not is_valid_voter_key(core, voter_id, asked.voter_directory_id):
        return ErrorCode.invalid_voter_key, False
    candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
    if candidate.id == core.local_key.id:
        core.log_duplicate_node_id("requests a vote", candidate.directory_id)
        return ErrorCode.none, False
    end, own_end = OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch), core.log.end
    granted = can_grant_vote(core.role, candidate, is_up_to_date=end >= own_end, is_pre_vote=asked.pre_vote)
    if (
        asked.pre_vote
        and end == own_end
        and takes_precedence(core.role, local_id=core.local_key.id, rival_id=candidate.id)
    ):
        granted = False
    if granted and not asked.pre_vote and core.voted is None:
        transitions.vote_for(core, candidate)
    if granted and not asked.pre_vote:
        # The vote is durable before it is granted: its Persist precedes the Reply.
        assert core.voted is not None, candidate
        assert core.voted.matches(candidate), (core.voted, candidate)
        assert core.persisted is not None, candidate
        assert (core.persisted.leader_epoch, core.persisted.voted_id) == (
            asked.replica_epoch,
            candidate.id,
        ), core.persisted
    logger.info(
        "%s for node %d in epoch %d: %s",
        "pre-vote" if asked.pre_vote else "vote",
        candidate.id,
        asked.replica_epoch,
        "granted" if granted else "refused",
    )
    return ErrorCode.none, granted


def maybe_send_vote_requests(core: Core) -> int:
    """Send Vote to the voters without a response while the election can be won; returns when to retry."""
    role = core.role
    assert isinstance(role, Prospective | Candidate), role
    if role.epoch_election.is_vote_rejected:
        return NEVER_MS
    pre_vote = isinstance(role, Prospective)
    again_ms = NEVER_MS
    for voter in role.epoch_election.unrecorded_voters:
        at_ms = core.send_to_voter(
            voter.id,
            partial(vote_request, core, voter, pre_vote=pre_vote),
        )
        again_ms = min(again_ms, at_ms)
    return again_ms


def handle_vote_response(core: Core, sender_id: int, response: VoteResponse) -> Outcome:
    """Handle a response to Vote: record it; become candidate or leader if the ballot is won."""
    top_error = error_of(response.error_code)
    if top_error is ErrorCode.unsupported_version and isinstance(core.role, Prospective):
        # A voter does not support pre-votes: skip the pre-vote (KIP-996).
        transitions.become_candidate(core)
        return Outcome.DONE
    row = only_partition(response.topics)
    if top_error is not ErrorCode.none or row is None:
        return handle_unexpected_error(core, sender_id, response, top_error)
    leader_id = node_of(row.leader_id)
    endpoints = core.endpoints_of(leader_id, address_of(leader_id, response.node_endpoints))
    error = error_of(row.error_code)
    outcome = handle_common_response(
        core, error, leader_id=leader_id, epoch=row.leader_epoch, endpoints=endpoints
    )
    if outcome is not Outcome.CONTINUE:
        return outcome
    if error is not ErrorCode.none:
        return handle_unexpected_error(core, sender_id, response, error)
    role = core.role
    if isinstance(role, Prospective | Candidate):
        role.epoch_election.record_vote(sender_id, granted=row.vote_granted)
        if role.epoch_election.is_vote_granted:
            if isinstance(role, Prospective):
                transitions.become_candidate(core)
            else:
                transitions.become_leader(core)
        elif role.epoch_election.is_vote_rejected and isinstance(role, Prospective):
            transition_after_pre_vote_loss(core)
    return Outcome.DONE


def transition_after_pre_vote_loss(core: Core) -> None:
    """The pre-vote is lost, or timed out: become Follower if the leader's address is known, else Unattached."""
    role = core.role
    assert isinstance(role, Prospective), role
    if role.leader_id is not None and role.leader_endpoints and role.leader_id != core.local_key.id:
        transitions.become_follower(
            core, epoch=role.epoch, leader_id=role.leader_id, endpoints=role.leader_endpoints
        )
    else:
        transitions.become_unattached(core, role.epoch, leader_id=role.leader_id)
