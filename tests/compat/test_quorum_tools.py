"""Kafka's own tools on a cluster of Ottla processes: three controllers whose voters stand in the log, three brokers.

A JVM takes a second of CPU to start, so each test is a story of several steps. `test_cluster_tools.py` has what needs
one node only.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.bench.components.processes import free_port
from tests.compat.admin import PATIENCE_S, admin_of, eventually_equal, once, produce, read, wait_until
from tests.compat.quorum import has_all
from tests.compat.replicated import Topic
from tests.harness.cluster import OttlaCluster
from tests.harness.kafka import broker_api_versions, run_tool, tool
from tests.harness.nodes import OttlaNode, controller
from tests.harness.release import LEVEL_NAME

CONTROLLERS, BROKERS = [101, 102, 103], [1, 2, 3]
#: A few records are worth a snapshot, and replication goes in small steps.
SETTINGS = {
    "broker.heartbeat.interval.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "auto.leader.rebalance.enable": "false",
    "replica.fetch.max.bytes": "100000",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaCluster]:
    with OttlaCluster(tmp_path_factory.mktemp("quorum"), racks="abc", settings=SETTINGS) as cluster:
        yield cluster
        cluster.kill(*cluster.running)  # a clean stop takes seconds, and is tested elsewhere


@pytest.fixture
def cluster(whole: OttlaCluster) -> Iterator[OttlaCluster]:
    """The next test finds all nodes running, however this one ends."""
    yield whole
    whole.heal()


def lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.strip()]


def directory_id(cluster: OttlaCluster, node_id: int) -> str:
    text = (cluster.node(node_id).data_dir / "meta.properties").read_text()
    return re.findall(r"^directory.id=(.*)$", text, re.MULTILINE)[0]


def as_json(path: Path, **content: object) -> str:
    path.write_text(json.dumps({"version": 1, **content}))
    return str(path)


@pytest.mark.parametrize("option", ["--bootstrap-server", "--bootstrap-controller"])
def test_the_quorum_is_described(cluster, option):
    where = (option, cluster.bootstrap if option == "--bootstrap-server" else cluster.bootstrap_controllers)

    def status() -> dict[str, str]:
        printed = tool("kafka-metadata-quorum", *where, "describe", "--status")
        return dict(re.findall(r"^(\w+):\s+(.*)$", printed, re.MULTILINE))

    def observers(printed: dict[str, str]) -> dict[int, str]:
        return {row["id"]: row["directoryId"] for row in json.loads(printed["CurrentObservers"])}

    # A new leader knows the others from their first fetches on.
    printed = once(
        status,
        lambda printed: (
            0 <= int(printed["MaxFollowerLag"]) < 10
            and int(printed["LeaderId"]) == cluster.active_controller()
            and len(observers(printed)) == len(BROKERS)
        ),
    )
    assert set(printed) == {
        *("ClusterId", "LeaderId", "LeaderEpoch", "HighWatermark"),
        *("MaxFollowerLag", "MaxFollowerLagTimeMs", "CurrentVoters", "CurrentObservers"),
    }
    assert int(printed["LeaderEpoch"]) >= 1
    assert int(printed["HighWatermark"]) > 10
    assert json.loads(printed["CurrentVoters"]) == [
        {
            "id": node_id,
            "directoryId": directory_id(cluster, node_id),
            "endpoints": [f"CONTROLLER://{cluster.node(node_id).listener}"],
        }
        for node_id in CONTROLLERS
    ]
    assert observers(printed) == {node_id: directory_id(cluster, node_id) for node_id in BROKERS}

    head, *rows = once(
        lambda: lines(tool("kafka-metadata-quorum", *where, "describe", "--replication")),
        lambda printed: (
            len(printed) == 7
            and all(int(row.split()[2]) > 10 for row in printed[1:])
            and any(row.split()[::6] == [str(cluster.active_controller()), "Leader"] for row in printed[1:])
        ),
    )
    assert head.split() == [
        *("NodeId", "DirectoryId", "LogEndOffset", "Lag"),
        *("LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"),
    ]
    roles = {}
    for row in rows:
        node_id, directory, _, lag, fetched_at, caught_up_at, role = row.split()
        roles[int(node_id)] = role
        assert directory == directory_id(cluster, int(node_id))
        assert int(lag) >= 0
        # Within a minute of one another: times of day, not of some other clock.
        assert abs(int(fetched_at) - int(rows[0].split()[4])) < 60_000
        assert int(caught_up_at) <= int(fetched_at)
    assert list(roles.values()).count("Leader") == 1
    assert roles == {
        **dict.fromkeys(CONTROLLERS, "Follower"),
        **dict.fromkeys(BROKERS, "Observer"),
        **{node_id: role for node_id, role in roles.items() if role == "Leader"},
    }


def test_a_controller_joins_and_leaves(cluster, tmp_path):
    """KIP-853: a fourth controller observes, is made a voter, and is removed again."""
    new = OttlaNode(
        tmp_path / "node-104",
        controller(104, free_port(), bootstrap=cluster.bootstrap_controllers),
        cluster_id=admin_of(cluster.bootstrap).list_topics(timeout=PATIENCE_S).cluster_id,
        format_with=["--no-initial-controllers"],
    )
    new.start()
    wait_until(lambda: has_all(cluster.plan.brokers[0].port, 104))  # none else is made a voter
    by_broker, by_controller = (
        ("--bootstrap-server", cluster.bootstrap),
        ("--bootstrap-controller", cluster.bootstrap_controllers),
    )

    def voters() -> list[int]:
        printed = tool("kafka-metadata-quorum", *by_broker, "describe", "--status")
        return [row["id"] for row in json.loads(re.findall(r"CurrentVoters:\s+(.*)", printed)[0])]

    add = ("--command-config", str(new.properties_file), "add-controller")
    remove = ("remove-controller", "--controller-id", "104", "--controller-directory-id", new.directory_id)
    try:
        printed = tool("kafka-metadata-quorum", *by_controller, *add)
        assert printed == (
            f"Added controller 104 with directory id {new.directory_id} and endpoints: "
            f"CONTROLLER://127.0.0.1:{new.port}\n"
        )
        assert voters() == [*CONTROLLERS, 104]
        again = run_tool("kafka-metadata-quorum", *by_broker, *add)
        assert again.returncode == 1
        assert (
            "DuplicateVoterException: The voter id for 104 is already part of the set of voters"
            in again.stderr
        )

        printed = tool("kafka-metadata-quorum", *by_broker, *remove)
        assert (
            printed.replace("  ", " ")
            == f"Removed KRaft controller 104 with directory id {new.directory_id}\n"
        )
        again = run_tool("kafka-metadata-quorum", *by_controller, *remove)
        assert again.returncode == 1
        assert f"Cannot remove voter ReplicaKey(id=104, directoryId={new.directory_id}) from" in again.stderr
        assert voters() == CONTROLLERS
    finally:
        new.end()


def test_static_voters_are_written_to_the_log(tmp_path):
    """A quorum of `controller.quorum.voters` learns to change its voters when kraft.version is raised."""
    ports = {node_id: free_port() for node_id in CONTROLLERS}
    static = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in ports.items())
    nodes = [
        OttlaNode(
            tmp_path / str(node_id),
            # The leader that is returned leads until the test ends.
            {**controller(node_id, port, voters=static), "controller.quorum.fetch.timeout.ms": "20000"},
            cluster_id="q1Sh-9_ISia_zwGINzRvyQ",
        )
        for node_id, port in ports.items()
    ]
    where = ("--bootstrap-controller", ",".join(node.listener for node in nodes))
    try:
        for node in nodes:
            node.spawn()
        for node in nodes:
            node.wait_ready()
        # Controllers that do not know one another yet cannot return their endpoints to an admin client.
        status = ("kafka-metadata-quorum", *where, "describe", "--status")
        printed = once(lambda: run_tool(*status), lambda done: done.returncode == 0).stdout
        # Not the leader: Kafka's admin client hangs if it asks for the controller while there is no leader.
        leader = int(re.findall(r"^LeaderId:\s+(\d+)$", printed, re.MULTILINE)[0])
        leaves = next(node for node in nodes if node.node_id != leader)
        remove = ("remove-controller", "--controller-id", str(leaves.node_id))
        refused = run_tool(
            "kafka-metadata-quorum", *where, *remove, "--controller-directory-id", leaves.directory_id
        )
        assert refused.returncode == 1
        assert (
            "Cluster doesn't support removing voter because the kraft.version feature is 0" in refused.stderr
        )
        upgrade = ("upgrade", "--feature", "kraft.version=1")
        # Refused until every voter has sent its supported versions to the leader.
        wait_until(lambda: run_tool("kafka-features", *where, *upgrade).returncode == 0)
        printed = tool(
            "kafka-metadata-quorum", *where, *remove, "--controller-directory-id", leaves.directory_id
        )
        assert (
            printed.replace("  ", " ")
            == f"Removed KRaft controller {leaves.node_id} with directory id {leaves.directory_id}\n"
        )
        printed = tool(*status)
        assert [
            (row["id"], row["directoryId"])
            for row in json.loads(re.findall(r"CurrentVoters:\s+(.*)", printed)[0])
        ] == [(node.node_id, node.directory_id) for node in nodes if node is not leaves]
    finally:
        for node in nodes:
            node.end()


def test_features(cluster):
    elr = "eligible.leader.replicas.version"
    by_controller = ("--bootstrap-controller", cluster.bootstrap_controllers)

    def finalized(*where: str) -> dict[str, str]:
        printed = tool("kafka-features", *where, "describe")
        return dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", printed))

    printed = finalized("--bootstrap-server", cluster.bootstrap)
    assert printed == {"metadata.version": LEVEL_NAME, "kraft.version": "1", elr: "1"}
    assert (
        tool("kafka-features", *by_controller, "downgrade", "--feature", f"{elr}=0")
        == f"{elr} was downgraded to 0.\n"
    )
    printed = once(lambda: finalized(*by_controller), lambda printed: printed[elr] == "0")
    assert (printed[elr], printed["group.version"], printed["metadata.version"]) == ("0", "0", LEVEL_NAME)
    upgrade = ("upgrade", "--feature", f"{elr}=1")
    assert (
        tool("kafka-features", "--bootstrap-server", cluster.bootstrap, *upgrade)
        == f"{elr} was upgraded to 1.\n"
    )
    refused = run_tool("kafka-features", *by_controller, "downgrade", "--feature", "kraft.version=0")
    assert refused.returncode == 1
    assert "Invalid upgrade" in refused.stdout or "downgrade" in refused.stdout


def test_partitions_are_reassigned(cluster, tmp_path):
    where = ("--bootstrap-server", cluster.bootstrap)
    topic = Topic.create(cluster.bootstrap, "moves", [1, 2], [2, 1])
    # In many batches: one alone would be replicated at once, whatever the limits are.
    produce(cluster.bootstrap, "moves", [b"x" * 1000] * 3000, batch_size=20_000)
    topics = as_json(tmp_path / "topics.json", topics=[{"topic": "moves"}])
    generate = ("--generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2,3")
    _, current, _, proposed = lines(tool("kafka-reassign-partitions", *where, *generate))
    assert [row["replicas"] for row in json.loads(current)["partitions"]] == [[1, 2], [2, 1]]
    assert [row["partition"] for row in json.loads(proposed)["partitions"]] == [0, 1]

    def plan(name: str, *replicas: list[int]) -> tuple[str, str]:
        rows = [{"topic": "moves", "partition": index, "replicas": row} for index, row in enumerate(replicas)]
        return "--reassignment-json-file", as_json(tmp_path / name, partitions=rows)

    to_three = plan("plan.json", [3, 2], [1, 2])
    printed = tool("kafka-reassign-partitions", *where, "--execute", *to_three, "--throttle", "50000000")
    assert "The inter-broker throttle limit was set to 50000000 B/s" in printed
    assert printed.endswith("Successfully started partition reassignments for moves-0,moves-1\n")
    topic.wait(in_sync=[{2, 3}, {1, 2}])
    of_three = ("--entity-type", "brokers", "--entity-name", "3")
    printed = once(
        lambda: tool("kafka-configs", *where, "--describe", *of_three), lambda printed: "rate=" in printed
    )
    assert "follower.replication.throttled.rate=50000000" in printed
    assert "leader.replication.throttled.rate=50000000" in printed
    printed = once(
        lambda: tool("kafka-reassign-partitions", *where, "--verify", *to_three),
        lambda printed: printed.count(" is completed.") == 2,
    )
    assert lines(printed) == [
        "Status of partition reassignment:",
        "Reassignment of partition moves-0 is completed.",
        "Reassignment of partition moves-1 is completed.",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topic moves",
    ]
    once(
        lambda: tool("kafka-topics", *where, "--describe", "--topic", "moves"),
        lambda printed: "Configs: min.insync.replicas=1\n" in printed,
    )
    assert [message.offset() for message in read(cluster.bootstrap, "moves", 3000)] == list(range(3000))

    # One that would take minutes: a first fetch is not delayed, and after it there is one in eleven seconds.
    away = plan("away.json", [1, 2])
    tool("kafka-reassign-partitions", *where, "--execute", *away, "--throttle", "1000")
    printed = tool("kafka-reassign-partitions", *where, "--list")
    assert re.search(r"moves-0: replicas: (1,2,3|1,3,2)\. adding: 1\. removing: 3\.", printed), printed
    printed = tool("kafka-reassign-partitions", *where, "--verify", *away)
    assert "Reassignment of partition moves-0 is still in progress." in printed
    printed = tool("kafka-reassign-partitions", *where, "--cancel", *away)
    assert "Successfully cancelled partition reassignment for: moves-0" in printed
    assert tool("kafka-reassign-partitions", *where, "--list") == "No partition reassignments found.\n"
    topic.wait(in_sync=[{2, 3}, {1, 2}])
    assert all(state.leaders[0] in {2, 3} for state in topic.seen())


def test_leaders_are_elected(cluster, tmp_path):
    """Preferred leaders; and, when all that were in sync are gone, one that was not."""
    where = ("--bootstrap-server", cluster.bootstrap)
    topic = Topic.create(cluster.bootstrap, "leads", [3, 2], [2, 3])
    produce(cluster.bootstrap, "leads", [b"known to both"])

    def flagged(flag: str) -> list[str]:
        printed = tool("kafka-topics", *where, "--describe", "--topic", "leads", f"--{flag}")
        return re.findall(r"Partition: (\d)", printed)

    cluster.kill(3)
    topic.wait(in_sync=[{2}, {2}])
    assert flagged("under-replicated-partitions") == ["0", "1"]
    assert flagged("at-min-isr-partitions") == ["0", "1"]
    produce(cluster.bootstrap, "leads", [b"known to 2 only"], acks=1)
    cluster.kill(2)
    topic.wait(leaders=[-1, -1])
    assert flagged("unavailable-partitions") == ["0", "1"]
    cluster.start_node(3)
    printed = tool("kafka-topics", *where, "--describe", "--topic", "leads")
    assert re.findall(r"Leader: (\S+)\s.*Isr: (\S*)\s+Elr: (\S*)\s", printed) == [("none", "", "2")] * 2
    one = ("--topic", "leads", "--partition", "0")
    refused = run_tool("kafka-leader-election", *where, "--election-type", "preferred", *one)
    assert refused.returncode == 1
    assert "PreferredLeaderNotAvailableException" in refused.stdout + refused.stderr
    printed = tool("kafka-leader-election", *where, "--election-type", "unclean", *one)
    assert printed == "Successfully completed leader election (UNCLEAN) for partitions leads-0\n"
    topic.wait(leaders=[3, -1])
    cluster.start_node(2)
    topic.wait(leaders=[3, 2], in_sync=[{2, 3}, {2, 3}])
    (message,) = read(cluster.bootstrap, "leads", 1)
    assert message.value() == b"known to both"

    cluster.stop_node(3)  # it hands its leadership over
    topic.wait(leaders=[2, 2])
    cluster.start_node(3)
    topic.wait(in_sync=[{2, 3}, {2, 3}])
    rows = [{"topic": "leads", "partition": index} for index in (0, 1)]
    plan = ("--path-to-json-file", as_json(tmp_path / "election.json", partitions=rows))
    printed = tool("kafka-leader-election", *where, "--election-type", "preferred", *plan)
    assert lines(printed) == [
        "Successfully completed leader election (PREFERRED) for partitions leads-0",
        "Valid replica already elected for partitions leads-1",
    ]
    topic.wait(leaders=[3, 2])


def test_topics_of_several_replicas(cluster):
    where = ("--bootstrap-server", cluster.bootstrap)
    tool(
        "kafka-topics",
        *where,
        *("--create", "--if-not-exists", "--topic", "wide", "--partitions", "6", "--replication-factor", "3"),
    )
    Topic(cluster.bootstrap, "wide").wait(in_sync=[BROKERS] * 6)
    head, *rows = lines(tool("kafka-topics", *where, "--describe", "--topic", "wide"))
    assert "PartitionCount: 6\tReplicationFactor: 3\t" in head
    found = []
    for row in rows:
        leader, replicas, isr = re.findall(r"Leader: (\d)\tReplicas: (\S+)\tIsr: (\S+)\t", row)[0]
        assert leader == replicas[0]
        assert sorted(replicas.split(",")) == sorted(isr.split(",")) == ["1", "2", "3"]
        found.append(leader)
    assert sorted(found) == ["1", "1", "2", "2", "3", "3"]
    refused = run_tool(
        "kafka-topics",
        *where,
        "--create",
        "--topic",
        "wider",
        "--partitions",
        "1",
        "--replication-factor",
        "4",
    )
    assert refused.returncode == 1
    assert "The target replication factor of 4 cannot be reached because only 3 broker(s) are registered" in (
        refused.stdout
    )


def test_configurations(cluster):
    """One broker's, all brokers', a topic's and a user's, set at one broker and known to all."""
    where = ("--bootstrap-server", cluster.bootstrap)
    Topic.create(cluster.bootstrap, "configured", [2, 3])
    broker, topic, user = (
        ("--entity-type", "brokers", "--entity-name", "2"),
        ("--entity-type", "topics", "--entity-name", "configured"),
        ("--entity-type", "users", "--entity-name", "alice"),
    )
    tool("kafka-configs", *where, "--alter", *broker, "--add-config", "log.cleaner.threads=2")
    tool(
        "kafka-configs",
        *where,
        "--alter",
        *topic,
        "--add-config",
        "retention.ms=123456,min.insync.replicas=2",
    )
    tool("kafka-configs", *where, "--alter", *user, "--add-config", "producer_byte_rate=1024")
    for asked, expected in (
        (
            broker,
            "log.cleaner.threads=2 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.cleaner.threads=2",
        ),
        (topic, "  retention.ms=123456 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=123456}"),
        (user, "Quota configs for user-principal 'alice' are producer_byte_rate=1024.0\n"),
    ):
        once(
            lambda asked=asked: tool("kafka-configs", *where, "--describe", *asked),
            lambda printed, expected=expected: expected in printed,
        )


def test_every_broker_returns_what_it_serves(cluster, tmp_path):
    printed = once(
        lambda: broker_api_versions(cluster.bootstrap, tmp_path),
        lambda printed: printed.count("isFenced: false") == len(BROKERS),
    )
    found = re.findall(
        r"^127\.0\.0\.1:(\d+) \(id: (\d) rack: (\w) isFenced: false\) -> \($", printed, re.MULTILINE
    )
    assert sorted((int(node_id), rack, int(port)) for port, node_id, rack in found) == [
        (node_id, rack, cluster.node(node_id).port) for node_id, rack in zip(BROKERS, "abc", strict=True)
    ]
    for name in (
        "AlterPartitionReassignments(45)",
        "ElectLeaders(43)",
        "DescribeQuorum(55)",
        "AddRaftVoter(80)",
    ):
        assert len(re.findall(rf"{re.escape(name)}: \d.*\[usable: \d\]", printed)) == 3


def test_files_of_the_metadata_log(cluster, tmp_path):
    """The offline tools `kafka-dump-log` and `kafka-metadata-shell` read copies of the log and of a snapshot."""
    Topic.create(cluster.bootstrap, "filed", *[[1, 2, 3]] * 20)
    node_id = cluster.active_controller()
    copy = tmp_path / "dir" / "__cluster_metadata-0"

    def snapshots() -> list[Path]:
        """The metadata snapshots of a copy, which is made while the node is paused."""
        shutil.rmtree(copy, ignore_errors=True)
        cluster.child(node_id).pause()
        shutil.copytree(cluster.node(node_id).data_dir / "__cluster_metadata-0", copy)
        cluster.child(node_id).resume()
        return sorted(path for path in copy.glob("*.checkpoint") if int(path.name.split("-")[0]) > 0)

    snapshot = once(snapshots, lambda found: found and b"filed" in found[-1].read_bytes())[-1]
    log = max(copy.glob("*.log"))

    def dump(path: Path) -> tuple[list[str], dict[str, list[dict[str, object]]]]:
        """The names of control records in order; the data of the others by type."""
        printed = tool("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(path))
        assert "isvalid: false" not in printed
        rows = [line for line in lines(printed) if line.startswith("|")]
        control = [found[1] for row in rows if (found := re.search(r"headerKeys: \[\] ([A-Z]\w+):? \{", row))]
        data: dict[str, list[dict[str, object]]] = {}
        for row in rows:
            if "payload: " in row:
                one = json.loads(row.partition("payload: ")[2])
                data.setdefault(one["type"], []).append(one["data"])
        return control, data

    control, data = dump(snapshot)
    assert control == ["SnapshotHeader", "KRaftVersion", "KRaftVoters", "SnapshotFooter"]
    assert {row["brokerId"] for row in data["REGISTER_BROKER_RECORD"]} == set(BROKERS)
    assert {row["controllerId"] for row in data["REGISTER_CONTROLLER_RECORD"]} >= set(CONTROLLERS)
    filed = next(row for row in data["TOPIC_RECORD"] if row["name"] == "filed")
    partitions = [row for row in data["PARTITION_RECORD"] if row["topicId"] == filed["topicId"]]
    assert [row["partitionId"] for row in partitions] == list(range(20))
    assert all(row["replicas"] == [1, 2, 3] for row in partitions)
    control, data = dump(log)
    assert control[0] == "LeaderChange"
    assert "NO_OP_RECORD" in data

    def shell(path: Path, *command: str) -> list[str]:
        try:
            return lines(tool("kafka-metadata-shell", "--snapshot", str(path), *command, timeout_s=30))
        except subprocess.TimeoutExpired:
            return []  # it waits, rarely, for what it has loaded already

    # It prints what it has loaded when it thinks that it has all: asked too early, on a busy machine, it has not.
    topic = "/image/topics/byName/filed"
    eventually_equal(lambda: shell(snapshot, "ls", topic), sorted([*map(str, range(20)), "id", "name"]))
    seventh = "PartitionRegistration(replicas=[1, 2, 3], directories=["
    (printed,) = once(
        lambda: shell(snapshot, "cat", f"{topic}/7"),
        lambda printed: printed and printed[0].startswith(seventh),
    )
    assert "leader=1, leaderRecoveryState=RECOVERED, leaderEpoch=0" in printed
    eventually_equal(
        lambda: shell(snapshot, "cat", "/image/features/metadataVersion"), [f"Optional[{LEVEL_NAME}]"]
    )
