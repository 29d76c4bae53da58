"""A leader's state of its followers: the majority's offset, check quorum, replicas that are caught up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raft_support import Cluster, fetch_request

from ottla.controller.raft.effects import Committed, Flush
from ottla.controller.raft.follower_progress import OBSERVER_SESSION_TIMEOUT_MS, Followers, majority_offset
from ottla.controller.raft.roles import Leader, Resigned
from ottla.controller.raft.types import ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from ottla.stories.quorum.raft_replicas import Replica, directory, key, voter_set


@pytest.mark.parametrize(
    ("offsets", "reached"),
    [
        ([7], 7),
        ([None], None),
        ([7, 5], 5),
        ([7, None], None),
        ([7, 5, 3], 5),
        ([7, 7, 3], 7),
        ([7, 5, None], 5),
        ([7, None, None], None),
        ([7, 5, 4, 3], 4),
        ([7, 5, None, None], None),
        ([9, 8, 7, 6, 5], 7),
        ([9, 8, 7, None, None], 7),
        ([0, 0, 0], 0),
    ],
)
def test_majority_offset(offsets: list[int | None], reached: int | None) -> None:
    assert majority_offset(offsets) == reached


@given(st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=7))
def test_majority_offset_is_the_largest_that_more_than_half_have(offsets: list[int | None]) -> None:
    def has_majority(offset: int) -> bool:
        return 2 * sum(each is not None and each >= offset for each in offsets) > len(offsets)

    assert majority_offset(offsets) == max((each for each in range(10) if has_majority(each)), default=None)


def lead(voters: tuple[int, ...] = (1, 2, 3), **others: Any) -> tuple[Cluster, Replica]:
    """A leader whose followers will say what the test lets them say."""
    cluster = Cluster.static(len(voters), **others)
    leader = cluster.elect()
    cluster.run(100)
    return cluster, leader


def fetch(leader: Replica, id: int, offset: int, **others: Any) -> Any:
    epoch = leader.role.epoch
    last = epoch if offset > leader.role.epoch_start_offset else 0
    return leader.ask(fetch_request(id, offset=offset, epoch=last, leader_epoch=epoch, **others))


def test_the_leader_counts_what_it_has_flushed() -> None:
    _, leader = lead((1, 2))
    other = 3 - leader.id
    before = leader.raft.high_watermark
    leader.log.append("a", epoch=leader.role.epoch)
    end_offset = leader.log.end.offset
    effects = leader.raft.appended(leader.now_ms, end_offset)
    assert Flush(end_offset) in effects
    answer = leader.raft.receive(
        leader.now_ms,
        fetch_request(other, offset=end_offset, epoch=leader.role.epoch, leader_epoch=leader.role.epoch),
        "fetch",
    )
    assert not [each for each in answer if isinstance(each, Committed)]
    assert leader.raft.high_watermark == before
    effects = leader.raft.flushed(leader.now_ms, end_offset)
    assert Committed(end_offset) in effects


def test_followers_may_commit_what_the_leader_has_not_flushed() -> None:
    _, leader = lead()
    leader.log.append("a", epoch=leader.role.epoch)
    leader.raft.appended(leader.now_ms, leader.log.end.offset)  # and no flush
    for id in {1, 2, 3} - {leader.id}:
        fetch(leader, id, leader.log.end.offset)
    assert leader.raft.high_watermark == leader.log.end.offset


def test_the_high_watermark_does_not_move_back_with_a_follower() -> None:
    _, leader = lead()
    leader.write("a", "b")
    a, _b = {1, 2, 3} - {leader.id}
    fetch(leader, a, 3)
    assert leader.raft.high_watermark == 3
    fetch(leader, a, 1)
    assert leader.raft.high_watermark == 3
    assert leader.role.followers.voters[a].end_offset == 1


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_leader_without_fetches_of_a_majority_resigns(count: int) -> None:
    cluster, leader = lead(tuple(range(1, count + 1)), election_timeout_ms=500)
    cluster.is_cut = lambda a, b: leader.id in (a, b)
    cluster.deliver()
    others = [id for id in cluster.replicas if id != leader.id]
    enough = others[: count // 2]
    for _ in range(10):  # half of the voters beside itself are a majority with itself
        leader.pass_time(1_000)
        for id in enough:
            fetch(leader, id, 0)
    assert isinstance(leader.role, Leader)
    for _ in range(5):  # one less is none
        leader.pass_time(1_000)
        for id in enough[1:]:
            leader.ask(fetch_request(id, offset=0, epoch=0, leader_epoch=leader.role.epoch))
    assert not isinstance(leader.role, Leader)


def test_observers_and_other_disks_are_no_majority() -> None:
    followers = Followers(voter_set(1, 2, 3), key(1))
    assert not followers.record_contact(ReplicaKey(2, directory(9)))
    assert not followers.record_contact(key(9))
    assert followers.record_contact(key(2))


def test_voters_that_do_not_fetch_get_begin_quorum_epoch_again_and_again() -> None:
    cluster, leader = lead()
    cluster.is_cut = lambda a, b: leader.id in (a, b)
    leader.sends.clear()
    reported = []
    for _ in range(25):
        leader.pass_time(100)
        fetch(leader, min({1, 2, 3} - {leader.id}), 0)
        for sent in leader.sent(BeginQuorumEpochRequest):
            reported.append(sent.node_id)
            leader.answer(sent, None)
    assert set(reported) == {max({1, 2, 3} - {leader.id})}
    assert 2 <= len(reported) <= 3  # every half fetch timeout


def test_a_replica_is_caught_up_when_it_reaches_what_there_was_at_its_last_fetch() -> None:
    followers = Followers(voter_set(1), key(1))

    def fetched(offset: int, leader_end: int, now_ms: int) -> int | None:
        followers.update_replica_state(key(9), offset, leader_end_offset=leader_end, now_ms=now_ms)
        return followers.observers[key(9)].last_caught_up_ms

    assert fetched(0, 10, 1_000) is None
    assert fetched(5, 20, 2_000) is None
    assert fetched(20, 30, 3_000) == 2_000  # all that there was when it last asked
    assert fetched(30, 30, 4_000) == 4_000
    assert fetched(20, 40, 5_000) == 4_000  # never back
    assert followers.is_caught_up(key(9), now_ms=5_000)
    assert not followers.is_caught_up(key(9), now_ms=5_000 + 3_600_000)
    assert not followers.is_caught_up(key(8), now_ms=5_000)


def test_observers_that_are_gone_are_forgotten() -> None:
    followers = Followers(voter_set(1), key(1))
    followers.update_replica_state(key(9), 0, leader_end_offset=0, now_ms=1_000)
    followers.clear_inactive_observers(now_ms=1_000 + OBSERVER_SESSION_TIMEOUT_MS - 1)
    assert key(9) in followers.observers
    followers.clear_inactive_observers(now_ms=1_000 + OBSERVER_SESSION_TIMEOUT_MS)
    assert key(9) not in followers.observers


def test_progress_survives_a_change_of_the_voter_set() -> None:
    followers = Followers(voter_set(1, 2), key(1))
    followers.update_replica_state(key(2), 5, leader_end_offset=9, now_ms=1)
    followers.update_replica_state(key(3), 7, leader_end_offset=9, now_ms=1)
    followers.update_local_state(9)
    followers.set_voters(voter_set(1, 2, 3))
    assert followers.high_watermark_candidate() == 7
    assert not followers.observers
    followers.set_voters(voter_set(2, 3))  # the leader itself is out: it does not count
    assert followers.high_watermark_candidate() == 5
    followers.update_local_state(10)
    assert followers.observers[key(1)].end_offset == 10
    assert followers.preferred_successors() == [key(3), key(2)]


def test_a_voter_that_was_only_configured_gets_its_directory_with_kraft_version_1() -> None:
    followers = Followers(voter_set(1, 2), key(1))
    followers.voters[2].key = ReplicaKey(2)
    followers.update_replica_state(key(2), 5, leader_end_offset=9, now_ms=1)
    followers.set_voters(voter_set(1, 2))
    assert followers.voters[2].key == key(2)
    assert followers.voters[2].end_offset == 5
    assert not followers.observers


def test_resignation_names_successors_by_their_logs() -> None:
    _, leader = lead()
    leader.write("a", "b")
    behind, ahead = sorted({1, 2, 3} - {leader.id})
    fetch(leader, behind, 1)
    fetch(leader, ahead, 3)
    leader.do(leader.raft.resign(leader.now_ms, leader.role.epoch - 1))
    assert isinstance(leader.role, Leader)  # another epoch
    leader.do(leader.raft.resign(leader.now_ms, leader.role.epoch))
    assert isinstance(leader.role, Resigned)
    assert [each.id for each in leader.role.preferred_successors] == [ahead, behind]


def test_another_node_with_the_leaders_id_is_refused_and_logged_now_and_then(caplog: Any) -> None:
    """It asks again at once, fifty times a second."""
    cluster, leader = lead()
    for _ in range(12 * 50):
        refused = fetch(leader, leader.id, 0, directory_id=directory(99))
        assert refused.responses[0].partitions[0].error_code == ErrorCode.unknown_server_error
        cluster.run(20)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2
    assert (
        f"another node sends Fetch requests with the node.id of this one, {leader.id}, and directory {directory(99)}"
        in lines[0]
    )
