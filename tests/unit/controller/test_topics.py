"""CreateTopics, DeleteTopics, CreatePartitions: each topic alone, as Kafka's controller answers."""

from typing import Any
from uuid import UUID

import pytest

from ottla.config.config_def import ConfigSource
from ottla.controller.partitions import assignments
from ottla.controller.partitions.create_partitions import create_partitions
from ottla.controller.partitions.topics import create_topics, delete_topics
from ottla.metadata.image import DIRECTORY_UNASSIGNED
from ottla.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from ottla.protocol.errors import ErrorCode, PolicyViolation, TopicDeletionDisabled
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.stories.elections.machine import Machine, directory


def topic(
    name: str, count: int = 1, factor: int = 1, manual: Any = None, **configs: str | None
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=count if manual is None else -1,
        replication_factor=factor if manual is None else -1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (manual or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )


def create(
    machine: Machine, *topics: CreatableTopic, validate_only: bool = False
) -> dict[str, tuple[int, str]]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    response = machine.do(create_topics(machine.state, request))
    return {row.name: (row.error_code, row.error_message) for row in response.topics}


def test_a_topic_is_its_record_then_configurations_then_partitions():
    machine = Machine(brokers=[1, 2, 3])
    before = len(machine.log)
    assert create(machine, topic("t", 2, 3, retention_ms="1000")) == {"t": (ErrorCode.none, None)}
    kinds = [type(record) for record in machine.log[before:]]
    assert kinds == [TopicRecord, ConfigRecord, PartitionRecord, PartitionRecord]
    partition = machine.partition("t", 1)
    assert sorted(partition.replicas) == [1, 2, 3]
    assert partition.isr == partition.replicas
    assert partition.leader == partition.replicas[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == tuple(directory(replica) for replica in partition.replicas)


# KIP-858
def test_a_broker_with_several_directories_chooses_itself():
    machine = Machine(brokers=[1])
    machine.replay(
        RegisterBrokerRecord(
            broker_id=1, broker_epoch=9, rack=None, fenced=False, log_dirs=[directory(1), directory(9)]
        )
    )
    create(machine, topic("t"))
    assert machine.partition("t").directories == (DIRECTORY_UNASSIGNED,)


def test_the_fields_of_the_response():
    machine = Machine(brokers=[1], num_partitions=3, static_configs={"log.retention.hours": "2"})
    machine.set_config("log.segment.bytes", "1048576")
    request = CreateTopicsRequest(topics=[topic("t", -1, -1, cleanup_policy="compact")])
    (row,) = machine.do(create_topics(machine.state, request)).topics
    assert (row.num_partitions, row.replication_factor, row.topic_config_error_code) == (3, 1, 0)
    assert row.topic_id == machine.state.image.topics_by_name["t"].topic_id
    reported = {each.name: (each.value, each.config_source) for each in row.configs}
    assert [each.name for each in row.configs] == sorted(reported)
    assert reported["cleanup.policy"] == ("compact", ConfigSource.TOPIC)
    assert reported["retention.ms"] == ("7200000", ConfigSource.STATIC_BROKER)
    assert reported["segment.bytes"] == ("1048576", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert reported["max.message.bytes"] == ("1048588", ConfigSource.DEFAULT)
    assert len(reported) == 35 + 5  # as Kafka 4.4.0 returns, and those of the draft KIP-1303
    machine.set_config("log.segment.bytes", "2097152")  # between two topics
    request = CreateTopicsRequest(topics=[topic("u")])
    (row,) = machine.do(create_topics(machine.state, request)).topics
    reported = {each.name: (each.value, each.config_source) for each in row.configs}
    assert reported["segment.bytes"] == ("2097152", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert machine.state.topic_setting("t", "segment.bytes") == "2097152"


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic(""), ErrorCode.invalid_topic_exception),
        (topic("."), ErrorCode.invalid_topic_exception),
        (topic("a b"), ErrorCode.invalid_topic_exception),
        (topic("n" * 250), ErrorCode.invalid_topic_exception),
        (topic("x_y"), ErrorCode.invalid_topic_exception),  # there is x.y
        (topic("x.y"), ErrorCode.topic_already_exists),
        (topic("__cluster_metadata"), ErrorCode.invalid_request),
        (topic("t", 0), ErrorCode.invalid_partitions),
        (topic("t", -2), ErrorCode.invalid_partitions),
        (topic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (topic("t", 1, -2), ErrorCode.invalid_replication_factor),
        (topic("t", 1, 4), ErrorCode.invalid_replication_factor),
        (topic("t", nonsense="1"), ErrorCode.invalid_config),
        (topic("t", retention_ms="never"), ErrorCode.invalid_config),
        (topic("t", retention_ms=None), ErrorCode.invalid_config),
        (topic("t", manual={0: []}), ErrorCode.invalid_replica_assignment),
        (topic("t", manual={0: [1, 1]}), ErrorCode.invalid_replica_assignment),
        (topic("t", manual={0: [9]}), ErrorCode.invalid_replica_assignment),  # unknown
        (topic("t", manual={0: [4]}), ErrorCode.invalid_replica_assignment),  # fenced
        (topic("t", manual={1: [1]}), ErrorCode.invalid_replica_assignment),  # 0 is missing
        (topic("t", manual={0: [1, 2], 1: [1]}), ErrorCode.invalid_replica_assignment),
    ],
)
def test_refusals(wanted: CreatableTopic, code: ErrorCode):
    machine = Machine(brokers=[1, 2])
    machine.add_broker(4, fenced=True)
    machine.create("x.y", [1])
    before = len(machine.log)
    answer = create(machine, wanted, topic("good"))
    assert answer[wanted.name][0] == code
    assert answer["good"] == (ErrorCode.none, None)
    assert {type(record) for record in machine.log[before:]} == {TopicRecord, PartitionRecord}
    assert "t" not in machine.state.image.topics_by_name


def test_manual_assignments():
    machine = Machine(brokers=[1, 2])
    machine.add_broker(3, fenced=True)
    create(machine, topic("t", manual={1: [3, 1], 0: [2, 3]}))
    first, second = machine.partition("t", 0), machine.partition("t", 1)
    assert (first.replicas, first.isr, first.leader) == ((2, 3), (2,), 2)
    assert (second.replicas, second.isr, second.leader) == ((3, 1), (1,), 1)


@pytest.mark.parametrize("field", ["num_partitions", "replication_factor"])
def test_a_manual_assignment_leaves_no_room_for_numbers(field: str):
    machine = Machine(brokers=[1])
    wanted = topic("t", manual={0: [1]})
    setattr(wanted, field, 1)
    assert create(machine, wanted)["t"][0] == ErrorCode.invalid_request


def test_what_is_named_twice_is_refused_once():
    machine = Machine(brokers=[1])
    request = CreateTopicsRequest(topics=[topic("t"), topic("u"), topic("t")])
    rows = machine.do(create_topics(machine.state, request)).topics
    assert [(row.name, row.error_code) for row in rows] == [
        ("u", ErrorCode.none),
        ("t", ErrorCode.invalid_request),
    ]


def test_validation_only():
    machine = Machine(brokers=[1])
    before = len(machine.log)
    assert create(machine, topic("t"), topic("u", 0), validate_only=True)["t"] == (ErrorCode.none, None)
    assert len(machine.log) == before


def test_a_request_for_too_much():
    machine = Machine(brokers=[1])
    with pytest.raises(PolicyViolation):
        create_topics(machine.state, CreateTopicsRequest(topics=[topic("t", 5001), topic("u", 5000)]))


def test_all_brokers_leaving():
    machine = Machine(brokers=[1])
    machine.replay(
        BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=machine.state.image.brokers[1].epoch, in_controlled_shutdown=1
        )
    )
    assert create(machine, topic("t"))["t"][0] == ErrorCode.invalid_replication_factor


# -- DeleteTopics --------------------------------------------------------------------------------------


def delete(machine: Machine, *topics: str | UUID | DeleteTopicState) -> list[tuple[str | None, int]]:
    states = [
        each
        if isinstance(each, DeleteTopicState)
        else DeleteTopicState(name=each)
        if isinstance(each, str)
        else DeleteTopicState(topic_id=each)
        for each in topics
    ]
    # Versions up to 5 have names only, in another field.
    response = machine.do(delete_topics(machine.state, DeleteTopicsRequest(topics=states)))
    return [(row.name, row.error_code) for row in response.responses]


def test_deletion_by_name_and_by_id():
    machine = Machine(brokers=[1])
    for name in ("a", "b", "c"):
        machine.create(name, [1])
    machine.set_config("retention.ms", "1", topic="a")
    b = machine.state.image.topics_by_name["b"].topic_id
    assert sorted(delete(machine, "a", b)) == [("a", ErrorCode.none), ("b", ErrorCode.none)]
    assert set(machine.state.image.topics_by_name) == {"c"}
    assert machine.state.image.configs == {}
    old = machine.do(delete_topics(machine.state, DeleteTopicsRequest(topic_names=["c"])))
    assert [(row.name, row.error_code) for row in old.responses] == [("c", ErrorCode.none)]


def test_a_name_that_is_free_again_collides_with_nothing():
    machine = Machine(brokers=[1])
    machine.create("a.b", [1])
    delete(machine, "a.b")
    assert create(machine, topic("a_b"))["a_b"][0] == ErrorCode.none


def test_deletions_that_are_refused():
    machine = Machine(brokers=[1])
    machine.create("a", [1])
    a = machine.state.image.topics_by_name["a"].topic_id
    assert delete(machine, "unknown") == [("unknown", ErrorCode.unknown_topic_or_partition)]
    assert delete(machine, UUID(int=1)) == [(None, ErrorCode.unknown_topic_id)]
    assert delete(machine, DeleteTopicState()) == [(None, ErrorCode.invalid_request)]
    assert delete(machine, DeleteTopicState(name="a", topic_id=a)) == [("a", ErrorCode.invalid_request)]
    assert delete(machine, "a", "a") == [("a", ErrorCode.invalid_request)]
    assert delete(machine, a, a) == [(None, ErrorCode.invalid_request)]
    assert delete(machine, "a", a) == [("a", ErrorCode.invalid_request)]
    assert "a" in machine.state.image.topics_by_name


def test_deletion_can_be_switched_off():
    machine = Machine(delete_topic_enable=False)
    with pytest.raises(TopicDeletionDisabled):
        delete(machine, "a")


# -- CreatePartitions ----------------------------------------------------------------------------------


def grow(
    machine: Machine, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[tuple[str, int]]:
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    response = machine.do(create_partitions(machine.state, request))
    return [(row.name, row.error_code) for row in response.results]


def to(name: str, count: int, *manual: list[int]) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[CreatePartitionsAssignment(broker_ids=ids) for ids in manual] if manual else None,
    )


# KIP-195
def test_a_topic_grows():
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1, 2])
    assert grow(machine, to("t", 3)) == [("t", ErrorCode.none)]
    assert sorted(machine.state.image.topics_by_name["t"].partitions) == [0, 1, 2]
    assert len(machine.partition("t", 2).replicas) == 2
    assert grow(machine, to("t", 4, [2, 1])) == [("t", ErrorCode.none)]
    assert machine.partition("t", 3).replicas == (2, 1)


def test_the_metadata_of_the_remote_tier_keeps_its_partitions():
    """Its readers find a partition's records by their number: with others, all that is tiered would be unknown."""
    machine = Machine(brokers=[1])
    machine.create("__remote_log_metadata", [1], [1])
    before = len(machine.log)
    assert grow(machine, to("__remote_log_metadata", 5)) == [
        ("__remote_log_metadata", ErrorCode.invalid_partitions)
    ]
    assert len(machine.log) == before


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (to("unknown", 2), ErrorCode.unknown_topic_or_partition),
        (to("t", 2), ErrorCode.invalid_partitions),  # has them already
        (to("t", 1), ErrorCode.invalid_partitions),
        (to("t", -1), ErrorCode.invalid_partitions),
        (to("t", 4, [1]), ErrorCode.invalid_replica_assignment),  # one of two
        (to("t", 3, [1, 2]), ErrorCode.invalid_replica_assignment),  # another replication factor
        (to("t", 3, [9]), ErrorCode.invalid_replica_assignment),
    ],
)
def test_growth_that_is_refused(wanted: CreatePartitionsTopic, code: ErrorCode):
    machine = Machine(brokers=[1, 2])
    machine.create("t", [1], [2])
    before = len(machine.log)
    assert grow(machine, wanted) == [(wanted.name, code)]
    assert len(machine.log) == before


def test_growth_named_twice_or_only_validated():
    machine = Machine(brokers=[1])
    machine.create("t", [1])
    assert grow(machine, to("t", 2), to("t", 3)) == [("t", ErrorCode.invalid_request)]
    assert grow(machine, to("t", 2), validate_only=True) == [("t", ErrorCode.none)]
    assert len(machine.state.image.topics_by_name["t"].partitions) == 1


def test_growth_that_is_too_much_in_sum():
    machine = Machine(brokers=[1])
    machine.create("t", [1])
    machine.create("u", [1])
    with pytest.raises(PolicyViolation):
        grow(machine, to("t", 6_000), to("u", 6_000))
    assert grow(machine, to("t", 10_002), to("t", 2), to("u", 2)) == [
        ("t", ErrorCode.invalid_request),
        ("u", ErrorCode.none),
    ]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("wanted", [[to("t", 10_002)], [to("t", 10_001), to("u", 2)]])
def test_growth_that_is_too_much_is_refused_before_anything_is_placed(
    monkeypatch: pytest.MonkeyPatch, wanted: list[CreatePartitionsTopic], validate_only: bool
):
    """One request could name a thousand topics, each with as many partitions as all may have together."""
    machine = Machine(brokers=[1])
    machine.create("t", [1])
    machine.create("u", [1])
    monkeypatch.setattr(assignments, "place", lambda *_, **__: pytest.fail("placed"))
    with pytest.raises(PolicyViolation):
        grow(machine, *wanted, validate_only=validate_only)


def test_who_is_leaving_takes_no_new_replicas():
    machine = Machine(brokers=[1, 2, 3])
    machine.state.sessions.of(2).shutdown_offset = 7
    assert grow_all(machine) == {1, 3}


def test_a_broker_with_only_cordoned_directories_gets_no_new_replicas():
    """KIP-1066: by itself; a manual assignment may still name it."""
    machine = Machine(brokers=[1, 2, 3])
    epoch = machine.state.image.brokers[2].epoch
    machine.replay(
        BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=epoch, cordoned_log_dirs=[directory(2)])
    )
    assert grow_all(machine) == {1, 3}
    code, message = create(machine, topic("t", 1, 3))["t"]
    assert code == ErrorCode.invalid_replication_factor
    assert message == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
        "only 2 broker(s) are registered or some brokers have all their log directories cordoned."
    )
    assert create(machine, topic("manual", manual={0: [2]}))["manual"][0] == ErrorCode.none


def grow_all(machine: Machine) -> set[int]:
    """All brokers that get replicas of a large topic."""
    assert create(machine, topic("large", 30, 2))["large"][0] == ErrorCode.none
    partitions = machine.state.image.topics_by_name["large"].partitions.values()
    return {replica for partition in partitions for replica in partition.replicas}
