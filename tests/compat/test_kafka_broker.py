"""Apache Kafka's broker under Ottla's controllers: it registers, hosts topics, serves clients; nodes of both
sides restart.
"""

import pytest
from confluent_kafka import Consumer

from ottla.bench.components.processes import Child, answers, free_port
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from tests.compat.admin import PATIENCE_S, admin_of, eventually_equal, once, produce, take
from tests.compat.replicated import Topic
from tests.harness.cluster import OttlaCluster
from tests.harness.kafka import server_command, tool
from tests.harness.listed_brokers import wait_until_listed

KAFKA_ID = 7


class Mixed:
    """Three Ottla controllers, an Ottla broker, and Apache Kafka's broker 7."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = OttlaCluster(folder / "ottla", brokers=1, controllers=3)
        self.port = free_port()
        self.properties = folder / "kafka.properties"
        self._child = None

    @property
    def kafka(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        self.cluster.start()
        voter = meta_properties.read(self.cluster.plan.controllers[0].data_dir, Files())
        self.properties.write_text(
            f"process.roles=broker\nnode.id={KAFKA_ID}\nlisteners=PLAINTEXT://{self.kafka}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={self.folder}/kafka\n"
            f"controller.quorum.bootstrap.servers={self.cluster.bootstrap_controllers}\n"
            "offsets.topic.replication.factor=1\n"
        )
        tool("kafka-storage", "format", "-t", voter.cluster_id, "-c", str(self.properties))
        self.start_kafka()

    def start_kafka(self):
        command = server_command(self.properties)
        self._child = Child(command, log=self.folder / "kafka.log")
        self._child.wait_until(lambda: answers(self.port), interval_s=0.5)
        (ottla,) = self.cluster.plan.brokers
        wait_until_listed({ottla.node_id: ottla.port, KAFKA_ID: self.port})

    def stop_kafka(self):
        self._child.stop()

    def alive(self):
        """The unfenced brokers, by the Ottla broker's metadata."""
        return sorted(admin_of(self.cluster.bootstrap).list_topics(timeout=PATIENCE_S).brokers)

    def wait_for(self, *brokers):
        """Wait until the Ottla broker's metadata names exactly these."""
        eventually_equal(self.alive, sorted(brokers))

    def heal(self):
        """Start every node that was stopped."""
        self.cluster.heal()
        if not self._child.is_running:
            self.start_kafka()

    def stop(self):
        if self._child is not None and self._child.is_running:
            self._child.kill()
        self.cluster.kill(*self.cluster.running)

    def create(self, name, *, through):
        """A topic whose only replica is Kafka's, known to both brokers when this returns."""
        Topic.create(f"{self.kafka},{self.cluster.bootstrap}", name, [KAFKA_ID], [KAFKA_ID], through=through)

    def produce(self, topic, first=0, count=100):
        produce(self.kafka, topic, [b"%d" % number for number in range(first, first + count)], partition=-1)

    def consume(self, topic, count=100):
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": f"of-{topic}-{count}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        values = [int(message.value()) for message in take(consumer, count)]
        consumer.close()
        return sorted(values)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    mixed = Mixed(tmp_path_factory.mktemp("mixed"))
    try:
        mixed.start()
        yield mixed
    finally:
        mixed.stop()


@pytest.fixture
def mixed(whole):
    """All nodes run when the next test begins."""
    yield whole
    whole.heal()


def test_both_kinds_of_brokers_are_in_the_cluster(mixed):
    def ids():
        output = tool("kafka-cluster", "list-endpoints", "--bootstrap-server", mixed.kafka)
        return sorted(line.split()[0] for line in output.splitlines()[1:])

    mixed.wait_for(1, KAFKA_ID)
    eventually_equal(ids, ["1", str(KAFKA_ID)])
    once(
        lambda: tool("kafka-metadata-quorum", "--bootstrap-server", mixed.kafka, "describe", "--status"),
        lambda output: f'"id": {KAFKA_ID}' in output.partition("CurrentObservers")[2],
    )


def test_its_topics_records_and_groups(mixed):
    mixed.create("through-kafka", through=mixed.kafka)
    mixed.create("through-ottla", through=mixed.cluster.bootstrap)
    for topic in ("through-kafka", "through-ottla"):
        mixed.produce(topic)
        assert mixed.consume(topic) == list(range(100))


def test_the_active_controller_is_killed(mixed):
    victim = mixed.cluster.active_controller()
    mixed.cluster.kill(victim)
    mixed.create("after-failover", through=mixed.kafka)
    mixed.produce("after-failover")
    assert mixed.consume("after-failover") == list(range(100))
    mixed.cluster.start_node(victim)
    mixed.wait_for(1, KAFKA_ID)


def test_kafkas_broker_restarts(mixed):
    mixed.create("kept", through=mixed.cluster.bootstrap)
    mixed.produce("kept")
    mixed.stop_kafka()
    mixed.wait_for(1)
    mixed.start_kafka()
    mixed.produce("kept", first=100)
    assert mixed.consume("kept", 200) == list(range(200))


def test_all_controllers_restart(mixed):
    controllers = [node.node_id for node in mixed.cluster.plan.controllers]
    mixed.cluster.kill(*controllers)
    for controller in controllers:
        mixed.cluster.spawn(controller)
    for controller in controllers:
        mixed.cluster.wait_ready(controller)
    mixed.create("afterwards", through=mixed.kafka)
    mixed.produce("afterwards")
    assert mixed.consume("afterwards") == list(range(100))
