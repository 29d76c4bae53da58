"""Heartbeats and timers: member sessions, and the expiry of members, join phases and sync phases.

Source: GroupMetadataManager.classicGroupHeartbeat and expireClassicGroupMemberHeartbeat of Kafka 4.3.
"""

import logging
from typing import assert_never

from ottla.broker.groups.actions import (
    Action,
    CancelTimer,
    InitialDelayExpired,
    JoinPhaseExpired,
    SessionExpired,
    SyncPhaseExpired,
    Timer,
    session_slot,
)
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.rebalance import (
    complete_join,
    extend_or_end_initial_delay,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    restart_session_timer,
)
from ottla.protocol.errors import CoordinatorNotAvailable, ErrorCode, IllegalGeneration, UnknownMemberId
from ottla.protocol.messages.heartbeat import HeartbeatRequest

logger = logging.getLogger(__name__)


def heartbeat(group: ClassicGroup, request: HeartbeatRequest) -> tuple[ErrorCode, list[Action]]:
    """The error code for a member's heartbeat, which restarts its session.

    Raises what `check_member` does, IllegalGeneration, and CoordinatorNotAvailable for a dead group.
    """
    if group.state is GroupState.DEAD:
        raise CoordinatorNotAvailable(f"group {group.group_id} is dead")
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise IllegalGeneration(
            f"generation {request.generation_id} is not the present one, {group.generation_id}"
        )
    if group.state is GroupState.EMPTY:
        raise UnknownMemberId(f"group {group.group_id} has no members")
    is_rebalancing = group.state is GroupState.PREPARING_REBALANCE
    return (ErrorCode.rebalance_in_progress if is_rebalancing else ErrorCode.none), [
        restart_session_timer(member)
    ]


def on_timer(group: ClassicGroup, timer: Timer, *, now_ms: int) -> list[Action]:
    """Apply a timer of the group that has expired."""
    if group.state is GroupState.DEAD:
        return []
    match timer:
        case SessionExpired():
            return _expire_session(group, timer.member_id, now_ms=now_ms)
        case JoinPhaseExpired():
            return complete_join(group, now_ms=now_ms)
        case InitialDelayExpired():
            return extend_or_end_initial_delay(group, timer, now_ms=now_ms)
        case SyncPhaseExpired():
            return _expire_pending_sync(group, timer, now_ms=now_ms)
        case _:
            assert_never(timer)


def _expire_session(group: ClassicGroup, member_id: str, *, now_ms: int) -> list[Action]:
    member = group.members.get(member_id)
    if member is None and member_id not in group.pending_join:
        return []  # It has left, or was replaced by another process of the same instance.
    if member is not None and member.has_satisfied_heartbeat:
        return []  # The response to its delayed request restarts its session.
    logger.info("group %s: session of member %s expired; the member is removed", group.group_id, member_id)
    actions = group.remove(member_id)
    match group.state:
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE if member is not None:
            reason = f"session of member {member_id} expired"
            return actions + rebalance_or_complete(group, reason, now_ms=now_ms)
        case GroupState.PREPARING_REBALANCE:
            return actions + maybe_complete_join(group, now_ms=now_ms)
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE | GroupState.EMPTY | GroupState.DEAD:
            return actions
        case _:
            assert_never(group.state)


def _expire_pending_sync(group: ClassicGroup, timer: SyncPhaseExpired, *, now_ms: int) -> list[Action]:
    """Remove the members that took part in the join phase and sent no SyncGroup."""
    is_current = timer.generation_id == group.generation_id
    if not is_current or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return []
    missing = list(group.pending_sync)
    if not missing:
        return []
    actions: list[Action] = []
    for member_id in missing:
        actions += [*group.remove(member_id), CancelTimer(session_slot(member_id))]
    reason = f"members {', '.join(missing)} sent no SyncGroup within the rebalance timeout"
    return actions + prepare_rebalance(group, reason, now_ms=now_ms)


def on_loaded(group: ClassicGroup, *, now_ms: int) -> list[Action]:
    """Restart all sessions of a loaded group, since its members may have had no coordinator meanwhile."""
    actions: list[Action] = [restart_session_timer(member) for member in group.members.values()]
    if len(group.members) > group.config.max_size:
        actions += prepare_rebalance(group, "group.max.size is smaller than before", now_ms=now_ms)
    return actions
