"""Kafka's error codes for requests that a group's state does not allow.

About KIP-800.
"""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.actions import JoinPhaseExpired, SetTimer
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import ClassicGroup, subscribed_topics
from ottla.broker.groups.group_metadata import group_from_value
from ottla.broker.groups.group_state import ALLOWED_FROM, GroupState
from ottla.broker.groups.rebalance import complete_join, prepare_rebalance
from ottla.broker.groups.sessions import heartbeat, on_loaded
from ottla.broker.groups.shard import Shard, java_hash, partition_for
from ottla.broker.groups.syncing import sync
from ottla.protocol.codec import encode_struct
from ottla.protocol.coordinator.group_records import GroupMetadataValue, MemberMetadata
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.stories.groups.scene import Scene
from tests.unit.broker.groups.coordinator_support import KnownTopics
from tests.unit.broker.groups.groups_support import stable_group

E = ErrorCode


def code_of(call, *args):
    try:
        call(*args)
    except KafkaError as error:
        return error.code
    return E.none


def rebalancing() -> Scene:
    """a and b are members of generation 1, c has come."""
    stage = stable_group("a", "b", initial_rebalance_delay_ms=0)
    stage.join("c")
    stage.join("c")
    assert stage.group.state is GroupState.PREPARING_REBALANCE
    return stage


def completing() -> Scene:
    stage = rebalancing()
    stage.join("a")
    stage.join("b")
    assert stage.group.state is GroupState.COMPLETING_REBALANCE
    return stage


def empty() -> Scene:
    stage = stable_group("a", initial_rebalance_delay_ms=0)
    stage.leave(MemberIdentity(member_id=stage.clients["a"].member_id))
    assert stage.group.state is GroupState.EMPTY
    return stage


def stable() -> Scene:
    return stable_group("a", "b", initial_rebalance_delay_ms=0)


@pytest.mark.parametrize(
    ("stage", "member", "generation", "instance", "commit"),
    [
        # stage       member  generation       instance  answer
        (stable,      "a",    0,               None,     E.none),
        (stable,      "a",    -1,              None,     E.illegal_generation),
        (stable,      "a",    1,               None,     E.illegal_generation),
        (stable,      "x",    0,               None,     E.unknown_member_id),
        (stable,      "a",    0,               "i",      E.unknown_member_id),
        (stable,      "",     None,            None,     E.unknown_member_id),
        (rebalancing, "a",    0,               None,     E.none),
        (rebalancing, "",     None,            None,     E.unknown_member_id),
        (completing,  "a",    0,               None,     E.rebalance_in_progress),
        (completing,  "a",    -1,              None,     E.illegal_generation),
        (empty,       "",     None,            None,     E.none),
        (empty,       "x",    None,            None,     E.none),  # an id without a generation is no claim
        (empty,       "a",    0,               None,     E.unknown_member_id),
    ],
)  # fmt: skip
def test_who_may_commit(stage, member, generation, instance, commit):
    group = stage().group
    generation_id = None if generation is None else group.generation_id + generation
    member_id = next((known for known in group.members if member and known.startswith(member)), member)
    check = partial(group.check_offset_commit, generation_id=generation_id)
    assert code_of(check, member_id, instance) is commit


@pytest.mark.parametrize(
    ("stage", "own", "older", "unknown"),
    [
        (stable,      E.none,                  E.illegal_generation, E.unknown_member_id),
        (rebalancing, E.rebalance_in_progress, E.illegal_generation, E.unknown_member_id),
        (completing,  E.none,                  E.illegal_generation, E.unknown_member_id),
        (empty,       E.unknown_member_id,     E.unknown_member_id,  E.unknown_member_id),
    ],
)  # fmt: skip
def test_heartbeats(stage, own, older, unknown):
    group = stage().group

    def reported(member_id, generation_id):
        request = HeartbeatRequest(member_id=member_id, generation_id=generation_id)
        try:
            return heartbeat(group, request)[0]
        except KafkaError as error:
            return error.code

    member_id = next(iter(group.members), "a-1")
    assert reported(member_id, group.generation_id) is own
    assert reported(member_id, group.generation_id - 1) is older
    assert reported("x", group.generation_id) is unknown


# KIP-559
@pytest.mark.parametrize(
    ("stage", "changes", "answer"),
    [
        (stable,      {},                           E.none),
        (stable,      {"generation_id": 7},         E.illegal_generation),
        (stable,      {"member_id": "x"},           E.unknown_member_id),
        (stable,      {"group_instance_id": "i"},   E.unknown_member_id),
        (stable,      {"protocol_type": "connect"}, E.inconsistent_group_protocol),
        (stable,      {"protocol_name": "sticky"},  E.inconsistent_group_protocol),
        (stable,      {"protocol_type": "consumer", "protocol_name": "range"}, E.none),
        (rebalancing, {},                           E.rebalance_in_progress),
        (empty,       {},                           E.unknown_member_id),
    ],
)  # fmt: skip
def test_syncs(stage, changes, answer):
    group = stage().group
    member_id = next(iter(group.members), "a-1")
    request = SyncGroupRequest(member_id=member_id, generation_id=group.generation_id)
    for name, value in changes.items():
        setattr(request, name, value)
    answers = [action.response for action in sync(group, request, "waiter") if hasattr(action, "response")]
    assert [ErrorCode(response.error_code) for response in answers] == [answer]


@pytest.mark.parametrize(
    ("stage", "delete", "delete_offsets"),
    [
        (stable,      E.non_empty_group, E.none),
        (rebalancing, E.non_empty_group, E.none),
        (completing,  E.non_empty_group, E.none),
        (empty,       E.none,            E.none),
    ],
)  # fmt: skip
def test_what_may_be_deleted(stage, delete, delete_offsets):
    group = stage().group
    assert code_of(group.check_delete) is delete
    assert code_of(group.check_offset_delete) is delete_offsets


def test_offsets_of_members_that_are_no_consumers_stay():
    stage = Scene(initial_rebalance_delay_ms=0)
    stage.join("a", protocol_type="connect", version=3)
    assert code_of(stage.group.check_offset_delete) is E.non_empty_group
    assert not stage.group.is_subscribed_to("t")


def test_a_member_that_leaves_twice_gets_unknown_member_id():
    stage = stable()
    member_id = stage.clients["b"].member_id
    leaver = MemberIdentity(member_id=member_id)
    assert stage.leave(leaver, leaver, MemberIdentity(member_id="x")) == [
        E.none,
        E.unknown_member_id,
        E.unknown_member_id,
    ]


def test_an_id_that_was_given_out_can_be_given_back():
    stage = stable()
    stage.join("c")
    leaver = MemberIdentity(member_id=stage.clients["c"].member_id)
    assert stage.leave(leaver) == [E.none]
    assert not stage.group.pending_join


# KIP-394
def test_an_assigned_member_id_expires_and_the_group_continues_without_it():
    stage = stable()
    stage.join("c", session_timeout_ms=7_000)
    stage.join("a", protocols=("range", "sticky"))
    stage.join("b")
    assert stage.group.state is GroupState.PREPARING_REBALANCE, "c may come"
    stage.pass_time(7_000)
    assert stage.group.state is GroupState.COMPLETING_REBALANCE
    assert len(stage.group.members) == 2


# KIP-134
def test_the_initial_delay_ends_with_the_rebalance_timeout():
    stage = Scene(initial_rebalance_delay_ms=3_000)
    for number in range(10):
        stage.join(f"m{number}", version=3, rebalance_timeout_ms=8_000)
        stage.pass_time(1_000)
    assert stage.clients["m0"].generation_id == 1
    assert len(stage.group.members) == 10
    assert stage.clients["m7"].generation_id == 1, "it joined within 8 s"
    assert stage.clients["m8"].generation_id == -1, "it came after"


def test_a_join_before_member_ids_were_required_makes_a_member_at_once():
    stage = Scene(initial_rebalance_delay_ms=0)
    stage.join("a", version=3)
    stage.pass_time(0)
    assert stage.clients["a"].generation_id == 1


def test_a_new_member_whose_client_went_away_is_out_after_five_minutes():
    stage = stable()
    stage.clients["a"].rebalance_timeout_ms = stage.group.members[
        stage.clients["a"].member_id
    ].rebalance_timeout_ms = 3_600_000
    stage.join("c", version=3)
    for _ in range(61):
        stage.heartbeat("a")
        stage.heartbeat("b")
        stage.pass_time(5_000)
    assert E(stage.clients["c"].answers[-1].error_code) is E.unknown_member_id
    assert len(stage.group.members) == 2


def test_a_follower_that_joins_again_unchanged_gets_the_generation_without_a_rebalance():
    stage = stable()
    stage.join("b")
    assert stage.group.state is GroupState.STABLE
    answer = stage.clients["b"].answers[-1]
    assert (answer.generation_id, answer.members) == (1, [])


def test_the_leader_that_joins_again_rebalances_the_group():
    stage = stable()
    stage.join("a")
    assert stage.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_leader_that_joins_again_gets_the_members_again():
    stage = completing()
    stage.join("a")
    assert len(stage.clients["a"].answers[-1].members) == 3


def test_a_leader_that_does_not_join_is_replaced():
    stage = stable_group("a", "b", initial_rebalance_delay_ms=0)
    stage.clients["b"].protocols = ("range", "x")
    stage.join("b")
    for _ in range(12):
        stage.heartbeat("a")
        stage.pass_time(5_000)
    assert stage.clients["b"].leader == stage.clients["b"].member_id
    assert list(stage.group.members) == [stage.clients["b"].member_id]


# KIP-345
@pytest.mark.logs(
    "no member joined within the rebalance timeout; the join phase restarts",
    "the leader sent no assignment for members",
)
def test_static_members_that_do_not_join_keep_the_group_waiting_until_their_sessions_end():
    stage = Scene(initial_rebalance_delay_ms=0)
    stage.join("a", instance_id="i1", session_timeout_ms=200_000)
    stage.join("b", instance_id="i2", session_timeout_ms=200_000)
    stage.pass_time(0)
    stage.sync("a", {})
    stage.sync("b")
    stage.leave(MemberIdentity(group_instance_id="i1"))
    stage.pass_time(60_000)
    assert stage.group.state is GroupState.PREPARING_REBALANCE
    stage.pass_time(140_000)
    assert stage.group.state is GroupState.EMPTY


# KIP-345
@pytest.mark.parametrize("error", [None, E.coordinator_not_available])
def test_a_static_member_whose_session_ends_while_its_new_id_is_written_gets_a_new_session(error):
    """The timer does not remove a member whose JoinGroup waits, so it must run again once that is answered."""
    stage = Scene(initial_rebalance_delay_ms=0)
    stage.join("a", instance_id="i", session_timeout_ms=6_000)
    stage.pass_time(0)
    stage.sync("a", {"a": b"all"})
    stage.is_log_held = True
    stage.join("b", instance_id="i", session_timeout_ms=6_000)
    stage.pass_time(6_000)
    assert stage.unanswered == ["b"]
    stage.settle(error)
    assert stage.unanswered == []
    stage.pass_time(5_999)
    assert len(stage.group.members) == 1
    stage.is_log_held = False
    stage.pass_time(1)
    assert stage.group.state is GroupState.EMPTY


# KIP-389
def test_max_size_in_a_join_phase_counts_the_members_that_have_joined():
    stage = stable_group("a", "b", initial_rebalance_delay_ms=0, max_size=2)
    stage.join("a")
    stage.join("c", version=3)
    stage.join("b")
    assert E(stage.clients["b"].answers[-1].error_code) is E.group_max_size_reached
    stage.pass_time(60_000)
    assert {member.client_id for member in stage.group.members.values()} == {"a", "c"}


def test_only_the_transitions_of_the_table_are_possible():
    for target in GroupState:
        for state in GroupState:
            group = ClassicGroup("g", GroupConfig(), state=state)
            if state in ALLOWED_FROM[target]:
                group.transition_to(target, now_ms=5)
                assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, state, 5)
            else:
                with pytest.raises(AssertionError):
                    group.transition_to(target, now_ms=5)


# From Java: "...".hashCode()
@pytest.mark.parametrize(
    ("text", "hashed"),
    [("", 0), ("group", 98629247), ("consumer-group-of-some-length", -1733497490), ("\U0001f600", 1772899)],
)
def test_java_hash(text, hashed):
    assert java_hash(text) == hashed


@pytest.mark.parametrize(("rebalance_ms", "again_ms"), [(-1, 1_000), (0, 1_000), (7_000, 7_000)])
def test_members_that_do_not_come_are_waited_for_with_patience(caplog, rebalance_ms, again_ms):
    stage = Scene(initial_rebalance_delay_ms=0)
    stage.join("a", instance_id="i")
    stage.pass_time(0)
    stage.sync("a", {"a": b""})
    stage.join("a", rebalance_timeout_ms=rebalance_ms)
    for _ in range(2):
        stage.sync("a", {"a": b""})
        assert stage.group.state is GroupState.STABLE
        caplog.clear()
        prepare_rebalance(stage.group, "anything", now_ms=0)
        for _ in range(3):
            actions = complete_join(stage.group, now_ms=0)
            assert actions[-1] == SetTimer(JoinPhaseExpired(), again_ms)
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
        stage.join("a")


@given(st.text(st.characters(), max_size=40), st.integers(0, 100))
def test_java_hash_is_the_polynomial_over_utf_16_units(text, repeated):
    text += text[:7] * repeated
    naive = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        naive = (31 * naive + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    assert java_hash(text) == (naive - 2**32 if naive >= 2**31 else naive)


def test_the_hash_without_an_absolute_value_is_partition_0():
    assert java_hash("polygenelubricants") == -(2**31)
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("consumer-group-of-some-length", 50) == 1733497490 % 50


@pytest.mark.parametrize(
    ("data", "topics"),
    [
        (b"", None),
        (b"range", None),
        (bytes.fromhex("0003 00000002 0001 61 0002 6262") + b"\0\0\0\0more", {"a", "bb"}),
        (bytes.fromhex("0000 00000000"), set()),
        (bytes.fromhex("0000 7fffffff 0001 61"), None),
        (bytes.fromhex("0000 ffffffff"), None),
        (bytes.fromhex("0000 00000001 ffff"), None),
        (bytes.fromhex("0000 00000001 0005 61"), None),
    ],
)
def test_subscribed_topics(data, topics):
    assert subscribed_topics(data) == topics


@pytest.mark.parametrize("value", [
    {"leader": "gone"},                                       # a leader without members
    {"generation": 2**31 - 1, "protocol": "range"},           # the last one that a message can hold
    {"generation": -7},
    {"members": ["a"], "protocol": None},                     # members without a protocol
    {"members": ["a"], "protocol": None, "leader": "gone", "generation": 2**31 - 1},
])  # fmt: skip
def test_a_record_that_no_coordinator_writes_makes_a_group_that_works(value):
    """A client that may write to `__consumer_offsets` must not end a group for good."""
    members = [
        MemberMetadata(member_id=member, session_timeout=6_000, rebalance_timeout=60_000)
        for member in value.pop("members", [])
    ]
    stage = Scene(initial_rebalance_delay_ms=0)
    record = GroupMetadataValue(protocol_type="consumer", members=members, **value)
    shard = Shard(stage.config, KnownTopics())
    stage.group = shard.groups["g"] = group_from_value("g", record, stage.config)
    stage.do(on_loaded(stage.group, now_ms=0))
    shard.describe("g", version=5)
    stage.pass_time(6_000)
    assert stage.group.state is GroupState.EMPTY
    stage.join("b", version=3)
    stage.pass_time(0)
    stage.sync("b", {"b": b"all"})
    assert stage.clients["b"].assignment == b"all"
    assert stage.clients["b"].leader == stage.clients["b"].member_id
    assert 0 <= stage.clients["b"].generation_id <= 2**31 - 1
    described = shard.describe("g", version=5)
    assert [row.member_id for row in described.members] == [stage.clients["b"].member_id]
    encode_struct(GroupMetadataValue, 3, stage.log[-1])
