"""Timeouts and retries of each role: send the requests that are due, abandon what has timed out.

`poll` runs after every event, and at the time that its last run has returned. Each function is the part of one role,
and returns that time. Source: KafkaRaftClient.pollCurrentState of Kafka 4.3.1.
"""

from typing import assert_never

from ottla.controller.raft import (
    delayed_fetches,
    follower_fetch,
    high_watermark,
    quorum_epochs,
    reconfiguration,
    transitions,
    voter_updates,
    voting,
)
from ottla.controller.raft.core import Core
from ottla.controller.raft.effects import Stopped
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from ottla.controller.raft.types import NEVER_MS

#: Role transitions in one call. More occur only with timeouts of 0 ms, where they would never end.
_MAX_CHANGES = 10


def poll(core: Core) -> int:
    """Do everything that is due; returns the time of the next call in ms, NEVER_MS if none is needed."""
    for _ in range(_MAX_CHANGES):
        if core.is_stopped or _stop(core):
            return NEVER_MS
        role = core.role
        at_ms = _poll_role(core)
        if core.role is role:
            if core.shutdown_deadline_ms is not None:
                at_ms = min(at_ms, core.shutdown_deadline_ms)
            return at_ms
    return core.now_ms + 1


def _stop(core: Core) -> bool:
    """Complete a requested shutdown if it can: no election needs this node, or its timeout is over. Whether it did."""
    deadline_ms = core.shutdown_deadline_ms
    if deadline_ms is None:
        return False
    has_remote_leader = core.leader_id is not None and core.leader_id != core.local_key.id
    is_needed = core.is_voter and not core.voters.is_only_voter(core.local_key) and not has_remote_leader
    if is_needed and core.now_ms < deadline_ms:
        return False
    if isinstance(core.role, Leader):
        high_watermark.refuse_delayed_requests(core, core.role)
    core.effects.append(Stopped())
    core.is_stopped = True
    return True


def _poll_role(core: Core) -> int:
    match core.role:
        case Leader():
            return _poll_leader(core, core.role)
        case Candidate() | Prospective():
            return _poll_nominee(core, core.role)
        case Follower():
            return _poll_follower(core, core.role)
        case Unattached():
            return _poll_unattached(core, core.role)
        case Resigned():
            return _poll_resigned(core, core.role)
        case role:
            assert_never(role)


def _poll_leader(core: Core, role: Leader) -> int:
    is_deposed = not role.followers.is_only_voter and core.now_ms >= role.check_quorum_deadline_ms
    if role.must_resign or is_deposed or core.shutdown_deadline_ms is not None:
        transitions.become_resigned(core)
        return core.now_ms
    reconfiguration.expire_voter_change(core)
    delayed_fetches.expire(core)
    role.followers.clear_inactive_observers(now_ms=core.now_ms)
    at_ms = quorum_epochs.maybe_send_begin_quorum_epoch_requests(core)
    if not role.followers.is_only_voter:
        at_ms = min(at_ms, role.check_quorum_deadline_ms)
    if role.voter_change is not None:
        at_ms = min(at_ms, role.voter_change.deadline_ms)
    return min([at_ms, *(each.deadline_ms for each in core.delayed_fetches)])


def _poll_nominee(core: Core, role: Candidate | Prospective) -> int:
    if core.now_ms >= role.election_deadline_ms and core.shutdown_deadline_ms is None:
        if isinstance(role, Candidate):
            transitions.become_prospective(core)
        else:
            voting.transition_after_pre_vote_loss(core)
        return core.now_ms
    at_ms = voting.maybe_send_vote_requests(core)
    return at_ms if core.shutdown_deadline_ms is not None else min(at_ms, role.election_deadline_ms)


def _poll_follower(core: Core, role: Follower) -> int:
    if core.is_voter and core.now_ms >= role.fetch_deadline_ms:
        transitions.become_prospective(core)
        return core.now_ms
    if not voter_updates.send_voter_change(core):
        at_ms = follower_fetch.send_fetch(core)
    else:
        at_ms = core.requests.bootstrap_ready_at_ms(core.now_ms)
    return min(at_ms, role.fetch_deadline_ms) if core.is_voter else at_ms


def _poll_unattached(core: Core, role: Unattached) -> int:
    if core.is_voter and core.shutdown_deadline_ms is None:
        if core.now_ms >= role.election_deadline_ms:
            transitions.become_prospective(core)
            return core.now_ms
        return min(follower_fetch.maybe_send_fetch_to_any_bootstrap(core), role.election_deadline_ms)
    return follower_fetch.maybe_send_fetch_to_any_bootstrap(core)


def _poll_resigned(core: Core, role: Resigned) -> int:
    at_ms = quorum_epochs.maybe_send_end_quorum_epoch_requests(core)
    if core.shutdown_deadline_ms is not None:
        return at_ms
    if core.now_ms >= role.deadline_ms:
        # A later epoch, in which this node may vote and be elected again: in the old one it is known as the leader.
        transitions.become_unattached(core, core.epoch + 1)
        return core.now_ms
    return min(at_ms, role.deadline_ms)
