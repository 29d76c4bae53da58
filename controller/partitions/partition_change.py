"""Partition changes: the PartitionChangeRecord that turns a partition into a wanted one, elections included.

    partition, wanted partition
        --> a reassignment is completed if it can be      (KIP-455)
        --> ELR: replicas outside the ISR that have all committed records (KIP-966)
        --> election                                      (`leader_election.py`)
        --> local logs of the replicas that remain        (draft KIP-1303)
        --> resulting ISR, ELR, leader --> record of the differences

Source: PartitionChangeBuilder and PartitionReassignmentReplicas of Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from ottla.controller.partitions.leader_election import Elected, Election, elect
from ottla.metadata.image import (
    DIRECTORY_MIGRATING,
    NO_LEADER,
    LeaderRecoveryState,
    PartitionImage,
)
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference, preference_order
from ottla.metadata.records import PartitionChangeRecord
from ottla.protocol.local_log import replica_local_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """The rules that apply in the topic and cluster of the partition."""

    #: (wanted partition, replica): whether this replica could lead (broker active, directory online).
    is_acceptable_leader: Callable[[PartitionImage, int], bool]
    min_insync_replicas: int
    is_elr_enabled: bool
    election: Election = Election.ONLINE
    #: How elections take local logs into account; called only if there are any (draft KIP-1303).
    leader_preference: Callable[[], LeaderPreference] = lambda: NO_PREFERENCE
    #: The wall clock.
    now_ms: int = 0
    #: Whether records have the directories of replicas (KIP-858).
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
    unclean_shutdown_replicas: Collection[int] = (),
) -> PartitionChangeRecord | None:
    """The change from `before` to what `wanted` results in; None if nothing differs.

    Of `wanted` the replicas, directories, adding and removing replicas, ISR, leader recovery state and local logs are
    used; the rest follows from them. Replicas after an unclean shutdown may have lost records: they cannot be
    in the ELR, and `wanted` does not have them in the ISR. Without an ELR the last member stays in the ISR: an
    empty one would not record which replica has all committed records.
    """
    wanted = maybe_complete_reassignment(wanted)
    isr: Sequence[int] = wanted.isr
    elr = _target_elr(before, wanted, unclean_shutdown_replicas, rules)
    last_known_leader = _last_known_leader(before, wanted, rules)
    elected = _elect(
        wanted,
        rules,
        elr=elr,
        leader=before.leader,
        last_known_leader=last_known_leader,
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
        record.isr = list(isr)  # always after an unclean election, even if it is the same
    if recovery is not before.leader_recovery_state:
        record.leader_recovery_state = recovery
    _set_assignment(record, before, wanted, rules)
    if record.leader == _UNCHANGED.leader and _needs_leader_epoch_bump(record, before, rules):
        record.leader = NO_LEADER if before.leader is None else before.leader
    if rules.is_elr_enabled:
        _set_last_known_elr(record, before)
    if before.local_logs or wanted.local_logs:
        _set_local_logs(record, before, wanted)
    if record == _UNCHANGED:
        return None
    record.partition_id, record.topic_id = index, topic_id
    _assert_valid(before, wanted, record, leader=elected.leader, elr=elr)
    return record


def preferred_leader(partition: PartitionImage, rules: ElectionRules) -> int | None:
    """The replica that a PREFERRED election is held for: the first of the assignment; where that one may lead,
    but others have more local data, the one that it elects (draft KIP-1303).

    Cost: 5 us; the automatic rebalance asks for each partition that has local logs.
    """
    first = partition.replicas[0]
    preference = rules.leader_preference()
    if not preference.is_on:
        return first
    # A first choice among all replicas is one among those that may lead, too: these need not be known then.
    groups = preference_order(partition.replicas, dict(partition.local_logs), preference, now_ms=rules.now_ms)
    if first in groups[0]:
        return first
    if first not in (partition.isr or partition.elr) or not rules.is_acceptable_leader(partition, first):
        return first
    elr, leader = partition.elr, partition.leader
    return _elect(
        partition, rules, elr=elr, leader=leader, last_known_leader=None, election=Election.PREFERRED
    ).leader


def _elect(
    partition: PartitionImage,
    rules: ElectionRules,
    *,
    elr: Sequence[int],
    leader: int | None,
    last_known_leader: int | None,
    election: Election,
) -> Elected:
    local_logs = partition.local_logs
    return elect(
        replicas=partition.replicas,
        isr=partition.isr,
        elr=elr,
        leader=leader,
        last_known_leader=last_known_leader,
        is_acceptable_leader=partial(rules.is_acceptable_leader, partition),
        election=election,
        local_logs=local_logs,
        # Without any local log the preference would not distinguish the replicas, and mostly there is none
        # while it is off.
        preference=rules.leader_preference() if local_logs else NO_PREFERENCE,
        now_ms=rules.now_ms,
    )


def _assert_valid(
    before: PartitionImage,
    wanted: PartitionImage,
    record: PartitionChangeRecord,
    *,
    leader: int | None,
    elr: tuple[int, ...],
) -> None:
    """Assert the invariants of every change; `MetadataImage.merged` increments the epochs.

    Cost: 1 us; a broker that is fenced may change 10,000 partitions.
    """
    isr = before.isr if record.isr is None else record.isr
    assert set(isr).issubset(wanted.replicas), f"the ISR {isr} is not part of {wanted.replicas}"
    assert len(set(isr)) == len(isr), f"the ISR {isr} names a replica twice"
    assert set(elr).issubset(wanted.replicas), f"the ELR {elr} is not part of {wanted.replicas}"
    assert set(elr).isdisjoint(isr), f"the ELR {elr} and the ISR {isr} share a replica"
    assert leader is None or leader in wanted.replicas, f"the leader {leader} is not in {wanted.replicas}"
    if wanted.adding_replicas or wanted.removing_replicas:
        moving = {*wanted.adding_replicas, *wanted.removing_replicas}
        assert moving.issubset(wanted.replicas), f"{moving} are moved, and not in {wanted.replicas}"
    if leader != before.leader:
        # Also after an unclean election: its leader is alone in the ISR.
        assert leader is None or leader in isr, f"the new leader {leader} is not in the ISR {isr}"
        # A new leader has a new leader epoch, and so has "no leader".
        assert record.leader != _UNCHANGED.leader, (leader, before.leader)


_UNCHANGED = PartitionChangeRecord()


def maybe_complete_reassignment(partition: PartitionImage) -> PartitionImage:
    """The partition with its reassignment completed, if its ISR allows that; else as it is.

    It does when all adding replicas are in sync, and the ISR is not empty without the removing ones. Where more are
    removed than added, all that remain must be in sync: [1, 2, 3, 4, 5] -> [3, 4, 5, 6] with only 1, 2 and 6 in sync
    would otherwise end with an ISR of [6], smaller than before. (KIP-455)
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
    """The log directory of the replica; DIRECTORY_MIGRATING if the log does not have it."""
    for each, directory in zip(partition.replicas, partition.directories, strict=False):
        if each == replica:
            return directory
    return DIRECTORY_MIGRATING


def _target_elr(
    before: PartitionImage,
    wanted: PartitionImage,
    unclean_shutdown_replicas: Collection[int],
    rules: ElectionRules,
) -> tuple[int, ...]:
    """The ELR: while the ISR is below min.insync.replicas nothing can be committed, so replicas that leave it stay
    eligible. Invariant: a member has all committed records (KIP-966).

    Only members of the assignment are kept; Kafka also keeps one that a reassignment has removed. Its log is deleted;
    if a later reassignment adds it again, its empty log would count as complete.
    """
    if not rules.is_elr_enabled or len(wanted.isr) >= rules.min_insync_replicas:
        return ()
    eligible = {*before.elr, *before.isr}.difference(wanted.isr, unclean_shutdown_replicas)
    return tuple(sorted(eligible.intersection(wanted.replicas)))


def _last_known_leader(before: PartitionImage, wanted: PartitionImage, rules: ElectionRules) -> int | None:
    """The last known leader, if it is still a replica; Kafka would also elect one that a cancellation has removed."""
    if not rules.is_elr_enabled or len(before.last_known_elr) != 1:
        return None
    last = before.last_known_elr[0]
    return last if last in wanted.replicas else None


def _after_election(
    elected: Elected, isr: Sequence[int], elr: tuple[int, ...], rules: ElectionRules
) -> tuple[Sequence[int], tuple[int, ...]]:
    leader = elected.leader
    if leader is not None and elected.is_unclean:
        return (leader,), ()  # the records of the other replicas may be missing in the leader's log
    if leader is not None and leader in elr:
        if rules.min_insync_replicas <= 1:
            return (leader,), ()  # alone it may commit records that the others lack
        return (leader,), tuple(replica for replica in elr if replica != leader)
    return isr, elr


def _set_assignment(
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


def _needs_leader_epoch_bump(
    record: PartitionChangeRecord, before: PartitionImage, rules: ElectionRules
) -> bool:
    """Whether the leader needs a new epoch although it stays: replicas were removed, or old brokers need it."""
    if record.replicas is not None and not set(before.replicas) <= set(record.replicas):
        return True
    return (
        rules.is_epoch_bumped_on_shrink and record.isr is not None and not set(before.isr) <= set(record.isr)
    )


def _set_last_known_elr(record: PartitionChangeRecord, before: PartitionImage) -> None:
    """Record the last leader when the partition has none any more, and clear it when the next one is elected."""
    if record.leader == NO_LEADER and not before.last_known_elr and before.leader is not None:
        record.last_known_elr = [before.leader]
    elif record.leader >= 0 and before.last_known_elr:
        record.last_known_elr = []


def _set_local_logs(record: PartitionChangeRecord, before: PartitionImage, wanted: PartitionImage) -> None:
    """Record the local logs where they have changed; those of replicas that are removed are forgotten. A
    replica that has left the ISR keeps its own: the ELR is elected by it, and AlterPartition replaces it when
    the replica joins again.
    """
    local_logs = tuple(each for each in wanted.local_logs if each[0] in wanted.replicas)
    if local_logs != before.local_logs:
        record.local_logs = replica_local_logs(local_logs)
