"""Kafka's tools for ACLs, quotas, users, features, elections and reassignments, as an operator runs them.

A JVM takes a second of CPU to start, so each test is a story of several steps. The server has Kafka's
StandardAuthorizer configured, and its anonymous user is a super user.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin import create_topic, eventually_equal, once
from tests.compat.conftest import Server, make_server
from tests.harness.kafka import run_tool, tool
from tests.harness.release import LEVEL_NAME

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    server: Server = make_server(tmp_path_factory.mktemp("authorizing"), SETTINGS).start()
    yield "--bootstrap-server", server.bootstrap
    server.stop()


def entries(output: str) -> set[str]:
    return set(re.findall(r"\((principal=[^)]*)\)", output))


# KIP-140
def test_kafka_acls(where):
    read, describe = (
        f"principal=User:alice, host=*, operation={operation}, permissionType=ALLOW"
        for operation in ("READ", "DESCRIBE")
    )

    def listed(*options: str) -> set[str]:
        return entries(tool("kafka-acls", *where, "--list", *options))

    of_topic = ("--topic", "t")
    add = ("--add", "--allow-principal", "User:alice", "--operation", "Read", "--operation", "Describe")
    output = tool("kafka-acls", *where, *add, *of_topic)
    assert (
        "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`"
        in output
    )
    assert entries(output) == {read, describe}
    prefixed = ("--resource-pattern-type", "prefixed", "--topic", "pre", "--deny-principal", "User:bob")
    tool("kafka-acls", *where, "--add", "--operation", "Write", "--deny-host", "10.0.0.1", *prefixed)
    eventually_equal(lambda: listed(*of_topic), {read, describe})
    eventually_equal(
        lambda: listed("--topic", "prefix", "--resource-pattern-type", "match"),
        {"principal=User:bob, host=10.0.0.1, operation=WRITE, permissionType=DENY"},
    )
    one = ("--allow-principal", "User:alice", "--operation", "Read")
    tool("kafka-acls", *where, "--remove", "--force", *one, *of_topic)
    eventually_equal(lambda: listed(*of_topic), {describe})


# KIP-546
def test_kafka_configs_of_users_clients_and_addresses(where):
    def alter(*arguments: str) -> str:
        return tool("kafka-configs", *where, "--alter", *arguments)

    def describe(*types: str) -> list[str]:
        wanted = [word for kind in types for word in ("--entity-type", kind)]
        return sorted(tool("kafka-configs", *where, "--describe", *wanted).splitlines())

    alice = ("--entity-type", "users", "--entity-name", "alice")
    assert (
        alter(*alice, "--add-config", "producer_byte_rate=1000")
        == "Completed updating config for user alice.\n"
    )
    alter(*alice, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]")
    quota = "Quota configs for user-principal 'alice' are producer_byte_rate=1000.0"
    credential = "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192"
    eventually_equal(lambda: describe("users"), [quota, credential])
    both = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "c")
    alter(*both, "--add-config", "consumer_byte_rate=7,request_percentage=12.5")
    (line,) = once(lambda: describe("users", "clients"), lambda printed: printed)
    head, limits = line.split(" are ")
    assert head == "Quota configs for the default user-principal, client-id 'c'"
    assert set(limits.split(", ")) == {"consumer_byte_rate=7.0", "request_percentage=12.5"}
    address = ("--entity-type", "ips", "--entity-name", "127.0.0.1")
    alter(*address, "--add-config", "connection_creation_rate=9")
    address_quota = "Quota configs for ip '127.0.0.1' are connection_creation_rate=9.0"
    eventually_equal(lambda: describe("ips"), [address_quota])
    refused = run_tool("kafka-configs", *where, "--alter", *alice, "--add-config", "producer_byte_rate=-1")
    assert refused.returncode == 1
    assert "Quota producer_byte_rate must be greater than 0" in refused.stderr
    alter(*alice, "--delete-config", "SCRAM-SHA-256")
    alter(*alice, "--delete-config", "producer_byte_rate")
    eventually_equal(lambda: describe("users"), [])


def test_kafka_features(where):
    def features(*arguments: str) -> str:
        done = run_tool("kafka-features", *where, *arguments)
        return f"{done.returncode} {done.stdout}"

    elr = "eligible.leader.replicas.version"
    described = features("describe")
    found = dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", described))
    assert (found["metadata.version"], found[elr]) == (LEVEL_NAME, "1")
    assert found["kraft.version"] in ("0", "1")
    assert features("downgrade", "--feature", f"{elr}=0") == f"0 {elr} was downgraded to 0.\n"
    assert features("upgrade", "--feature", f"{elr}=1") == f"0 {elr} was upgraded to 1.\n"
    assert features("downgrade", "--release-version", "3.9").startswith("1 ")
    assert features("upgrade", "--feature", "nonsense=1") == (
        "1 Could not upgrade nonsense to 1. The update failed for all features since the following feature had an "
        "error: Invalid update version 1 for feature nonsense. Local controller 1 does not support this feature.\n"
    )


def test_kafka_leader_election_and_reassignment(where, topic: str, tmp_path: Path):
    create_topic(where[1], topic)
    partition = {"topic": topic, "partition": 0}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{**partition, "replicas": [1]}]}))
    election = tmp_path / "election.json"
    election.write_text(json.dumps({"partitions": [partition]}))
    elected = tool(
        "kafka-leader-election", *where, "--election-type", "preferred", "--path-to-json-file", str(election)
    )
    assert elected == f"Valid replica already elected for partitions {topic}-0\n"
    unknown = ("--election-type", "unclean", "--topic", "unknown", "--partition", "0")
    refused = run_tool("kafka-leader-election", *where, *unknown)
    assert refused.returncode == 1
    assert "UnknownTopicOrPartitionException: No such topic as unknown" in refused.stdout

    by_plan = ("--reassignment-json-file", str(plan))
    output = tool("kafka-reassign-partitions", *where, "--execute", *by_plan)
    assert output.endswith(f"Successfully started partition reassignment for {topic}-0\n")
    once(
        lambda: tool("kafka-reassign-partitions", *where, "--verify", *by_plan),
        lambda printed: f"Reassignment of partition {topic}-0 is completed." in printed,
    )
    assert tool("kafka-reassign-partitions", *where, "--list") == "No partition reassignments found.\n"
    output = tool("kafka-reassign-partitions", *where, "--cancel", *by_plan)
    assert output.startswith("None of the specified partition reassignments are active.")


# KIP-836
def test_kafka_metadata_quorum_and_kafka_cluster(where):
    status = tool("kafka-metadata-quorum", *where, "describe", "--status")
    rows = dict(re.findall(r"^(\w+):\s+(.*)$", status, re.MULTILINE))
    assert (rows["LeaderId"], rows["MaxFollowerLag"], rows["CurrentObservers"]) == ("1", "0", "[]")
    assert re.fullmatch(r'\[\{"id": 1.*\}\]', rows["CurrentVoters"])
    head, leader = tool("kafka-metadata-quorum", *where, "describe", "--replication").splitlines()
    assert head.split()[:3] == ["NodeId", "DirectoryId", "LogEndOffset"]
    assert (leader.split()[0], leader.split()[-1]) == ("1", "Leader")
    endpoints = tool("kafka-cluster", "list-endpoints", *where).splitlines()
    assert endpoints[1].split()[:2] == ["1", "127.0.0.1"]
    refused = run_tool("kafka-cluster", "unregister", "--id", "77", *where)
    assert refused.returncode == 1
    assert "Broker ID 77 is not currently registered" in refused.stderr
