"""Events on real clusters of both kinds: what they do to brokers, stores and topics,
and that their conditions then hold.

What has happened is checked by librdkafka and in the brokers' folders.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import PATIENCE_S, wait_until
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.conditions import wait_for
from ottla.bench.targets.events import carry_out
from ottla.bench.targets.sampling import Sampler
from ottla.bench.targets.started import StartedTarget, started
from ottla.bench.targets.target import TargetError
from ottla.bench.workloads.model import Action, ClusterNeeds, Condition, Event, Tier
from ottla.protocol.messages.metadata import MetadataResponsePartition
from tests.compat.admin import eventually_equal

PARTITIONS = 2
SEGMENT_BYTES = 1 << 20
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "local.retention.bytes": "1",
}
#: The name in a workload -> in the cluster.
TOPICS = {"log": "log-0"}
TOPIC = TOPICS["log"]


def event(action: Action, **more: Any) -> Event:
    return Event(at_s=0, action=action, name="it", **more)


def create_topic(target: StartedTarget, *, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    new = NewTopic(TOPIC, PARTITIONS, replicas)
    wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == len(target.brokers))
    admin.create_topics([new])[TOPIC].result(PATIENCE_S)
    carry_out(event(Action.WAIT, topic="log", until=Condition.IN_SYNC), target, TOPICS)


def produce(target: StartedTarget, *, count: int, size: int = 1000) -> None:
    """Records that all replicas have."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "acks": "all", "linger.ms": 5})
    for number in range(count):
        producer.produce(TOPIC, os.urandom(size), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def rows(target: StartedTarget) -> dict[int, Any]:
    """The partitions, as librdkafka sees them."""
    found = AdminClient({"bootstrap.servers": target.bootstrap}).list_topics(TOPIC, timeout=PATIENCE_S)
    return dict(found.topics[TOPIC].partitions)


def rows_of_first(target: StartedTarget) -> dict[int, MetadataResponsePartition]:
    """The partitions, as the broker sees them that `wait_for` has asked: a condition that held there still does."""
    with ClusterClient(target.addresses()) as client:
        found = client.partitions(TOPIC)
    assert len(found) == PARTITIONS
    return found


def record_count(target: StartedTarget) -> int:
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "none"})
    offsets = [
        consumer.get_watermark_offsets(TopicPartition(TOPIC, each), timeout=PATIENCE_S) for each in (0, 1)
    ]
    consumer.close()
    return sum(high - low for low, high in offsets)


def segments(target: StartedTarget, broker: int) -> list[Path]:
    assert target.nodes is not None
    return sorted(target.nodes.data_dir(broker).glob(f"{TOPIC}-*/*.log"))


@pytest.fixture(params=["kafka", "ottla"])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartedTarget]:
    """Three brokers with a directory as remote tier."""
    needs = ClusterNeeds(brokers=3, tier=Tier.DIRECTORY)
    target = started(request.param, needs, tmp_path / request.param)
    try:
        target.start()
        yield target
    finally:
        target.kill()


def test_a_tiered_log_and_a_broker_that_is_killed_wiped_and_started(three: StartedTarget) -> None:
    create_topic(three, replicas=3)
    produce(three, count=6000)
    assert three.store is not None

    # Tiering is switched on: all that is closed is copied, then removed from the brokers' disks.
    carry_out(event(Action.ALTER_TOPIC, topic="log", configs=TIERED), three, TOPICS)
    produce(three, count=6000)
    took_s = carry_out(event(Action.WAIT, topic="log", until=Condition.TIERED), three, TOPICS)
    assert took_s is not None
    copies = len(list(three.store.folder.rglob("*.log")))
    assert copies >= 6
    carry_out(event(Action.WAIT, topic="log", until=Condition.LOCAL_ACTIVE_ONLY), three, TOPICS)
    leader = rows(three)[0].leader
    active = [path for path in segments(three, leader) if path.parent.name == f"{TOPIC}-0"]
    wait_until(lambda: sum(path.exists() for path in active) == 1)

    # The leader dies: another one answers.
    took_s = carry_out(event(Action.KILL, leader_of="log", topic="log", until=Condition.LED), three, TOPICS)
    assert took_s is not None
    assert took_s > 0
    assert {leader} == {each.broker_id for each in three.brokers} - three.addresses().keys() == three.down
    assert all(row.leader_id not in {leader, -1} for row in rows_of_first(three).values())
    # librdkafka may ask another broker.
    wait_until(lambda: all(row.leader != leader for row in rows(three).values()))
    with pytest.raises(TargetError, match=f"broker {leader}, which is down"):
        carry_out(event(Action.KILL, broker=leader), three, TOPICS)

    # It comes back without its logs, and follows.
    assert three.nodes is not None
    carry_out(event(Action.WIPE, broker=leader), three, TOPICS)
    assert [path.name for path in three.nodes.data_dir(leader).iterdir()] == ["meta.properties"]
    carry_out(event(Action.START, broker=leader, topic="log", until=Condition.IN_SYNC), three, TOPICS)
    assert not three.down
    assert all(set(row.isr_nodes) == set(row.replica_nodes) for row in rows_of_first(three).values())
    assert len(segments(three, leader)) >= PARTITIONS

    # It leads again, and every record is there.
    carry_out(event(Action.ELECT_PREFERRED, topic="log", until=Condition.LED), three, TOPICS)
    wait_until(lambda: all(row.leader == row.replicas[0] for row in rows(three).values()))
    eventually_equal(lambda: record_count(three), 12_000)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[StartedTarget]:
    """One broker of ours with MinIO, behind a proxy that can be slow."""
    needs = ClusterNeeds(tier=Tier.MINIO)
    target = started("ottla", needs, tmp_path / "ottla", can_be_slow=True)
    try:
        target.start()
        yield target
    finally:
        target.kill()


def test_a_store_that_is_slow_for_a_while(one: StartedTarget) -> None:
    create_topic(one, replicas=1)
    carry_out(event(Action.ALTER_TOPIC, topic="log", configs=TIERED), one, TOPICS)
    carry_out(event(Action.SLOW_STORE, bytes_per_s=1e6, delay_s=0.1), one, TOPICS)
    before_s = time.time()

    rounds = 0

    def tiering_s() -> float:
        """The seconds until what is written is in the store; copying begins while it is written."""
        nonlocal rounds
        rounds += 1
        began_s = time.monotonic()
        produce(one, count=5000)
        assert carry_out(event(Action.WAIT, topic="log", until=Condition.TIERED), one, TOPICS) is not None
        return time.monotonic() - began_s

    with Sampler(one) as sampler:
        slow_s = tiering_s()
        one.restore()
        wait_until(lambda: tiering_s() < slow_s)  # once, unless the machine itself is slow for a while
    assert slow_s > 3  # four segments of 1 MB at 1 MB/s

    # What was seen from outside: 5 MB came to the broker each time, and all but the active segments went to the store.
    least, most = rounds * 5e6, rounds * 5.5e6
    by_node = {node: [row for row in sampler.rows(before_s) if row.node == node] for node in one.ports()}
    received = {node: sum(row.received_bytes or 0 for row in rows) for node, rows in by_node.items()}
    assert least < received["broker-1"] < most
    assert least - 3e6 < received["store"] < most
    assert by_node["store"][-1].tiered_bytes is not None
    assert least - 3e6 < by_node["store"][-1].tiered_bytes < most
    for rows_ in by_node.values():
        assert sum(row.cpu_s or 0 for row in rows_) > 0
        assert max(row.private_bytes or 0 for row in rows_) > 20e6


@pytest.mark.parametrize("name", ["kafka", "ottla"])
def test_one_broker_is_started_again_unless_it_has_crashed(name: str, tmp_path: Path) -> None:
    target = started(name, ClusterNeeds(), tmp_path / name)
    try:
        target.start()
        create_topic(target, replicas=1)
        produce(target, count=100)
        assert carry_out(event(Action.STOP, broker=1), target, TOPICS) is None
        # Nothing is waited for once the run is over.
        wait = event(Action.WAIT, topic="log", until=Condition.LED)
        assert carry_out(wait, target, TOPICS, is_over=lambda: True) is None
        target.restore()
        assert carry_out(wait, target, TOPICS) is not None
        assert record_count(target) == 100

        os.kill(target.broker_pids()[0], signal.SIGKILL)
        wait_until(lambda: not target.addresses())
        with pytest.raises(TargetError, match=f"{name}: broker 1 has ended by itself; its log ends with: "):
            target.restore()
    finally:
        target.kill()
    assert target.node_pids() == {}


def test_what_fails_is_one_sentence(one: StartedTarget) -> None:
    with pytest.raises(
        TargetError, match="ottla: the event 'it' failed: unknown: unknown_topic_or_partition"
    ):
        carry_out(event(Action.ALTER_TOPIC, topic="x", configs=TIERED), one, {"x": "unknown"})
    carry_out(event(Action.KILL, broker=1), one, TOPICS)
    with pytest.raises(TargetError, match=f"ottla: {TOPIC} is still not led after 0.3 s"):
        wait_for(Condition.LED, one, TOPIC, is_over=lambda: False, patience_s=0.3)
