"""Consumer groups through the admin clients: listed, described, moved and deleted."""

import kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from kafka.structs import OffsetAndMetadata

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.compat.admin import (
    PATIENCE_S,
    admin_of,
    code_of,
    create_topic,
    eventually_equal,
    produce,
    wait_until,
)
from tests.compat.members import ConfluentMember
from tests.harness.blocking_wire import BlockingWire


def states(admin, group: str) -> list[ConsumerGroupState]:
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert not listed.errors
    return [one.state for one in listed.valid if one.group_id == group]


def committed(admin, group: str, *partitions: TopicPartition) -> dict[tuple[str, int], int]:
    asked = ConsumerGroupTopicPartitions(group, list(partitions) or None)
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    return {(one.topic, one.partition): one.offset for one in found.topic_partitions}


def alter(admin, group: str, *partitions: TopicPartition) -> dict[tuple[str, int], str | None]:
    """Set offsets; the error's name of each partition."""
    asked = ConsumerGroupTopicPartitions(group, list(partitions))
    answered = admin.alter_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    return {(one.topic, one.partition): one.error and one.error.name() for one in answered.topic_partitions}


def test_the_life_of_a_group(server, topic, group):
    create_topic(server.bootstrap, topic, 2)
    produce(server.bootstrap, topic, [b"1", b"2", b"3"])
    admin = admin_of(server.bootstrap)
    assert states(admin, group) == []
    member = ConfluentMember(server.bootstrap, group, topic).start()
    wait_until(lambda: len(member.taken) == 3 and len(member.assigned) == 2)
    wait_until(lambda: states(admin, group) == [ConsumerGroupState.STABLE])
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    assert (described.coordinator.id, described.is_simple_consumer_group) == (1, False)
    (found,) = described.members
    assert found.client_id == "rdkafka"
    assert found.host == "/127.0.0.1"
    assert sorted(one.partition for one in found.assignment.topic_partitions) == [0, 1]
    eventually_equal(lambda: committed(admin, group).get((topic, 0)), 3)

    # Neither its offsets nor itself can go while a member consumes.
    assert alter(admin, group, TopicPartition(topic, 0, 1)) == {(topic, 0): "UNKNOWN_MEMBER_ID"}
    assert code_of(admin.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"
    assert offset_delete(server.port, group, topic, 0) == (0, 86)  # GROUP_SUBSCRIBED_TO_TOPIC

    member.stop()
    wait_until(lambda: states(admin, group) == [ConsumerGroupState.EMPTY])
    assert alter(admin, group, TopicPartition(topic, 0, 1), TopicPartition(topic, 1, 0)) == {
        (topic, 0): None,
        (topic, 1): None,
    }
    assert committed(admin, group) == {(topic, 0): 1, (topic, 1): 0}
    again = ConfluentMember(server.bootstrap, group, topic).start()
    wait_until(lambda: len(again.taken) == 2)
    again.stop()
    assert [value for _, _, value in again.taken] == [b"2", b"3"]

    assert offset_delete(server.port, group, topic, 1) == (0, 0)
    eventually_equal(lambda: committed(admin, group), {(topic, 0): 3})
    assert code_of(admin.delete_consumer_groups([group])[group]) is None
    wait_until(lambda: states(admin, group) == [])
    assert code_of(admin.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"
    assert committed(admin, group) == {}


def offset_delete(port: int, group: str, topic: str, partition: int) -> tuple[int, int]:
    """The errors of the request and of its partition; librdkafka's Python face lacks this request."""
    row = OffsetDeleteRequestTopic(
        name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
    )
    with BlockingWire(port) as wire:
        answer = wire.call(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=group, topics=[row]))
        inner = [one.error_code for found in answer.topics for one in found.partitions]
        return answer.error_code, *inner


def test_offsets_of_what_does_not_exist(server, topic, group):
    create_topic(server.bootstrap, topic)
    admin = admin_of(server.bootstrap)
    assert committed(admin, group, TopicPartition(topic, 0)) == {(topic, 0): -1001}
    described = admin.describe_consumer_groups([group])[group]
    # DescribeGroups v6 says so; before, an unknown group was a dead one.
    assert code_of(described) in (None, "GROUP_ID_NOT_FOUND")
    assert offset_delete(server.port, group, topic, 0) == (69,)  # GROUP_ID_NOT_FOUND
    errors = alter(admin, group, TopicPartition(f"{topic}-unknown", 0, 1))
    assert list(errors.values()) == ["UNKNOWN_TOPIC_OR_PART"]


def test_a_commit_keeps_its_metadata_and_epoch(server, topic, group):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, [b"1"] * 10)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap, group_id=group, enable_auto_commit=False
    )
    partition = kafka.TopicPartition(topic, 0)
    try:
        consumer.assign([partition])
        note = "nötiz " * 10
        consumer.commit({partition: OffsetAndMetadata(5, note, 0)})
        assert consumer.committed(partition, metadata=True) == OffsetAndMetadata(5, note, 0)
        with pytest.raises(kafka.errors.OffsetMetadataTooLargeError):
            consumer.commit({partition: OffsetAndMetadata(6, "x" * 5000, 0)})
        assert consumer.committed(partition) == 5
    finally:
        consumer.close()


def test_kafka_python_administers_groups(server, topic, group):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, [b"1"] * 10)
    partition = kafka.TopicPartition(topic, 0)
    admin = kafka.KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        admin.alter_group_offsets(group, {partition: OffsetAndMetadata(7, "", -1)})
        assert group in [one["group_id"] for one in admin.list_groups()]
        assert group in [one["group_id"] for one in admin.list_groups(states_filter=["Empty"])]
        assert group not in [one["group_id"] for one in admin.list_groups(states_filter=["Stable"])]
        assert admin.list_group_offsets([group])[group][partition].offset == 7
        assert admin.describe_groups([group])[group]["group_state"] == "Empty"
        admin.reset_group_offsets(group, {partition: kafka.admin.OffsetSpec.EARLIEST})
        assert admin.list_group_offsets([group])[group][partition].offset == 0
        admin.delete_group_offsets(group, [partition])
        assert admin.list_group_offsets([group])[group] == {}
        admin.alter_group_offsets(group, {partition: OffsetAndMetadata(7, "", -1)})
        admin.delete_groups([group])
        eventually_equal(lambda: [one for one in admin.list_groups() if one["group_id"] == group], [])
    finally:
        admin.close()
