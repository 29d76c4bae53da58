"""The ISR and the high watermark, as a leader decides them from its followers' fetches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.replication.leader_state import FollowerProgress, LeaderState

LAG_MS = 30_000


class Session:
    def __init__(self, last_used_ms: int) -> None:
        self.last_used_ms = last_used_ms


def leader_state(
    *, isr=(1, 2, 3), start_offset=0, is_isr_eligible=lambda broker, epoch: True, now_ms=0
) -> LeaderState:
    """Broker 1 leads, 2 and 3 follow."""
    return LeaderState(
        node_id=1,
        epoch=4,
        start_offset=start_offset,
        replicas=(1, 2, 3),
        isr=isr,
        local_logs={},
        is_isr_eligible=is_isr_eligible,
        max_lag_ms=LAG_MS,
        now_ms=now_ms,
    )


def fetch(
    leads: LeaderState, replica: int, offset: int, *, leader_end=100, now_ms=0, epoch=None, session=None
):
    leads.followers[replica].on_fetch(
        fetch_offset=offset,
        log_start_offset=0,
        local_log=None,
        leader_end_offset=leader_end,
        broker_epoch=epoch,
        session=session,
        now_ms=now_ms,
    )


def committed(leads: LeaderState, *, end=100, min_isr=1, now_ms=0):
    return leads.high_watermark_candidate(log_end_offset=end, min_isr=min_isr, now_ms=now_ms)


# -- the high watermark ------------------------------------------------------------------------------------


def test_nothing_is_committed_before_every_member_has_fetched_in_this_epoch():
    leads = leader_state()
    assert committed(leads) is None
    fetch(leads, 2, 80)
    assert committed(leads) is None
    fetch(leads, 3, 70)
    assert committed(leads) == 70


def test_who_is_out_of_the_isr_does_not_count():
    leads = leader_state(isr=(1, 2))
    fetch(leads, 2, 80)
    fetch(leads, 3, 5, leader_end=200)
    assert committed(leads) == 80


def test_who_is_about_to_join_is_waited_for():
    """Otherwise the high watermark would run away from a follower that has just caught up."""
    leads = leader_state(isr=(1,))
    fetch(leads, 2, 90, leader_end=90, now_ms=1_000)
    assert committed(leads, end=100, now_ms=2_000) == 90
    assert committed(leads, end=100, now_ms=2_000 + LAG_MS) == 100


def test_who_may_not_join_is_not_waited_for():
    leads = leader_state(isr=(1,), is_isr_eligible=lambda broker, epoch: False)
    fetch(leads, 2, 90, leader_end=90)
    assert committed(leads, end=100) == 100


# KIP-966
def test_below_min_isr_nothing_is_committed():
    leads = leader_state(isr=(1, 2))
    fetch(leads, 2, 80)
    assert committed(leads, min_isr=3) is None


# KIP-497
def test_a_proposed_member_counts_before_the_controller_has_answered():
    leads = leader_state(isr=(1, 2))
    fetch(leads, 2, 100)
    fetch(leads, 3, 80, now_ms=-LAG_MS)
    leads.propose(frozenset({1, 2, 3}))
    assert leads.maximal_isr == {1, 2, 3}
    assert committed(leads) == 80
    leads.withdraw()
    assert committed(leads, now_ms=LAG_MS) == 100


def test_a_member_that_shall_go_counts_until_the_controller_has_answered():
    leads = leader_state()
    fetch(leads, 2, 100)
    fetch(leads, 3, 50)
    leads.propose(frozenset({1, 2}))
    assert committed(leads, now_ms=LAG_MS + 1) == 50
    leads.update(replicas=(1, 2, 3), isr=(1, 2), local_logs={})
    assert committed(leads, now_ms=LAG_MS + 1) == 100


@given(
    ends=st.lists(st.one_of(st.none(), st.integers(0, 120)), min_size=4, max_size=4),
    isr=st.sets(st.integers(2, 5)),
    proposed=st.one_of(st.none(), st.sets(st.integers(2, 5))),
    min_isr=st.integers(1, 5),
)
def test_the_high_watermark_is_the_smallest_end_of_the_maximal_isr(ends, isr, proposed, min_isr):
    leads = LeaderState(
        node_id=1, epoch=0, start_offset=0, replicas=range(1, 6), isr={1, *isr}, local_logs={},
        is_isr_eligible=lambda broker, epoch: False, max_lag_ms=LAG_MS, now_ms=0,
    )  # fmt: skip
    for replica, end in zip(range(2, 6), ends, strict=True):
        if end is not None:
            fetch(leads, replica, end, leader_end=120)
    if proposed is not None:
        # No replica joins that has not fetched in this epoch.
        proposed = {replica for replica in proposed if replica in isr or ends[replica - 2] is not None}
        leads.propose(frozenset({1, *proposed}))
    counting = isr | (proposed or set())
    known = [end for replica, end in zip(range(2, 6), ends, strict=True) if replica in counting]
    expected = None if None in known or len(isr) + 1 < min_isr else min([120, *known])
    assert committed(leads, end=120, min_isr=min_isr) == expected


# KIP-320
def test_an_event_of_another_epoch_fails_an_assertion():
    """The third of the TLA+ rules: a leader that remembered its followers from its last term would commit too much."""
    leads = leader_state()
    leads.followers[2] = FollowerProgress(leader_epoch=3, log_end_offset=100)
    with pytest.raises(AssertionError):
        committed(leads)


# -- the ISR -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [None, 80])
def test_who_has_not_reached_the_start_of_the_epoch_is_asserted_not_to_join(offset):
    """The fourth of the TLA+ rules."""
    leads = leader_state(isr=(1, 2), start_offset=81)
    if offset is not None:
        fetch(leads, 3, offset)
    with pytest.raises(AssertionError):
        leads.propose(frozenset({1, 2, 3}))


@pytest.mark.parametrize(
    ("offset", "high_watermark", "start_offset", "joins"),
    [
        (80, 80, 70, True),
        (79, 80, 70, False),  # it lacks what is committed
        (80, 60, 81, False),  # it lacks what an older leader may have committed
        (81, 60, 81, True),
    ],
)
def test_who_may_join(offset, high_watermark, start_offset, joins):
    leads = leader_state(isr=(1, 2), start_offset=start_offset)
    fetch(leads, 3, offset)
    assert (leads.expanded(3, high_watermark=high_watermark) == {1, 2, 3}) is joins


def test_a_replica_that_has_restarted_since_may_not_join():
    """KIP-903: the controller would take the new incarnation for the one that had caught up."""
    leads = leader_state(isr=(1, 2), is_isr_eligible=lambda broker, epoch: epoch == 7)
    fetch(leads, 3, 100, epoch=6)
    assert leads.expanded(3, high_watermark=50) is None
    fetch(leads, 3, 100, epoch=7)
    assert leads.expanded(3, high_watermark=50) == {1, 2, 3}
    leads.propose(frozenset({1, 2, 3}))
    assert leads.proposed_members(own_broker_epoch=9) == [(1, 9), (2, -1), (3, 7)]


def test_who_restarts_after_it_was_proposed_is_not_the_one_that_was_meant():
    """The controller may be asked much later, or again: it must refuse an incarnation that the leader has not seen."""
    leads = leader_state(isr=(1, 2))
    fetch(leads, 3, 100, epoch=7)
    leads.propose(leads.expanded(3, high_watermark=50))
    fetch(leads, 3, 0, epoch=8)
    assert leads.proposed_members(own_broker_epoch=9) == [(1, 9), (2, -1), (3, 7)]


def test_one_change_at_a_time():
    leads = leader_state(isr=(1,))
    fetch(leads, 2, 100)
    fetch(leads, 3, 100)
    leads.propose(leads.expanded(2, high_watermark=50))
    assert leads.expanded(3, high_watermark=50) is None
    assert leads.shrunk(log_end_offset=200, now_ms=10 * LAG_MS) is None


def test_who_was_held_up_by_another_proposal_joins_without_a_further_fetch():
    """Within its session a follower that has everything asks nothing new, and sends no offsets again."""
    leads = leader_state(isr=(1,))
    fetch(leads, 2, 100)
    fetch(leads, 3, 100)
    leads.propose(leads.expanded(2, high_watermark=50))
    assert leads.expanded_by_caught_up(high_watermark=50, log_end_offset=100, now_ms=0) is None
    leads.update(replicas=(1, 2, 3), isr=(1, 2), local_logs={})
    assert leads.expanded_by_caught_up(high_watermark=50, log_end_offset=100, now_ms=10 * LAG_MS) == {1, 2, 3}
    assert leads.expanded_by_caught_up(high_watermark=50, log_end_offset=200, now_ms=10 * LAG_MS) is None, (
        "too long ago"
    )


def test_a_follower_without_broker_epoch_joins_the_isr_by_a_fetch_only():
    """It may have restarted since its last Fetch, with less than it had (Fetch before version 15)."""
    leads = leader_state(isr=(1, 2))
    fetch(leads, 3, 100, epoch=-1)
    assert leads.expanded_by_caught_up(high_watermark=50, log_end_offset=100, now_ms=0) is None
    assert leads.expanded(3, high_watermark=50) == {1, 2, 3}


def test_members_that_fall_behind_have_to_go():
    leads = leader_state(now_ms=0)
    fetch(leads, 2, 100, leader_end=100, now_ms=1_000)
    assert leads.shrunk(log_end_offset=100, now_ms=LAG_MS) is None, (
        "3 has replica.lag.time.max.ms for its first Fetch"
    )
    assert leads.shrunk(log_end_offset=100, now_ms=LAG_MS + 1) == {1, 2}
    assert leads.shrunk(log_end_offset=101, now_ms=LAG_MS + 1_001) == {1}


def test_who_has_all_there_is_stays_however_long_it_was_silent():
    leads = leader_state(isr=(1, 2))
    fetch(leads, 2, 100, leader_end=100)
    assert leads.shrunk(log_end_offset=100, now_ms=100 * LAG_MS) is None


def test_a_follower_behind_a_steady_stream_is_in_sync():
    """It never reaches the end, but always what was the end at its last fetch."""
    progress = FollowerProgress(leader_epoch=0)
    for second in range(1, 100):
        progress.on_fetch(
            fetch_offset=second * 10 - 10,
            log_start_offset=0,
            local_log=None,
            leader_end_offset=second * 10,
            broker_epoch=None,
            session=None,
            now_ms=second * 1_000,
        )
    assert progress.is_caught_up(1_000, now_ms=100_000, max_lag_ms=3_000)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_clock_that_was_set_back_does_not_keep_a_dead_follower_in_sync(lag):
    """With Kafka, whose time of the last catch-up never decreases, acks=all waits for it that long."""
    hour_ms, leads = 3_600_000, leader_state(isr=(1, 2))
    fetch(leads, 2, 100, leader_end=100, now_ms=hour_ms)
    fetch(leads, 2, 100, leader_end=100 + lag, now_ms=1_000)
    fetch(leads, 2, 120, leader_end=120 + lag, now_ms=2_000)
    fetch(leads, 2, 130, leader_end=130 + lag, now_ms=3_000)
    assert leads.shrunk(log_end_offset=140, now_ms=2_000 + LAG_MS) is None
    assert leads.shrunk(log_end_offset=140, now_ms=3_001 + LAG_MS) == {1}


def test_a_silent_session_shows_that_its_follower_lives():
    """Where a session has nothing new to ask of a partition, its other fetches speak for it."""
    progress, session = FollowerProgress(leader_epoch=0), Session(last_used_ms=0)
    progress.on_fetch(
        fetch_offset=100,
        log_start_offset=0,
        local_log=None,
        leader_end_offset=100,
        broker_epoch=None,
        session=session,
        now_ms=0,
    )
    session.last_used_ms = 90_000
    progress.on_append(old_end_offset=100)
    assert progress.is_caught_up(101, now_ms=90_000 + LAG_MS, max_lag_ms=LAG_MS)
    assert not progress.is_caught_up(101, now_ms=90_001 + LAG_MS, max_lag_ms=LAG_MS)


def test_the_low_watermark_is_the_smallest_start_of_the_living():
    leads = leader_state()
    fetch(leads, 2, 100)
    leads.followers[3].log_start_offset = 40
    leads.followers[2].log_start_offset = 30
    assert leads.low_watermark(50, is_alive=lambda broker: True) == 30
    assert leads.low_watermark(50, is_alive=lambda broker: broker == 3) == 40
    assert leads.low_watermark(35, is_alive=lambda broker: broker == 3) == 35
