"""CreateTopics and DeleteTopics: each topic of a request succeeds or fails alone.

Source: ControllerApis.createTopics/deleteTopics and ReplicationControlManager of Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from ottla.controller import configs
from ottla.controller.effective_configs import resolve_all
from ottla.controller.partitions import assignments
from ottla.controller.result import MAX_RECORDS_PER_USER_OPERATION, Result, check_record_count
from ottla.controller.state import ClusterState, unify_collision_chars
from ottla.controller.steps import Steps, by_steps, in_steps
from ottla.metadata.records import MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from ottla.protocol import kafka_uuid
from ottla.protocol.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.steps import NAMES_OF_STEP, counted, listed, repeated
from ottla.protocol.topic_names import check_topic_name
from ottla.protocol.types import ZERO_UUID

METADATA_TOPIC = "__cluster_metadata"


@in_steps
def create_topics(state: ClusterState, request: CreateTopicsRequest) -> Steps[CreateTopicsResponse]:
    """Create the topics that are valid. Raises PolicyViolation for a request that is too large."""
    yield from _check_size(state, request.topics)
    parts = state.new_parts()
    times = yield from counted((topic.name for topic in request.topics), parts=parts)
    parts.append(times)
    records: list[MetadataRecord] = []
    results: list[CreatableTopicResult] = []
    rows = _ConfigRows(state)
    for is_next_step, topic in by_steps(request.topics):
        if is_next_step:
            yield
        if times[topic.name] > 1:
            continue
        try:
            _check_name(state, topic.name)
            topic_records = _create(state, topic)
        except KafkaError as error:
            results.append(_failed(topic.name, error))
            continue
        records += topic_records
        results.append(_created(topic, topic_records, rows))
    results += yield from listed(
        _failed(name, InvalidRequest("Duplicate topic name.")) for name in (yield from repeated(times))
    )
    check_record_count(len(records))
    return Result(
        response=CreateTopicsResponse(topics=results), records=() if request.validate_only else records
    )


def _check_size(state: ClusterState, topics: Iterable[CreatableTopic]) -> Iterator[None]:
    total = 0
    for is_next_step, topic in by_steps(topics, size=NAMES_OF_STEP):
        if is_next_step:
            yield
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == -1:
            total += state.settings.num_partitions
        else:
            total += max(topic.num_partitions, 0)
        if total > MAX_RECORDS_PER_USER_OPERATION:
            raise PolicyViolation("Excessively large number of partitions per request.")


def _check_name(state: ClusterState, name: str) -> None:
    if name == METADATA_TOPIC:
        raise InvalidRequest(f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if name in state.image.topics_by_name:
        raise TopicAlreadyExists(f"Topic '{name}' already exists.")
    check_topic_name(name)
    if ("." in name or "_" in name) and (
        alike := state.topics_with_collision_chars.get(unify_collision_chars(name))
    ):
        raise InvalidTopic(f"Topic '{name}' collides with existing topic: {min(alike)}")


def _create(state: ClusterState, topic: CreatableTopic) -> list[MetadataRecord]:
    """Make the records of a new topic: the topic, its configurations, its partitions."""
    overrides = configs.check_creation(state, topic.name, {each.name: each.value for each in topic.configs})
    topic_id = _new_id(state)
    partitions = _manual(state, topic, topic_id) if topic.assignments else _placed(state, topic, topic_id)
    return [
        TopicRecord(name=topic.name, topic_id=topic_id),
        *configs.creation_records(state, topic.name, overrides),
        *partitions,
    ]


def _manual(state: ClusterState, topic: CreatableTopic, topic_id: UUID) -> list[PartitionRecord]:
    if topic.replication_factor != -1:
        raise InvalidRequest(
            "A manual partition assignment was specified, but replication factor was not set to -1."
        )
    if topic.num_partitions != -1:
        raise InvalidRequest(
            "A manual partition assignment was specified, but numPartitions was not set to -1."
        )
    by_index: dict[int, PartitionRecord] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        index, replicas = assignment.partition_index, assignment.broker_ids
        if index in by_index:
            raise InvalidReplicaAssignment(
                f"Found multiple manual partition assignments for partition {index}"
            )
        assignments.check_manual(state, replicas, replication_factor=replication_factor)
        replication_factor = len(replicas)
        by_index[index] = assignments.manual_record(state, topic_id, index, replicas)
    if sorted(by_index) != list(range(len(by_index))):
        raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
    return [by_index[index] for index in range(len(by_index))]


def _placed(state: ClusterState, topic: CreatableTopic, topic_id: UUID) -> list[PartitionRecord]:
    count, factor = topic.num_partitions, topic.replication_factor
    if factor < -1 or factor == 0:
        raise InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if count < -1 or count == 0:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
    if count == -1:
        count = state.settings.num_partitions
    if factor == -1:
        factor = state.settings.default_replication_factor
    try:
        placed = assignments.place(state, count=count, replication_factor=factor)
    except InvalidReplicationFactor as error:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {factor} time(s): {error}"
        ) from None
    return assignments.placed_records(state, topic_id, first=0, placed=placed)


def _new_id(state: ClusterState) -> UUID:
    """A random id that is not in use and not reserved, and that tools do not take for an option (no leading '-')."""
    while True:
        topic_id = UUID(int=state.random.getrandbits(128), version=4)
        if topic_id not in state.image.topics_by_id and not kafka_uuid.to_text(topic_id).startswith("-"):
            return topic_id


class _ConfigRows:
    """Effective configurations of new topics, as rows of the response; cached for topics without overrides."""

    def __init__(self, state: ClusterState) -> None:
        self._inherited = state.topic_defaults
        self._defaults: list[CreatableTopicConfigs] | None = None

    def of(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        if not overrides and self._defaults is not None:
            return [*self._defaults]
        rows = [
            CreatableTopicConfigs(name=name, value=value, config_source=source)
            for name, (value, source) in resolve_all(overrides, self._inherited).items()
        ]
        if not overrides:
            self._defaults = rows
        return [*rows]


def _created(topic: CreatableTopic, records: list[MetadataRecord], rows: _ConfigRows) -> CreatableTopicResult:
    topic_record = records[0]
    assert isinstance(topic_record, TopicRecord), topic_record
    partitions = [record for record in records if isinstance(record, PartitionRecord)]
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_record.topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=rows.of({each.name: each.value or "" for each in topic.configs}),
    )


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


@in_steps
def delete_topics(  # noqa: C901  (a list of contradictions, each in two lines)
    state: ClusterState, request: DeleteTopicsRequest
) -> Steps[DeleteTopicsResponse]:
    """Delete topics by name or by id. Raises TopicDeletionDisabled, PolicyViolation for too many.

    A topic that is named twice, by name, by id or by both, is not deleted.
    """
    if not state.settings.delete_topic_enable:
        raise TopicDeletionDisabled()
    parts = state.new_parts()
    names, ids = (yield from counted(request.topic_names, parts=parts)), Counter[UUID]()
    parts += [names, ids]
    rows: list[DeletableTopicResult] = []
    for is_next_step, topic in by_steps(request.topics):
        if is_next_step:
            yield
        if topic.name is not None and topic.topic_id != ZERO_UUID:
            rows.append(
                _refused(topic.name, topic.topic_id, "You may not specify both topic name and topic id.")
            )
        elif topic.name is not None:
            names[topic.name] += 1
        elif topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] += 1
        else:
            rows.append(_refused(None, ZERO_UUID, "Neither topic name nor id were specified."))
    wanted: dict[UUID, str] = {}
    for is_next_step, (topic_id, times) in by_steps(ids.items()):
        if is_next_step:
            yield
        found = state.image.topics_by_id.get(topic_id)
        if times > 1:
            rows.append(_refused(None, topic_id, "Duplicate topic id."))
        elif found is None:
            rows.append(_row(None, topic_id, UnknownTopicId("This server does not host this topic ID.")))
        else:
            wanted[topic_id] = found.name
    for is_next_step, (name, times) in by_steps(names.items()):
        if is_next_step:
            yield
        found = state.image.topics_by_name.get(name)
        if times > 1:
            rows.append(_refused(name, ZERO_UUID, "Duplicate topic name."))
        elif found is None:
            unknown = UnknownTopicOrPartition("This server does not host this topic-partition.")
            rows.append(_row(name, ZERO_UUID, unknown))
        elif found.topic_id in ids:
            wanted.pop(found.topic_id, None)
            message = "The provided topic name maps to an ID that was already supplied."
            rows.append(_refused(name, found.topic_id, message))
        else:
            wanted[found.topic_id] = name
    check_record_count(len(wanted))
    rows += [_row(name, topic_id, None) for topic_id, name in wanted.items()]
    return Result(
        response=DeleteTopicsResponse(responses=rows),
        records=[RemoveTopicRecord(topic_id=topic_id) for topic_id in wanted],
    )


def _refused(name: str | None, topic_id: UUID, message: str) -> DeletableTopicResult:
    return _row(name, topic_id, InvalidRequest(message))


def _row(name: str | None, topic_id: UUID, error: KafkaError | None) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
    )
