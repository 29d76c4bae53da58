"""Actions of a group: responses, records and timers. The shell executes them and decides nothing.

A waiter is the object that the shell passes with a request that may have to wait (its future); a group
keeps it and returns it with the response. Invariant: every waiter is returned exactly once.

Source: what GroupMetadataManager of Kafka 4.3 does through CoordinatorResult, CoordinatorTimer and futures.
"""

from dataclasses import dataclass

from ottla.broker.groups.member import Protocols
from ottla.protocol.coordinator.group_records import GroupMetadataValue
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

#: At most one timer runs in a slot; setting another replaces it.
TimerSlot = tuple[str, str]
JOIN_SLOT: TimerSlot = ("join", "")
SYNC_SLOT: TimerSlot = ("sync", "")


def session_slot(member_id: str) -> TimerSlot:
    """The slot of a member's session timer; also of a pending member, which has only been assigned its id."""
    return ("session", member_id)


@dataclass(slots=True, frozen=True)
class JoinPhaseExpired:
    """The rebalance timeout of the join phase has expired."""

    @property
    def slot(self) -> TimerSlot:
        """The slot of the join phase, which has one timer."""
        return JOIN_SLOT


@dataclass(slots=True, frozen=True, kw_only=True)
class InitialDelayExpired:
    """The initial delay of a group that was empty, `delay_ms`, has expired; up to `remaining_ms` more may follow."""

    delay_ms: int
    remaining_ms: int

    @property
    def slot(self) -> TimerSlot:
        """The slot of the join phase, which has one timer."""
        return JOIN_SLOT


@dataclass(slots=True, frozen=True, kw_only=True)
class SyncPhaseExpired:
    """The rebalance timeout for this generation's SyncGroup requests has expired."""

    generation_id: int

    @property
    def slot(self) -> TimerSlot:
        """The slot of the sync phase, which has one timer."""
        return SYNC_SLOT


@dataclass(slots=True, frozen=True, kw_only=True)
class SessionExpired:
    """The member's session timeout has expired without a request from it."""

    member_id: str

    @property
    def slot(self) -> TimerSlot:
        """The slot of the member's session timer: one timer for each member."""
        return session_slot(self.member_id)


Timer = JoinPhaseExpired | InitialDelayExpired | SyncPhaseExpired | SessionExpired


@dataclass(slots=True, frozen=True, kw_only=True)
class AssignmentStored:
    """A record to be stored: it has the leader's assignment of this generation."""

    generation_id: int
    assignments: dict[str, bytes]


@dataclass(slots=True, frozen=True, kw_only=True)
class StaticMemberStored:
    """A record to be stored: it has a static member's new id, in the same generation (KIP-345).

    The old values are restored if the write fails.
    """

    group_instance_id: str
    member_id: str
    old_member_id: str
    old_leader_id: str | None
    old_protocols: Protocols
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    can_skip_assignment: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class EmptyGenerationStored:
    """A record to be stored: it has the generation without members. No request waits for it."""

    generation_id: int


@dataclass(slots=True, frozen=True, kw_only=True)
class NewGroupStored:
    """A record to be stored: the first one of a group, written before it has a generation."""


Stored = AssignmentStored | StaticMemberStored | EmptyGenerationStored | NewGroupStored


@dataclass(slots=True, frozen=True, kw_only=True)
class AnswerJoin:
    """Answer the JoinGroup whose sender waits at `waiter`."""

    waiter: object
    response: JoinGroupResponse


@dataclass(slots=True, frozen=True, kw_only=True)
class AnswerSync:
    """Answer the SyncGroup whose sender waits at `waiter`."""

    waiter: object
    response: SyncGroupResponse


@dataclass(slots=True, frozen=True, kw_only=True)
class Store:
    """Append the group's record, and call `storing.on_stored` when it is committed or has failed."""

    value: GroupMetadataValue
    then: Stored


@dataclass(slots=True, frozen=True)
class SetTimer:
    """Call `sessions.on_timer` in `delay_ms`, unless the slot is set again or cancelled before."""

    timer: Timer
    delay_ms: int


@dataclass(slots=True, frozen=True)
class CancelTimer:
    """Cancel the slot's timer, if one runs."""

    slot: TimerSlot


Action = AnswerJoin | AnswerSync | Store | SetTimer | CancelTimer
