"""`ottla.testing.Cluster`: each of its nodes is killed, paused, isolated and restarted; others lead at once."""

import pytest

from ottla.testing import Cluster, ClusterError, FaultNeverStruck
from tests.unit.testing.waiting import wait_for

#: What the nodes log when one of them is lost, or its controller.
pytestmark = pytest.mark.logs(
    "Fetch from broker",
    "its session has expired",
    "a heartbeat to the controller failed",
    "the active controller has",
    "AlterPartition for",
    "cannot be read from the remote tier",
    "a stray log",  # its topic was deleted just before its broker was restarted
    "its copies in the remote tier cannot be",
    "the next attempt is in",
    " has not responded for",
    "the log is renamed to a stray",
    "leader-epoch-checkpoint disagrees with the batches",
)


@pytest.fixture(scope="module")
def shared():
    with Cluster(3, racks="abc", tier=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    shared.start()
    for broker in shared.brokers:
        broker.let_go_on()
    shared.wait_until_in_sync()
    shared.reset()
    return shared


def test_a_topic_has_a_replica_on_each_broker_in_its_rack(cluster):
    cluster.create_topic("t", partitions=3)
    cluster.produce("t", "one", partition=2)
    assert cluster.values("t") == [b"one"]
    cluster.wait_until_in_sync("t")
    assert cluster.in_sync("t") == [1, 2, 3]
    assert {cluster.leader("t", partition) for partition in range(3)} == {1, 2, 3}
    assert [broker.rack for broker in cluster.brokers] == ["a", "b", "c"]
    assert cluster.bootstrap_servers.count(",") == 2
    with pytest.raises(ValueError, match="There is no broker 4: the cluster has brokers 1 to 3"):
        cluster.kill(4)
    with pytest.raises(ClusterError, match="No broker knows none-0"):
        cluster.in_sync("none")
    with pytest.raises(AttributeError, match=r"pause concerns one broker: cluster\.broker\(1\)\.pause"):
        cluster.pause(1)


def test_another_broker_leads_as_soon_as_one_is_killed(cluster):
    cluster.create_topic("t")
    cluster.produce("t", "one")
    killed = cluster.leader("t")
    port = cluster.broker(killed).port
    cluster.kill(killed)
    assert cluster.leader("t") not in (-1, killed)
    assert killed not in cluster.in_sync("t")
    cluster.produce("t", "two")
    cluster.broker(killed).start()
    assert cluster.broker(killed).port == port
    cluster.wait_until_in_sync("t")
    cluster.move_leader("t", to=killed)
    assert cluster.values("t") == [b"one", b"two"]


def test_an_isolated_broker_has_no_connection_until_it_is_healed(cluster):
    cluster.create_topic("t")
    isolated = cluster.leader("t")
    cluster.isolate(isolated)
    other = cluster.wait_for_leader("t", other_than=isolated)
    cluster.produce("t", "one")
    assert not cluster.broker(isolated).is_reachable
    assert sorted({1, 2, 3} - {isolated}) == cluster.in_sync("t")
    cluster.heal(isolated)
    cluster.wait_until_in_sync("t")
    assert cluster.leader("t") == other
    with pytest.raises(ClusterError, match=r"t-0 has no other leader\. \(waited 0\.01 s\)"):
        cluster.wait_for_leader("t", other_than=other, timeout_s=0.01)


def test_a_paused_broker_is_replaced_when_its_session_expires(cluster):
    cluster.create_topic("t")
    paused = cluster.broker(cluster.leader("t"))
    paused.pause()
    cluster.expire_session(paused.node_id)
    assert cluster.leader("t") != paused.node_id
    cluster.produce("t", "one")
    paused.resume()
    cluster.wait_until_in_sync("t")


def test_a_broker_that_lives_returns_when_its_session_has_expired(cluster):
    cluster.create_topic("t")
    expired = cluster.leader("t")
    cluster.expire_session(expired)
    assert cluster.wait_for_leader("t", other_than=expired)
    cluster.wait_until_in_sync("t")


def test_all_clocks_move_and_no_replica_lags(cluster):
    cluster.create_topic("t", config={"retention.ms": 3_600_000})
    cluster.produce("t", "old")
    cluster.wait_until_in_sync("t")
    cluster.advance(hours=25)
    assert cluster.values("t") == []
    assert cluster.in_sync("t") == [1, 2, 3]
    cluster.produce("t", "new")
    assert cluster.values("t") == [b"new"]
    leader = cluster.leader("t")
    cluster.advance(days=60)
    assert cluster.leader("t") == leader


def test_brokers_die_while_the_controller_is_down(cluster):
    cluster.create_topic("t")
    killed = cluster.leader("t")
    [controller] = cluster.controllers
    controller.kill()
    cluster.kill(killed)
    with pytest.raises(ClusterError, match="No controller is running"):
        cluster.expire_session(killed)
    controller.start()
    assert cluster.wait_for_leader("t", other_than=killed)
    cluster.broker(killed).start()
    cluster.wait_until_in_sync("t")


def test_followers_keep_what_is_tiered(cluster):
    tiered = {"remote.storage.enable": True, "segment.bytes": 1_048_576, "local.retention.bytes": 1}
    cluster.create_topic("t", config=tiered)
    for number in range(3):
        cluster.produce("t", str(number) + "x" * 700_000)
    leader = cluster.leader("t")
    wait_for(lambda: sum(each.tier == "remote" for each in cluster.broker(leader).segments("t")) == 2)
    with cluster.tier.fail() as failing:
        cluster.advance(minutes=5)  # the interval of retention: local copies of what is tiered are deleted
        assert {each.tier for each in cluster.broker(leader).segments("t") if each.base_offset == 0} == {
            "remote"
        }
        with pytest.raises(ClusterError):
            cluster._do(lambda do: do.wait_for_records("t", 3, timeout_s=0.2))
    assert failing.struck
    assert [each[:1] for each in cluster.values("t")] == [b"0", b"1", b"2"]


def test_faults_of_one_broker_and_strictness(cluster):
    cluster.create_topic("t")
    leader = cluster.broker(cluster.leader("t"))
    with pytest.raises(FaultNeverStruck, match="none of the 0 requests"), leader.disconnect_on("PRODUCE"):
        cluster.produce("t", "x")  # faults do not concern what the test itself asks
    cluster.brokers[1].disk.fill()
    with pytest.raises(FaultNeverStruck, match=r"broker\.disk\.fill\(\) was never met by an operation"):
        cluster.reset()
    cluster.reset()


def test_three_controllers_elect_another_one():
    soon = {"controller.quorum.election.timeout.ms": 50, "controller.quorum.fetch.timeout.ms": 150}
    with Cluster(1, controllers=3, config=soon) as cluster:
        cluster.create_topic("t")
        active = next(each for each in cluster.controllers if each.life.node.controller.is_active)
        active.kill()
        cluster.create_topic("u")
        assert cluster.topics() == ["t", "u"]


def test_data_that_are_kept_serve_another_cluster(tmp_path):
    with Cluster(2, data_dir=tmp_path / "kept") as cluster:
        cluster.produce("t", "x")
        ports = cluster.bootstrap_servers
    with Cluster(2, data_dir=tmp_path / "kept") as cluster:
        assert cluster.values("t") == [b"x"]
        assert cluster.bootstrap_servers == ports


def test_a_failure_that_is_noticed_late_does_not_fence_a_broker_that_runs_again(cluster):
    """The thread that ends a failed node is slower than the test, which has started the node meanwhile."""
    broker = cluster.brokers[0]
    failed = broker.life
    broker.kill()
    broker.start()
    failed._end_failed()
    assert not broker.was_lost
