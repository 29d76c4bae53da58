"""`ottla.testing.Existing` on the server of this run: Ottla, or Apache Kafka."""

import pytest
from confluent_kafka import Consumer

from ottla.testing import ClusterError, Existing


@pytest.fixture
def cluster(server):
    with Existing(server.bootstrap) as existing:
        yield existing


def test_topics_and_records(cluster, topic):
    cluster.create_topic(topic, partitions=2, config={"retention.ms": 3_600_000})
    assert topic in cluster.topics()
    assert cluster.leader(topic) == 1
    assert cluster.produce(topic, "one", "two", partition=1, headers={"h": "v"}) == 0
    assert cluster.values(topic) == [b"one", b"two"]
    assert cluster.end_offsets(topic) == {0: 0, 1: 2}
    with pytest.raises(ClusterError, match=rf"topic {topic}: TOPIC_ALREADY_EXISTS"):
        cluster.create_topic(topic)
    with cluster.recording(topic, ["three"]):
        cluster.produce(topic, "three")
    cluster.delete_topic(topic)
    assert topic not in cluster.topics()


def test_groups(cluster, topic, group):
    cluster.produce(topic, "a", "b")
    consumer = Consumer(cluster.consumer_config(group, client_id="the-one"))
    consumer.subscribe([topic])
    assert consumer.poll(30).value() == b"a"
    cluster.wait_until_stable(group, members=1, timeout_s=30)
    consumer.commit(asynchronous=False)
    cluster.wait_for_commit(group, topic, 1)
    assert cluster.lag(group) == {(topic, 0): 1}
    [member] = cluster.members(group)
    assert cluster.expire_member(group, "the-one") == [member]
    assert cluster.groups()[group] == "Empty"
    consumer.close()
