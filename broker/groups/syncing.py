"""SyncGroup: the leader sends the assignment, and each member receives its own.

Source: GroupMetadataManager.classicGroupSync of Kafka 4.3.
"""

import logging
from typing import assert_never

from ottla.broker.groups.actions import SYNC_SLOT, Action, AnswerSync, AssignmentStored, CancelTimer, Store
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_metadata import group_value
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.member import Member
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)


def sync(group: ClassicGroup, request: SyncGroupRequest, waiter: object) -> list[Action]:
    """Apply a SyncGroup to the group: it waits until the leader's assignment is stored, unless it is already."""
    try:
        member = _check(group, request)
    except KafkaError as error:
        return [AnswerSync(waiter=waiter, response=SyncGroupResponse(error_code=error.code))]
    group.pending_sync.pop(member.member_id, None)
    actions: list[Action] = [] if group.pending_sync else [CancelTimer(SYNC_SLOT)]
    if group.state is GroupState.STABLE:
        return [*actions, AnswerSync(waiter=waiter, response=assignment_response(group, member))]
    # An older delayed SyncGroup of the member came over a connection that its client has closed.
    actions += group.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.rebalance_in_progress))
    assert member.sync_waiter is None, (group.group_id, member.member_id)
    member.sync_waiter = waiter
    if member.member_id == group.leader_id:
        actions.append(_store_assignment(group, request))
    return actions


def _check(group: ClassicGroup, request: SyncGroupRequest) -> Member:
    """The member of a SyncGroup, if it may be answered in this generation. Raises KafkaError."""
    match group.state:
        case GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {group.group_id} is dead")
        case GroupState.EMPTY:
            raise UnknownMemberId(f"group {group.group_id} has no members")
        case GroupState.PREPARING_REBALANCE | GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            member = group.check_member(request.member_id, request.group_instance_id)
        case _:
            assert_never(group.state)
    if request.generation_id != group.generation_id:
        raise IllegalGeneration(
            f"generation {request.generation_id} is not the present one, {group.generation_id}"
        )
    for named, known in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if named is not None and known is not None and named != known:
            raise InconsistentGroupProtocol(f"the protocol {named} is not the group's, {known}")
    if group.state is GroupState.PREPARING_REBALANCE:
        raise RebalanceInProgress(f"group {group.group_id} waits for its members")
    return member


def _store_assignment(group: ClassicGroup, request: SyncGroupRequest) -> Store:
    """Store the leader's assignment; SyncGroup responses are sent only after it is committed.

    Members that the leader left out get an empty assignment; assignments for unknown members are ignored.
    """
    assert group.state is GroupState.COMPLETING_REBALANCE, (group.group_id, group.state)
    provided = {row.member_id: bytes(row.assignment) for row in request.assignments}
    assignments = {member_id: provided.get(member_id, b"") for member_id in group.members}
    left_out = assignments.keys() - provided.keys()
    if left_out:
        logger.warning(
            "group %s: the leader sent no assignment for members %s", group.group_id, sorted(left_out)
        )
    stored = AssignmentStored(generation_id=group.generation_id, assignments=assignments)
    return Store(value=group_value(group, assignments), then=stored)


def assignment_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """Return a member's assignment in the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
