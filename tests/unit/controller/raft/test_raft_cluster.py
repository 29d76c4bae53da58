"""Whole quorums, in memory: elections, replication, hand-over, snapshots, changes of the voter set."""

from uuid import UUID

import pytest
from raft_support import Cluster

from ottla.controller.raft.effects import Committed, Fatal, SnapshotLoaded, Stopped
from ottla.controller.raft.roles import Follower, Leader, Resigned
from ottla.controller.raft.types import Address, OffsetAndEpoch, ReplicaKey
from ottla.protocol.errors import InvalidUpdateVersion, NotController
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    LISTENER,
    Replica,
    address,
    directory,
    settings,
    voter_set,
)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_leader_is_elected_and_what_it_writes_is_committed_everywhere(count: int) -> None:
    cluster = Cluster.static(count)
    leader = cluster.elect()
    leader.write("a", "b")
    leader.write("c")
    cluster.run_until(lambda: all(each.raft.high_watermark == 4 for each in cluster.replicas.values()))
    assert all(each.log.values() == ["a", "b", "c"] for each in cluster.replicas.values())
    assert not any(each.of(Fatal) for each in cluster.replicas.values())


def test_peers_that_speak_older_versions() -> None:
    """No response has the leader's endpoint: it is known from the configuration."""
    cluster = Cluster.static(3)
    cluster.versions = {1: 13, 53: 0, 54: 0, 59: 0}  # Fetch, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot
    old = cluster.elect()
    old.write("a")
    cluster.run_until(lambda: all(each.raft.high_watermark == 2 for each in cluster.replicas.values()))
    old.do(old.raft.resign(old.now_ms, old.role.epoch))
    cluster.run_until(lambda: [each for each in cluster.leaders if each is not old])
    new = cluster.elect()
    new.write("b")
    cluster.run_until(lambda: old.log.values() == ["a", "b"])


def test_the_only_voter_leads_at_once() -> None:
    replica = Replica(settings(1, [1]))
    assert isinstance(replica.role, Leader)
    assert replica.of(Committed) == [Committed(1)]


def test_a_leader_that_is_stopped_hands_over() -> None:
    cluster = Cluster.static(3)
    old = cluster.elect()
    cluster.run(1_000)
    before_ms = old.now_ms
    old.do(old.raft.shutdown(old.now_ms))
    cluster.run_until(lambda: old.of(Stopped))
    assert old.now_ms - before_ms < 1_000
    cluster.run_until(lambda: [each for each in cluster.leaders if each is not old])


def test_an_observer_finds_the_leader_and_follows() -> None:
    cluster = Cluster.dynamic([1, 2, 3], observers=[4])
    leader = cluster.elect()
    leader.write("a")
    cluster.run_until(lambda: cluster[4].raft.high_watermark == leader.log.end.offset)
    assert cluster[4].log.values() == ["a"]
    assert not cluster[4].raft.is_voter
    # the voters stand in the log now, so the observer knows them
    assert cluster[4].raft.voters.ids == [1, 2, 3]
    cluster.is_cut = lambda a, b: 4 in (a, b)
    cluster.run(10_000)
    assert isinstance(cluster[4].role, Follower)  # without contact for any time: it never runs for election
    assert cluster[4].role.epoch == leader.role.epoch


def test_a_follower_that_is_far_behind_loads_a_snapshot() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    behind = next(each for each in cluster.replicas.values() if each is not leader)
    cluster.is_cut = lambda a, b: behind.id in (a, b)
    for value in "abcdef":
        leader.write(value)
    cluster.run(500)
    leader.log.snapshot(OffsetAndEpoch(5, leader.role.epoch))
    leader.log.begin_at(5)
    cluster.is_cut = lambda _a, _b: False
    cluster.run_until(lambda: behind.raft.high_watermark == leader.raft.high_watermark)
    assert behind.of(SnapshotLoaded) == [SnapshotLoaded(OffsetAndEpoch(5, leader.role.epoch))]
    assert behind.log.log_start_offset == 5
    assert behind.log.values() == ["e", "f"]


def test_a_voter_is_added_by_itself_and_the_first_ones_are_removed() -> None:
    cluster = Cluster.dynamic([1])
    joining = {"bootstrap_servers": (address(1),), "auto_join_enable": True}
    for id in (2, 3):
        cluster.add(Replica(settings(id, (), **joining), seed=id))
    cluster.run_until(lambda: all(each.raft.voters.ids == [1, 2, 3] for each in cluster.replicas.values()))
    old = cluster[1]
    assert isinstance(old.role, Leader)
    request = RemoveRaftVoterRequest(cluster_id=CLUSTER_ID, voter_id=1, voter_directory_id=directory(1))
    old.do(old.raft.receive(old.now_ms, request, "removal"))
    assert "removal" not in old.replies  # until it is committed by the others
    cluster.run_until(lambda: "removal" in old.replies)
    assert old.replies["removal"].error_code == 0
    cluster.run_until(lambda: any(each is not old for each in cluster.leaders))
    new = max(cluster.leaders, key=lambda each: each.role.epoch)
    assert new.raft.voters.ids == [2, 3]


# KIP-853
def test_a_voter_with_a_new_disk_takes_its_former_place() -> None:
    cluster = Cluster.dynamic([1, 2, 3], auto_join_enable=True)
    leader = cluster.elect()
    lost = next(each for each in cluster.replicas.values() if each is not leader)
    fresh = Replica(
        settings(
            lost.id,
            (),
            directory_id=UUID(int=7),
            auto_join_enable=True,
            bootstrap_servers=tuple(address(id) for id in (1, 2, 3) if id != lost.id),
        ),
        now_ms=lost.now_ms,
    )
    assert not fresh.raft.is_voter
    cluster.add(fresh)
    cluster.run_until(lambda: fresh.raft.is_voter, limit_ms=60_000)
    cluster.run_until(lambda: leader.raft.voters.is_voter(ReplicaKey(lost.id, UUID(int=7))))
    assert fresh.raft.voters.voters[lost.id].key == ReplicaKey(lost.id, UUID(int=7))


def test_a_voter_that_has_moved_says_so() -> None:
    cluster = Cluster.dynamic([1, 2, 3])
    leader = cluster.elect()
    moved = next(each for each in cluster.replicas.values() if each is not leader)
    cluster.run(1_000)
    elsewhere = {LISTENER: address(moved.id), "OTHER": Address("127.0.0.1", 1)}
    again = Replica(
        settings(moved.id, (), bootstrap_servers=moved.settings.bootstrap_servers, endpoints=elsewhere),
        log=moved.log,
        election=moved.election,
        now_ms=moved.now_ms,
    )
    cluster.add(again)
    cluster.run_until(lambda: leader.raft.voters.endpoints(moved.id) == elsewhere, limit_ms=60_000)


def test_kraft_version_is_raised_once_all_voters_have_sent_update_voter() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    epoch = leader.role.epoch
    with pytest.raises(InvalidUpdateVersion):
        leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch, version=1)
    cluster.run(5_000)
    leader.do(leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch, version=1, validate_only=True))
    assert leader.raft.kraft_version == 0
    leader.do(leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch, version=1))
    cluster.run(1_000)
    assert {each.raft.kraft_version for each in cluster.replicas.values()} == {1}
    assert all(each.raft.voters == voter_set(1, 2, 3) for each in cluster.replicas.values())
    leader.do(leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch, version=1))  # it is so already
    with pytest.raises(InvalidUpdateVersion):
        leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch, version=0)
    with pytest.raises(NotController):
        leader.raft.upgrade_kraft_version(leader.now_ms, epoch=epoch - 1, version=1)


def test_a_quorum_survives_that_all_of_it_is_killed() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    leader.write("a")
    cluster.run(1_000)
    epoch = leader.role.epoch
    again = Cluster(
        *(
            Replica(each.settings, log=each.log, election=each.election, seed=7 + each.id, now_ms=each.now_ms)
            for each in cluster.replicas.values()
        )
    )
    assert isinstance(again[leader.id].role, Resigned)  # never again the leader of that epoch
    new = again.elect()
    assert new.role.epoch > epoch
    new.write("b")
    again.run_until(lambda: all(each.log.values() == ["a", "b"] for each in again.replicas.values()))


def test_nothing_is_written_without_a_majority_and_the_leader_resigns() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    cluster.run(1_000)
    before = leader.raft.high_watermark
    cluster.is_cut = lambda a, b: leader.id in (a, b)
    leader.write("never")
    cut_ms = leader.now_ms
    cluster.run_until(lambda: not isinstance(leader.role, Leader))
    assert 3_000 - 500 <= leader.now_ms - cut_ms <= 3_000
    assert leader.raft.high_watermark == before
    assert leader.raft.leader_and_epoch.leader_id is None


# KIP-996
def test_a_node_that_is_cut_off_does_not_disturb_the_quorum_when_it_returns() -> None:
    cluster = Cluster.static(3)
    leader = cluster.elect()
    cluster.run(1_000)
    away = next(each for each in cluster.replicas.values() if each is not leader)
    epoch = leader.role.epoch
    cluster.is_cut = lambda a, b: away.id in (a, b)
    cluster.run(20_000)
    assert away.role.epoch == epoch  # it asks for pre-votes, in the same epoch
    cluster.is_cut = lambda _a, _b: False
    cluster.run(3_000)
    assert isinstance(leader.role, Leader)
    assert leader.role.epoch == epoch
    assert isinstance(away.role, Follower)
