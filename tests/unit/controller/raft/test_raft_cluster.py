"""Whole quorums, in memory: elections, replication, hand-over, snapshots, changes of the voter set."""

import pytest
from raft_support import Cluster, Replica, settings

from controller.raft.effects import Committed, Fatal, Stopped
from controller.raft.roles import Follower, Leader


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_leader_is_elected_and_what_it_writes_is_committed_everywhere(count: int) -> None:
    cluster = Cluster.static(count)
    leader = cluster.elect()
    leader.write("a", "b")
    leader.write("c")
    cluster.run_until(lambda: all(each.raft.high_watermark == 4 for each in cluster.replicas.values()))
    assert all(each.log.values() == ["a", "b", "c"] for each in cluster.replicas.values())
    assert not any(each.of(Fatal) for each in cluster.replicas.values())


def test_the_only_voter_leads_at_once() -> None:
    replica = Replica(settings(1, [1]))
    assert isinstance(replica.role, Leader)
    assert replica.of(Committed) == [Committed(1)]


def test_a_new_leader_takes_over_and_the_old_one_follows_it() -> None:
    cluster = Cluster.static(3)
    old = cluster.elect()
    old.write("a")
    cluster.run(1_000)
    cluster.is_cut = lambda a, b: old.id in (a, b)
    old.write("lost")
    cluster.run_until(lambda: [each for each in cluster.leaders if each is not old])
    new = next(each for each in cluster.leaders if each is not old)
    new.write("b")
    cluster.run(500)
    cluster.is_cut = lambda _a, _b: False
    cluster.run_until(lambda: isinstance(old.role, Follower))
    cluster.run_until(lambda: old.log.values() == ["a", "b"])


def test_a_leader_that_is_stopped_hands_over() -> None:
    cluster = Cluster.static(3)
    old = cluster.elect()
    cluster.run(1_000)
    before_ms = old.now_ms
    old.do(old.raft.shutdown(old.now_ms))
    cluster.run_until(lambda: old.of(Stopped))
    assert old.now_ms - before_ms < 1_000
    cluster.run_until(lambda: [each for each in cluster.leaders if each is not old])
