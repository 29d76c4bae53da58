"""The rules of a classic consumer group, by what has changed in it; and a group's state for a trace."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.joining import join
from ottla.broker.groups.sessions import on_timer
from ottla.broker.groups.storing import on_stored
from ottla.stories.groups.scene import Client, Scene
from ottla.stories.rules import Rule, event, place_of
from ottla.stories.trace import Event, Group, Member

_STATES: Final[Mapping[str, tuple[Rule, Callable[..., Any]]]] = {
    GroupState.PREPARING_REBALANCE.value: (
        Rule(
            "",
            "A member that joins, leaves, changes or falls silent begins a rebalance: the group waits for JoinGroup of "
            "all members, up to the longest rebalance timeout.",
        ),
        join,
    ),
    GroupState.COMPLETING_REBALANCE.value: (
        Rule(
            "",
            "All members of a new generation have the same id, protocol and leader. The leader's SyncGroup has "
            "the assignment; the others wait for it.",
        ),
        ClassicGroup.start_next_generation,
    ),
    GroupState.STABLE.value: (
        Rule("", "An assignment is returned only after it is committed to the log of the coordinator."),
        on_stored,
    ),
    GroupState.EMPTY.value: (
        Rule("", "A group without members keeps its generation and its offsets."),
        ClassicGroup.start_next_generation,
    ),
    GroupState.DEAD.value: (
        Rule("", "Another broker coordinates the group from now on, or it was deleted."),
        ClassicGroup.transition_to,
    ),
}
_MEMBER_LEFT: Final = Rule(
    "",
    "A member whose session, or whose rebalance timeout, has passed is removed; its partitions go to the others.",
)
_MEMBER_ID: Final = Rule(
    "KIP-394", "A member gets its id first and joins with it: a lost response leaves no member behind."
)
_STATIC: Final = Rule(
    "KIP-345",
    "A static member that restarts gets a new id, and keeps its place and assignment without a rebalance.",
)


def group_of(scene: Scene) -> Group:
    """Return the group as its coordinator has it, with the clients that know it."""
    group = scene.group
    return Group(
        state=group.state.value,
        generation=group.generation_id,
        protocol=group.protocol_name,
        members=[_member(client, group) for client in scene.clients.values() if _is_known(client, group)],
        now_ms=scene.now_ms,
    )


def _is_known(client: Client, group: ClassicGroup) -> bool:
    return (
        bool(client.waits_for) or client.member_id in group.members or client.member_id in group.pending_join
    )


def _member(client: Client, group: ClassicGroup) -> Member:
    assigned = (client.assignment or b"").decode()
    return Member(
        name=client.name,
        id=client.member_id,
        generation=client.generation_id,
        assigned=[assigned] if assigned else [],
        waits="join" if client.waits_for == "join" else "sync" if client.waits_for == "sync" else None,
        is_leader=bool(client.member_id) and client.member_id == group.leader_id,
        instance=client.instance_id,
    )


def changes(before: Group | None, now: Group) -> Iterator[Event]:
    """Yield what the coordinator has decided, with the rule of each decision."""
    if before is None:
        return
    if (now.state, now.generation) != (before.state, before.generation):
        rule, function = _STATES[now.state]
        line = f"{now.state}, generation {now.generation}"
        yield event("coordinator", line, rule, place_of(function))
    known = {member.name: member for member in before.members}
    for member in now.members:
        former = known.pop(member.name, None)
        if former is not None and member.id != former.id:
            rule = _STATIC if member.instance else _MEMBER_ID
            yield event("coordinator", f"{member.name} is {member.id}", rule, place_of(join))
    for name in known:
        yield event("coordinator", f"{name} is no member any more", _MEMBER_LEFT, place_of(on_timer))
