"""ElectLeaders: preferred and unclean elections, as a user requests them (KIP-183, KIP-460), and periodically.

    PREFERRED   the first replica of the assignment becomes leader if it may lead, and, where the topic prefers local
                data (draft KIP-1303), has as much of it as the others; else another one may (`leader_election.py`)
    UNCLEAN     only partitions without a leader: a clean election if one is possible, else an unclean one; where no
                replica could lead even so, one whose broker has not registered its log directory leads with an empty
                log

A request without a list of partitions is for all of them; its response omits those that need no election. An
UNCLEAN one leaves those whose last complete replica is in a log directory that its broker has not registered:
the records are back with the directory, and who asks for all partitions may not think of these. They are given
up only where a request names them.
Versions: v0 is PREFERRED only, v1 adds the election type and the error of the whole request.

The active controller holds elections without a request, too:

    every leader.imbalance.check.interval.seconds, with auto.leader.rebalance.enable:
        preferred replicas that can lead become leaders; in a topic that prefers local data (draft KIP-1303) only those
        that have enough of it, and a leader that lacks it is replaced by a replica that has it
    every unclean.leader.election.interval.ms:
        partitions without a leader get one, where unclean.leader.election.enable is true: the broker that could be
        elected cleanly may never return, and no other event would start an election

Both stop after `MAX_ELECTIONS` elections and are called again, so that requests are served in between.
leader.imbalance.per.broker.percentage is not used: Kafka 4.3.1's KRaft controller has no such threshold either.

Source: ReplicationControlManager.electLeaders, maybeBalancePartitionLeaders and maybeElectUncleanLeaders of
Kafka 4.3.1.
"""

from collections.abc import Generator, Iterable
from contextlib import suppress
from enum import IntEnum

from ottla.controller.partitions.draft import AlikeChanges, Draft
from ottla.controller.partitions.leader_election import Election
from ottla.controller.partitions.partition_change import directory_of, preferred_leader
from ottla.controller.result import Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import ROWS_OF_STEP, Steps, in_steps, scanned
from ottla.metadata.image import DIRECTORY_UNASSIGNED, PartitionImage, TopicImage
from ottla.protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

#: Periodic elections of one call; QuorumController's MAX_ELECTIONS_PER_IMBALANCE.
MAX_ELECTIONS = 1_000


class ElectionType(IntEnum):
    """The requested kind of election; the numbers are the protocol's."""

    PREFERRED = 0
    UNCLEAN = 1


@in_steps
def elect_leaders(state: ClusterState, request: ElectLeadersRequest) -> Steps[ElectLeadersResponse]:
    """Hold the elections. Raises InvalidRequest for an unknown type, PolicyViolation if there are too many."""
    if request.topic_partitions is not None and not request.topic_partitions:
        return Result(response=ElectLeadersResponse())
    try:
        election = ElectionType(request.election_type)
    except ValueError:
        raise InvalidRequest(f"Unknown election type {request.election_type}") from None
    draft = Draft(state)
    if request.topic_partitions is None:
        everything = ((name, list(topic.partitions)) for name, topic in state.image.topics_by_name.items())
        results = yield from _results(draft, everything, election, are_named=False)
    else:
        named = ((topic.topic, topic.partitions) for topic in request.topic_partitions)
        results = yield from _results(draft, named, election, are_named=True)
    check_record_count(len(draft.records))
    return Result(
        response=ElectLeadersResponse(replica_election_results=results),
        records=draft.records,
        is_atomic=False,
    )


def _results(
    draft: Draft,
    wanted: Iterable[tuple[str, Iterable[int]]],
    election: ElectionType,
    *,
    are_named: bool,
) -> Generator[None, None, list[ReplicaElectionResult]]:
    changes = election_changes(draft, election)
    results: list[ReplicaElectionResult] = []
    left = ROWS_OF_STEP
    for topic, indexes in wanted:
        rows: list[PartitionResult] = []
        results.append(ReplicaElectionResult(topic=topic, partition_result=rows))
        left -= 1
        for index in indexes:
            if left <= 0:
                left = ROWS_OF_STEP
                yield
            left -= 1
            try:
                elect_leader(changes, topic, index, election, is_named=are_named)
            except ElectionNotNeeded as error:
                if are_named:
                    rows.append(_row(index, error))
            except KafkaError as error:
                rows.append(_row(index, error))
            else:
                rows.append(_row(index, None))
        if left <= 0:
            left = ROWS_OF_STEP
            yield
    return results


def election_changes(draft: Draft, election: ElectionType) -> AlikeChanges:
    """The changes that elections of this type make to partitions, for `elect_leader`."""
    is_preferred = election is ElectionType.PREFERRED
    return AlikeChanges(draft, election=Election.PREFERRED if is_preferred else Election.UNCLEAN)


def elect_leader(
    changes: AlikeChanges, topic_name: str, index: int, election: ElectionType, *, is_named: bool = True
) -> None:
    """Elect one partition's leader; `changes` are those of `election_changes`.

    `is_named`: the request names the partition.

    Raises UnknownTopicOrPartition, ElectionNotNeeded if it has its preferred leader (PREFERRED) or any leader
    (UNCLEAN), and PreferredLeaderNotAvailable or EligibleLeadersNotAvailable if the election changes nothing.
    """
    draft = changes.draft
    topic = draft.state.image.topics_by_name.get(topic_name)
    if topic is None:
        raise UnknownTopicOrPartition(f"No such topic as {topic_name}")
    partition = draft.partition(topic, index)
    if partition is None:
        raise UnknownTopicOrPartition(f"No such partition as {topic_name}-{index}")
    if election is ElectionType.PREFERRED:
        if has_preferred_leader(draft, topic, partition):
            raise ElectionNotNeeded("Leader election not needed for topic partition.")
        if changes.change(topic, index, partition) is None:
            raise PreferredLeaderNotAvailable("The preferred leader was not available.")
    else:
        if partition.leader is not None:
            raise ElectionNotNeeded("Leader election not needed for topic partition.")
        if not is_named and (replica := _complete_replica_away(draft, partition)) is not None:
            raise EligibleLeadersNotAvailable(
                f"The log directory of replica {replica}, the last one that had all records, is not among those of its "
                "broker: they are back with the directory, and only an election that names the partition gives them up."
            )
        if changes.change(topic, index, partition) is None and not (
            is_named and _elect_without_directory(draft, topic, index, partition)
        ):
            raise EligibleLeadersNotAvailable("Eligible topic partition leaders are not available.")


def _complete_replica_away(draft: Draft, partition: PartitionImage) -> int | None:
    """The last replica that had all records, if its broker is active and has not registered its log directory;
    None where a clean election is possible. A member of the ELR is in a directory that has failed: it may be
    gone with the disk.

    Without KIP-966 a directory that has failed counts as away, too: the last member of the ISR stays in it either way.
    """
    if any(draft.is_acceptable_leader(partition, each) for each in partition.isr or partition.elr):
        return None
    for replica in partition.last_known_elr or partition.isr:
        if (
            replica in partition.replicas
            and replica not in partition.elr
            and _is_away(draft, partition, replica)
        ):
            return replica
    return None


def _is_away(draft: Draft, partition: PartitionImage, replica: int) -> bool:
    broker = draft.broker(replica)
    return (
        broker is not None
        and broker.is_active
        and not draft.is_online(broker, directory_of(partition, replica))
    )


def _elect_without_directory(draft: Draft, topic: TopicImage, index: int, partition: PartitionImage) -> bool:
    """Elect a replica whose log directory its broker has not registered; returns whether there is one.

    That a user requests the election is the decision to give up the records there. The replica's directory is
    unassigned then, so that its broker creates an empty log, or uses the one that it has. A member of the ELR
    is in a directory that has failed since it was registered: its broker cannot create another log before it is
    restarted.
    """
    for replica in (*partition.last_known_elr, *partition.replicas):
        if (
            replica not in partition.replicas
            or replica in partition.elr
            or not _is_away(draft, partition, replica)
        ):
            continue
        directories = tuple(
            DIRECTORY_UNASSIGNED if each == replica else known
            for each, known in zip(partition.replicas, partition.directories, strict=True)
        )
        wanted = partition._replace(
            directories=directories, isr=()
        )  # without KIP-966 it may be the last member
        return draft.change(topic, index, wanted, election=Election.UNCLEAN) is not None
    return False


def has_preferred_leader(draft: Draft, topic: TopicImage, partition: PartitionImage) -> bool:
    """Whether the partition's leader is the one that a PREFERRED election would elect (`preferred_leader`)."""
    if not partition.local_logs:
        return partition.leader == partition.replicas[0]
    return partition.leader == preferred_leader(partition, draft.rules_of(topic, Election.PREFERRED))


def _row(index: int, error: KafkaError | None) -> PartitionResult:
    return PartitionResult(
        partition_id=index,
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
    )


@in_steps
def balance_leaders(state: ClusterState, now_ms: int) -> Steps[bool]:
    """Elect preferred leaders where another one leads. True: there may be more, call again at once."""
    draft = Draft(state)
    changes = election_changes(draft, ElectionType.PREFERRED)
    for is_next_step, some in scanned(state.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if len(draft.records) >= MAX_ELECTIONS:
                return _elected(draft)
            if not has_preferred_leader(draft, topic, partition):
                changes.change(topic, index, partition)
    return _elected(draft)


@in_steps
def elect_unclean(state: ClusterState, now_ms: int) -> Steps[bool]:
    """Elect leaders for partitions without one, uncleanly where that is enabled. True: call again at once."""
    draft = Draft(state)
    changes = election_changes(draft, ElectionType.UNCLEAN)
    for is_next_step, some in scanned(state.partitions()):
        if is_next_step:
            yield
        for topic, index, partition in some:
            if len(draft.records) >= MAX_ELECTIONS:
                return _elected(draft)
            if partition.leader is None and state.is_unclean_election_enabled(topic):
                with suppress(EligibleLeadersNotAvailable):
                    elect_leader(changes, topic.name, index, ElectionType.UNCLEAN)
    return _elected(draft)


def _elected(draft: Draft) -> Result[bool]:
    return Result(response=len(draft.records) >= MAX_ELECTIONS, records=draft.records, is_atomic=False)
