"""Rules of the requests IncrementalAlterConfigs and AlterConfigs."""

from collections.abc import Mapping

import pytest

from ottla.config.config_def import AlterOperation, ConfigKey, ConfigType
from ottla.controller.configs import alter, incremental_alter
from ottla.controller.settings import ConfigValidators
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.metadata.records import (
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    RegisterControllerRecord,
)
from ottla.protocol.errors import ErrorCode, InvalidConfig, PolicyViolation
from ottla.protocol.messages import alter_configs as old
from ottla.protocol.messages import incremental_alter_configs as new
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import Machine

SET, DELETE, APPEND, SUBTRACT = AlterOperation
TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
MIN = "min.insync.replicas"


def refuse_nine(name: str, configs: Mapping[str, str], existing: Mapping[str, str]) -> None:
    if "9" in configs.values():
        raise InvalidConfig("nine")


def machine_with_topics() -> Machine:
    machine = Machine(
        brokers=[1],
        validators=ConfigValidators(
            group=refuse_nine,
            broker_keys={
                "a.list": ConfigKey("a.list", ConfigType.LIST, ()),
                MIN: ConfigKey(MIN, ConfigType.INT, 1),
                "log.retention.hours": ConfigKey("log.retention.hours", ConfigType.INT, 168),
            },
        ),
    )
    for name in ("t", "u"):
        machine.create(name, [1], [1])
    return machine


def resource(kind: int, name: str, *configs: tuple) -> new.AlterConfigsResource:
    return new.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            new.AlterableConfig(name=key, config_operation=operation, value=value)
            for operation, key, value in configs
        ],
    )


def change(machine: Machine, *resources: new.AlterConfigsResource, validate_only: bool = False) -> list[int]:
    request = new.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    response = machine.do(incremental_alter(machine.state, request))
    rows = {(row.resource_type, row.resource_name): row.error_code for row in response.responses}
    return [rows[each.resource_type, each.resource_name] for each in resources]


def configs(machine: Machine, kind: int, name: str) -> Mapping[str, str]:
    return machine.state.image.config(ConfigResource(ConfigResourceType(kind), name))


# KIP-339
def test_single_keys():
    machine = machine_with_topics()
    assert change(
        machine, resource(TOPIC, "t", (SET, "retention.ms", "5"), (APPEND, "cleanup.policy", "compact"))
    )
    assert configs(machine, TOPIC, "t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    change(
        machine, resource(TOPIC, "t", (DELETE, "retention.ms", None), (SUBTRACT, "cleanup.policy", "delete"))
    )
    assert configs(machine, TOPIC, "t") == {"cleanup.policy": "compact"}
    change(machine, resource(BROKER, "", (APPEND, "a.list", "x,y")), resource(BROKER, "1", (SET, "b", "1")))
    assert configs(machine, BROKER, "")["a.list"] == "x,y"
    change(machine, resource(GROUP, "g", (SET, "c", "1")), resource(METRICS, "m", (SET, "d", "1")))
    assert configs(machine, GROUP, "g") == {"c": "1"}
    assert configs(machine, METRICS, "m") == {"d": "1"}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (resource(TOPIC, "unknown", (SET, "retention.ms", "5")), ErrorCode.unknown_topic_or_partition),
        (resource(TOPIC, "", (SET, "retention.ms", "5")), ErrorCode.invalid_request),
        (resource(TOPIC, "a b", (SET, "retention.ms", "5")), ErrorCode.invalid_topic_exception),
        (resource(TOPIC, "t", (SET, "nonsense", "5")), ErrorCode.invalid_config),
        (resource(TOPIC, "t", (SET, "retention.ms", "x")), ErrorCode.invalid_config),
        (resource(TOPIC, "t", (SET, "retention.ms", None)), ErrorCode.invalid_request),
        (resource(TOPIC, "t", (APPEND, "retention.ms", "5")), ErrorCode.invalid_config),
        (resource(TOPIC, "t", (7, "retention.ms", "5")), ErrorCode.invalid_request),
        (
            resource(TOPIC, "t", (SET, "retention.ms", "5"), (SET, "retention.ms", "6")),
            ErrorCode.invalid_request,
        ),
        (resource(BROKER, "x", (SET, "b", "1")), ErrorCode.invalid_request),
        (resource(BROKER, "-1", (SET, "b", "1")), ErrorCode.invalid_request),
        (resource(GROUP, "g", (SET, "c", "9")), ErrorCode.invalid_config),  # the validator
        (resource(BROKER, "", (SET, MIN, "two")), ErrorCode.invalid_config),
        (resource(BROKER, "1", (SET, "log.retention.hours", "abc")), ErrorCode.invalid_config),
        (resource(BROKER, "1", (SET, "b", "1" * 32768)), ErrorCode.invalid_config),
        (resource(BROKER, "99", (SET, "b", "1")), ErrorCode.broker_id_not_registered),
        (resource(GROUP, "", (SET, "c", "1")), ErrorCode.invalid_request),
        (resource(8, "1", (SET, "logger", "INFO")), ErrorCode.invalid_request),
        (resource(3, "t", (SET, "b", "1")), ErrorCode.unsupported_version),
        # with the ELR there is one min.insync.replicas for all brokers
        (resource(BROKER, "1", (SET, "min.insync.replicas", "1")), ErrorCode.invalid_config),
        (resource(BROKER, "", (DELETE, "min.insync.replicas", None)), ErrorCode.invalid_config),
    ],
)
def test_refusals_leave_the_other_resources_alone(wanted: new.AlterConfigsResource, code: ErrorCode):
    machine = machine_with_topics()
    before = len(machine.log)
    good = resource(TOPIC, "u", (SET, "retention.ms", "5"))
    assert change(machine, wanted, good) == [code, ErrorCode.none]
    assert machine.log[before:] == [
        ConfigRecord(resource_type=2, resource_name="u", name="retention.ms", value="5")
    ]


def test_a_resource_named_twice():
    machine = machine_with_topics()
    twice = resource(TOPIC, "t", (SET, "retention.ms", "5"))
    assert change(machine, twice, twice) == [ErrorCode.invalid_request] * 2
    assert configs(machine, TOPIC, "t") == {}


def test_validation_only():
    machine = machine_with_topics()
    assert change(machine, resource(TOPIC, "t", (SET, "retention.ms", "5")), validate_only=True) == [0]
    assert configs(machine, TOPIC, "t") == {}


def test_controllers_are_nodes_too():
    machine = machine_with_topics()
    machine.replay(RegisterControllerRecord(controller_id=101))
    assert change(machine, resource(BROKER, "101", (SET, "b", "1"))) == [ErrorCode.none]


def test_unchanged_values_are_written_again_for_brokers_only():
    machine = machine_with_topics()
    for _ in range(2):
        before = len(machine.log)
        change(machine, resource(TOPIC, "t", (SET, "retention.ms", "5")))
        change(machine, resource(BROKER, "1", (SET, "b", "1")))
    assert [record.name for record in machine.log[before:]] == ["b"]


# KIP-966
def test_another_min_insync_replicas_clears_the_elr():
    machine = machine_with_topics()
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    machine.replay(PartitionChangeRecord(topic_id=topic_id, partition_id=0, eligible_leader_replicas=[2]))
    change(machine, resource(TOPIC, "t", (SET, "min.insync.replicas", "2")))
    assert machine.log[-1] == ClearElrRecord(topic_name="t")
    assert machine.partition("t").elr == ()
    change(machine, resource(BROKER, "", (SET, "min.insync.replicas", "2")))
    assert machine.log[-1] == ClearElrRecord(topic_name="")


@pytest.mark.parametrize(
    ("changes", "kept_with_isr_of"),
    [
        ([(TOPIC, "t", (SET, MIN, "1"))], {0}),
        ([(TOPIC, "t", (SET, MIN, "2"))], {0, 1}),
        ([(TOPIC, "t", (SET, MIN, "9"))], {0, 1, 2}),  # as many as there are replicas
        ([(BROKER, "", (SET, MIN, "1"))], {0, 1, 2}),  # the topic has a value of its own
        ([(TOPIC, "t", (DELETE, MIN, None))], {0, 1}),
        ([(TOPIC, "t", (DELETE, MIN, None)), (BROKER, "", (SET, MIN, "1"))], {0}),
        ([(BROKER, "", (SET, MIN, "1")), (TOPIC, "t", (DELETE, MIN, None))], {0}),
    ],
)
def test_another_min_insync_replicas_leaves_the_elr_where_nothing_can_be_committed(changes, kept_with_isr_of):
    """Without the eligible leaders, too, only an unclean election could follow."""
    machine = Machine(brokers=[1, 2, 3])
    machine.replay(ConfigRecord(resource_type=BROKER, resource_name="", name=MIN, value="2"))
    machine.create("t", *[[1, 2, 3]] * 3)
    machine.replay(ConfigRecord(resource_type=TOPIC, resource_name="t", name=MIN, value="3"))
    topic_id = machine.state.image.topics_by_name["t"].topic_id
    for count in range(3):
        machine.replay(
            PartitionChangeRecord(
                topic_id=topic_id,
                partition_id=count,
                isr=[1, 2][:count],
                eligible_leader_replicas=[3],
                last_known_elr=[1],
            )
        )
    change(machine, *(resource(*each) for each in changes))
    found = {index: machine.partition("t", index) for index in range(3)}
    assert {index: (each.elr, each.last_known_elr) for index, each in found.items()} == {
        index: ((3,), (1,)) if index in kept_with_isr_of else ((), ()) for index in range(3)
    }


def replace(machine: Machine, kind: int, name: str, **values: str | None) -> int:
    wanted = old.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[old.AlterableConfig(name=key.replace("_", "."), value=text) for key, text in values.items()],
    )
    response = machine.do(alter(machine.state, old.AlterConfigsRequest(resources=[wanted])))
    return response.responses[0].error_code


def test_what_the_controller_itself_goes_by_has_to_make_sense():
    """A broker has validated what it forwards; a controller may also receive requests directly."""
    machine = machine_with_topics()
    assert replace(machine, BROKER, "", min_insync_replicas="two") == ErrorCode.invalid_config
    assert replace(machine, BROKER, "", min_insync_replicas="2", b="anything") == ErrorCode.none
    assert configs(machine, BROKER, "") == {MIN: "2", "b": "anything"}


def test_what_others_have_written_in_spite_of_it_is_passed_over():
    """Kafka's controller stores any value; decisions use the default instead of an invalid one, as brokers do."""
    machine = machine_with_topics()
    topic = machine.state.image.topics_by_name["t"]
    machine.set_config(MIN, "two")
    machine.set_config("log.retention.hours", "abc")
    machine.set_config("unclean.leader.election.enable", "perhaps")
    assert machine.state.min_insync_replicas(topic) == 1
    assert machine.state.topic_setting("t", "retention.ms") == "604800000"
    assert not machine.state.is_unclean_election_enabled(topic)
    assert change(machine, resource(BROKER, "", (SET, "b", "1"))) == [ErrorCode.none]


def test_too_much_at_once():
    machine = machine_with_topics()
    groups = [resource(GROUP, f"g{number}", (SET, "c", "1")) for number in range(10_001)]
    with pytest.raises(PolicyViolation) as refused:
        change(machine, *groups)
    rows = refuse(new.IncrementalAlterConfigsRequest(resources=groups), refused.value).responses
    assert {row.error_code for row in rows} == {ErrorCode.policy_violation}
    with pytest.raises(PolicyViolation):
        replace(machine, GROUP, "g", **{str(number): "1" for number in range(10_001)})
    assert set(change(machine, *groups[1:])) == {ErrorCode.none}


def test_cleared_elrs_do_not_count_as_user_operations():
    """However many: with the configuration, in a transaction if one batch does not hold them."""
    machine = Machine(brokers=[1, 2])
    machine.set_config(MIN, "2")
    for name, count in {"t": 9_999, "u": 1}.items():
        machine.create(name, *[[1, 2]] * count)
    for topic in machine.state.image.topics_by_name.values():
        for index in topic.partitions:
            change_record = PartitionChangeRecord(
                topic_id=topic.topic_id, partition_id=index, isr=[1], eligible_leader_replicas=[2]
            )
            machine.replay(change_record)
    u = machine.state.image.topics_by_name["u"]
    machine.replay(PartitionChangeRecord(topic_id=u.topic_id, partition_id=0, isr=[]))  # keeps its ELR
    request = new.IncrementalAlterConfigsRequest(resources=[resource(BROKER, "", (SET, MIN, "1"))])
    assert incremental_alter(machine.state, request).is_atomic  # 10,000 records

    request.resources.append(resource(TOPIC, "t", (SET, "flush.ms", "1")))
    result = incremental_alter(machine.state, request)
    begin, *records, end = result.records
    assert (type(begin), type(end)) == (BeginTransactionRecord, EndTransactionRecord)
    assert (len(records), result.is_atomic) == (10_001, False)
    machine.replay(*records)
    assert not any(each.elr for each in machine.state.image.topics_by_name["t"].partitions.values())
    assert machine.partition("u").elr == (2,)


# KIP-133
def test_alter_configs_replaces_everything():
    machine = machine_with_topics()
    machine.set_config("retention.ms", "1", topic="t")
    machine.set_config("flush.ms", "1", topic="t")
    assert replace(machine, TOPIC, "t", retention_ms="1", segment_bytes="1048576") == ErrorCode.none
    assert configs(machine, TOPIC, "t") == {"retention.ms": "1", "segment.bytes": "1048576"}
    assert replace(machine, TOPIC, "t", retention_ms=None) == ErrorCode.invalid_request
    assert replace(machine, TOPIC, "unknown") == ErrorCode.unknown_topic_or_partition
    assert replace(machine, TOPIC, "t") == ErrorCode.none
    assert configs(machine, TOPIC, "t") == {}
