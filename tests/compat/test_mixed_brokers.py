"""A real Kafka 4.3.1 broker and two Ottla brokers under three Ottla controllers.

The Kafka broker (3) registers, hosts and replicates partitions, coordinates groups, and lives through the loss of the
active controller, a restart of its own and one of all controllers. Then leadership of one partition goes through all
three brokers, logs that have parted are truncated on either side, and in the end all replicas have the same bytes.

`OTTLA_MIXED_ROUNDS` (default 0) adds so many rounds of parted logs, with the brokers in all orders.
"""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition

from ottla.bench.components.processes import free_port
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.storage.files import Files
from ottla.storage.verify import compare
from tests.compat.admin import PATIENCE_S, admin_of, eventually_equal, once, produce, read, take, wait_until
from tests.compat.replicated import Topic
from tests.harness.blocking_wire import BlockingWire
from tests.harness.cluster import OttlaCluster
from tests.harness.listed_brokers import wait_until_listed
from tests.harness.nodes import KafkaNode, OttlaNode, broker

OTTLA, KAFKA = (1, 2), 3
ROUNDS = int(os.environ.get("OTTLA_MIXED_ROUNDS", "0"))
#: The broker whose log is truncated, the one elected, and the follower of both: Ottla truncates for Kafka's
#: leader, Kafka for Ottla's.
TAILS = [
    (KAFKA, 1, 2),
    (1, KAFKA, 2),
    *itertools.islice(itertools.cycle(itertools.permutations((1, 2, 3))), ROUNDS),
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FETCH_WAIT_MS = 500
#: Brokers that are killed or paused are fenced soon; only the test moves leaders.
SETTINGS = {
    "broker.session.timeout.ms": "10000",
    "broker.heartbeat.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "log.segment.bytes": "1048576",
    "replica.fetch.wait.max.ms": str(FETCH_WAIT_MS),
}


class Mixture:
    """The cluster, and its Kafka broker."""

    def __init__(self, ottla: OttlaCluster, folder: Path) -> None:
        self.ottla = ottla
        cluster_id = admin_of(self.ottla.bootstrap).list_topics(timeout=PATIENCE_S).cluster_id
        properties = {**broker(KAFKA, free_port(), bootstrap=self.ottla.bootstrap_controllers), **SETTINGS}
        self.kafka = KafkaNode(folder, properties, cluster_id=cluster_id)
        #: Ours in its place: the same folder, the same server.properties.
        self.successor = OttlaNode(folder, properties, cluster_id=cluster_id)

    @property
    def bootstrap(self) -> str:
        return f"{self.ottla.bootstrap},{self.kafka.listener}"

    def listener(self, node_id: int) -> str:
        return self.kafka.listener if node_id == KAFKA else self.ottla.node(node_id).listener

    def data_dirs(self) -> list[Path]:
        return [*(self.ottla.node(node_id).data_dir for node_id in OTTLA), self.kafka.data_dir]

    def pause(self, node_id: int) -> None:
        (self.kafka.child if node_id == KAFKA else self.ottla.child(node_id)).pause()

    def resume(self, node_id: int) -> None:
        (self.kafka.child if node_id == KAFKA else self.ottla.child(node_id)).resume()

    def kill(self, node_id: int) -> None:
        (self.kafka.child if node_id == KAFKA else self.ottla.child(node_id)).kill()

    def start(self, node_id: int) -> None:
        if node_id == KAFKA:
            self.kafka.start()
        else:
            self.ottla.start_node(node_id)

    def heal(self) -> None:
        """Repair all nodes, whatever was done to them: all run, Kafka in its own place."""
        self.successor.end()
        if self.kafka.child.is_running:
            self.kafka.child.resume()
        else:
            self.kafka.start()
        self.ottla.heal()
        self.wait_until_listed()

    def stop_brokers(self) -> None:
        self.kafka.stop()
        for node_id in OTTLA:
            self.ottla.stop_node(node_id)

    def end(self) -> None:
        self.kafka.end()
        self.successor.end()

    def wait_until_listed(self) -> None:
        """Wait until all brokers list each other."""
        ottlas = {node_id: self.ottla.node(node_id).port for node_id in OTTLA}
        wait_until_listed({**ottlas, KAFKA: self.kafka.port})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixture]:
    folder = tmp_path_factory.mktemp("mixed")
    with OttlaCluster(folder / "ottla", brokers=len(OTTLA), settings=SETTINGS) as ottla:
        mixture = Mixture(ottla, folder / "kafka")
        try:
            mixture.kafka.start()
            mixture.wait_until_listed()
            yield mixture
            mixture.stop_brokers()
            report = compare(*mixture.data_dirs(), files=Files())
        finally:
            mixture.end()
        ottla.kill(*ottla.running)  # a clean stop of controllers is tested elsewhere
    # Every log that two of them have is the same, those of the offsets topic included.
    assert report.is_sound, report.findings
    assert report.partitions


@pytest.fixture
def mixture(whole: Mixture) -> Iterator[Mixture]:
    """The next test finds all nodes running, however this one ends."""
    yield whole
    whole.heal()


def produce_everywhere(bootstrap: str, topic: str, count: int) -> None:
    """Idempotent, acks=all, round the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    errors = []
    for number in range(count):
        producer.produce(
            topic,
            b"%d" % number,
            b"key-%d" % number,
            partition=number % 3,
            on_delivery=lambda error, _: error is not None and errors.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not errors


def consume_as_group(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    """The values that a group member receives until it has so many records, sorted, each of them committed."""
    # What is committed automatically could not be committed once more.
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([topic])
    taken = take(consumer, count)
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(int(message.value()) for message in taken)


def group_led_by_kafka(mixture: Mixture) -> str:
    """A group whose coordinator is the Kafka broker: its partition of the offsets topic is led there."""
    (state,) = once(
        Topic(mixture.kafka.listener, "__consumer_offsets").seen, lambda states: KAFKA in states[0].leaders
    )
    leaders = state.leaders

    def java_hash(text: str) -> int:
        value = 0
        for character in text:
            value = (31 * value + ord(character)) & 0xFFFFFFFF
        return value & 0x7FFFFFFF

    names = (f"group-{number}" for number in range(1000))
    return next(name for name in names if leaders[java_hash(name) % len(leaders)] == KAFKA)


def test_kafkas_broker_serves(mixture):
    """Topics made by it, records through it, a group that it coordinates."""
    admin = admin_of(mixture.kafka.listener)
    eventually_equal(lambda: sorted(admin.list_topics(timeout=PATIENCE_S).brokers), [*OTTLA, KAFKA])
    topic = Topic.create(
        mixture.bootstrap, "served", [3, 1, 2], [1, 2, 3], [2, 3, 1], through=mixture.kafka.listener
    )
    produce_everywhere(mixture.kafka.listener, "served", 300)
    assert consume_as_group(mixture.bootstrap, "served", "first", 300) == list(range(300))
    topic.wait_in_sync([1, 2, 3])
    group = group_led_by_kafka(mixture)
    assert consume_as_group(mixture.ottla.bootstrap, "served", group, 300) == list(range(300))


def test_the_active_controller_is_lost(mixture):
    """SIGKILL: Kafka's broker finds the next one, and is never fenced."""
    topic = Topic.create(mixture.bootstrap, "failover", [3, 1, 2], [1, 2, 3], [2, 3, 1])
    victim = mixture.ottla.active_controller()
    mixture.ottla.kill(victim)
    produce_everywhere(mixture.bootstrap, "failover", 300)
    Topic.create(mixture.bootstrap, "after-failover", [3, 1], through=mixture.kafka.listener)
    assert mixture.ottla.active_controller() != victim
    produce(mixture.bootstrap, "after-failover", [b"value"])
    topic.wait(leaders=[3, 1, 2], in_sync=[[1, 2, 3]] * 3)
    mixture.ottla.start_node(victim)
    assert consume_as_group(mixture.kafka.listener, "failover", "second", 300) == list(range(300))


def test_kafkas_broker_is_restarted(mixture):
    """Its controlled shutdown hands its leadership over; it comes back in sync."""
    topic = Topic.create(mixture.bootstrap, "restarted", [3, 1, 2])
    produce(mixture.bootstrap, "restarted", [b"before"] * 10)
    assert mixture.kafka.stop() == 143  # Java's status after SIGTERM
    topic.wait(leaders=[1], in_sync=[[1, 2]])
    produce(mixture.ottla.bootstrap, "restarted", [b"meanwhile"] * 10)
    mixture.kafka.start()
    topic.wait_in_sync([1, 2, 3])
    topic.prefer(3)
    values = [message.value() for message in read(mixture.kafka.listener, "restarted", 20)]
    assert values == [b"before"] * 10 + [b"meanwhile"] * 10


def test_all_controllers_are_restarted(mixture):
    """SIGKILL to all three: nothing is decided for a while, nothing is forgotten, and brokers go on."""
    controllers = [node.node_id for node in mixture.ottla.plan.controllers]
    # Known to all when it is created: with no controller left, no broker would learn of it later.
    topic = Topic.create(mixture.bootstrap, "orphaned", [3, 1, 2])
    mixture.ottla.kill(*controllers)
    produce(mixture.kafka.listener, "orphaned", [b"without controllers"] * 10)
    for node_id in controllers:
        mixture.ottla.spawn(node_id)
    for node_id in controllers:
        mixture.ottla.wait_ready(node_id)
    Topic.create(mixture.bootstrap, "after-restart", [3, 2, 1], through=mixture.kafka.listener)
    produce(mixture.bootstrap, "after-restart", [b"value"] * 10)
    topic.wait_in_sync([1, 2, 3])
    assert len(read(mixture.bootstrap, "orphaned", 10)) == 10


def test_leadership_goes_through_all_brokers(mixture):
    """Reassigned order and preferred elections move it; each leader's batches end up with both others."""
    topic = Topic.create(mixture.bootstrap, "round", [3, 1, 2])
    values: list[bytes] = []
    for order in ([3, 1, 2], [1, 2, 3], [2, 3, 1], [3, 2, 1]):
        topic.reassign(mixture.ottla.node(1).port, order)
        leader = order[0]
        topic.prefer(leader)
        for codec in CODECS:
            more = [b"%d-%s-%d" % (leader, codec.encode(), number) for number in range(40)]
            produce(mixture.listener(leader), "round", more, compression_type=codec, acks="all")
            values += more
        topic.wait_in_sync([1, 2, 3])
        found = read(mixture.bootstrap, "round", len(values))
        assert [message.value() for message in found] == values
    assert_identical(mixture, "round-0", end=len(values))


@pytest.mark.parametrize(("old", "new", "also"), TAILS)
def test_a_tail_that_no_other_replica_has_is_truncated(mixture, request, old, new, also):
    """KIP-101's appendix (a): `old` leads and is alone, is killed, and `new` is elected uncleanly.

    What only `old` had is gone when it follows again, whichever of the two is Kafka's.
    """
    name = "tail-" + re.sub(r"\W+", "-", request.node.callspec.id)
    topic = Topic.create(mixture.bootstrap, name, [new, also, old])
    produce(mixture.bootstrap, name, [b"known to all"] * 20)
    topic.reassign(mixture.ottla.node(1).port, [old, new, also])
    topic.prefer(old)
    produce(mixture.bootstrap, name, [b"known to all"] * 20)
    topic.wait_in_sync([1, 2, 3])

    mixture.pause(new)
    mixture.pause(also)
    outwait_fetches(mixture.listener(old), name, end=40)
    produce(mixture.listener(old), name, [b"lost %d" % number for number in range(30)], acks=1)
    Topic(mixture.listener(old), name).wait(in_sync=[[old]])
    produce(mixture.listener(old), name, [b"lost as well"], acks=1)
    mixture.kill(old)
    assert b"lost as well" in tail(mixture, old, name)
    mixture.resume(new)
    mixture.resume(also)
    survivor = Topic(f"{mixture.listener(new)},{mixture.listener(also)}", name)
    leader = elect_uncleanly(survivor, {new, also})
    produce(mixture.listener(leader), name, [b"of the new leader"] * 10)
    mixture.start(old)
    survivor.wait_in_sync([1, 2, 3])
    produce(mixture.listener(leader), name, [b"the end"])
    values = [b"known to all"] * 40 + [b"of the new leader"] * 10 + [b"the end"]
    assert b"lost" not in tail(mixture, old, name)
    for reader in (old, new):
        found = read(mixture.listener(reader), name, len(values))
        assert [message.value() for message in found] == values
    assert_identical(mixture, f"{name}-0", end=len(values))


def tail(mixture: Mixture, node_id: int, topic: str) -> bytes:
    """The last segment of a replica of the topic's only partition."""
    data_dir = mixture.kafka.data_dir if node_id == KAFKA else mixture.ottla.node(node_id).data_dir
    return max((data_dir / f"{topic}-0").glob("*.log")).read_bytes()


def outwait_fetches(listener: str, topic: str, *, end: int) -> None:
    """Wait until the leader has answered the fetches that wait at the end of its log: what it appends later
    is not for them.

    They would bring it to followers that are paused, to be read when they go on. A leader answers them in the order of
    their deadlines; so a fetch that comes later and may wait longer is answered after all of them.
    """
    partition = FetchPartition(partition=0, fetch_offset=end, partition_max_bytes=1000)
    asked = FetchRequest(
        max_wait_ms=2 * FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=1000,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    with BlockingWire(int(listener.rpartition(":")[2])) as wire:
        (row,) = wire.call(ApiKey.FETCH, 12, asked).responses[0].partitions
    assert (row.error_code, bytes(row.records or b"")) == (0, b"")


def elect_uncleanly(topic: Topic, among: set[int]) -> int:
    """The new leader. Brokers that were paused are not unfenced at once, and know of nothing that came meanwhile."""
    found: set[int] = set()
    refused: list[str] = []

    def is_elected() -> bool:
        found.clear()
        found.update(leader for state in topic.seen() for leader in state.leaders)
        if -1 in found:
            refused.append(topic.elect(ElectionType.UNCLEAN).name)  # for a moment: all brokers are fenced
        return len(found) == 1 and found <= among

    wait_until(is_elected, detail=lambda: f"led by {found}, {refused[-1:]}")
    return found.pop()


def assert_identical(mixture: Mixture, folder: str, *, end: int) -> None:
    """The segments of all three replicas, byte by byte."""

    def segments() -> list[dict[str, bytes]]:
        found = [data_dir / folder for data_dir in mixture.data_dirs()]
        return [{path.name: path.read_bytes() for path in sorted(each.glob("*.log"))} for each in found]

    wait_until(lambda: len({tuple(each.items()) for each in segments()}) == 1, detail="not the same bytes")
    report = compare(*(data_dir / folder for data_dir in mixture.data_dirs()), files=Files())
    assert report.is_sound, report.findings
    assert len(report.partitions) == 2
    consumer = Consumer({"bootstrap.servers": mixture.bootstrap, "group.id": "none"})
    partition = TopicPartition(folder.rpartition("-")[0], 0)
    assert consumer.get_watermark_offsets(partition, timeout=PATIENCE_S) == (0, end)
    consumer.close()


def test_a_broker_is_replaced_in_place(mixture):
    """Kafka is stopped and Ottla started on its folder by its server.properties; then the other way."""
    topic = Topic.create(mixture.bootstrap, "replaced", [3, 1, 2])
    expected: list[bytes] = []
    steps = [(mixture.kafka, mixture.successor), (mixture.successor, mixture.kafka)]
    for number, (old, new) in enumerate(steps):
        produce(mixture.bootstrap, "replaced", [b"before %d" % number] * 10)
        old.stop()
        produce(mixture.bootstrap, "replaced", [b"meanwhile %d" % number] * 10)
        new.start()
        topic.wait_in_sync([1, 2, 3])
        topic.prefer(3)
        produce(mixture.bootstrap, "replaced", [b"after %d" % number] * 10)
        expected += [
            b"%s %d" % (when, number) for when in (b"before", b"meanwhile", b"after") for _ in range(10)
        ]
        found = read(mixture.bootstrap, "replaced", len(expected))
        assert [message.value() for message in found] == expected
    assert_identical(mixture, "replaced-0", end=len(expected))
