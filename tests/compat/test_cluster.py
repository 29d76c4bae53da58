"""A cluster of processes: real clients and Kafka's tools while controllers and brokers come and go.

About KIP-590.
"""

import re
import signal
import subprocess
import sys

import psutil
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import Child, answers, has_ended, steady_ports, wait_until
from tests.compat import admin
from tests.compat.admin import PATIENCE_S, admin_of, eventually_equal, once, take
from tests.compat.replicated import Topic
from tests.harness.cluster import OttlaCluster
from tests.harness.kafka import tool


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with OttlaCluster(tmp_path_factory.mktemp("cluster"), racks="abc") as cluster:
        yield cluster


@pytest.fixture
def cluster(whole):
    """The next test finds all nodes running, however this one ends."""
    yield whole
    whole.heal()


def create(cluster, name, *, partitions=1):
    return Topic.spread(cluster.bootstrap, name, partitions=partitions, replicas=1)


def wait_for_brokers(cluster, expected):
    """Wait until all brokers that respond know exactly these."""
    for node in cluster.plan.brokers:
        if node.node_id in expected:
            client = admin_of(node.listener)
            eventually_equal(
                lambda client=client: sorted(client.list_topics(timeout=PATIENCE_S).brokers), expected
            )


def produce(cluster, topic, count=100):
    admin.produce(cluster.bootstrap, topic, [b"%d" % number for number in range(count)], partition=-1)


def consume(cluster, topic, count=100):
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values = [int(message.value()) for message in take(consumer, count)]
    consumer.close()
    return sorted(values)


def test_topics_records_and_groups(cluster):
    wait_for_brokers(cluster, [1, 2, 3])
    topic = create(cluster, "first", partitions=6)
    produce(cluster, "first")
    assert consume(cluster, "first") == list(range(100))
    for state in topic.seen():
        assert set(state.leaders) == {1, 2, 3}


def test_kafkas_tools_see_the_quorum(cluster):
    controllers = ("--bootstrap-controller", cluster.bootstrap_controllers)

    def is_complete(printed):
        """A new leader knows an observer from its first fetch on."""
        is_led = f"LeaderId:               {cluster.active_controller()}" in printed
        observers = printed.partition("CurrentObservers")[2]
        return is_led and all(f'"id": {broker}' in observers for broker in (1, 2, 3))

    printed = once(lambda: tool("kafka-metadata-quorum", *controllers, "describe", "--status"), is_complete)
    for controller in (101, 102, 103):
        assert f'"id": {controller}' in printed.partition("CurrentVoters")[2].partition("CurrentObservers")[0]

    def column(number, *where):
        printed = tool("kafka-cluster", "list-endpoints", *where)
        return [line.split()[number] for line in printed.splitlines()[1:]]

    eventually_equal(lambda: column(0, *controllers), ["101", "102", "103"])
    eventually_equal(lambda: column(3, "--bootstrap-server", cluster.bootstrap), ["a", "b", "c"])


# KIP-919
def test_controllers_answer_admin_clients_directly(cluster):
    controllers = ("--bootstrap-controller", cluster.bootstrap_controllers)
    printed = tool(
        "kafka-configs",
        *controllers,
        "--describe",
        "--all",
        "--entity-type",
        "brokers",
        "--entity-name",
        "101",
    )
    assert "node.id=101" in printed
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
    of_all = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers", "--entity-default")
    once(
        lambda: tool("kafka-configs", *of_all, "--describe"),
        lambda printed: "log.cleaner.backoff.ms=12345" in printed,
    )


def test_the_active_controller_is_killed(cluster):
    victim = cluster.active_controller()
    cluster.kill(victim)
    create(cluster, "after-failover")
    produce(cluster, "after-failover")
    assert cluster.active_controller() != victim
    cluster.start_node(victim)
    assert consume(cluster, "after-failover") == list(range(100))


def test_a_broker_that_was_killed_restarts(cluster):
    create(cluster, "survivor", partitions=3)
    produce(cluster, "survivor")
    cluster.kill(2)
    # Its session lasts for some seconds more; until then its successor is refused as a duplicate, and waits.
    cluster.start_node(2)
    assert consume(cluster, "survivor") == list(range(100))


def test_a_broker_that_is_stopped_leaves_at_once(cluster):
    assert cluster.stop_node(3) == 0
    wait_for_brokers(cluster, [1, 2])
    cluster.start_node(3)
    wait_for_brokers(cluster, [1, 2, 3])


def test_a_second_node_with_an_id_is_refused(cluster, tmp_path):
    node = cluster.node(1)
    text = node.properties_file.read_text().replace(str(node.data_dir.resolve()), str(tmp_path / "data"))
    text = text.replace(f":{node.port}", ":0") + "initial.broker.registration.timeout.ms=4000\n"
    (tmp_path / "twin.properties").write_text(text)
    cluster_id = admin_of(cluster.bootstrap).list_topics(timeout=PATIENCE_S).cluster_id
    assert cli("format", "-t", cluster_id, "-c", tmp_path / "twin.properties").exit_code == 0
    started = cli("broker", tmp_path / "twin.properties")
    assert started.exit_code == 1
    assert started.output.count("a process with the same node.id has a session") == 1
    assert "Another node with this node.id is alive" in started.output
    # The first one does not notice.
    topic = create(cluster, "beside-a-twin", partitions=6).name
    produce(cluster, topic)
    assert consume(cluster, topic) == list(range(100))


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
    started = cli("broker", tmp_path / "stranger.properties")
    assert started.exit_code == 1
    assert "another cluster" in started.output


def cli(*arguments):
    """Our command line in a process of its own, since a node wants its own signals."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return type("Done", (), {"exit_code": done.returncode, "output": done.stdout + done.stderr})


def cluster_up(folder, *arguments):
    """`ottla cluster up` with a broker and a controller, when it is ready."""
    port, _ = steady_ports(2)
    command = [sys.executable, "-m", "ottla", "cluster", "up", "--brokers", "1", "--controllers", "1"]
    command += ["--port", str(port), "--data-dir", str(folder / "nodes"), *arguments]
    up = Child(command, log=folder / "up.log")
    up.wait_until(lambda: "\nREADY " in up.output())
    return up


def test_the_command_keeps_a_cluster_up_and_stops_it(tmp_path):
    up = cluster_up(tmp_path, "--racks", "r")
    rows = {line.split()[0]: line.split() for line in up.output().splitlines() if line[:1].isdigit()}
    assert (rows["1"][1:3], rows["101"][1:3]) == (["broker", "r"], ["controller", "-"])
    client = AdminClient({"bootstrap.servers": rows["1"][3]})
    for future in client.create_topics([NewTopic("t", 1, 1)]).values():
        future.result(PATIENCE_S)
    processes = [psutil.Process(int(row[4])) for row in rows.values()]
    processes[0].kill()
    up.wait_until(lambda: "has ended (-9)" in up.output())
    up.send_signal(signal.SIGINT)
    assert up.wait() == 0
    assert all(map(has_ended, processes))


def test_the_nodes_of_a_command_have_one_remote_tier(tmp_path):
    """The brokers use it, and the controllers accept tiered topics (KIP-405)."""
    up = cluster_up(tmp_path, "--tier", str(tmp_path / "tier"))
    client = AdminClient({"bootstrap.servers": re.search(r"READY bootstrap\.servers=(\S+)", up.output())[1]})
    new = NewTopic("t", 1, 1, config={"remote.storage.enable": "true"})
    client.create_topics([new])["t"].result(PATIENCE_S)
    up.wait_until(lambda: "__remote_log_metadata" in client.list_topics(timeout=PATIENCE_S).topics)
    assert (tmp_path / "tier" / "kafka-tiered-storage").is_dir()
    up.send_signal(signal.SIGINT)
    assert up.wait() == 0


def test_a_second_command_leaves_the_cluster_of_the_first_alone(tmp_path):
    """A node of it that is started by itself does not harm the one that runs either, nor does a command
    beside such a node."""
    up = cluster_up(tmp_path)
    nodes = tmp_path / "nodes"
    before = contents(nodes)
    assert before[nodes / "node-1/node.log"]
    arguments = ["--brokers", "1", "--controllers", "1", "--data-dir", nodes]
    second = cli("cluster", "up", *arguments)
    assert second.exit_code == 1
    assert f"Error: {nodes} is in use by another process" in second.output
    alone = cli("broker", nodes / "node-1/server.properties")
    assert alone.exit_code == 1
    assert f"Error: Log directory {nodes}/node-1/data is in use by another process" in alone.output
    assert_left_alone(nodes, before)
    up.send_signal(signal.SIGINT)
    assert up.wait() == 0

    controller = [sys.executable, "-m", "ottla", "broker", str(nodes / "node-101/server.properties")]
    child = Child(controller, log=tmp_path / "alone.log")
    child.wait_until(lambda: "READY " in child.output())
    before = contents(nodes)
    third = cli("cluster", "up", *arguments)
    assert third.exit_code == 1
    assert (
        f"The log directory of node 101, {nodes}/node-101/data, is in use by another process" in third.output
    )
    assert_left_alone(nodes, before)
    assert child.stop() == 0


def contents(nodes):
    """The contents of a cluster's folder that a start could change."""
    files = [
        *nodes.glob("*/node.log"),
        *nodes.glob("*/server.properties"),
        *nodes.glob("*/data/meta.properties"),
    ]
    return {file: file.read_bytes() for file in files}


def assert_left_alone(nodes, before):
    """No node has been started again; one that runs may have written another line to its log."""
    after = contents(nodes)
    assert after.keys() == before.keys()
    for file, data in before.items():
        if file.name == "node.log":
            assert after[file].startswith(data), file
            assert b"Error" not in after[file][len(data) :], file
        else:
            assert after[file] == data, file


def test_the_nodes_of_a_command_that_was_killed_stop_by_themselves(tmp_path):
    up = cluster_up(tmp_path)
    processes = [
        psutil.Process(int(line.split()[4])) for line in up.output().splitlines() if line[:1].isdigit()
    ]
    up.kill()
    wait_until(lambda: all(map(has_ended, processes)))
    # Cleanly: the next start need not recover anything.
    assert (tmp_path / "nodes/node-1/data/.kafka_cleanshutdown").exists()


def test_a_broker_that_waits_for_controllers_can_be_stopped(tmp_path):
    port, unused = steady_ports(2)
    (tmp_path / "lonely.properties").write_text(
        f"process.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path}/data\n"
        f"controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:{unused}\n"
        "initial.broker.registration.timeout.ms=600000\n"
    )
    assert cli("format", "-t", "AAAAAAAAAAAAAAAAAAAAAw", "-c", tmp_path / "lonely.properties").exit_code == 0
    log = tmp_path / "lonely.log"
    child = Child([sys.executable, "-m", "ottla", "broker", str(tmp_path / "lonely.properties")], log=log)
    child.wait_until(lambda: answers(port))
    child.wait_until(lambda: "the active controller has not responded" in child.output())
    assert child.stop() == 0  # long before it would give its registration up
    complaints = child.warnings()
    assert len(complaints) <= 4  # of some twenty attempts a second
    assert all(f"127.0.0.1:{unused}" in line and "Errno 111" in line for line in complaints), complaints
    assert "READY" not in child.output()
