"""Controllers of both kinds in one quorum, and brokers of both kinds under it.

First two Kafka 4.3.1 controllers and an Ottla one, voters by configuration: Kafka's brings the cluster up with all its
default features, Ottla's is a follower that loads Kafka's snapshot, a leader that Kafka's follow, and a follower again.
Then a quorum whose voters are in the log: an Ottla controller replaces a Kafka one, and is replaced by it again.
"""

import re
import shutil
from pathlib import Path

import pytest

from ottla.bench.components.processes import free_port
from tests.compat.admin import PATIENCE_S, admin_of, once, produce, read, wait_until
from tests.compat.quorum import has_all, leader_of
from tests.compat.replicated import Topic
from tests.harness.kafka import tool
from tests.harness.listed_brokers import wait_until_listed
from tests.harness.nodes import KafkaNode, Node, OttlaNode, broker, controller

pytestmark = pytest.mark.timeout(600)

CLUSTER_ID = "q1Sh-9_ISia_zwGINzRvyQ"
METADATA_LOG = "__cluster_metadata-0"
OTTLA, KAFKAS = 101, (102, 103)
#: A few records are worth a snapshot; internal topics have as many replicas as there are brokers. No broker
#: is killed, so sessions may last: each new leader of the quorum has to be found in time.
SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "broker.session.timeout.ms": "18000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "2",
}


class Mixture:
    """Three voters and two brokers, one process each."""

    def __init__(self, folder: Path) -> None:
        ports = {node_id: free_port() for node_id in (OTTLA, *KAFKAS)}
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in ports.items())

        def node(kind: type[Node], properties: dict[str, str]) -> Node:
            place = folder / properties["node.id"]
            return kind(place, {**properties, **SETTINGS}, cluster_id=CLUSTER_ID)

        def voter(kind: type[Node], node_id: int, patience_ms: int) -> Node:
            properties = controller(node_id, ports[node_id], voters=voters)
            return node(kind, properties | {"controller.quorum.fetch.timeout.ms": str(patience_ms)})

        # A Kafka controller wins the election because Ottla's has the longer fetch timeout, not by starting first. And
        # none of them starts an election because the leader is blocked for some seconds on a busy machine.
        self.voters = {OTTLA: voter(OttlaNode, OTTLA, 7000)}
        self.voters |= {each: voter(KafkaNode, each, 6000) for each in KAFKAS}
        self.ottla = node(OttlaNode, broker(1, free_port(), voters=voters))
        self.kafka = node(KafkaNode, broker(2, free_port(), voters=voters))

    @property
    def bootstrap(self) -> str:
        return f"{self.ottla.listener},{self.kafka.listener}"

    @property
    def leader(self) -> int:
        return leader_of(self.ottla.port)

    def work(self, name: str) -> None:
        """Create a topic by each of the brokers; acks=all, then read from both replicas' leaders."""
        for through, replicas in ((self.ottla, [1, 2]), (self.kafka, [2, 1])):
            topic = Topic.create(self.bootstrap, f"{name}-{replicas[0]}", replicas, through=through.listener)
            values = [b"%d" % number for number in range(50)]
            produce(self.bootstrap, topic.name, values, enable_idempotence=True)
            found = read(self.bootstrap, topic.name, len(values))
            assert [message.value() for message in found] == values
            topic.wait_in_sync([1, 2])

    def wait_until_listed(self) -> None:
        """Wait until both brokers list each other."""
        wait_until_listed({node.node_id: node.port for node in (self.ottla, self.kafka)})

    def end(self) -> None:
        for node in (self.ottla, self.kafka, *self.voters.values()):
            node.end()


def test_controllers_of_both_kinds_are_one_quorum(tmp_path):
    mixture = Mixture(tmp_path)
    try:
        ottlas_broker_works_under_kafkas_controllers(mixture)
        ottlas_controller_joins_and_leads(mixture)
        kafkas_controller_that_lost_its_disk_loads_our_snapshot(mixture)
        kafkas_controllers_take_over_again(mixture)
        all_metadata_logs_have_the_same_bytes(mixture)
    finally:
        mixture.end()


def ottlas_broker_works_under_kafkas_controllers(mixture: Mixture) -> None:
    """Registered with all features that Kafka finalizes by default, unfenced, replicating with a Kafka broker."""
    for node_id in KAFKAS:
        mixture.voters[node_id].spawn()
    mixture.kafka.spawn()
    mixture.ottla.start()
    mixture.kafka.wait_ready()
    mixture.wait_until_listed()
    wait_until(lambda: mixture.leader in KAFKAS)
    mixture.work("under-kafka")
    moves = Topic.create(mixture.bootstrap, "moves", [1, 2])
    mixture.ottla.stop()  # a controlled shutdown, granted by Kafka's controller
    moves.wait(leaders=[2])
    mixture.ottla.start()
    moves.wait_in_sync([1, 2])
    mixture.wait_until_listed()


def ottlas_controller_joins_and_leads(mixture: Mixture) -> None:
    """It loads Kafka's snapshot, follows, and is elected when Kafka's leader is killed."""
    late = mixture.voters[OTTLA]
    late.start()
    log = late.data_dir / METADATA_LOG
    wait_until(lambda: any(not path.name.startswith("0" * 20) for path in log.glob("*.checkpoint")))
    wait_until(lambda: has_all(mixture.ottla.port, OTTLA))
    while (leader := once(lambda: mixture.leader, lambda found: found != -1)) != OTTLA:
        victim = mixture.voters[leader]
        victim.kill()
        wait_until(lambda killed=leader: mixture.leader not in {-1, killed})
        victim.start()
        wait_until(lambda: has_all(mixture.ottla.port, OTTLA))
    mixture.work("under-ottla")


def kafkas_controller_that_lost_its_disk_loads_our_snapshot(mixture: Mixture) -> None:
    """Static voters have no directory ids, so its vote may be lost: here no other voter votes meanwhile."""
    victim = mixture.voters[KAFKAS[0]]
    victim.kill()
    shutil.rmtree(victim.data_dir)
    wait_until(lambda: mixture.leader == OTTLA)
    victim.start()
    log = victim.data_dir / METADATA_LOG
    wait_until(lambda: any(not path.name.startswith("0" * 20) for path in log.glob("*.checkpoint")))


def kafkas_controllers_take_over_again(mixture: Mixture) -> None:
    """Ottla's is killed, and follows after its restart."""
    mixture.voters[OTTLA].kill()
    wait_until(lambda: mixture.leader in KAFKAS)
    mixture.work("under-kafka-again")
    mixture.voters[OTTLA].start()
    wait_until(lambda: has_all(mixture.ottla.port, OTTLA))


def all_metadata_logs_have_the_same_bytes(mixture: Mixture) -> None:
    """Compare voters and observers, Kafka's and Ottla's, from the latest of their start offsets on."""
    nodes = [*mixture.voters.values(), mixture.ottla, mixture.kafka]
    for node in nodes:
        node.kill()
    logs = [max((node.data_dir / METADATA_LOG).glob("*.log")) for node in nodes]
    by_start: dict[str, list[bytes]] = {}
    for log in logs:
        by_start.setdefault(log.name, []).append(log.read_bytes())
    assert any(len(found) > 1 for found in by_start.values())
    for found in by_start.values():
        shortest = min(map(len, found))
        assert shortest > 0
        assert len({data[:shortest] for data in found}) == 1


def test_a_quorum_goes_from_kafka_to_ottla_and_back(tmp_path):
    """KIP-853's way to replace controllers, without a stop: add the new one as voter, remove the old one."""
    ports = {101: free_port(), 102: free_port()}
    where = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    kafka = KafkaNode(
        tmp_path / "101",
        controller(101, ports[101], bootstrap=where),
        cluster_id=CLUSTER_ID,
        format_with=["--standalone"],
    )
    ottla = OttlaNode(
        tmp_path / "102",
        controller(102, ports[102], bootstrap=where),
        cluster_id=CLUSTER_ID,
        format_with=["--no-initial-controllers"],
    )
    serving = OttlaNode(tmp_path / "1", broker(1, free_port(), bootstrap=where), cluster_id=CLUSTER_ID)

    def replace(old: Node, new: Node) -> None:
        # As an operator would: a lagging observer is not made a voter.
        wait_until(lambda: has_all(serving.port, new.node_id))
        output = tool(
            "kafka-metadata-quorum",
            *("--bootstrap-server", serving.listener, "--command-config", str(new.properties_file)),
            "add-controller",
        )
        assert output.startswith(
            f"Added controller {new.node_id} with directory id {new.directory_id} and endpoints"
        )
        output = tool(
            "kafka-metadata-quorum",
            *(
                "--bootstrap-server",
                serving.listener,
                "remove-controller",
                "--controller-id",
                str(old.node_id),
            ),
            *("--controller-directory-id", old.directory_id),
        )
        assert (
            output.replace("  ", " ")
            == f"Removed KRaft controller {old.node_id} with directory id {old.directory_id}\n"
        )
        wait_until(lambda: leader_of(serving.port) == new.node_id)
        output = tool("kafka-metadata-quorum", "--bootstrap-server", serving.listener, "describe", "--status")
        (voters,) = re.findall(r"CurrentVoters:\s+(.*)", output)
        assert re.findall(r'"id": (\d+)', voters) == [str(new.node_id)]

    try:
        kafka.start()
        serving.start()
        Topic.create(serving.listener, "made-by-kafka", [1])
        ottla.start()
        replace(kafka, ottla)
        kafka.kill()
        Topic.create(serving.listener, "made-by-ottla", [1])
        kafka.start()
        replace(ottla, kafka)
        ottla.kill()
        Topic.create(serving.listener, "made-by-kafka-again", [1])
        topics = admin_of(serving.listener).list_topics(timeout=PATIENCE_S).topics
        assert set(topics) == {"made-by-kafka", "made-by-ottla", "made-by-kafka-again"}
    finally:
        for node in (kafka, ottla, serving):
            node.end()
