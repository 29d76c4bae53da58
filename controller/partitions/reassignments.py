"""AlterPartitionReassignments and ListPartitionReassignments: replicas move to other brokers (KIP-455, KIP-860).

    [1, 2] --wanted: [3, 2]--> replicas [3, 2, 1], adding [3], removing [1]
           --3 is in sync (AlterPartition)--> replicas [3, 2]; if 1 led, another one is elected
           --or cancelled--> replicas [2, 1]: the added ones are removed

A reassignment begins with one record and completes with another. `partition_change.maybe_complete_reassignment`
decides at every change of the partition whether it completes; one that only reorders replicas completes at once. One
that replaces another starts from the replicas at that time, the added ones included.
Differs from Kafka: a partition that is named twice in one request is changed twice, one change after the
other; the target [1, 2, 3] while 3 is added and 2 removed keeps all three (Kafka still removes 2); a
cancellation is refused as unclean only if ISR and ELR are left empty, and where it is allowed, the new
leader has to recover as after any unclean election (Kafka trusts the first replica, active or not).
Replication throttles are configurations of brokers and topics; they are not used here.
Source: ReplicationControlManager, PartitionReassignmentReplicas and PartitionReassignmentRevert of Kafka 4.3.1.
"""

from collections.abc import Generator, Iterable, Sequence
from uuid import UUID

from ottla.controller.partitions import assignments
from ottla.controller.partitions.draft import Draft
from ottla.controller.partitions.leader_election import Election
from ottla.controller.partitions.partition_change import directory_of
from ottla.controller.result import Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, by_steps, in_steps
from ottla.metadata.image import PartitionImage, TopicImage
from ottla.protocol.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.protocol.steps import NAMES_OF_STEP


@in_steps
def alter_partition_reassignments(
    state: ClusterState, request: AlterPartitionReassignmentsRequest
) -> Steps[AlterPartitionReassignmentsResponse]:
    """Begin, replace or (with replicas None) cancel reassignments. Raises PolicyViolation if there are too many."""
    if not request.topics:
        return Result(response=AlterPartitionReassignmentsResponse())
    draft = Draft(state)
    responses: list[ReassignableTopicResponse] = []
    for is_next_step, topic in by_steps(request.topics):
        if is_next_step:
            yield
        response = ReassignableTopicResponse(name=topic.name)
        responses.append(response)
        for is_later, partition in by_steps(topic.partitions):
            if is_later:
                yield
            response.partitions.append(_row(partition, _alter(draft, topic.name, partition, request)))
    check_record_count(len(draft.records))
    return Result(
        response=AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        ),
        records=draft.records,
    )


def _alter(
    draft: Draft,
    topic_name: str,
    target: ReassignablePartition,
    request: AlterPartitionReassignmentsRequest,
) -> KafkaError | None:
    try:
        topic = draft.state.image.topics_by_name.get(topic_name)
        if topic is None:
            raise UnknownTopicOrPartition(f"Unable to find a topic named {topic_name}.")
        partition = draft.partition(topic, target.partition_index)
        if partition is None:
            raise UnknownTopicOrPartition(f"Unable to find partition {topic_name}:{target.partition_index}.")
        if target.replicas is None:
            _cancel(draft, topic, target.partition_index, partition)
        else:
            _check_target(draft.state, partition, target.replicas, request)
            _reassign(draft, topic, target.partition_index, partition, target.replicas)
    except KafkaError as error:
        return error
    return None


def _check_target(
    state: ClusterState,
    partition: PartitionImage,
    target: Sequence[int],
    request: AlterPartitionReassignmentsRequest,
) -> None:
    assignments.check_manual(state, target, replication_factor=None)
    if request.allow_replication_factor_change:
        return
    # During a reassignment the replication factor is that of its target.
    count = len({*partition.replicas, *partition.adding_replicas} - {*partition.removing_replicas})
    if count != len(target):
        raise InvalidReplicationFactor(f"The replication factor is changed from {count} to {len(target)}")


def _reassign(
    draft: Draft, topic: TopicImage, index: int, partition: PartitionImage, target: Sequence[int]
) -> None:
    """Begin a reassignment: the target replicas first, in their order; the ones to remove stay behind them until it
    completes.
    """
    adding = sorted(set(target) - set(partition.replicas))
    removing = sorted(set(partition.replicas) - set(target))
    wanted = _placed(draft.state, partition, (*target, *removing))
    wanted = wanted._replace(adding_replicas=tuple(adding), removing_replicas=tuple(removing))
    draft.change(topic, index, wanted, election=Election.ONLINE)


def _cancel(draft: Draft, topic: TopicImage, index: int, partition: PartitionImage) -> None:
    """Cancel a reassignment: all added replicas are removed, also those of a reassignment that it has replaced."""
    if not is_reassigning(partition):
        raise NoReassignmentInProgress()
    replicas = _remaining(partition.replicas, partition)
    isr = _remaining(partition.isr, partition)
    if not isr and not _remaining(partition.elr, partition):
        if not replicas:
            raise InvalidReplicaAssignment(
                "Invalid replica assignment: addingReplicas contains all replicas."
            )
        if not draft.state.is_unclean_election_enabled(topic):
            raise InvalidReplicaAssignment(
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an "
                "unclean leader election."
            )
        # With the ELR the ISR becomes empty: the election takes an active replica, and is recorded as unclean.
        isr = () if draft.state.is_elr_enabled else (replicas[0],)
    wanted = _placed(draft.state, partition, replicas)
    draft.change(topic, index, wanted._replace(isr=isr, adding_replicas=(), removing_replicas=()))


def _remaining(members: Iterable[int], partition: PartitionImage) -> tuple[int, ...]:
    return tuple(replica for replica in members if replica not in partition.adding_replicas)


def _placed(state: ClusterState, partition: PartitionImage, replicas: tuple[int, ...]) -> PartitionImage:
    """The partition with these replicas: known ones stay in their directories, new ones get the default one."""

    def directory(replica: int) -> UUID:
        is_known = replica in partition.replicas
        return directory_of(partition, replica) if is_known else state.default_directory(replica)

    return partition._replace(replicas=replicas, directories=tuple(directory(each) for each in replicas))


def is_reassigning(partition: PartitionImage) -> bool:
    """Whether a reassignment is in progress."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def _row(target: ReassignablePartition, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=target.partition_index,
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
    )


@in_steps
def list_partition_reassignments(
    state: ClusterState, request: ListPartitionReassignmentsRequest
) -> Steps[ListPartitionReassignmentsResponse]:
    """The reassignments in progress: of all partitions (topics None), or of the named ones."""
    named: Iterable[tuple[TopicImage | None, Iterable[int]]]
    if request.topics is None:
        named = [(topic, list(topic.partitions)) for topic in state.image.topics_by_name.values()]
    else:
        named = (
            (state.image.topics_by_name.get(topic.name), topic.partition_indexes) for topic in request.topics
        )
    ongoing: list[OngoingTopicReassignment] = []
    for is_next_step, (topic, indexes) in by_steps(named):
        if is_next_step:
            yield
        if topic is not None and (rows := (yield from _ongoing(topic, indexes))):
            ongoing.append(OngoingTopicReassignment(name=topic.name, partitions=rows))
    return Result(response=ListPartitionReassignmentsResponse(error_message=None, topics=ongoing))


def _ongoing(
    topic: TopicImage, indexes: Iterable[int]
) -> Generator[None, None, list[OngoingPartitionReassignment]]:
    rows: list[OngoingPartitionReassignment] = []
    for is_next_step, index in by_steps(indexes, size=NAMES_OF_STEP):
        if is_next_step:
            yield
        partition = topic.partitions.get(index)
        if partition is not None and is_reassigning(partition):
            rows.append(
                OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding_replicas),
                    removing_replicas=list(partition.removing_replicas),
                )
            )
    return rows
