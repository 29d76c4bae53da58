"""Elections as tables: the leader, and the resulting ISR, ELR and epochs (KIP-101, KIP-966)."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.reports.description import (
    Description,
    Replica,
    ReplicaLog,
    TopicSettings,
    preferred_election,
)
from ottla.controller.partitions.leader_election import Elected, Election, elect
from ottla.controller.partitions.partition_change import ElectionRules, partition_change
from ottla.metadata.image import LeaderRecoveryState, MetadataImage, PartitionImage
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference, preference_order
from ottla.metadata.records import PartitionChangeRecord
from ottla.protocol.local_log import LocalLog
from ottla.protocol.types import TopicPartition

P, O, U = Election.PREFERRED, Election.ONLINE, Election.UNCLEAN
NO_LEADER = Elected(None)


@pytest.mark.parametrize(
    ("isr", "elr", "leader", "last", "alive", "election", "expected"),
    [
        # ISR       ELR     leader last  alive      election  leader
        ([1, 2, 3], [],     1,     None, {1, 2, 3}, O, Elected(1)),           # goes on
        ([1, 2, 3], [],     2,     None, {1, 2, 3}, O, Elected(2)),           # goes on, preferred or not
        ([1, 2, 3], [],     2,     None, {1, 2, 3}, P, Elected(1)),
        ([2, 3],    [],     2,     None, {1, 2, 3}, P, Elected(2)),           # the preferred one is not in sync
        ([1, 2, 3], [],     2,     None, {2, 3},    P, Elected(2)),           # nor alive
        ([3, 2],    [],     1,     None, {2, 3},    O, Elected(2)),           # in the order of the assignment
        ([3],       [2],    1,     None, {2},       O, NO_LEADER),               # the ELR counts without an ISR only
        ([],        [2],    1,     None, {2, 3},    O, Elected(2)),
        ([],        [2, 3], None,  None, {3},       O, Elected(3)),
        ([],        [2],    None,  1,    {1},       O, NO_LEADER),               # someone eligible may come back
        ([],        [],     None,  1,    {1},       O, Elected(1, True)),     # the last known leader
        ([],        [],     None,  1,    {2, 3},    O, NO_LEADER),
        ([],        [],     None,  None, {2, 3},    O, NO_LEADER),
        ([],        [],     None,  None, {2, 3},    U, Elected(2, True)),
        ([1],       [],     1,     None, {3},       U, Elected(3, True)),
        ([1],       [],     1,     None, {1, 3},    U, Elected(1)),           # clean where it can be
        ([],        [],     None,  3,    {2, 3},    U, Elected(3, True)),     # it had more than the others
        ([1],       [],     1,     None, set(),     U, NO_LEADER),
    ],
)  # fmt: skip
def test_the_elected_leader(isr, elr, leader, last, alive, election, expected):
    elected = elect(
        replicas=[1, 2, 3],
        isr=isr,
        elr=elr,
        leader=leader,
        last_known_leader=last,
        is_acceptable_leader=alive.__contains__,
        election=election,
    )
    assert elected == expected


replica_sets = st.sets(st.integers(1, 5)).map(sorted)


@given(
    isr=replica_sets, elr=replica_sets, alive=st.sets(st.integers(1, 5)), election=st.sampled_from(Election)
)
def test_a_clean_election_never_leaves_isr_and_elr(isr, elr, alive, election):
    elected = elect(
        replicas=[1, 2, 3, 4, 5],
        isr=isr,
        elr=elr,
        leader=None,
        last_known_leader=None,
        is_acceptable_leader=alive.__contains__,
        election=election,
    )
    assert elected.leader is None or elected.leader in alive
    if elected.leader is not None and not elected.is_unclean:
        assert elected.leader in (isr or elr)
    if alive & set(isr or elr):
        assert elected.leader is not None
        assert not elected.is_unclean


EARLY = LeaderPreference(prefers_early_start=True)


# KIP-1303
@pytest.mark.parametrize(
    ("starts", "isr", "elr", "leader", "alive", "election", "expected"),
    [
        # The draft's example: 1 and 2 are equivalent, 3 has less local data.
        ({1: 1_000_000, 2: 1_000_050, 3: 5_000_000}, [1, 2, 3], [],        1,    {2, 3},    O, Elected(2)),
        ({1: 1_000_050, 2: 1_000_000, 3: 5_000_000}, [1, 2, 3], [],        3,    {1, 2},    O, Elected(1)),
        ({1: 5_000_000, 2: 1_000_050, 3: 1_000_000}, [1, 2, 3], [],        None, {1, 2, 3}, O, Elected(2)),
        # Never excluded: only replicas with little local data may lead.
        ({1: 1_000_000, 2: 1_000_050, 3: 5_000_000}, [1, 2, 3], [],        1,    {3},       O, Elected(3)),
        ({1: 1_000_000, 2: 1_000_050, 3: 5_000_000}, [3],       [],        1,    {1, 2, 3}, O, Elected(3)),
        # A leader stays, and moves by a preferred election only.
        ({1: 5_000_000, 2: 0, 3: 0},                 [1, 2, 3], [],        1,    {1, 2, 3}, O, Elected(1)),
        ({1: 5_000_000, 2: 0, 3: 0},                 [1, 2, 3], [],        1,    {1, 2, 3}, U, Elected(1)),
        ({1: 5_000_000, 2: 0, 3: 0},                 [1, 2, 3], [],        1,    {1, 2, 3}, P, Elected(2)),
        ({1: 5_000_000, 2: 0, 3: 0},                 [1, 2, 3], [],        3,    {1, 2, 3}, P, Elected(3)),
        ({1: 5_000_000, 2: 0, 3: 0},                 [1, 3],    [],        1,    {1, 2, 3}, P, Elected(3)),
        ({1: 5_000_000, 2: 0, 3: 0},                 [1],       [],        1,    {1, 2, 3}, P, Elected(1)),
        ({1: 9_999, 2: 0, 3: 0},                     [1, 2, 3], [],        2,    {1, 2, 3}, P, Elected(1)),
        # The ELR, where the ISR is empty.
        ({1: 5_000_000, 2: 5_000_000, 3: 0},         [],        [1, 2, 3], None, {1, 2, 3}, O, Elected(3)),
        ({1: 5_000_000, 2: 5_000_000, 3: 0},         [1],       [2, 3],    None, {1, 2, 3}, O, Elected(1)),
        ({1: 5_000_000, 2: 5_000_000, 3: 0},         [],        [1, 2],    None, {1, 2, 3}, O, Elected(1)),
        # Unclean elections ignore it, and are no alternative to a clean one.
        ({1: 5_000_000, 2: 0, 3: 0},                 [],        [],        None, {1, 2, 3}, U, Elected(1, True)),
        ({1: 5_000_000, 2: 0, 3: 0},                 [1],       [],        None, {1, 2, 3}, U, Elected(1)),
    ],
)  # fmt: skip
def test_replicas_with_more_local_data_are_preferred(starts, isr, elr, leader, alive, election, expected):
    elected = elect(
        replicas=[1, 2, 3],
        isr=isr,
        elr=elr,
        leader=leader,
        last_known_leader=None,
        is_acceptable_leader=alive.__contains__,
        election=election,
        local_logs=tuple((replica, LocalLog(start, 0, None)) for replica, start in starts.items()),
        preference=EARLY,
    )
    assert elected == expected


LOCAL_LOGS = st.dictionaries(
    st.integers(1, 5),
    st.builds(LocalLog, st.integers(0, 30_000), st.integers(0, 9), st.none() | st.integers(0, 9)),
).map(lambda logs: tuple(sorted(logs.items())))
PREFERENCES = st.builds(
    LeaderPreference,
    st.booleans(),
    st.sampled_from([0, 1, 10_000]),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
)


@given(
    isr=replica_sets,
    elr=replica_sets,
    leader=st.none() | st.integers(1, 5),
    last=st.none() | st.integers(1, 5),
    alive=st.sets(st.integers(1, 5)),
    election=st.sampled_from(Election),
    local_logs=LOCAL_LOGS,
    preference=PREFERENCES,
)
def test_a_preference_chooses_among_those_that_would_be_elected_without_it(
    isr, elr, leader, last, alive, election, local_logs, preference
):
    def elected(preference, election=election, leader=leader):
        return elect(
            replicas=[1, 2, 3, 4, 5],
            isr=isr,
            elr=elr,
            leader=leader,
            last_known_leader=last,
            is_acceptable_leader=alive.__contains__,
            election=election,
            local_logs=local_logs,
            preference=preference,
            now_ms=9,
        )

    without, with_ = elected(NO_PREFERENCE), elected(preference)
    may_lead = alive & set(isr or elr)
    if not may_lead or not preference.is_on:
        assert with_ == without  # unclean elections and all of those while it is off
        return
    # A clean election stays one, and stays in the ISR, or the ELR where that is empty.
    assert with_.leader in may_lead
    assert not with_.is_unclean
    if election is not P and leader in may_lead:
        assert with_.leader == leader
    else:
        first, *_ = preference_order(sorted(may_lead), dict(local_logs), preference, now_ms=9)
        assert with_.leader in first
        assert elected(preference, P, with_.leader) == with_  # the next preferred election keeps it


@given(
    isr=replica_sets,
    elr=replica_sets,
    leader=st.none() | st.integers(1, 5),
    alive=st.sets(st.integers(1, 5)),
    local_logs=LOCAL_LOGS,
    preference=PREFERENCES,
)
def test_ottla_partitions_describe_expects_the_same_preferred_election(
    isr, elr, leader, alive, local_logs, preference
):
    """The command cannot ask the controller: it has these rules of its own."""
    known = dict(local_logs)
    replicas = [
        Replica(broker_id=replica, is_offline=replica not in alive, log=described(known.get(replica)))
        for replica in range(1, 6)
    ]
    partition = Description(
        topic_partition=TopicPartition("t", 0),
        leader=leader,
        leader_epoch=0,
        replicas=replicas,
        isr=isr,
        elr=elr,
        settings=TopicSettings(preference=preference),
    )
    elected = elect(
        replicas=range(1, 6),
        isr=isr,
        elr=elr,
        leader=leader,
        last_known_leader=None,
        is_acceptable_leader=alive.__contains__,
        election=P,
        local_logs=local_logs,
        preference=preference,
        now_ms=9,
    )
    assert preferred_election(partition, now_ms=9) == elected.leader


def described(local_log: LocalLog | None) -> ReplicaLog:
    if local_log is None:
        return ReplicaLog()
    start, size, oldest = local_log
    return ReplicaLog(local_log_start_offset=start, local_bytes=size, oldest_local_timestamp_ms=oldest)


TOPIC = UUID(int=1)


def change(
    partition: PartitionImage,
    isr: list[int],
    alive: set[int],
    *,
    elr: bool = True,
    min_isr: int = 2,
    lost: tuple[int, ...] = (),
    election: Election = O,
    bump: bool = False,
) -> PartitionChangeRecord | None:
    return partition_change(
        partition,
        partition._replace(isr=tuple(isr)),
        topic_id=TOPIC,
        index=0,
        unclean_shutdown_replicas=lost,
        rules=ElectionRules(
            is_acceptable_leader=lambda _, replica: replica in alive,
            min_insync_replicas=min_isr,
            is_elr_enabled=elr,
            election=election,
            is_epoch_bumped_on_shrink=bump,
        ),
    )


def partition(isr=(1, 2, 3), leader=1, elr=(), last=()) -> PartitionImage:
    return PartitionImage((1, 2, 3), tuple(isr), leader, 4, 9, elr=tuple(elr), last_known_elr=tuple(last))


def after(before: PartitionImage, record: PartitionChangeRecord | None) -> PartitionImage:
    return before if record is None else MetadataImage().merged(before, record)


@pytest.mark.parametrize(
    ("before", "isr", "alive", "options", "isr_after", "leader", "elr", "last"),
    [
        # a follower goes: nothing else happens while enough are in sync
        (partition(), [1, 2], {1, 2}, {}, (1, 2), 1, (), ()),
        # below min.insync.replicas nothing can be committed: a replica that leaves stays eligible
        (partition((1, 2)), [1], {1}, {}, (1,), 1, (2,), ()),
        # KIP-966: the last one goes, too; it is eligible, and remembered as the last leader
        (partition((1,), 1, elr=(2,)), [], set(), {}, (), None, (1, 2), (1,)),
        # one of the eligible comes back and leads
        (partition((), None, elr=(1, 2), last=(1,)), [], {2}, {}, (2,), 2, (1,), ()),
        # min.insync.replicas has become 1 meanwhile: the leader may commit alone, and the others may lack records
        (partition((), None, elr=(1, 2), last=(1,)), [], {2}, {"min_isr": 1}, (2,), 2, (), ()),
        # an unclean shutdown: out of the ELR as well; with no member left only the last known leader is kept
        (partition((1,)), [], set(), {"lost": (1,)}, (), None, (), (1,)),
        (partition((1,), 1, elr=(2,)), [], set(), {"lost": (1,)}, (), None, (2,), (1,)),
        # and comes back: the best there is
        (partition((), None, last=(1,)), [], {1}, {}, (1,), 1, (), ()),
        # enough in sync again: the ELR is cleared
        (partition((1,), 1, elr=(2,)), [1, 2], {1, 2}, {}, (1, 2), 1, (), ()),
        # without the ELR the last member stays in the ISR, so that it is known who may lead
        (partition((1,)), [], set(), {"elr": False}, (1,), None, (), ()),
        (partition((1,), None), [1], {1}, {"elr": False}, (1,), 1, (), ()),
        # unclean elections start with an ISR of one
        (partition((1,)), [], {3}, {"elr": False, "election": U}, (3,), 3, (), ()),
        (partition((1,)), [], {3}, {"election": U, "lost": (1,)}, (3,), 3, (), ()),
    ],
)
def test_isr_and_elr(before, isr, alive, options, isr_after, leader, elr, last):
    result = after(before, change(before, isr, alive, **options))
    assert (result.isr, result.leader, result.elr, result.last_known_elr) == (isr_after, leader, elr, last)
    assert result.leader_epoch == before.leader_epoch + (leader != before.leader)


# KIP-704
def test_an_unclean_leader_has_to_recover():
    result = after(partition((1,)), change(partition((1,)), [], {3}, election=U, lost=(1,)))
    assert result.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_nothing_to_change_is_no_record():
    assert change(partition(), [1, 2, 3], {1, 2, 3}) is None


@pytest.mark.parametrize(("bump", "epoch"), [(True, 5), (False, 4)])
def test_old_brokers_need_an_epoch_when_the_isr_shrinks(bump: bool, epoch: int):
    result = after(partition(), change(partition(), [1, 2], {1, 2}, bump=bump))
    assert (result.leader, result.leader_epoch) == (1, epoch)


@given(
    isr=replica_sets,
    elr=replica_sets,
    leader=st.one_of(st.none(), st.integers(1, 5)),
    alive=st.sets(st.integers(1, 5)),
    removed=st.integers(1, 5),
    lost=st.booleans(),
    election=st.sampled_from(Election),
    min_isr=st.integers(1, 3),
)
def test_invariants_of_every_change(isr, elr, leader, alive, removed, lost, election, min_isr):
    before = PartitionImage(
        (1, 2, 3, 4, 5), tuple(isr), leader if leader in isr else None, 0, 0, elr=tuple(set(elr) - set(isr))
    )
    kept = [replica for replica in isr if replica != removed]
    alive = alive - {removed}
    result = after(
        before,
        change(
            before,
            kept,
            alive,
            lost=(removed,) if lost else (),
            election=election,
            min_isr=min_isr,
        ),
    )
    assert not set(result.isr) & set(result.elr)
    assert result.leader is None or (result.leader in result.isr and result.leader in alive)
    if lost:
        assert removed not in (*result.isr, *result.elr)
    assert result.leader_epoch - before.leader_epoch in (0, 1)
    assert (result.leader == before.leader) == (result.leader_epoch == before.leader_epoch)
