"""What a group wants done: answers, records and timers. The shell carries them out and decides nothing.

A waiter is whatever the shell gave with a request that may have to wait (its future); a group keeps it
and hands it back with the answer. Every waiter is handed back exactly once.
"""

from dataclasses import dataclass

from broker.groups.member import Protocols
from protocol.coordinator.group_records import GroupMetadataValue
from protocol.messages.join_group import JoinGroupResponse
from protocol.messages.sync_group import SyncGroupResponse

#: At most one timer runs in a slot; setting another replaces it.
TimerSlot = tuple[str, str]
JOIN_SLOT: TimerSlot = ("join", "")
SYNC_SLOT: TimerSlot = ("sync", "")


def session_slot(member_id: str) -> TimerSlot:
    """Where the session timer of a member runs; of one that has only been given its id, too."""
    return ("session", member_id)


@dataclass(slots=True, frozen=True)
class JoinPhaseOver:
    """Members had their rebalance timeout to join again."""

    @property
    def slot(self) -> TimerSlot:
        """The join phase has one timer."""
        return JOIN_SLOT


@dataclass(slots=True, frozen=True, kw_only=True)
class InitialDelayOver:
    """A group that was empty has waited `delay_ms` for more members and may wait `remaining_ms` longer."""

    delay_ms: int
    remaining_ms: int

    @property
    def slot(self) -> TimerSlot:
        """The join phase has one timer."""
        return JOIN_SLOT


@dataclass(slots=True, frozen=True, kw_only=True)
class SyncPhaseOver:
    """Members of this generation had their rebalance timeout to ask for their assignment."""

    generation_id: int

    @property
    def slot(self) -> TimerSlot:
        """The sync phase has one timer."""
        return SYNC_SLOT


@dataclass(slots=True, frozen=True, kw_only=True)
class SessionOver:
    """Nothing was heard of this member for its session timeout."""

    member_id: str

    @property
    def slot(self) -> TimerSlot:
        """One timer for each member."""
        return session_slot(self.member_id)


Timer = JoinPhaseOver | InitialDelayOver | SyncPhaseOver | SessionOver


@dataclass(slots=True, frozen=True, kw_only=True)
class AssignmentStored:
    """The leader's assignment of this generation."""

    generation_id: int
    assignments: dict[str, bytes]


@dataclass(slots=True, frozen=True, kw_only=True)
class StaticMemberStored:
    """A static member's new id, in a generation that goes on (KIP-345); what to go back to if it failed."""

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
    """The last member has gone. Nobody waits for it."""

    generation_id: int


@dataclass(slots=True, frozen=True, kw_only=True)
class NewGroupStored:
    """The first trace of a group, written before it has a generation."""


Stored = AssignmentStored | StaticMemberStored | EmptyGenerationStored | NewGroupStored


@dataclass(slots=True, frozen=True, kw_only=True)
class AnswerJoin:
    """Answer a JoinGroup."""

    waiter: object
    response: JoinGroupResponse


@dataclass(slots=True, frozen=True, kw_only=True)
class AnswerSync:
    """Answer a SyncGroup."""

    waiter: object
    response: SyncGroupResponse


@dataclass(slots=True, frozen=True, kw_only=True)
class Store:
    """Append the group's record, and tell `storing.on_stored` when it is committed or has failed."""

    value: GroupMetadataValue
    then: Stored


@dataclass(slots=True, frozen=True)
class SetTimer:
    """Tell `sessions.on_timer` in `delay_ms`, unless the slot is set again or cancelled before."""

    timer: Timer
    delay_ms: int


@dataclass(slots=True, frozen=True)
class CancelTimer:
    """Stop what runs in this slot, if anything does."""

    slot: TimerSlot


Action = AnswerJoin | AnswerSync | Store | SetTimer | CancelTimer
