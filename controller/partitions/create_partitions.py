"""CreatePartitions: adds partitions to topics (KIP-195).

Source: ReplicationControlManager.createPartitions of Kafka 4.3.1.
"""

from collections.abc import Iterable, Iterator

from ottla.controller.partitions import assignments
from ottla.controller.result import Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, by_steps, in_steps
from ottla.metadata.image import TopicImage
from ottla.metadata.records import MetadataRecord, PartitionRecord
from ottla.protocol.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.steps import NAMES_OF_STEP, counted, listed, repeated
from ottla.protocol.topic_names import REMOTE_LOG_METADATA


@in_steps
def create_partitions(
    state: ClusterState, request: CreatePartitionsRequest
) -> Steps[CreatePartitionsResponse]:
    """Grow each topic to the requested count, or leave it as it is. Raises PolicyViolation for too many partitions."""
    parts = state.new_parts()
    times = yield from counted((topic.name for topic in request.topics), parts=parts)
    parts.append(times)
    yield from _check_size(state, (topic for topic in request.topics if times[topic.name] == 1))
    records: list[MetadataRecord] = []
    results = yield from listed(
        _result(name, InvalidRequest("Duplicate topic name.")) for name in (yield from repeated(times))
    )
    for is_next_step, topic in by_steps(request.topics):
        if is_next_step:
            yield
        if times[topic.name] > 1:
            continue
        try:
            records += _add_partitions(state, topic)
        except KafkaError as error:
            results.append(_result(topic.name, error))
        else:
            results.append(_result(topic.name, None))
    return Result(
        response=CreatePartitionsResponse(results=results), records=() if request.validate_only else records
    )


def _check_size(state: ClusterState, topics: Iterable[CreatePartitionsTopic]) -> Iterator[None]:
    """Check the number of new partitions before any is placed: a small request can name any number."""
    total = 0
    for is_next_step, topic in by_steps(topics, size=NAMES_OF_STEP):
        if is_next_step:
            yield
        if (known := state.image.topics_by_name.get(topic.name)) is not None:
            total += max(topic.count - len(known.partitions), 0)
    check_record_count(total)


def _add_partitions(state: ClusterState, wanted: CreatePartitionsTopic) -> list[PartitionRecord]:
    topic = state.image.topics_by_name.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartition("This server does not host this topic-partition.")
    count = len(topic.partitions)
    if wanted.count == count:
        raise InvalidPartitions(f"Topic already has {count} partition(s).")
    if wanted.count < count:
        raise InvalidPartitions(
            f"The topic {wanted.name} currently has {count} partition(s); {wanted.count} would not be an increase."
        )
    if wanted.name == REMOTE_LOG_METADATA:
        raise InvalidPartitions(
            f"{wanted.name} keeps its {count} partition(s): with others, the metadata of tiered partitions would "
            "not be found."
        )
    additional = wanted.count - count
    if wanted.assignments is not None:
        return _manual(state, topic, wanted.assignments, additional=additional)
    placed = assignments.place(state, count=additional, replication_factor=len(topic.partitions[0].replicas))
    return assignments.placed_records(state, topic.topic_id, first=count, placed=placed)


def _manual(
    state: ClusterState, topic: TopicImage, wanted: list[CreatePartitionsAssignment], *, additional: int
) -> list[PartitionRecord]:
    if len(wanted) != additional:
        raise InvalidReplicaAssignment(
            f"Attempted to add {additional} additional partition(s), but only {len(wanted)} assignment(s) were "
            "specified."
        )
    records = []
    for index, assignment in enumerate(wanted, start=len(topic.partitions)):
        replicas = assignment.broker_ids
        assignments.check_manual(state, replicas, replication_factor=len(topic.partitions[0].replicas))
        records.append(assignments.manual_record(state, topic.topic_id, index, replicas))
    return records


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(
        name=name,
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
    )
