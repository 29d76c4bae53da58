"""What a partition becomes when something about it has to change: the record that says so.

    partition, what is wanted of it
        --> a reassignment that can be completed, is      (KIP-455)
        --> ELR: who is as good as in sync                (KIP-966)
        --> election                                      (`election.py`)
        --> ISR, ELR, leader that hold --> record of what differs

Source: PartitionChangeBuilder and PartitionReassignmentReplicas of Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from controller.election import Elected, Election, elect
from protocol.metadata.image import (
    DIRECTORY_MIGRATING,
    NO_LEADER,
    LeaderRecoveryState,
    PartitionImage,
)
from protocol.metadata.records import PartitionChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """What holds in the topic and cluster of the partition."""

    #: (the partition as wanted, replica): whether this replica could serve as leader at all.
    is_acceptable: Callable[[PartitionImage, int], bool]
    min_insync_replicas: int
    is_elr_enabled: bool
    election: Election = Election.ONLINE
    #: Whether the log says in which directory a replica lies (KIP-858).
    has_directories: bool = True
    #: Before 3.6 brokers needed a new leader epoch when the ISR shrank (KAFKA-15021).
    is_epoch_bumped_on_shrink: bool = False


def partition_change(
    before: PartitionImage,
    wanted: PartitionImage,
    *,
    topic_id: UUID,
    index: int,
    rules: ElectionRules,
    lost: Collection[int] = (),
) -> PartitionChangeRecord | None:
    """The change from `before` to what `wanted` comes to; None if nothing differs.

    Of `wanted` count replicas, directories, adding and removing replicas, ISR and leader recovery state: the
    rest follows from them. `lost` are replicas that came back without all they had (an unclean shutdown): out
    of ISR and ELR. Without an ELR the last member stays in the ISR, since an empty one would forget who had
    the records.
    """
    wanted = completed(wanted)
    isr: Sequence[int] = wanted.isr
    elr = _eligible(before, wanted, lost, rules)
    elected = elect(
        replicas=wanted.replicas,
        isr=isr,
        elr=elr,
        leader=before.leader,
        last_known_leader=_last_known_leader(before, wanted, rules),
        is_acceptable=partial(rules.is_acceptable, wanted),
        election=rules.election,
    )
    record = PartitionChangeRecord()
    recovery = wanted.leader_recovery_state
    is_new_leader = elected.leader != before.leader
    if is_new_leader:
        record.leader = NO_LEADER if elected.leader is None else elected.leader
        isr, elr = _after_election(elected, isr, elr, rules)
    is_unclean = is_new_leader and elected.is_unclean
    if is_unclean:
        recovery = LeaderRecoveryState.RECOVERING
    if elr != before.elr:
        record.eligible_leader_replicas = list(elr)
    if is_unclean or (tuple(isr) != before.isr and (isr or rules.is_elr_enabled)):
        record.isr = list(isr)  # after an unclean election in any case, though it may be the same
    if recovery is not before.leader_recovery_state:
        record.leader_recovery_state = recovery
    _note_assignment(record, before, wanted, rules)
    if record.leader == _UNCHANGED.leader and _is_epoch_needed(record, before, rules):
        record.leader = NO_LEADER if before.leader is None else before.leader
    if rules.is_elr_enabled:
        _note_last_known_leader(record, before)
    if record == _UNCHANGED:
        return None
    record.partition_id, record.topic_id = index, topic_id
    return record


_UNCHANGED = PartitionChangeRecord()


def completed(partition: PartitionImage) -> PartitionImage:
    """The partition with its reassignment at an end, if its ISR allows that; else as it is.

    That is when all that come are in sync, and somebody remains in sync without those that go. Where more go
    than come, all that remain have to be in sync: [1, 2, 3, 4, 5] -> [3, 4, 5, 6] with only 1, 2 and 6 in sync
    would else end with an ISR of [6], smaller than what there is.
    """
    adding, removing = partition.adding_replicas, partition.removing_replicas
    if not adding and not removing:
        return partition
    isr = tuple(replica for replica in partition.isr if replica not in removing)
    replicas = tuple(replica for replica in partition.replicas if replica not in removing)
    if removing and not (isr and replicas):
        return partition
    if not set(adding) <= set(isr):
        return partition
    if len(adding) < len(removing) and not set(replicas) <= set(isr):
        return partition
    return partition._replace(
        replicas=replicas,
        directories=tuple(directory_of(partition, replica) for replica in replicas),
        isr=isr,
        adding_replicas=(),
        removing_replicas=(),
    )


def directory_of(partition: PartitionImage, replica: int) -> UUID:
    """Where the replica lies, as far as the log says."""
    for each, directory in zip(partition.replicas, partition.directories, strict=False):
        if each == replica:
            return directory
    return DIRECTORY_MIGRATING


def _eligible(
    before: PartitionImage, wanted: PartitionImage, lost: Collection[int], rules: ElectionRules
) -> tuple[int, ...]:
    """Below min.insync.replicas nothing can be committed: whoever was in the ISR then stays as good as it.

    As long as it is a replica: Kafka keeps one that a reassignment has removed. Its log is deleted; should a
    later reassignment bring it back, an empty log would be taken for a complete one.
    """
    if not rules.is_elr_enabled or len(wanted.isr) >= rules.min_insync_replicas:
        return ()
    eligible = {*before.elr, *before.isr}.difference(wanted.isr, lost)
    return tuple(sorted(eligible.intersection(wanted.replicas)))


def _last_known_leader(before: PartitionImage, wanted: PartitionImage, rules: ElectionRules) -> int | None:
    """Whoever led last, if it is a replica still: Kafka would also elect one that a cancellation has removed."""
    if not rules.is_elr_enabled or len(before.last_known_elr) != 1:
        return None
    last = before.last_known_elr[0]
    return last if last in wanted.replicas else None


def _after_election(
    elected: Elected, isr: Sequence[int], elr: tuple[int, ...], rules: ElectionRules
) -> tuple[Sequence[int], tuple[int, ...]]:
    leader = elected.leader
    if leader is not None and elected.is_unclean:
        return (leader,), ()  # what the others have is not known to be in the leader's log
    if leader is not None and leader in elr:
        if rules.min_insync_replicas <= 1:
            return (leader,), ()  # alone it may commit what the others lack
        return (leader,), tuple(replica for replica in elr if replica != leader)
    return isr, elr


def _note_assignment(
    record: PartitionChangeRecord, before: PartitionImage, wanted: PartitionImage, rules: ElectionRules
) -> None:
    if rules.has_directories and wanted.directories != before.directories:
        record.directories = list(wanted.directories)
    if wanted.replicas != before.replicas:
        record.replicas = list(wanted.replicas)
    if wanted.adding_replicas != before.adding_replicas:
        record.adding_replicas = list(wanted.adding_replicas)
    if wanted.removing_replicas != before.removing_replicas:
        record.removing_replicas = list(wanted.removing_replicas)


def _is_epoch_needed(record: PartitionChangeRecord, before: PartitionImage, rules: ElectionRules) -> bool:
    """Whether the leader has to begin a new epoch although it stays: replicas have gone, or old brokers ask."""
    if record.replicas is not None and not set(before.replicas) <= set(record.replicas):
        return True
    return (
        rules.is_epoch_bumped_on_shrink and record.isr is not None and not set(before.isr) <= set(record.isr)
    )


def _note_last_known_leader(record: PartitionChangeRecord, before: PartitionImage) -> None:
    """Remember the leader when there is none any more, and forget it with the next one."""
    if record.leader == NO_LEADER and not before.last_known_elr and before.leader is not None:
        record.last_known_elr = [before.leader]
    elif record.leader >= 0 and before.last_known_elr:
        record.last_known_elr = []
