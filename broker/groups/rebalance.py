"""Join phase of a rebalance: how it starts, waits for members, and ends with a new generation.

Source: GroupMetadataManager.prepareRebalance and completeClassicGroupJoin of Kafka 4.3.
"""

import logging
from typing import Final

from ottla.broker.groups.actions import (
    JOIN_SLOT,
    SYNC_SLOT,
    Action,
    CancelTimer,
    EmptyGenerationStored,
    InitialDelayExpired,
    JoinPhaseExpired,
    SessionExpired,
    SetTimer,
    Store,
    SyncPhaseExpired,
    session_slot,
)
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_metadata import group_value
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.member import Member
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sync_group import SyncGroupResponse

logger = logging.getLogger(__name__)

#: Minimum length of a join phase that is restarted because no member joined, regardless of the rebalance timeout.
MIN_JOIN_PHASE_MS: Final = 1_000
#: Characters of a client's reason in the log; the maximum that Kafka's own clients send (KIP-800).
_MAX_REASON: Final = 255


def truncated_reason(reason: str | None) -> str:
    """Return a client's reason for joining or leaving (KIP-800), truncated for the log."""
    return (reason or "no reason given")[:_MAX_REASON]


def restart_session_timer(member: Member) -> SetTimer:
    """Restart the member's session timer: it has contacted the coordinator, or gets a response."""
    return SetTimer(SessionExpired(member_id=member.member_id), member.session_timeout_ms)


def rebalance_or_complete(group: ClassicGroup, reason: str, *, now_ms: int) -> list[Action]:
    """The membership has changed: start a rebalance, or check whether the present join phase can end."""
    if group.can_rebalance:
        return prepare_rebalance(group, reason, now_ms=now_ms)
    return maybe_complete_join(group, now_ms=now_ms)


def prepare_rebalance(group: ClassicGroup, reason: str, *, now_ms: int) -> list[Action]:
    """Start a join phase: all members have to rejoin; the response to a heartbeat or delayed SyncGroup says so."""
    actions: list[Action] = []
    if group.state is GroupState.COMPLETING_REBALANCE:
        actions += reset_assignments(group, ErrorCode.rebalance_in_progress)
    group.pending_sync.clear()
    actions.append(CancelTimer(SYNC_SLOT))
    is_initial = group.state is GroupState.EMPTY
    group.transition_to(GroupState.PREPARING_REBALANCE, now_ms=now_ms)
    logger.info("group %s: rebalance after generation %d: %s", group.group_id, group.generation_id, reason)
    if is_initial:
        # Members of a new application start one after the other; without the delay, each would cause a rebalance.
        delay_ms = group.config.initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        timer = InitialDelayExpired(delay_ms=delay_ms, remaining_ms=remaining_ms)
        return [*actions, SetTimer(timer, delay_ms)]
    if group.has_all_members_joined:
        return actions + complete_join(group, now_ms=now_ms)
    return [*actions, SetTimer(JoinPhaseExpired(), group.rebalance_timeout_ms)]


def extend_or_end_initial_delay(
    group: ClassicGroup, timer: InitialDelayExpired, *, now_ms: int
) -> list[Action]:
    """The initial delay is over: extend it if a member joined, up to the rebalance timeout in all."""
    if not group.is_new_member_added or timer.remaining_ms == 0:
        return complete_join(group, now_ms=now_ms)
    group.is_new_member_added = False
    delay_ms = min(group.config.initial_rebalance_delay_ms, timer.remaining_ms)
    remaining_ms = max(timer.remaining_ms - timer.delay_ms, 0)
    return [SetTimer(InitialDelayExpired(delay_ms=delay_ms, remaining_ms=remaining_ms), delay_ms)]


def maybe_complete_join(group: ClassicGroup, *, now_ms: int) -> list[Action]:
    """End the join phase early, when the last member that it waits for has joined, left or expired.

    The initial join phase never ends early: it waits for members that are not known yet. Kafka until 3.9 does the
    same in all of these cases (InitialDelayedJoin); GroupMetadataManager of 4.3 ends the initial delay when a session
    expires in it.
    """
    if (
        group.state is not GroupState.PREPARING_REBALANCE
        or group.previous_state is GroupState.EMPTY
        or not group.has_all_members_joined
    ):
        return []
    return complete_join(group, now_ms=now_ms)


def complete_join(group: ClassicGroup, *, now_ms: int) -> list[Action]:
    """End the join phase with the members that have joined: start a new generation and answer their JoinGroups.

    Dynamic members that did not join are removed. Static ones remain until their session expires (KIP-345), but
    do not become leader. If no member has joined, the phase is restarted for another timeout; that is logged once.
    """
    assert group.state is GroupState.PREPARING_REBALANCE, group.state
    actions: list[Action] = [CancelTimer(JOIN_SLOT)]
    for member in list(group.members.values()):
        if member.join_waiter is None and member.group_instance_id is None:
            actions += group.remove(member.member_id)
            actions.append(CancelTimer(session_slot(member.member_id)))
    if group.members and not group.elect_joined_leader():
        if not group.has_restarted_join_phase:
            group.has_restarted_join_phase = True
            logger.warning(
                "group %s: no member joined within the rebalance timeout; the join phase restarts",
                group.group_id,
            )
        return [*actions, SetTimer(JoinPhaseExpired(), max(group.rebalance_timeout_ms, MIN_JOIN_PHASE_MS))]
    group.start_next_generation(now_ms=now_ms)
    if not group.members:
        logger.info("group %s is empty since generation %d", group.group_id, group.generation_id)
        stored = EmptyGenerationStored(generation_id=group.generation_id)
        return [*actions, Store(value=group_value(group, {}), then=stored)]
    logger.info(
        "group %s: generation %d has %d members", group.group_id, group.generation_id, len(group.members)
    )
    for member in group.members.values():
        is_leader = member.member_id == group.leader_id
        actions += group.answer_join(member, group.join_response(member.member_id, with_members=is_leader))
        actions.append(restart_session_timer(member))
        member.is_new = False
        group.pending_sync[member.member_id] = None
    assert group.awaiting_join_count == 0, (group.group_id, group.awaiting_join_count)
    assert group.pending_sync.keys() == group.members.keys(), (
        group.group_id,
        group.pending_sync,
        [*group.members],
    )
    timer = SyncPhaseExpired(generation_id=group.generation_id)
    return [*actions, SetTimer(timer, group.rebalance_timeout_ms)]


def reset_assignments(group: ClassicGroup, error: ErrorCode) -> list[Action]:
    """Discard the generation's assignments, and answer the delayed SyncGroups with `error`."""
    actions: list[Action] = []
    for member in group.members.values():
        member.assignment = b""
        if answered := group.answer_sync(member, SyncGroupResponse(error_code=error)):
            actions += [*answered, restart_session_timer(member)]
    return actions
