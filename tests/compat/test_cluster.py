"""A cluster of processes: real clients and Kafka's tools while controllers and brokers come and go."""

import signal
import subprocess
import sys
import time

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.runtime.production import free_ports
from tests.harness.cluster import OttlaCluster
from tests.harness.kafka import tool
from tests.harness.processes import Child, answers

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with OttlaCluster(tmp_path_factory.mktemp("cluster"), racks="abc") as cluster:
        yield cluster


def admin(cluster):
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def create(cluster, name, *, partitions=1, replicas=1, timeout_s=60):
    client = admin(cluster)
    for future in client.create_topics([NewTopic(name, partitions, replicas)]).values():
        future.result(timeout_s)


def wait_for_brokers(cluster, expected):
    """Whoever is asked may hear of it a moment later."""
    deadline = time.monotonic() + 60
    while (found := sorted(admin(cluster).list_topics(timeout=30).brokers)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def produce(cluster, topic, count=100):
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(60) == 0


def consume(cluster, topic, count=100):
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(int(message.value()))
    consumer.close()
    return sorted(values)


def test_topics_records_and_groups(cluster):
    create(cluster, "first", partitions=6)
    produce(cluster, "first")
    assert consume(cluster, "first") == list(range(100))
    metadata = admin(cluster).list_topics(timeout=30)
    assert sorted(metadata.brokers) == [1, 2, 3]
    assert {partition.leader for partition in metadata.topics["first"].partitions.values()} == {1, 2, 3}


def test_kafkas_tools_see_the_quorum(cluster):
    told = tool(
        "kafka-metadata-quorum",
        "--bootstrap-controller",
        cluster.bootstrap_controllers,
        "describe",
        "--status",
    )
    assert f"LeaderId:               {cluster.active_controller()}" in told
    for controller in (101, 102, 103):
        assert f'"id": {controller}' in told.partition("CurrentVoters")[2].partition("CurrentObservers")[0]
    for broker in (1, 2, 3):
        assert f'"id": {broker}' in told.partition("CurrentObservers")[2]
    told = tool("kafka-cluster", "list-endpoints", "--bootstrap-controller", cluster.bootstrap_controllers)
    assert [line.split()[0] for line in told.splitlines()[1:]] == ["101", "102", "103"]
    told = tool("kafka-cluster", "list-endpoints", "--bootstrap-server", cluster.bootstrap)
    assert [line.split()[3] for line in told.splitlines()[1:]] == ["a", "b", "c"]


def test_controllers_answer_admin_clients_directly(cluster):
    controllers = ("--bootstrap-controller", cluster.bootstrap_controllers)
    told = tool(
        "kafka-configs",
        *controllers,
        "--describe",
        "--all",
        "--entity-type",
        "brokers",
        "--entity-name",
        "101",
    )
    assert "node.id=101" in told
    tool(
        "kafka-configs",
        *controllers,
        "--alter",
        "--entity-type",
        "brokers",
        "--entity-default",
        "--add-config",
        "log.cleaner.backoff.ms=12345",
    )
    told = tool(
        "kafka-configs",
        "--bootstrap-server",
        cluster.bootstrap,
        "--describe",
        "--entity-type",
        "brokers",
        "--entity-default",
    )
    assert "log.cleaner.backoff.ms=12345" in told


def test_the_active_controller_is_killed(cluster):
    victim = cluster.active_controller()
    cluster.kill(victim)
    began = time.monotonic()
    create(cluster, "after-failover")
    assert time.monotonic() - began < 45  # about two seconds on an idle machine
    produce(cluster, "after-failover")
    assert cluster.active_controller() != victim
    cluster.start_node(victim)
    assert consume(cluster, "after-failover") == list(range(100))


def test_a_broker_that_was_killed_comes_back(cluster):
    create(cluster, "survivor", partitions=3)
    produce(cluster, "survivor")
    cluster.kill(2)
    # Its session lasts for some seconds more; until then its successor is refused as a duplicate, and waits.
    cluster.start_node(2)
    assert consume(cluster, "survivor") == list(range(100))


def test_a_broker_that_is_stopped_leaves_at_once(cluster):
    began = time.monotonic()
    assert cluster.stop_node(3) == 0
    assert time.monotonic() - began < 40
    wait_for_brokers(cluster, [1, 2])
    cluster.start_node(3)
    wait_for_brokers(cluster, [1, 2, 3])


def test_a_second_node_with_an_id_is_refused(cluster, tmp_path):
    node = cluster.node(1)
    text = node.properties_file.read_text().replace(str(node.data_dir.resolve()), str(tmp_path / "data"))
    text = text.replace(f":{node.port}", ":0") + "initial.broker.registration.timeout.ms=3000\n"
    (tmp_path / "twin.properties").write_text(text)
    cluster_id = admin(cluster).list_topics(timeout=30).cluster_id
    assert cli("format", "-t", cluster_id, "-c", tmp_path / "twin.properties").exit_code == 0
    started = cli("broker", tmp_path / "twin.properties")
    assert started.exit_code == 1
    assert "another node with this node.id is alive" in started.output


def test_a_node_of_another_cluster_is_refused(cluster, tmp_path):
    node = cluster.node(1)
    text = node.properties_file.read_text().replace(str(node.data_dir.resolve()), str(tmp_path / "data"))
    text = text.replace(f":{node.port}", ":0").replace("node.id=1\n", "node.id=9\n")
    (tmp_path / "stranger.properties").write_text(text)
    started = cli("broker", tmp_path / "stranger.properties")
    assert "is not formatted" in started.output
    assert (
        cli("format", "-t", "AAAAAAAAAAAAAAAAAAAAAw", "-c", tmp_path / "stranger.properties").exit_code == 0
    )
    started = cli("broker", tmp_path / "stranger.properties", timeout_s=60)
    assert started.exit_code == 1
    assert "another cluster" in started.output


def cli(*arguments, timeout_s=60):
    """Our command line in a process of its own, since a node wants its own signals."""
    done = subprocess.run(
        [sys.executable, "-m", "broker", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return type("Done", (), {"exit_code": done.returncode, "output": done.stdout + done.stderr})


def test_the_command_keeps_a_cluster_up_and_stops_it(tmp_path):
    arguments = [
        "--brokers",
        "1",
        "--controllers",
        "1",
        "--racks",
        "r",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path),
    ]
    up = Child([sys.executable, "-m", "broker", "cluster", "up", *arguments], log=tmp_path / "up.log")
    up.wait_until(lambda: "\nREADY " in up.output(), timeout_s=60)
    rows = {line.split()[0]: line.split() for line in up.output().splitlines() if line[:1].isdigit()}
    assert (rows["1"][1:3], rows["101"][1:3]) == (["broker", "r"], ["controller", "-"])
    client = AdminClient({"bootstrap.servers": rows["1"][3]})
    for future in client.create_topics([NewTopic("t", 1, 1)]).values():
        future.result(60)
    processes = [psutil.Process(int(row[4])) for row in rows.values()]
    processes[0].kill()
    up.wait_until(lambda: "has ended (-9)" in up.output(), timeout_s=30)
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0
    assert not any(process.is_running() for process in processes)


def test_the_nodes_of_a_command_that_was_killed_stop_by_themselves(tmp_path):
    arguments = ["--brokers", "1", "--controllers", "1", "--port", "0", "--data-dir", str(tmp_path / "nodes")]
    up = Child([sys.executable, "-m", "broker", "cluster", "up", *arguments], log=tmp_path / "up.log")
    up.wait_until(lambda: "\nREADY " in up.output(), timeout_s=60)
    processes = [
        psutil.Process(int(line.split()[4])) for line in up.output().splitlines() if line[:1].isdigit()
    ]
    up.kill()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []
    # Cleanly: the next start need not recover anything.
    assert (tmp_path / "nodes/node-1/data/.kafka_cleanshutdown").exists()


def test_a_broker_that_waits_for_controllers_can_be_stopped(tmp_path):
    port, nobody = free_ports(2)
    (tmp_path / "lonely.properties").write_text(
        f"process.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path}/data\n"
        f"controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:{nobody}\n"
    )
    assert cli("format", "-t", "AAAAAAAAAAAAAAAAAAAAAw", "-c", tmp_path / "lonely.properties").exit_code == 0
    log = tmp_path / "lonely.log"
    child = Child([sys.executable, "-m", "broker", "broker", str(tmp_path / "lonely.properties")], log=log)
    child.wait_until(lambda: answers(port), timeout_s=30)
    began = time.monotonic()
    assert child.stop(timeout_s=30) == 0
    assert time.monotonic() - began < 30  # its registration would be given up after 60
    assert "READY" not in child.output()
