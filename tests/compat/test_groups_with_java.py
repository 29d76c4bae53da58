"""Cooperative rebalancing (KIP-429) and static membership (KIP-345), with Java and librdkafka in one group."""

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import Producer

from tests.compat.admin import PATIENCE_S, admin_of, create_topic, wait_until
from tests.compat.members import CooperativeMember, JavaMember
from tests.harness.kafka import run_tool

_PARTITIONS = 6


@pytest.fixture
def java(server, topic, group, tmp_path) -> Iterator[JavaMember]:
    member = JavaMember(server.bootstrap, group, topic, instance="static-1", log=tmp_path / "java.log")
    yield member
    member.child.kill()


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, value=b"%d" % number, partition=number % _PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def holdings(admin, group: str) -> dict[str | None, frozenset[int]]:
    """The assignment of each member of the group, by its instance id."""
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return {
        member.group_instance_id: frozenset(one.partition for one in member.assignment.topic_partitions)
        for member in described.members
    }


def committed(admin, group: str) -> int:
    """The sum over all partitions."""
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    return sum(one.offset for one in found.topic_partitions)


def test_a_static_java_member_and_a_cooperative_one_of_librdkafka(server, topic, group, java):
    create_topic(server.bootstrap, topic, _PARTITIONS)
    admin = admin_of(server.bootstrap)
    native = CooperativeMember(server.bootstrap, group, topic).start()
    wait_until(lambda: len(native.assigned) == _PARTITIONS)
    produce(server.bootstrap, topic, range(60))
    wait_until(lambda: len(native.taken) == 60)

    java.start()
    wait_until(lambda: len(native.assigned) == _PARTITIONS / 2, detail=java.child.output)
    wait_until(lambda: len(holdings(admin, group).get("static-1", ())) == _PARTITIONS / 2)
    before = holdings(admin, group)
    produce(server.bootstrap, topic, range(60, 120))
    wait_until(lambda: len(native.taken) + len(java.taken) >= 120)
    wait_until(lambda: committed(admin, group) == 120)

    # Killed, it stays a member until its session ends; come back in time, it has what it had.
    java.child.kill()
    produce(server.bootstrap, topic, range(120, 180))
    java.start()
    wait_until(lambda: len(native.taken) + len(java.taken) >= 180)
    assert sorted(
        [int(value) for _, _, value in native.taken] + [int(value) for value in java.taken]
    ) == list(range(180))
    assert holdings(admin, group) == before
    native.stop()
    wait_until(lambda: len(holdings(admin, group)["static-1"]) == _PARTITIONS)


def test_the_consumer_protocol_of_kip_848(server, topic, group):
    """Differs from Kafka: Ottla does not serve it yet, and a client that requires it gets an error at once."""
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, range(0, 60, _PARTITIONS))
    done = run_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
        *("--max-messages", "10", "--command-property", "group.protocol=consumer"),
    )
    # The consumer fails at its first poll, which this tool reports to its log only.
    assert f"Processed a total of {10 if server.is_kafka else 0} messages" in done.stderr
    assert len(done.stdout.split()) == (10 if server.is_kafka else 0)
