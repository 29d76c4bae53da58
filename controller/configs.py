"""IncrementalAlterConfigs and AlterConfigs: configurations of topics, brokers, groups and client metrics.

The changes of one resource are made together or not at all; the configuration that results from them is validated.
The resources of a request are independent of each other. Broker configurations are validated by the broker that
forwards the request. A controller that receives the request directly validates only the broker keys that it uses
itself; Kafka's controller writes any value, and then cannot elect a leader.
Source: ConfigurationControlManager and ControllerConfigurationValidator of Kafka 4.3.1.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, assert_never

from ottla.config.config_def import AlterOperation, ConfigKey, ConfigOperation, merge_operations
from ottla.config.log_config import TOPIC_CONFIGS
from ottla.controller.effective_configs import CONTROLLER_BROKER_KEYS
from ottla.controller.result import MAX_RECORDS_PER_USER_OPERATION, Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import ROWS_OF_STEP, Steps, in_steps
from ottla.metadata.features import CORDONED_DIRECTORIES_4_3_IV0
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.metadata.records import (
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from ottla.protocol.errors import (
    BrokerIdNotRegistered,
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from ottla.protocol.messages import alter_configs, incremental_alter_configs
from ottla.protocol.steps import Step, counted, listed
from ottla.protocol.topic_names import check_topic_name

MIN_INSYNC_REPLICAS = "min.insync.replicas"
CORDONED_LOG_DIRS = "cordoned.log.dirs"
#: Longest text of a value: its length is a 16-bit number in many places.
_MAX_VALUE_LENGTH = 2**15 - 1

#: Key -> its new text, or None where it is removed.
_Changes = dict[str, str | None]

#: There are some hundred keys. All those of a resource are checked in one step.
_MAX_KEYS: Final = 1_000
_KEYS_OF_STEP: Final = 200

_R = TypeVar("_R")
_C = TypeVar("_C")


class _Resource(Protocol[_C]):
    """One resource of a request."""

    resource_type: int
    resource_name: str
    configs: list[_C]


@in_steps
def incremental_alter(
    state: ClusterState, request: incremental_alter_configs.IncrementalAlterConfigsRequest
) -> Steps[incremental_alter_configs.IncrementalAlterConfigsResponse]:
    """Set, delete, append to and subtract from single keys (KIP-339). Raises PolicyViolation for too many records."""

    def changes(
        resource: ConfigResource, configs: Sequence[incremental_alter_configs.AlterableConfig]
    ) -> _Changes:
        operations = [_operation(each) for each in configs]
        if len({each.name for each in operations}) != len(operations):
            raise InvalidRequest("Error due to duplicate config keys")
        if nulls := [
            each.name
            for each in operations
            if each.value is None and each.operation is not AlterOperation.DELETE
        ]:
            raise InvalidRequest(f"Null value not supported for : {','.join(nulls)}")
        current = state.image.config(resource)
        return merge_operations(current, operations, _definitions(state, resource.type))

    parts = state.new_parts()
    records, outcomes = yield from _alter(state, request.resources, changes, parts)
    responses = yield from listed(
        incremental_alter_configs.AlterConfigsResourceResponse(
            resource_type=number, resource_name=name, error_code=code, error_message=message
        )
        for (number, name), (code, message) in outcomes.items()
    )
    response = incremental_alter_configs.IncrementalAlterConfigsResponse(responses=responses)
    return Result(response=response) if request.validate_only else _atomic_result(response, records)


def _operation(config: incremental_alter_configs.AlterableConfig) -> ConfigOperation:
    try:
        operation = AlterOperation(config.config_operation)
    except ValueError:
        raise InvalidRequest(f"Unknown operation {config.config_operation} on key {config.name}.") from None
    return ConfigOperation(config.name, operation, config.value)


@in_steps
def alter(
    state: ClusterState, request: alter_configs.AlterConfigsRequest
) -> Steps[alter_configs.AlterConfigsResponse]:
    """Replace all configurations of each resource: keys that are not named are removed.

    Raises PolicyViolation for too many records.
    """

    def changes(resource: ConfigResource, configs: Sequence[alter_configs.AlterableConfig]) -> _Changes:
        wanted: _Changes = {each.name: each.value for each in configs}
        if nulls := [name for name, value in wanted.items() if value is None]:
            raise InvalidRequest(f"Null value not supported for : {','.join(nulls)}")
        return {**wanted, **{name: None for name in state.image.config(resource) if name not in wanted}}

    parts = state.new_parts()
    records, outcomes = yield from _alter(state, request.resources, changes, parts)
    responses = yield from listed(
        alter_configs.AlterConfigsResourceResponse(
            resource_type=number, resource_name=name, error_code=code, error_message=message
        )
        for (number, name), (code, message) in outcomes.items()
    )
    response = alter_configs.AlterConfigsResponse(responses=responses)
    return Result(response=response) if request.validate_only else _atomic_result(response, records)


_Named = tuple[int, str]
_Outcome = tuple[int, str | None]


def _alter(
    state: ClusterState,
    asked: Sequence[_Resource[_C]],
    changes: Callable[[ConfigResource, Sequence[_C]], _Changes],
    parts: list[Any],
) -> Generator[None, None, tuple[list[MetadataRecord], dict[_Named, _Outcome]]]:
    """Make the records of the resources that can be changed, and the outcome of each resource."""
    times = yield from counted(((each.resource_type, each.resource_name) for each in asked), parts=parts)
    records: list[ConfigRecord] = []
    outcomes: dict[_Named, _Outcome] = {}
    parts += [times, outcomes]
    step = Step(_KEYS_OF_STEP)
    for each in asked:
        named = each.resource_type, each.resource_name
        if step.is_full(_KEYS_OF_STEP // ROWS_OF_STEP + len(each.configs)):
            yield
        check_record_count(len(each.configs))
        try:
            if times[named] > 1:
                raise InvalidRequest("Duplicate resource.")
            if len(each.configs) > _MAX_KEYS:
                raise InvalidRequest(f"{len(each.configs)} configurations of one resource are too many")
            resource = _resource(*named)
            changed = changes(resource, each.configs)
            _check(state, resource, changed)
            _check_exists(state, resource)
        except KafkaError as error:
            outcomes[named] = (error.code, error.message)
        else:
            records += _records(state, resource, changed)
            check_record_count(len(records))
            outcomes[named] = (ErrorCode.none, None)
    return [*records, *_clear_elr(state, records)], outcomes


def _atomic_result(response: _R, records: list[MetadataRecord]) -> Result[_R]:
    """The configurations and the ELRs that they clear, as one atomic change: once min.insync.replicas is smaller,
    records may be committed that only the ISR has.

    The user does not choose the number of ELRs, so it is not limited. If one batch does not hold them, they are a
    metadata transaction, which every metadata.version with ELRs supports.
    """
    if len(records) <= MAX_RECORDS_PER_USER_OPERATION:
        return Result(response=response, records=records)
    begin = BeginTransactionRecord(name="Configurations, and the ELRs that they clear")
    return Result(response=response, records=[begin, *records, EndTransactionRecord()], is_atomic=False)


def _resource(number: int, name: str) -> ConfigResource:
    try:
        resource = ConfigResource(ConfigResourceType(number), name)
    except ValueError:
        resource = ConfigResource(ConfigResourceType.UNKNOWN, name)
    match resource.type:
        case ConfigResourceType.UNKNOWN:
            raise UnsupportedVersion(f"Unknown resource type {number}.")
        case ConfigResourceType.BROKER_LOGGER:
            raise InvalidRequest(
                "Loggers are configurations of a single node: send the request to that node."
            )
        case ConfigResourceType.TOPIC:
            if not name:
                raise InvalidRequest("Default topic resources are not allowed.")
            check_topic_name(name)
        case ConfigResourceType.GROUP if not name:
            raise InvalidRequest("Default group resources are not allowed.")
        case ConfigResourceType.BROKER if name:
            _check_broker_name(name)
    return resource


def _check_broker_name(name: str) -> None:
    if re.fullmatch(r"[+-]?[0-9]{1,20}", name) is None or not -(2**31) <= int(name) < 2**31:
        raise InvalidRequest("Unable to parse broker name as a base 10 number.")
    if int(name) < 0:
        raise InvalidRequest("Invalid negative broker ID.")


def _check_exists(state: ClusterState, resource: ConfigResource) -> None:
    """Topics must exist, and nodes be known as brokers or controllers; groups may be configured before they exist."""
    name = resource.name
    if resource.type is ConfigResourceType.TOPIC and name not in state.image.topics_by_name:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    if resource.type is ConfigResourceType.BROKER and name:
        nodes = (state.image.brokers, state.image.controllers, state.kraft.voter_ids)
        if not any(int(name) in known for known in nodes):
            raise BrokerIdNotRegistered(f"No node with id {int(name)} found.")


def _check(state: ClusterState, resource: ConfigResource, changed: Mapping[str, str | None]) -> None:
    """Validate the configuration that results from the changes. Raises KafkaError."""
    existing = state.image.config(resource)
    after = {name: text for name, text in existing.items() if name not in changed}
    for name, text in changed.items():
        _check_broker_constraints(state, resource, name, text)
        if text is not None:
            if len(text) > _MAX_VALUE_LENGTH:
                raise InvalidConfig(
                    "The configuration value cannot be added because it exceeds the maximum value size of "
                    f"{_MAX_VALUE_LENGTH} bytes."
                )
            after[name] = text
    validators = state.validators
    match resource.type:
        case ConfigResourceType.TOPIC:
            validators.topic(resource.name, after, existing)
        case ConfigResourceType.BROKER:
            _check_broker_keys(state, changed)
        case ConfigResourceType.GROUP:
            validators.group(resource.name, after, existing)
        case ConfigResourceType.CLIENT_METRICS:
            validators.client_metrics(resource.name, after, existing)
        case ConfigResourceType.UNKNOWN | ConfigResourceType.BROKER_LOGGER:
            raise AssertionError(resource)  # refused before: see `_resource`
        case _:
            assert_never(resource.type)


def _check_broker_keys(state: ClusterState, changed: Mapping[str, str | None]) -> None:
    """Validate the broker keys that the controller itself uses: a bad value would fail later decisions.

    Only changed keys are checked: a bad value that another controller has accepted does not block this change.
    Raises InvalidConfig.
    """
    for name in sorted(CONTROLLER_BROKER_KEYS & changed.keys() & state.validators.broker_keys.keys()):
        if (text := changed[name]) is not None:
            state.validators.broker_keys[name].parse(text)


def _check_broker_constraints(
    state: ClusterState, resource: ConfigResource, name: str, text: str | None
) -> None:
    if resource.type is not ConfigResourceType.BROKER:
        return
    if name == MIN_INSYNC_REPLICAS and state.is_elr_enabled:
        # With different values on different brokers it would be undefined which replicas are eligible.
        if resource.name:
            raise InvalidConfig(f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled.")
        if text is None:
            raise InvalidConfig(
                f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled."
            )
    if name == CORDONED_LOG_DIRS and state.metadata_version < CORDONED_DIRECTORIES_4_3_IV0:
        raise InvalidConfig(
            f"The {CORDONED_LOG_DIRS} configuration value cannot be set because it requires metadata.version >= "
            "4.3-IV0"
        )


def _definitions(state: ClusterState, type_: ConfigResourceType) -> Mapping[str, ConfigKey]:
    match type_:
        case ConfigResourceType.TOPIC:
            return TOPIC_CONFIGS
        case ConfigResourceType.BROKER:
            return state.validators.broker_keys
        case ConfigResourceType.GROUP:
            return state.validators.group_keys
        case ConfigResourceType.CLIENT_METRICS:
            return state.validators.client_metrics_keys
        case ConfigResourceType.UNKNOWN | ConfigResourceType.BROKER_LOGGER:
            raise AssertionError(type_)  # refused before: see `_resource`
        case _:
            assert_never(type_)


def _records(
    state: ClusterState, resource: ConfigResource, changed: Mapping[str, str | None]
) -> list[ConfigRecord]:
    """A broker's unchanged values are written again: that makes it reload its key stores (KAFKA-14136)."""
    existing = state.image.config(resource)
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=text)
        for name, text in changed.items()
        if resource.type is ConfigResourceType.BROKER or existing.get(name) != text
    ]


def _clear_elr(state: ClusterState, records: Iterable[ConfigRecord]) -> list[MetadataRecord]:
    """The ELR depends on min.insync.replicas: a change of the configuration clears it (KIP-966).

    But not where the ISR is smaller than the new value, too: nothing can be committed there, so the eligible replicas
    still have all that was committed. (Kafka clears the ELR there as well; if the ISR is empty, or its last member
    has lost unflushed pages, only an unclean election is left for such a partition.)
    """
    if not state.is_elr_enabled:
        return []
    #: Topic name ("" for the cluster) -> the new value; None: the cluster's value applies.
    written = {
        record.resource_name if record.resource_type == ConfigResourceType.TOPIC else "": record.value
        for record in records
        if record.name == MIN_INSYNC_REPLICAS
    }
    return [cleared for name in written for cleared in _elr_clearing_records(state, name, written)]


def _elr_clearing_records(
    state: ClusterState, topic_name: str, written: Mapping[str, str | None]
) -> list[MetadataRecord]:
    """The records that clear ELRs: of one topic, or of all if `topic_name` is "". Partitions whose ISR is below the
    new min.insync.replicas keep theirs.
    """
    image = state.image
    if topic_name:
        topics = [topic] if (topic := image.topics_by_name.get(topic_name)) is not None else []
    else:
        topics = list(image.topics_by_id.values())
    default = written.get("") or state.topic_setting("", MIN_INSYNC_REPLICAS)
    cleared: list[MetadataRecord] = []
    clears_all = True
    for topic in topics:
        own = written.get(topic.name, image.topic_config(topic.name).get(MIN_INSYNC_REPLICAS))
        least = state.min_insync_replicas(topic, configured=own or default)
        for index, partition in topic.partitions.items():
            if not partition.elr and not partition.last_known_elr:
                continue
            if len(partition.isr) < least:
                clears_all = False
                continue
            cleared.append(
                PartitionChangeRecord(
                    partition_id=index,
                    topic_id=topic.topic_id,
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
            )
    return [ClearElrRecord(topic_name=topic_name)] if clears_all else cleared


def check_creation(state: ClusterState, name: str, wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The configurations of a topic that is about to be created. Raises KafkaError if they are invalid."""
    if nulls := [key for key, text in wanted.items() if text is None]:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    overrides = {key: text for key, text in wanted.items() if text is not None}
    if overrides:
        _check(state, ConfigResource(ConfigResourceType.TOPIC, name), overrides)
    return overrides


def creation_records(state: ClusterState, name: str, overrides: Mapping[str, str]) -> list[MetadataRecord]:
    """The records of a new topic's configurations."""
    records = _records(state, ConfigResource(ConfigResourceType.TOPIC, name), overrides)
    return [*records, *_clear_elr(state, records)]


def elr_safety_records(state: ClusterState) -> list[MetadataRecord]:
    """The records that must precede the ELR: min.insync.replicas of the cluster, and none of single brokers."""
    broker = ConfigResourceType.BROKER
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=broker, resource_name=resource.name, name=MIN_INSYNC_REPLICAS, value=None)
        for resource, configs in state.image.configs.items()
        if resource.type is broker and resource.name and MIN_INSYNC_REPLICAS in configs
    ]
    if MIN_INSYNC_REPLICAS not in state.image.config(ConfigResource(broker, "")):
        value = state.settings.static_configs.get(MIN_INSYNC_REPLICAS, "1")
        records.append(
            ConfigRecord(resource_type=broker, resource_name="", name=MIN_INSYNC_REPLICAS, value=value)
        )
    return records
