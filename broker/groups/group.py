"""Classic group (Kafka's ClassicGroup): its members, generation, protocols and delayed requests.

`group_state.py` has its states and their transitions; the modules named after the requests decide when they happen.

Members are kept in the order in which they joined. That order decides what depends on hash maps in Kafka:
the next leader when the leader is removed, and the protocol that wins a tied vote.

Source: ClassicGroup and GroupMetadataManager of Kafka 4.3; KIP-345 (static members), KIP-394 (member
ids), KIP-389 (group.max.size).
"""

from collections import Counter
from struct import Struct
from typing import Final

from ottla.broker.groups.actions import Action, AnswerJoin, AnswerSync
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group_state import ALLOWED_FROM, GroupState
from ottla.broker.groups.member import Member, Protocols
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.sync_group import SyncGroupResponse

#: The largest generation: a 32-bit integer in all messages.
_LAST_GENERATION: Final = 2**31 - 1


_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")

#: The protocol type of consumers; only their subscriptions can be read.
CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics a member subscribes to; None if these bytes are not a subscription.

    >>> subscribed_topics(bytes.fromhex("0001 00000001 0003") + b"fox" + bytes(4)) == {"fox"}
    True
    """
    if len(subscription) < _VERSION_AND_COUNT.size:
        return None
    version, count = _VERSION_AND_COUNT.unpack_from(subscription)
    position = _VERSION_AND_COUNT.size
    # Each name takes at least two bytes: a false count is detected before anything is allocated.
    if version < 0 or count < 0 or count * _LENGTH.size > len(subscription) - position:
        return None
    topics = []
    for _ in range(count):
        if position + _LENGTH.size > len(subscription):
            return None
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        name = subscription[position : position + length] if length >= 0 else b""
        if length < 0 or len(name) < length:
            return None
        topics.append(name.decode("utf-8", "replace"))
        position += length
    return frozenset(topics)


class ClassicGroup:
    """A consumer group of the classic protocol: its members, generation, protocols and delayed requests."""

    def __init__(
        self,
        group_id: str,
        config: GroupConfig,
        *,
        state: GroupState = GroupState.EMPTY,
        state_timestamp_ms: int | None = None,
        generation_id: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        leader_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.config = config
        self.state = state
        self.previous_state = GroupState.DEAD
        #: When the group entered its state; None if an old record does not have it.
        self.state_timestamp_ms = state_timestamp_ms
        self.generation_id = generation_id
        #: The type of the members' protocol; None for a group that only keeps offsets.
        self.protocol_type = protocol_type
        #: The protocol that was chosen for this generation; None without members.
        self.protocol_name = protocol_name
        self.leader_id = leader_id
        self.members: dict[str, Member] = {}
        #: Group instance id -> member id. Invariant: exactly the members that have an instance id.
        self.static_members: dict[str, str] = {}
        #: Assigned member ids with which no JoinGroup has come yet (KIP-394), in order.
        self.pending_join: dict[str, None] = {}
        #: Members that have not sent this generation's SyncGroup, in order.
        self.pending_sync: dict[str, None] = {}
        #: The topics that this generation's members subscribe to; None if they cannot be determined.
        self.subscribed_topics: frozenset[str] | None = None
        #: Whether a member joined during the initial delay, which may then be extended.
        self.is_new_member_added = False
        #: Whether the join phase was restarted, because no member joined within the rebalance timeout.
        self.has_restarted_join_phase = False
        #: Invariant: the number of members with a join_waiter.
        self.awaiting_join_count = 0
        #: Protocol -> number of members that support it.
        self._support_counts: Counter[str] = Counter()

    # State

    def transition_to(self, state: GroupState, *, now_ms: int) -> None:
        """Enter another state; `ALLOWED_FROM` has the valid transitions."""
        assert self.state in ALLOWED_FROM[state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms
        self.has_restarted_join_phase = False

    @property
    def can_rebalance(self) -> bool:
        """Whether a new join phase may begin; false during one."""
        return self.state in ALLOWED_FROM[GroupState.PREPARING_REBALANCE]

    @property
    def is_consumer_group(self) -> bool:
        """Whether the group's members use the embedded consumer protocol."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # Members

    def add(self, member: Member, join_waiter: object | None = None) -> None:
        """Add a new member; the group must support one of its protocols."""
        assert member.member_id not in self.members, member.member_id
        assert self.state is not GroupState.DEAD, self.group_id
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, member.group_instance_id
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._support_counts.update(member.protocol_names)
        member.join_waiter = join_waiter
        self.awaiting_join_count += join_waiter is not None
        self.pending_join.pop(member.member_id, None)

    def remove(self, member_id: str) -> list[Action]:
        """Remove a member, or a pending member id; the member that joined first becomes the next leader.

        Its delayed requests are answered with UNKNOWN_MEMBER_ID: if it still runs, it joins with a new id.
        """
        self.pending_join.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return []
        self._support_counts.subtract(member.protocol_names)
        if member.group_instance_id is not None:
            removed_id = self.static_members.pop(member.group_instance_id)
            assert removed_id == member_id, (self.group_id, member.group_instance_id, removed_id, member_id)
        actions = self.answer_join(
            member, JoinGroupResponse(error_code=ErrorCode.unknown_member_id, protocol_name=None)
        )
        actions += self.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.unknown_member_id))
        if member_id == self.leader_id:
            self.leader_id = next(iter(self.members), None)
        assert (self.leader_id is None) is (not self.members), (self.group_id, self.leader_id)
        return actions

    def update(
        self,
        member: Member,
        *,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        join_waiter: object | None,
    ) -> list[Action]:
        """Update a member that rejoins. If it has an older delayed JoinGroup, that one is answered with an error.

        The older request came over a connection that its client has closed; Kafka leaves it unanswered.
        """
        actions = self.answer_join(
            member, JoinGroupResponse(error_code=ErrorCode.rebalance_in_progress, member_id=member.member_id)
        )
        assert self.members.get(member.member_id) is member, (self.group_id, member.member_id)
        assert member.join_waiter is None, (self.group_id, member.member_id)
        self._support_counts.subtract(member.protocol_names)
        member.protocols = protocols
        self._support_counts.update(member.protocol_names)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        member.join_waiter = join_waiter
        self.awaiting_join_count += join_waiter is not None
        return actions

    def replace_static_member(self, group_instance_id: str, *, new_member_id: str) -> list[Action]:
        """Replace a static member's id by that of its new process; it keeps its assignment (KIP-345).

        Delayed requests of the old process are answered with FENCED_INSTANCE_ID: two processes with one
        instance id must not run at the same time.
        """
        assert new_member_id not in self.members, (self.group_id, new_member_id)
        old_member_id = self.static_members[group_instance_id]
        member = self.members[old_member_id]
        fenced = ErrorCode.fenced_instance_id
        actions = self.answer_join(
            member, JoinGroupResponse(error_code=fenced, member_id=old_member_id, protocol_name=None)
        )
        actions += self.answer_sync(member, SyncGroupResponse(error_code=fenced))
        member.member_id = new_member_id
        member.is_new = False
        # At the same position in the order: a restart must not change which member leads next.
        self.members = {kept.member_id: kept for kept in self.members.values()}
        self.pending_sync.pop(old_member_id, None)
        self.static_members[group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        return actions

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member of a request. Raises UnknownMemberId, or FencedInstanceId if it was replaced (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise UnknownMemberId(f"group {self.group_id} has no instance {group_instance_id}")
            if current != member_id:
                raise FencedInstanceId(f"{group_instance_id} is now {current}, not {member_id}")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {self.group_id} has no member {member_id}")
        return member

    @property
    def has_all_members_joined(self) -> bool:
        """Whether all members wait for the next generation, and no assigned member id is pending."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Protocols

    def supports_protocols(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Whether a protocol that all members support remains with a member of this type and these protocols."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and names)
        return protocol_type == self.protocol_type and any(
            self._support_counts[name] == len(self.members) for name in names
        )

    def select_protocol(self) -> str:
        """The protocol with the most first-choice votes, among those that all members support."""
        assert self.members, self.group_id
        candidates = {name for name, count in self._support_counts.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    # Generations

    def elect_joined_leader(self) -> bool:
        """Elect a leader among the members that have joined, preferably the present one; False if none has joined."""
        if self.leader_id is None:
            return False
        assert self.leader_id in self.members, (self.group_id, self.leader_id)
        if self.members[self.leader_id].join_waiter is not None:
            return True
        joined = (member.member_id for member in self.members.values() if member.join_waiter is not None)
        elected = next(joined, None)
        if elected is None:
            return False
        self.leader_id = elected
        return True

    def start_next_generation(self, *, now_ms: int) -> None:
        """Start the next generation with the present members: select the protocol, await the leader's assignment."""
        # After the last one that a message can hold (only a record that no coordinator wrote gets there) the
        # first one follows.
        self.generation_id = self.generation_id + 1 if self.generation_id < _LAST_GENERATION else 0
        assert 0 <= self.generation_id <= _LAST_GENERATION, (self.group_id, self.generation_id)
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        if self.members:
            assert self.leader_id in self.members, (self.group_id, self.leader_id)
        self.pending_sync.clear()
        self.transition_to(
            GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms=now_ms
        )

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Return all topics that members subscribe to; None for another protocol or an unreadable subscription."""
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        # Members of one application have the same subscription, and reading it takes longer than all else of
        # a generation.
        for subscription in {member.subscription(self.protocol_name) for member in self.members.values()}:
            subscribed = subscribed_topics(subscription)
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    # Answers

    def answer_join(self, member: Member, response: JoinGroupResponse) -> list[Action]:
        """Answer the delayed JoinGroup of this member, if any."""
        waiter = member.join_waiter
        if waiter is None:
            return []
        member.join_waiter = None
        self.awaiting_join_count -= 1
        assert self.awaiting_join_count >= 0, (self.group_id, self.awaiting_join_count)
        return [AnswerJoin(waiter=waiter, response=response)]

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> list[Action]:
        """Answer the delayed SyncGroup of this member, if any."""
        waiter = member.sync_waiter
        if waiter is None:
            return []
        member.sync_waiter = None
        return [AnswerSync(waiter=waiter, response=response)]

    def join_response(
        self, member_id: str, *, with_members: bool, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        """The JoinGroup response of the current generation; the leader's includes all members."""
        members = []
        if with_members:
            # Only the leader assigns partitions, and needs the members for that.
            assert member_id == self.leader_id, (self.group_id, member_id, self.leader_id)
            members = [
                JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.subscription(self.protocol_name),
                )
                for member in self.members.values()
            ]
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=members,
        )

    # Checks of other requests

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, *, generation_id: int | None
    ) -> None:
        """Raise if this member may not commit now; a group without members accepts commits of any client.

        `generation_id` is None for a client that is not a member: an admin, or a consumer with manual assignment.
        """
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
        if generation_id is None:
            if self.state is GroupState.EMPTY:
                return
            if not member_id and group_instance_id is None:
                raise UnknownMemberId(f"group {self.group_id} has members: only they commit")
        self.check_member(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGeneration(f"{generation_id=} is not {self.generation_id}")
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation, but not its assignment yet.
            raise RebalanceInProgress(f"group {self.group_id} has no assignment yet")

    def check_delete(self) -> None:
        """Raise if the group cannot be deleted."""
        if self.state is GroupState.DEAD:
            raise GroupIdNotFound(f"Group {self.group_id} is dead.")
        if self.state is not GroupState.EMPTY:
            raise NonEmptyGroup(f"group {self.group_id} is {self.state.value}")

    def check_offset_delete(self) -> None:
        """Raise if no offset of the group can be deleted (KIP-496): topics are known of consumer groups only."""
        if self.state is GroupState.DEAD or not self.is_consumer_group:
            self.check_delete()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume this topic; True for a consumer group whose topics are unknown."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics
