"""LeaveGroup: members leave by themselves, or an admin removes them (KIP-345, batched by instance id)."""

from typing import assert_never

from ottla.broker.groups.actions import Action, CancelTimer, session_slot
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.rebalance import maybe_complete_join, rebalance_or_complete, truncated_reason
from ottla.protocol.errors import KafkaError, UnknownMemberId
from ottla.protocol.messages.leave_group import MemberIdentity, MemberResponse


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
