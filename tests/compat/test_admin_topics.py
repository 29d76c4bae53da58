"""Topics through the admin clients: created, enlarged, described and deleted, and every refusal."""

import kafka
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewPartitions, NewTopic
from kafka.admin import NewPartitions as KafkaPythonPartitions

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.compat.admin import (
    PATIENCE_S,
    admin_of,
    code_of,
    create_topic,
    eventually_equal,
    partitions_of,
    produce,
    read,
    wait_until,
)
from tests.harness.blocking_wire import BlockingWire


def test_one_request_creates_some_and_refuses_others(server, topic):
    create_topic(server.bootstrap, topic)
    asked = [
        # the topic, the error
        (NewTopic(f"{topic}-two", 2, 1), None),
        (NewTopic(f"{topic}-default", -1, -1), None),
        (NewTopic(f"{topic}-by-hand", 2, replica_assignment=[[1], [1]]), None),
        (NewTopic(f"{topic}-config", 1, 1, config={"retention.ms": "1000"}), None),
        (NewTopic(topic, 1, 1), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("bad name", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("..", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("x" * 250, 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic(topic.replace("-", "."), 1, 1), None),
        (NewTopic(f"{topic}-rf", 1, 2), "INVALID_REPLICATION_FACTOR"),
        (NewTopic(f"{topic}-key", 1, 1, config={"nope": "1"}), "INVALID_CONFIG"),
        (NewTopic(f"{topic}-number", 1, 1, config={"retention.ms": "x"}), "INVALID_CONFIG"),
        (NewTopic(f"{topic}-choice", 1, 1, config={"cleanup.policy": "keep"}), "INVALID_CONFIG"),
        (NewTopic(f"{topic}-broker", 1, replica_assignment=[[2]]), "INVALID_REPLICA_ASSIGNMENT"),
    ]
    admin = admin_of(server.bootstrap)
    futures = admin.create_topics([new for new, _ in asked])
    assert [(new.topic, code_of(futures[new.topic])) for new, _ in asked] == [
        (new.topic, expected) for new, expected in asked
    ]
    for name, partitions in [("two", 2), ("default", 1), ("by-hand", 2), ("config", 1)]:
        eventually_equal(lambda name=name: partitions_of(admin, f"{topic}-{name}"), list(range(partitions)))
    # '.' and '_' collide in metric names.
    collides = NewTopic(topic.replace("-", "_"), 1, 1)
    assert code_of(admin.create_topics([collides])[collides.topic]) == "TOPIC_EXCEPTION"


def test_validate_only_creates_nothing(server, topic):
    admin = admin_of(server.bootstrap)
    assert code_of(admin.create_topics([NewTopic(topic, 3, 1)], validate_only=True)[topic]) is None
    assert code_of(admin.create_topics([NewTopic(topic, 3, 7)], validate_only=True)[topic]) is not None
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    create_topic(server.bootstrap, topic, 2)
    more = NewPartitions(topic, 5)
    assert code_of(admin.create_partitions([more], validate_only=True)[topic]) is None
    assert partitions_of(admin, topic) == [0, 1]


@pytest.mark.parametrize("partitions", [0, -2])
def test_wrong_numbers_of_partitions(server, topic, partitions):
    """No client lets these through, so they go by hand."""
    new = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    with BlockingWire(server.port) as wire:
        answer = wire.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new, new], timeout_ms=60_000))
        assert {row.error_code for row in answer.topics} == {42}  # twice in one request: INVALID_REQUEST
        answer = wire.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new], timeout_ms=60_000))
        assert [row.error_code for row in answer.topics] == [37]  # INVALID_PARTITIONS


def test_partitions_are_added(server, topic):
    admin = admin_of(server.bootstrap)
    create_topic(server.bootstrap, topic, 2)
    produce(server.bootstrap, topic, [b"kept"])
    assert code_of(admin.create_partitions([NewPartitions(topic, 4)])[topic]) is None
    eventually_equal(lambda: partitions_of(admin, topic), [0, 1, 2, 3])
    produce(server.bootstrap, topic, [b"new"], partition=3)
    assert read(server.bootstrap, topic, 1)[0].value() == b"kept"
    assert read(server.bootstrap, topic, 1, partition=3)[0].value() == b"new"
    for new, expected in [
        (NewPartitions(topic, 3), "INVALID_PARTITIONS"),
        (NewPartitions(topic, 4), "INVALID_PARTITIONS"),
        (NewPartitions(topic, 5, replica_assignment=[[7]]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewPartitions(f"{topic}-unknown", 3), "UNKNOWN_TOPIC_OR_PART"),
    ]:
        assert code_of(admin.create_partitions([new])[new.topic]) == expected, new


def test_a_topic_is_described(server, topic):
    create_topic(server.bootstrap, topic, 3)
    admin = admin_of(server.bootstrap)
    described = admin.describe_topics(TopicCollection([topic, f"{topic}-unknown", "bad name"]))
    found = described[topic].result(PATIENCE_S)
    assert [
        (partition.id, partition.leader.id, [one.id for one in partition.isr])
        for partition in found.partitions
    ] == [(0, 1, [1]), (1, 1, [1]), (2, 1, [1])]
    assert not found.is_internal
    assert code_of(described[f"{topic}-unknown"]) == "UNKNOWN_TOPIC_OR_PART"
    assert code_of(described["bad name"]) == "TOPIC_EXCEPTION"


def test_a_deleted_topic_comes_back_empty_and_with_another_id(server, topic):
    create_topic(server.bootstrap, topic)
    admin = admin_of(server.bootstrap)
    produce(server.bootstrap, topic, [b"old"])
    old = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S)
    deleted = admin.delete_topics([topic, f"{topic}-unknown"])
    assert code_of(deleted[topic]) is None
    assert code_of(deleted[f"{topic}-unknown"]) == "UNKNOWN_TOPIC_OR_PART"
    wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
    create_topic(server.bootstrap, topic)
    new = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S)
    assert str(new.topic_id) != str(old.topic_id)
    produce(server.bootstrap, topic, [b"new"])
    (message,) = read(server.bootstrap, topic, 1)
    assert (message.offset(), message.value()) == (0, b"new")


def test_a_topic_is_deleted_by_its_id(server, topic):
    create_topic(server.bootstrap, topic)
    with BlockingWire(server.port) as wire:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        topic_id = wire.call(ApiKey.METADATA, 12, asked).topics[0].topic_id
        for expected in (0, 100):  # UNKNOWN_TOPIC_ID
            state = DeleteTopicState(name=None, topic_id=topic_id)
            request = DeleteTopicsRequest(topics=[state], timeout_ms=60_000)
            (row,) = wire.call(ApiKey.DELETE_TOPICS, 6, request).responses
            assert (row.error_code, row.topic_id) == (expected, topic_id)
            assert row.name == (topic if expected == 0 else None)
        admin = admin_of(server.bootstrap)
        wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)])
        eventually_equal(lambda: wire.call(ApiKey.METADATA, 12, asked).topics[0].error_code, 100)


def test_kafka_python_administers_topics(server, topic):
    admin = kafka.KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
        admin.wait_for_topics([topic], timeout_ms=int(PATIENCE_S * 1000))
        admin.create_partitions({topic: KafkaPythonPartitions(total_count=3)})
        eventually_equal(
            lambda: [
                [row["partition_index"] for row in found["partitions"]]
                for found in admin.describe_topics([topic])
            ],
            [[0, 1, 2]],
        )
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
        paged = admin.describe_topic_partitions([topic], response_partition_limit=2)
        assert len(paged["topics"][0]["partitions"]) == 2
        assert paged["next_cursor"]["partition_index"] == 2
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics())
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
            admin.delete_topics([topic])
    finally:
        admin.close()


# KIP-430, KIP-700
def test_the_cluster_is_described(server):
    admin = admin_of(server.bootstrap)
    found = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
    assert len(found.cluster_id) == 22
    assert [(node.id, node.host, node.port) for node in found.nodes] == [(1, "127.0.0.1", server.port)]
    assert found.controller.id == 1
    assert sorted(operation.name for operation in found.authorized_operations) == [
        "ALTER",
        "ALTER_CONFIGS",
        "CLUSTER_ACTION",
        "CREATE",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "IDEMPOTENT_WRITE",
    ]
