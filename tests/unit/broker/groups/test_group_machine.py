"""Any interleaving of members, time and log failures: no lost answer, no stuck group, one generation."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.broker.groups.group_state import GroupState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.stories.groups.scene import Scene

_NAMES = ("a", "b", "c", "d")
_names = st.sampled_from(_NAMES)

#: What makes a client start over with no id.
_START_OVER = {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}


class Groups(RuleBasedStateMachine):
    """Clients do anything, in any order; then they behave, and the group must come to rest."""

    @initialize(
        delay=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 100]), is_formed=st.booleans()
    )
    def start(self, delay, max_size, is_formed):
        self.stage = Scene(initial_rebalance_delay_ms=delay, max_size=max_size)
        self.seen_generations: dict[int, tuple[str | None, str | None]] = {}
        self.answered: dict[str, int] = {}
        for name in _NAMES:
            self.stage.client(name, instance_id="i" if name == "d" else None)
        if is_formed:
            self.come_to_rest()

    @rule(names=st.permutations(_NAMES))
    def behave(self, names):
        """Clients do what a client library would do next."""
        for name in names:
            self._behave(name)

    @rule(
        name=_names,
        protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")]),
        version=st.sampled_from([3, 9]),
    )
    def join(self, name, protocols, version):
        self.stage.join(name, protocols=protocols, version=version)

    @rule(name=_names)
    def sync(self, name):
        members = {client.member_id: each for each, client in self.stage.clients.items()}
        known = [members[member_id] for member_id in self.stage.group.members if member_id in members]
        self.stage.sync(name, {each: each.encode() for each in known})

    @rule(name=_names)
    def heartbeat(self, name):
        self.stage.heartbeat(name)

    @rule(name=_names, by_instance=st.booleans())
    def leave(self, name, by_instance):
        client = self.stage.clients[name]
        member_id = "" if by_instance else client.member_id
        self.stage.leave(MemberIdentity(member_id=member_id, group_instance_id=client.instance_id))

    @rule(name=_names)
    def forget(self, name):
        """Restart the client's process, which forgets its member id."""
        self.stage.client(name, member_id="", generation_id=-1, assignment=None)

    @rule(duration=st.sampled_from([100, 3_000, 9_000, 10_000, 61_000]))
    def pass_time(self, duration):
        self.stage.pass_time(duration)

    @rule()
    def hold_log(self):
        self.stage.is_log_held = True

    @precondition(lambda self: self.stage.is_log_held)
    @rule(error=st.sampled_from([None, ErrorCode.coordinator_not_available]))
    def settle_log(self, error):
        self.stage.is_log_held = False
        self.stage.settle(error)

    @rule()
    def restart_broker(self):
        self.stage.restart()
        # What was not committed is gone, and with it generations without an assignment.
        self.seen_generations = {
            generation: chosen
            for generation, chosen in self.seen_generations.items()
            if generation <= self.stage.group.generation_id
        }

    @invariant()
    def one_generation_at_a_time(self):
        """All responses that name a generation name the same protocol."""
        for name, client in self.stage.clients.items():
            for answer in client.answers[self.answered.get(name, 0) :]:
                generation = getattr(answer, "generation_id", -1)
                if generation == -1 or answer.error_code:
                    continue
                chosen = (answer.protocol_type, answer.protocol_name)
                assert self.seen_generations.setdefault(generation, chosen) == chosen
                assert generation <= self.stage.group.generation_id
            self.answered[name] = len(client.answers)

    @invariant()
    def books_are_kept(self):
        group = self.stage.group
        waiting = [member for member in group.members.values() if member.join_waiter is not None]
        assert group.awaiting_join_count == len(waiting)
        assert group.static_members == {
            member.group_instance_id: member_id
            for member_id, member in group.members.items()
            if member.group_instance_id is not None
        }
        assert all(member_id == member.member_id for member_id, member in group.members.items())
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        assert not group.pending_join.keys() & group.members.keys()
        if group.state is GroupState.EMPTY:
            assert not group.members

    @invariant()
    def no_member_waits_without_a_timer(self):
        """A request that is parked is known to the group, which has a timer that will end the wait."""
        group = self.stage.group
        parked = [
            waiter
            for member in group.members.values()
            for waiter in (member.join_waiter, member.sync_waiter)
            if waiter is not None
        ]
        assert len(parked) == len(self.stage.unanswered)
        if parked and not self.stage.appended:
            assert self.stage.timers, group.state

    @invariant()
    def assignments_are_the_leaders(self):
        """In a stable group, every assignment is the one that was made for this very member."""
        group = self.stage.group
        if group.state is not GroupState.STABLE:
            return
        by_client = {"a": b"a", "b": b"b", "c": b"c", "d": b"d"}
        for member in group.members.values():
            assert member.assignment in (b"", by_client[member.client_id])

    def teardown(self):
        """All members behave from now on: the group comes to rest with all that fit in, each assigned."""
        if not hasattr(self, "stage"):
            return
        self.come_to_rest()

    def come_to_rest(self):
        self.stage.is_log_held = False
        self.stage.settle()
        for _ in range(50):
            for name in _NAMES:
                self._behave(name)
            self.stage.pass_time(2_000)
        group = self.stage.group
        assert group.state is GroupState.STABLE
        assert len(group.members) == min(len(_NAMES), self.stage.config.max_size)
        for member in group.members.values():
            assert member.assignment == member.client_id.encode()

    def _behave(self, name):
        """Take the next step of a client library."""
        stage, client = self.stage, self.stage.clients[name]
        if client.waits_for:
            return
        if client.answers and ErrorCode(client.answers[-1].error_code) in _START_OVER:
            client.answers.clear()
            self.answered[name] = 0
            stage.client(name, member_id="", generation_id=-1)
        if client.generation_id == -1 or client.member_id not in stage.group.members:
            if client.member_id not in stage.group.pending_join:
                stage.client(name, member_id="", generation_id=-1)
            stage.join(name)
            return
        error = stage.heartbeat(name)
        if error in (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation):
            stage.join(name)
        elif error is not ErrorCode.none:
            stage.client(name, member_id="", generation_id=-1)
        elif client.assignment is None:
            assignments = {}
            if client.leader == client.member_id:
                ids = {each.member_id: other for other, each in stage.clients.items()}
                known = [ids[member_id] for member_id in stage.group.members if member_id in ids]
                assignments = {other: other.encode() for other in known}
            stage.sync(name, assignments)


TestGroups = pytest.mark.logs(
    "the record of its empty generation is not written", "the leader sent no assignment"
)(Groups.TestCase)
TestGroups.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
