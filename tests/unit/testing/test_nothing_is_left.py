"""Nothing is left when a broker or cluster has stopped, or did not start: no thread, descriptor or folder."""

import pytest

from ottla.testing import Broker, CannotStart, Cluster, KafkaError
from tests.unit.testing.waiting import left_since, what_runs


def test_nothing_of_a_broker_is_left():
    with Broker() as first:  # what a process opens once, as its first broker does
        first.produce("t", "x")
    before = what_runs()
    with Broker() as broker:
        broker.produce("t", "x")
        broker.kill()
        broker.start()
        folder = broker.data_dir
    assert not folder.parent.exists()
    assert left_since(before) == set()


@pytest.mark.logs("Fetch from broker", "its session has expired", "a heartbeat to the controller failed")
def test_nothing_of_a_cluster_is_left(tmp_path):
    with Broker() as first:  # what a process opens once, as its first broker does
        first.produce("t", "x")
    before = what_runs()
    with Cluster(2) as cluster:
        cluster.produce("t", "x")
        cluster.brokers[0].pause()
        cluster.brokers[1].isolate()
        folder = cluster.data_dir.parent
    assert left_since(before) == set()
    assert not folder.exists()
    with pytest.raises(KafkaError, match=r"min\.insync\.replicas"):
        Cluster(2, config={"min.insync.replicas": "many"}).start()
    (tmp_path / "file").touch()
    with pytest.raises((CannotStart, OSError)):
        Cluster(2, data_dir=tmp_path / "file").start()
    with Broker(port=0) as taken, pytest.raises(CannotStart, match="Cannot listen at http"):
        Cluster(2, config={"metrics.listeners": f"http://127.0.0.1:{taken.port}"}).start()
    assert left_since(before) == set()


def test_a_tier_needs_no_further_process(tmp_path):
    before = what_runs()
    with Broker(tier=tmp_path / "tier") as tiered:
        assert tiered.tier_dir == tmp_path / "tier"
        tiered.produce("t", "x")
    assert left_since(before) == set()


def test_a_start_that_fails_is_a_sentence_and_leaves_nothing():
    before = what_runs()
    with pytest.raises(CannotStart, match=r"Invalid value 'x' for configuration log\.segment\.bytes"):
        Broker(process=True, config={"log.segment.bytes": "x"}).start()
    assert left_since(before) == set()
