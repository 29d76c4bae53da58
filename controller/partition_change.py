"""What a partition becomes when its ISR has to change or a leader is wanted: the record that says so.

    old partition, wanted ISR --> new ELR --> election --> ISR, ELR, leader that hold --> record of what differs

Source: PartitionChangeBuilder of Kafka 4.3.1 and KIP-966.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from controller.election import Elected, Election, elect
from protocol.metadata.image import NO_LEADER, LeaderRecoveryState, PartitionImage
from protocol.metadata.records import PartitionChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """What holds in the topic and cluster of the partition."""

    is_acceptable: Callable[[int], bool]
    min_insync_replicas: int
    is_elr_enabled: bool
    election: Election = Election.ONLINE
    #: Before 3.6 brokers needed a new leader epoch when the ISR shrank (KAFKA-15021).
    is_epoch_bumped_on_shrink: bool = False


def partition_change(
    partition: PartitionImage,
    *,
    topic_id: UUID,
    index: int,
    isr: Sequence[int],
    rules: ElectionRules,
    lost: Collection[int] = (),
) -> PartitionChangeRecord | None:
    """The change that gives the partition this ISR and, where it needs one, a leader; None if nothing differs.

    `lost` are replicas that came back without all they had (an unclean shutdown): out of ISR and ELR.
    Without an ELR the last member stays in the ISR, since an empty one would forget who had the records.
    """
    elr = _eligible(partition, isr, lost, rules)
    elected = elect(
        replicas=partition.replicas,
        isr=isr,
        elr=elr,
        leader=partition.leader,
        last_known_leader=_last_known_leader(partition, rules),
        is_acceptable=rules.is_acceptable,
        election=rules.election,
    )
    record = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    if elected.leader != partition.leader:
        record.leader = NO_LEADER if elected.leader is None else elected.leader
        isr, elr = _after_election(elected, isr, elr)
        if elected.is_unclean and partition.leader_recovery_state is not LeaderRecoveryState.RECOVERING:
            record.leader_recovery_state = LeaderRecoveryState.RECOVERING
    if tuple(elr) != partition.elr:
        record.eligible_leader_replicas = list(elr)
    if tuple(isr) != partition.isr and (isr or rules.is_elr_enabled):
        record.isr = list(isr)
        is_shrunk = not set(partition.isr) <= set(isr)
        if is_shrunk and rules.is_epoch_bumped_on_shrink and record.leader == _UNCHANGED.leader:
            record.leader = NO_LEADER if partition.leader is None else partition.leader
    if rules.is_elr_enabled:
        _note_last_known_leader(record, partition)
    is_same = record == PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    return None if is_same else record


_UNCHANGED = PartitionChangeRecord()


def _eligible(
    partition: PartitionImage, isr: Sequence[int], lost: Collection[int], rules: ElectionRules
) -> tuple[int, ...]:
    """Below min.insync.replicas nothing can be committed: whoever was in the ISR then stays as good as it."""
    if not rules.is_elr_enabled or len(isr) >= rules.min_insync_replicas:
        return ()
    return tuple(sorted({*partition.elr, *partition.isr} - {*isr, *lost}))


def _last_known_leader(partition: PartitionImage, rules: ElectionRules) -> int | None:
    if not rules.is_elr_enabled or len(partition.last_known_elr) != 1:
        return None
    return partition.last_known_elr[0]


def _after_election(
    elected: Elected, isr: Sequence[int], elr: tuple[int, ...]
) -> tuple[Sequence[int], tuple[int, ...]]:
    leader = elected.leader
    if leader is not None and elected.is_unclean:
        return (leader,), ()  # what the others have is not known to be in the leader's log
    if leader is not None and leader in elr:
        return (leader,), tuple(replica for replica in elr if replica != leader)
    return isr, elr


def _note_last_known_leader(record: PartitionChangeRecord, partition: PartitionImage) -> None:
    """Remember the leader when there is none any more, and forget it with the next one."""
    if record.leader == NO_LEADER and not partition.last_known_elr and partition.leader is not None:
        record.last_known_elr = [partition.leader]
    elif record.leader >= 0 and partition.last_known_elr:
        record.last_known_elr = []
