"""JoinGroup and LeaveGroup: a member joins, rejoins or requests a rebalance; members leave, or an admin removes them.

A dynamic member joins with two requests (KIP-394): the first one only assigns its id. If the response is lost,
an id remains that expires, not a member that the group waits for. A static member (KIP-345) is identified by its
instance id, and rejoins with one request. Members that leave are batched, by member id or by instance id.

Source: GroupMetadataManager.classicGroupJoin and classicGroupLeave of Kafka 4.3.
"""

from dataclasses import dataclass
from typing import assert_never

from ottla.broker.groups.actions import (
    Action,
    AnswerJoin,
    CancelTimer,
    SessionExpired,
    SetTimer,
    StaticMemberStored,
    Store,
    session_slot,
)
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_metadata import group_value
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.member import Member, Protocols
from ottla.broker.groups.rebalance import (
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    restart_session_timer,
    truncated_reason,
)
from ottla.protocol.errors import ErrorCode, InconsistentGroupProtocol, KafkaError, UnknownMemberId
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import MemberIdentity, MemberResponse

#: How long a new member's JoinGroup may wait. It has no id for heartbeats yet, and a client that has disappeared is
#: not detected while its request is delayed. A client that is still running retries.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

#: Characters of the client's name in a member id: enough to identify it, and the rest of the id still fits.
_MAX_NAME_IN_MEMBER_ID = 255

_FIRST_VERSION_WITH_KNOWN_MEMBER_ID = 4
_FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9


@dataclass(slots=True, frozen=True, kw_only=True)
class Joiner:
    """The sender of a JoinGroup: its version, client, and the waiter for the response."""

    waiter: object
    version: int
    client_id: str
    client_host: str
    #: The unique suffix of a new member id, if one is needed.
    unique: str


def join(group: ClassicGroup, request: JoinGroupRequest, joiner: Joiner, *, now_ms: int) -> list[Action]:
    """Apply a JoinGroup to the group; an empty member id requests a new one."""
    if not _has_room_for(group, request.member_id):
        return [
            *group.remove(request.member_id),
            _refuse(joiner, ErrorCode.group_max_size_reached, member_id=""),
        ]
    try:
        if not group.supports_protocols(
            request.protocol_type, frozenset(name for name, _ in _protocols(request))
        ):
            raise InconsistentGroupProtocol(
                f"group {group.group_id} ({group.protocol_type}) and the member have no protocol in common"
            )
        if request.member_id:
            return _rejoin(group, request, joiner, now_ms=now_ms)
        return _join_as_new(group, request, joiner, now_ms=now_ms)
    except KafkaError as error:
        return [_refuse(joiner, error.code, member_id=request.member_id)]


def _has_room_for(group: ClassicGroup, member_id: str) -> bool:
    """Whether a member with this id fits into the group by group.max.size (KIP-389).

    In a join phase the members that have joined count, so the last to join are refused.
    """
    member = group.members.get(member_id)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            is_waiting = member is not None and member.join_waiter is not None
            return is_waiting or group.awaiting_join_count < group.config.max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group.members) < group.config.max_size
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case _:
            assert_never(group.state)


def _join_as_new(
    group: ClassicGroup, request: JoinGroupRequest, joiner: Joiner, *, now_ms: int
) -> list[Action]:
    instance_id = request.group_instance_id
    name = joiner.client_id if instance_id is None else instance_id
    member_id = f"{name[:_MAX_NAME_IN_MEMBER_ID]}-{joiner.unique}"
    if instance_id is not None and instance_id in group.static_members:
        return _replace_static_member(group, request, joiner, member_id, now_ms=now_ms)
    if instance_id is None and joiner.version >= _FIRST_VERSION_WITH_KNOWN_MEMBER_ID:
        group.pending_join[member_id] = None
        return [
            SetTimer(SessionExpired(member_id=member_id), request.session_timeout_ms),
            _refuse(joiner, ErrorCode.member_id_required, member_id=member_id),
        ]
    return _add_member(group, request, joiner, member_id, now_ms=now_ms)


def _rejoin(group: ClassicGroup, request: JoinGroupRequest, joiner: Joiner, *, now_ms: int) -> list[Action]:
    if request.member_id in group.pending_join and request.group_instance_id is None:
        return _add_member(group, request, joiner, request.member_id, now_ms=now_ms)
    member = group.check_member(request.member_id, request.group_instance_id)
    is_leader = member.member_id == group.leader_id
    is_changed = member.protocols != _protocols(request)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            is_rebalance_due = True
        case GroupState.COMPLETING_REBALANCE:
            is_rebalance_due = is_changed
        case GroupState.STABLE:
            # The leader rejoins when the assignment has to change, for example because a topic has more partitions.
            is_rebalance_due = is_changed or is_leader
        case GroupState.EMPTY | GroupState.DEAD:
            return [_refuse(joiner, ErrorCode.unknown_member_id, member_id=request.member_id)]
        case _:
            assert_never(group.state)
    if is_rebalance_due:
        reason = f"member {member.member_id} rejoins: {truncated_reason(request.reason)}"
        return [
            *_update_member(group, request, member, joiner.waiter),
            *rebalance_or_complete(group, reason, now_ms=now_ms),
        ]
    # The response to its last JoinGroup was lost: nothing has changed since.
    with_members = is_leader and group.state is GroupState.COMPLETING_REBALANCE
    response = group.join_response(member.member_id, with_members=with_members)
    return [AnswerJoin(waiter=joiner.waiter, response=response)]


def _add_member(
    group: ClassicGroup, request: JoinGroupRequest, joiner: Joiner, member_id: str, *, now_ms: int
) -> list[Action]:
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=joiner.client_id,
        client_host=joiner.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=_protocols(request),
        is_new=True,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.is_new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member, joiner.waiter)
    reason = f"member {member_id} joins: {truncated_reason(request.reason)}"
    return [
        SetTimer(SessionExpired(member_id=member_id), NEW_MEMBER_JOIN_TIMEOUT_MS),
        *rebalance_or_complete(group, reason, now_ms=now_ms),
    ]


def _update_member(
    group: ClassicGroup, request: JoinGroupRequest, member: Member, waiter: object
) -> list[Action]:
    return group.update(
        member,
        protocols=_protocols(request),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        join_waiter=waiter,
    )


def _replace_static_member(
    group: ClassicGroup, request: JoinGroupRequest, joiner: Joiner, member_id: str, *, now_ms: int
) -> list[Action]:
    """Replace the member id of a static member whose process has restarted, without a rebalance if possible."""
    instance_id = request.group_instance_id
    assert instance_id is not None
    old_member_id, old_leader_id = group.static_members[instance_id], group.leader_id
    actions = group.replace_static_member(instance_id, new_member_id=member_id)
    member = group.members[member_id]
    before = StaticMemberStored(
        group_instance_id=instance_id,
        member_id=member_id,
        old_member_id=old_member_id,
        old_leader_id=old_leader_id,
        old_protocols=member.protocols,
        old_rebalance_timeout_ms=member.rebalance_timeout_ms,
        old_session_timeout_ms=member.session_timeout_ms,
        can_skip_assignment=joiner.version >= _FIRST_VERSION_WITH_SKIP_ASSIGNMENT,
    )
    actions.append(restart_session_timer(member))
    actions += _update_member(group, request, member, joiner.waiter)
    match group.state:
        case GroupState.STABLE if group.select_protocol() == group.protocol_name:
            # The generation continues; the new id must be in the log before the response is sent.
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            return [*actions, Store(value=group_value(group, assignments), then=before)]
        case GroupState.STABLE:
            reason = f"static member {instance_id} changes the group's protocol"
            return actions + rebalance_or_complete(group, reason, now_ms=now_ms)
        case GroupState.COMPLETING_REBALANCE:
            # The leader may be computing an assignment for the old id: the new one would get none.
            reason = f"static member {instance_id} restarted while partitions are assigned"
            return actions + prepare_rebalance(group, reason, now_ms=now_ms)
        case GroupState.PREPARING_REBALANCE:
            return actions + maybe_complete_join(group, now_ms=now_ms)
        case GroupState.EMPTY | GroupState.DEAD:
            raise AssertionError(f"a static member of a group that is {group.state}")
        case _:
            assert_never(group.state)


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)


def _refuse(joiner: Joiner, error: ErrorCode, *, member_id: str) -> AnswerJoin:
    return AnswerJoin(waiter=joiner.waiter, response=JoinGroupResponse(error_code=error, member_id=member_id))


def leave(
    group: ClassicGroup, leavers: list[MemberIdentity], *, now_ms: int
) -> tuple[list[MemberResponse], list[Action]]:
    """Remove these members; an error of one row does not affect the others. One rebalance for all of them."""
    rows: list[MemberResponse] = []
    actions: list[Action] = []
    left: list[str] = []
    for leaver in leavers:
        row = MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.group_instance_id)
        rows.append(row)
        try:
            member_id = _find(group, leaver)
        except KafkaError as error:
            row.error_code = error.code
            continue
        actions += [*group.remove(member_id), CancelTimer(session_slot(member_id))]
        left.append(f"{member_id} ({truncated_reason(leaver.reason)})")
    if left:
        match group.state:
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                actions += rebalance_or_complete(group, f"members left: {', '.join(left)}", now_ms=now_ms)
            case GroupState.PREPARING_REBALANCE:
                actions += maybe_complete_join(group, now_ms=now_ms)
            case GroupState.EMPTY | GroupState.DEAD:
                pass
            case _:
                assert_never(group.state)
    return rows, actions


def _find(group: ClassicGroup, leaver: MemberIdentity) -> str:
    """The member id of a row. Raises UnknownMemberId or FencedInstanceId."""
    if not leaver.member_id:  # An admin knows a static member by its instance id only.
        found = group.static_members.get(leaver.group_instance_id or "")
        if found is None:
            raise UnknownMemberId(f"group {group.group_id} has no instance {leaver.group_instance_id}")
        return found
    if leaver.member_id in group.pending_join:
        return leaver.member_id
    return group.check_member(leaver.member_id, leaver.group_instance_id).member_id
