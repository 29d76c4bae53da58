"""Continuation after a group's record is committed or could not be written; and the end of a group.

Source: the appendFuture callbacks of GroupMetadataManager of Kafka 4.3.
"""

import logging
from typing import assert_never

from ottla.broker.groups.actions import (
    Action,
    AssignmentStored,
    EmptyGenerationStored,
    NewGroupStored,
    StaticMemberStored,
    Stored,
)
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.rebalance import rebalance_or_complete, reset_assignments, restart_session_timer
from ottla.broker.groups.syncing import assignment_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

logger = logging.getLogger(__name__)


def on_stored(group: ClassicGroup, stored: Stored, error: ErrorCode | None, *, now_ms: int) -> list[Action]:
    """Continue after the record is on the whole ISR, or failed with `error`; the state may have changed meanwhile."""
    match stored:
        case AssignmentStored():
            return _on_assignment_stored(group, stored, error, now_ms=now_ms)
        case StaticMemberStored():
            return _on_static_member_stored(group, stored, error)
        case EmptyGenerationStored():
            if error is not None:
                # After a crash the previous generation would be loaded. The sessions of its members would expire soon.
                logger.warning(
                    "group %s: the record of its empty generation is not written: %s",
                    group.group_id,
                    error.name,
                )
            return []
        case NewGroupStored():
            # Without a record in the log the group does not exist; clients with an assigned id join again.
            return [] if error is None else end_group(group, error, now_ms=now_ms)
        case _:
            assert_never(stored)


def _on_assignment_stored(
    group: ClassicGroup, stored: AssignmentStored, error: ErrorCode | None, *, now_ms: int
) -> list[Action]:
    is_current = stored.generation_id == group.generation_id
    if group.state is not GroupState.COMPLETING_REBALANCE or not is_current:
        return []  # Another rebalance has started since; its generation gets its own assignment.
    if error is not None:
        reason = f"the assignment was not written: {error.name}"
        return reset_assignments(group, error) + rebalance_or_complete(group, reason, now_ms=now_ms)
    # Every change of the members begins a rebalance, which ends this state.
    assert stored.assignments.keys() == group.members.keys(), (
        group.group_id,
        [*stored.assignments],
        [*group.members],
    )
    actions: list[Action] = []
    for member in group.members.values():
        member.assignment = stored.assignments[member.member_id]
        if answered := group.answer_sync(member, assignment_response(group, member)):
            actions += [*answered, restart_session_timer(member)]
    group.transition_to(GroupState.STABLE, now_ms=now_ms)
    return actions


def _on_static_member_stored(
    group: ClassicGroup, stored: StaticMemberStored, error: ErrorCode | None
) -> list[Action]:
    member = group.members.get(stored.member_id)
    if member is None or member.join_waiter is None or group.state is not GroupState.STABLE:
        return []  # It was replaced again, or a rebalance answers its JoinGroup.
    if error is None:
        is_skipping_leader = stored.can_skip_assignment and member.member_id == group.leader_id
        response = group.join_response(
            member.member_id, with_members=is_skipping_leader, skip_assignment=is_skipping_leader
        )
        if not stored.can_skip_assignment:
            # An older client would assign again if the response named it as the leader: it gets the old leader's id.
            response.leader = stored.old_leader_id or ""
        # The session may have expired meanwhile: a member whose JoinGroup waits is not removed, and its timer is over.
        return [*group.answer_join(member, response), restart_session_timer(member)]
    # The log has the old id only: restore it.
    response = group.join_response("", with_members=False)
    response.error_code = error
    response.leader = stored.old_leader_id or ""
    return [
        *group.answer_join(member, response),
        *group.update(
            member,
            protocols=stored.old_protocols,
            rebalance_timeout_ms=stored.old_rebalance_timeout_ms,
            session_timeout_ms=stored.old_session_timeout_ms,
            join_waiter=None,
        ),
        *group.replace_static_member(stored.group_instance_id, new_member_id=stored.old_member_id),
        restart_session_timer(member),
    ]


def end_group(group: ClassicGroup, error: ErrorCode, *, now_ms: int) -> list[Action]:
    """Make the group Dead on this broker, as it is deleted or has another coordinator.

    Delayed requests are answered with `error`.
    """
    group.transition_to(GroupState.DEAD, now_ms=now_ms)
    actions: list[Action] = []
    for member in group.members.values():
        actions += group.answer_join(member, JoinGroupResponse(error_code=error, member_id=member.member_id))
        actions += group.answer_sync(member, SyncGroupResponse(error_code=error))
    return actions
