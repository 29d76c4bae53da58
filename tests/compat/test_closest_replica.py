"""Consumers that read from the nearest replica (KIP-392): librdkafka, three brokers in racks, a custom
selector and ours.

`replica.selector.class` is named here as an operator of Ottla names one: a Python class by its dotted path. A
cluster with a remote tier has LocalAwareRackReplicaSelector, and two brokers in a rack, of which one keeps
more local segments (KIP-405).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from ottla.bench.components.processes import wait_until
from tests.compat.admin import PATIENCE_S, admin_of, produce
from tests.compat.replicated import Topic
from tests.compat.selectors import CURSED, INDIFFERENT
from tests.harness.cluster import OttlaCluster

BROKERS, RACKS = (1, 2, 3), "abc"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaCluster]:
    settings = {"replica.selector.class": "tests.compat.selectors.Nearest"}
    folder: Path = tmp_path_factory.mktemp("closest")
    with OttlaCluster(folder, controllers=1, racks=RACKS, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole: OttlaCluster) -> Iterator[OttlaCluster]:
    """All nodes run when the next test begins."""
    yield whole
    whole.heal()


class Reader:
    """Reads partition 0 from an offset, its beginning by default, and knows from which broker it is fetched."""

    def __init__(
        self,
        cluster: OttlaCluster,
        topic: str,
        *,
        rack: str,
        name: str = "reader",
        offset: int = 0,
        bootstrap: str | None = None,
    ) -> None:
        self.topic = topic
        self._offset = offset
        self.values: list[bytes] = []
        self.broker: int | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap or cluster.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                # An offset that is out of range, or a log that was truncated, is an error here.
                "auto.offset.reset": "error",
                "client.id": name,
                "client.rack": rack,
                "fetch.wait.max.ms": 100,
                "statistics.interval.ms": 200,
                "stats_cb": self._on_statistics,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self.topic, 0, self._offset)])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _on_statistics(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        if self.topic in topics:
            self.broker = topics[self.topic]["partitions"]["0"]["broker"]

    def poll(self) -> Self:
        message = self._consumer.poll(0.1)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            self.values.append(value)
        return self

    def read_until(self, values: list[bytes]) -> None:
        wait_until(
            lambda: len(self.poll().values) >= len(values),
            detail=lambda: f"{len(self.values)} of {len(values)}",
        )
        assert self.values == values

    def wait_served_by(self, broker: int) -> None:
        """Wait until librdkafka's statistics name this broker; they are emitted periodically."""
        wait_until(
            lambda: self.poll().broker == broker, detail=lambda: f"served by {self.broker}, not {broker}"
        )


def fill(cluster: OttlaCluster, topic: str, *, begin: int, end: int) -> list[bytes]:
    produce(cluster.bootstrap, topic, [b"%d" % number for number in range(begin, end)], acks="all")
    return [b"%d" % number for number in range(end)]


def leads_from(cluster: OttlaCluster, name: str) -> list[bytes]:
    """A topic that broker 1 leads, with records that all replicas have."""
    Topic.create(cluster.bootstrap, name, BROKERS).wait(in_sync=[BROKERS])
    return fill(cluster, name, begin=0, end=100)


@pytest.mark.parametrize(
    ("rack", "name", "broker"),
    [
        ("a", "reader", 1),
        ("b", "reader", 2),
        ("c", "reader", 3),
        ("elsewhere", "reader", 1),
        ("", "reader", 1),
        ("b", INDIFFERENT, 1),
        ("b", CURSED, 1),  # logged by the leader, which serves
    ],
)
def test_the_replica_that_serves_each_reader(
    cluster: OttlaCluster, rack: str, name: str, broker: int
) -> None:
    topic = f"served-{rack}-{name}"
    values = leads_from(cluster, topic)
    with Reader(cluster, topic, rack=rack, name=name) as reader:
        reader.read_until(values)
        reader.wait_served_by(broker)
        # New records come from the same follower, once it has the new high watermark.
        values = fill(cluster, topic, begin=100, end=120)
        reader.read_until(values)
        reader.wait_served_by(broker)


def test_a_reader_returns_to_the_leader_when_its_replica_stops(cluster: OttlaCluster) -> None:
    values = leads_from(cluster, "gone")
    topic = Topic(cluster.bootstrap, "gone")
    with Reader(cluster, "gone", rack="c") as reader:
        reader.read_until(values)
        reader.wait_served_by(3)
        cluster.kill(3)
        topic.wait(in_sync=[{1, 2}])
        values = fill(cluster, "gone", begin=100, end=150)
        reader.read_until(values)
        reader.wait_served_by(1)
        cluster.start_node(3)
        topic.wait(in_sync=[BROKERS])
        reader.read_until(fill(cluster, "gone", begin=150, end=200))


def test_no_consumer_sees_a_truncation_when_the_leader_stops(cluster: OttlaCluster) -> None:
    """Readers check their offsets with the new leader (KIP-320), which does not know its high watermark at once."""
    values = leads_from(cluster, "passed-on")
    topic = Topic(cluster.bootstrap, "passed-on")
    readers = [Reader(cluster, "passed-on", rack=rack) for rack in RACKS]
    with readers[0], readers[1], readers[2]:
        for reader in readers:
            reader.read_until(values)
        cluster.kill(1)
        topic.wait(leaders=[2], in_sync=[{2, 3}])
        values = fill(cluster, "passed-on", begin=100, end=150)
        for reader in readers:
            reader.read_until(values)
        cluster.start_node(1)
        topic.wait(in_sync=[BROKERS])


#: A segment holds one batch: its index has room for one entry, and each batch gets one. Copies are made at once.
TIERED = {
    "replica.selector.class": "LocalAwareRackReplicaSelector",
    "log.index.size.max.bytes": "12",
    "log.index.interval.bytes": "1",
    "remote.log.manager.task.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    # The broker that stands still for a moment is neither fenced nor out of sync, however long clients take meanwhile.
    "broker.session.timeout.ms": "600000",
    "replica.lag.time.max.ms": "600000",
}
KEEPS_ALL, KEEPS_LITTLE = 2, 3


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[OttlaCluster]:
    """Broker 1 leads in rack a; in rack b broker 3 checks local retention often, and broker 2 never."""
    cluster = OttlaCluster(
        tmp_path / "cluster", controllers=1, racks="abb", settings=TIERED, tier=tmp_path / "tier"
    )
    for node_id, interval_ms in ((1, 10**9), (KEEPS_ALL, 10**9), (KEEPS_LITTLE, 200)):
        with cluster.node(node_id).properties_file.open("a") as file:
            file.write(f"\nlog.retention.check.interval.ms={interval_ms}\n")
    with cluster:
        yield cluster


def local_segments(cluster: OttlaCluster, node_id: int, topic: str) -> int:
    return len(list(cluster.node(node_id).data_dir.glob(f"{topic}-0/*.log")))


def test_a_reader_is_served_by_the_replica_that_has_its_offset_locally(tiered: OttlaCluster) -> None:
    """Broker 3 would be chosen by rack alone, and has one record more: broker 2 is paused for a moment."""
    new = NewTopic(
        "old",
        1,
        replica_assignment=[[1, KEEPS_ALL, KEEPS_LITTLE]],
        config={"remote.storage.enable": "true", "local.retention.bytes": "1"},
    )
    admin = admin_of(tiered.bootstrap)
    admin.create_topics([new])["old"].result(PATIENCE_S)
    Topic(tiered.bootstrap, "old").wait(in_sync=[BROKERS])
    for number in range(10):
        values = fill(tiered, "old", begin=number, end=number + 1)
    wait_until(
        lambda: local_segments(tiered, KEEPS_LITTLE, "old") == 1,
        detail=lambda: f"{local_segments(tiered, KEEPS_LITTLE, 'old')} segments are local",
    )
    assert local_segments(tiered, KEEPS_ALL, "old") == len(values)
    # A Fetch has the local log start offset of its replica, and one that was sent before may still wait at the leader:
    # a record is acknowledged by acks=all once all followers have sent their next ones.
    values = fill(tiered, "old", begin=len(values), end=len(values) + 1)
    leader = tiered.node(1).listener
    stopped = tiered.child(KEEPS_ALL)
    stopped.pause()
    try:
        produce(leader, "old", [b"one more"], acks="1")
        with (
            Reader(tiered, "old", rack="b", bootstrap=leader) as whole,
            Reader(tiered, "old", rack="b", bootstrap=leader, offset=len(values) - 1) as end,
        ):
            whole.wait_served_by(KEEPS_ALL)
            end.wait_served_by(KEEPS_LITTLE)
            stopped.resume()
            values.append(b"one more")
            whole.read_until(values)
            end.read_until(values[-2:])
    finally:
        stopped.resume()
    with Reader(tiered, "old", rack="a") as reader:
        reader.read_until(values)
        reader.wait_served_by(1)
