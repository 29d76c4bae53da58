"""A follower's decisions, case by case; its log is a list of epochs' starts and an end."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import OffsetNotAvailable
from ottla.replication.follower import (
    Append,
    Bounds,
    Divergence,
    FetchBounds,
    FetchRecords,
    Follower,
    Records,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from ottla.replication.follower_states import ReplicaState
from ottla.replication.remote_log_aux import (
    BuildRemoteLogAux,
    EpochEnd,
    FetchEpochEnd,
    FetchLeaderOffsets,
    LeaderOffsets,
    bootstrap_offset,
)


@dataclass
class Log:
    """Epochs and where they start: {0: 0, 2: 10} is epoch 0 from 0 to 10, then 2 up to the end."""

    log_end_offset: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    high_watermark: int = 0
    log_start_offset: int = 0
    #: None: where the log starts.
    local_start: int | None = None
    first_gap_offset: int | None = None

    @property
    def offsets(self) -> "Log":
        return self

    @property
    def leader_epochs(self) -> "Log":
        return self

    @property
    def local_log_start_offset(self) -> int:
        return self.log_start_offset if self.local_start is None else self.local_start

    @property
    def latest_epoch(self) -> int | None:
        return max(self.epochs, default=None)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        known = [each for each in sorted(self.epochs) if each <= epoch]
        if not known:
            return None
        later = [start for each, start in self.epochs.items() if each > known[-1]]
        return known[-1], min(later, default=self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        return max((epoch for epoch, start in self.epochs.items() if start <= offset), default=None)

    def truncate_to(self, offset: int) -> None:
        self.log_end_offset = min(offset, self.log_end_offset)
        self.epochs = {epoch: start for epoch, start in self.epochs.items() if start < self.log_end_offset}


def fetching(log: Log, epoch: int = 5, *, prefers_last_tiered: bool = False) -> tuple[Follower, FetchRecords]:
    follower = Follower(log, prefers_last_tiered=lambda: prefers_last_tiered)
    if isinstance(follower.follow(epoch), TruncateTo):  # a log without epochs
        follower.on_truncated()
    request = follower.next_request()
    assert isinstance(request, FetchRecords)
    return follower, request


def test_a_log_with_epochs_is_fetched_on_from_its_end():
    follower, request = fetching(Log(12, {0: 0, 3: 10}, high_watermark=7))
    assert request == FetchRecords(leader_epoch=5, fetch_offset=12, last_fetched_epoch=3, log_start_offset=0)
    assert follower.state is ReplicaState.FETCHING


def test_a_log_without_epochs_keeps_what_is_known_to_be_everywhere():
    follower = Follower(Log(12, {}, high_watermark=7))
    assert follower.follow(5) == TruncateTo(offset=7)
    assert follower.next_request() is None


@pytest.mark.parametrize(
    ("epochs", "end", "divergence", "offset"),
    [
        # KIP-101, scenario 2: both know the epoch; the shorter of the two ends holds.
        ({0: 0}, 12, Divergence(epoch=0, end_offset=10), 10),
        ({0: 0, 1: 10}, 12, Divergence(epoch=0, end_offset=10), 10),
        ({0: 0, 1: 8}, 12, Divergence(epoch=0, end_offset=10), 8),
        # KIP-279: the leader names an epoch that we never saw: back to the end of our next older one.
        ({0: 0, 3: 10}, 12, Divergence(epoch=2, end_offset=11), 10),
        # All that we have is newer than what the leader names.
        ({3: 4, 4: 10}, 12, Divergence(epoch=2, end_offset=6), 6),
        ({3: 4}, 5, Divergence(epoch=2, end_offset=6), 5),
    ],
)
def test_where_a_diverging_log_is_cut(epochs, end, divergence, offset):
    log = Log(end, epochs)
    follower, request = fetching(log)
    assert follower.on_divergence(request, divergence) == TruncateTo(offset=offset)
    assert follower.next_request() is None, "nothing is asked before the log is cut"
    log.truncate_to(offset)
    follower.on_truncated()
    asked = follower.next_request()
    assert isinstance(asked, FetchRecords)
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (offset, log.latest_epoch)


def test_records_are_appended_in_the_epoch_they_were_asked_in():
    log = Log(12, {0: 0})
    follower, request = fetching(log)
    action = follower.on_records(
        request, Records(records=memoryview(b"..."), high_watermark=20, log_start_offset=3)
    )
    assert action == Append(leader_epoch=5, records=memoryview(b"..."), high_watermark=20, log_start_offset=3)
    log.log_end_offset = 15
    follower.on_appended(action)
    assert (follower.fetch_offset, follower.lag) == (15, 5)


def test_what_is_behind_a_gap_goes_when_the_leader_has_answered():
    log = Log(12, {0: 0, 2: 6, 3: 8}, first_gap_offset=7)
    follower, request = fetching(log)
    # To its leader a follower has all that is before what it asks for: it would be in the ISR, and then cut itself off.
    assert (request.fetch_offset, request.last_fetched_epoch) == (7, 2)
    answer = Records(records=memoryview(b"..."), high_watermark=20, log_start_offset=3)
    assert follower.on_records(request, answer) == TruncateTo(offset=7)
    log.truncate_to(7)
    log.first_gap_offset = None
    follower.on_truncated()
    asked = follower.next_request()
    assert isinstance(asked, FetchRecords)
    assert asked.fetch_offset == 7


def test_a_truncation_leaves_nothing_behind_a_gap():
    """It could be before the first segment, where a log is empty, and its producers unknown."""
    follower, request = fetching(Log(12, {0: 0}, first_gap_offset=3))
    follower.on_out_of_range(request)
    bounds = Bounds(log_start_offset=0, log_end_offset=9)
    assert follower.on_bounds(FetchBounds(leader_epoch=5), bounds) == TruncateTo(offset=3)


@pytest.mark.parametrize("changed", [{"log_end_offset": 13}, {"epochs": {0: 0, 1: 11}}])
def test_records_behind_an_end_that_the_leader_was_not_asked_of_are_a_bug(changed):
    """The first of the TLA+ rules: nothing is appended to a log that was not reconciled in this epoch."""
    log = Log(12, {0: 0})
    follower, request = fetching(log)
    for name, value in changed.items():
        setattr(log, name, value)
    with pytest.raises(AssertionError):
        follower.on_records(
            request, Records(records=memoryview(b"..."), high_watermark=20, log_start_offset=0)
        )


# KIP-320
def test_responses_of_an_older_epoch_are_ignored():
    follower, request = fetching(Log(12, {0: 0}), epoch=5)
    follower.follow(6)
    answer = Records(records=memoryview(b"..."), high_watermark=20, log_start_offset=0)
    assert follower.on_records(request, answer) is None
    assert follower.on_divergence(request, Divergence(epoch=0, end_offset=3)) is None
    follower.on_out_of_range(request)
    follower.on_fenced(request)
    assert follower.state is ReplicaState.FETCHING


@pytest.mark.parametrize(
    ("end", "bounds", "action"),
    [
        (12, Bounds(log_start_offset=0, log_end_offset=10), TruncateTo(offset=10)),
        (12, Bounds(log_start_offset=20, log_end_offset=30), TruncateFullyAndStartAt(offset=20)),
        (12, Bounds(log_start_offset=3, log_end_offset=30), None),
    ],
)
def test_a_log_that_does_not_join_the_leaders(end, bounds, action):
    follower, request = fetching(Log(end, {0: 0}))
    follower.on_out_of_range(request)
    asked = follower.next_request()
    assert asked == FetchBounds(leader_epoch=5)
    assert follower.on_bounds(asked, bounds) == action
    assert follower.state is (ReplicaState.FETCHING if action is None else ReplicaState.TRUNCATING)


def test_a_log_whose_last_epoch_ended_before_the_leaders_log_start_is_emptied():
    follower, request = fetching(Log(12, {0: 0}))
    bounds = Bounds(log_start_offset=3, log_end_offset=30)
    follower.on_out_of_range(request)
    assert follower.on_bounds(FetchBounds(leader_epoch=5), bounds) is None
    again = follower.next_request()
    assert again == request
    follower.on_out_of_range(request)
    assert follower.on_bounds(FetchBounds(leader_epoch=5), bounds) == TruncateFullyAndStartAt(offset=3)


def test_a_fenced_follower_waits_for_the_next_epoch():
    follower, request = fetching(Log(12, {0: 0}))
    follower.on_fenced(request)
    assert follower.next_request() is None
    follower.follow(5)
    assert follower.next_request() is None, "the same epoch again says nothing new"
    follower.follow(6)
    assert follower.next_request() is not None


def test_a_failed_follower_is_tried_again_in_the_next_epoch():
    follower, _ = fetching(Log(12, {0: 0}))
    follower.on_failure()
    assert follower.next_request() is None
    follower.follow(6)
    assert follower.next_request() is not None


# -- KIP-405 ---------------------------------------------------------------------------------------------

_LOCAL = LeaderOffsets(log_start_offset=5, local_log_start_offset=100, bootstrap_offset=100, previous_epoch=3)
_ASKED = FetchLeaderOffsets(leader_epoch=5, prefers_last_tiered=False)


def building(log: Log, offsets: LeaderOffsets = _LOCAL) -> tuple[Follower, BuildRemoteLogAux]:
    follower, request = fetching(log)
    follower.on_offset_moved(request)
    asked = follower.next_request()
    assert asked == _ASKED
    action = follower.on_leader_offsets(asked, offsets)
    assert isinstance(action, BuildRemoteLogAux)
    return follower, action


def test_a_follower_restarts_where_the_leaders_local_segments_begin():
    log = Log(12, {0: 0})
    follower, action = building(log)
    assert action == BuildRemoteLogAux(
        leader_epoch=5, log_start_offset=5, end_offset=100, previous_epoch=3, leader_ends={}
    )
    assert follower.state is ReplicaState.BUILDING_REMOTE_LOG_AUX
    assert follower.next_request() is None
    log.log_end_offset, log.epochs, log.log_start_offset, log.local_start = 100, {0: 5, 3: 60}, 5, 100
    follower.on_remote_log_aux_built(action)
    assert follower.next_request() == FetchRecords(
        leader_epoch=5, fetch_offset=100, last_fetched_epoch=3, log_start_offset=5
    )


@pytest.mark.parametrize(("log_start", "local_start", "action", "state"), [
    # The leader's offsets move between its refusal and its answer:
    ( 5, 12, None,                               ReplicaState.FETCHING),     # our log end is in its local segments
    (30, 30, TruncateFullyAndStartAt(offset=30), ReplicaState.TRUNCATING),   # the remote tier's part was deleted
    (40, 30, TruncateFullyAndStartAt(offset=40), ReplicaState.TRUNCATING),   # and DeleteRecords in between
])  # fmt: skip
def test_leader_offsets_that_need_nothing_of_the_remote_tier(log_start, local_start, action, state):
    follower, request = fetching(Log(12, {0: 0}))
    follower.on_offset_moved(request)
    answer = LeaderOffsets(
        log_start_offset=log_start,
        local_log_start_offset=local_start,
        bootstrap_offset=local_start,
        previous_epoch=3,
    )
    assert follower.on_leader_offsets(_ASKED, answer) == action
    assert follower.state is state


@pytest.mark.parametrize(("answer", "end"), [
    (EpochEnd(epoch=4, end_offset=130), 130),
    (EpochEnd(epoch=2, end_offset=110), None),   # the leader has no record of epoch 4
    (EpochEnd(epoch=-1, end_offset=-1), None),
])  # fmt: skip
def test_the_leader_is_asked_about_a_copy_of_another_one(answer, end):
    follower, action = building(Log(12, {0: 0}))
    follower.on_unconfirmed_copy(action, epoch=4)
    asked = follower.next_request()
    assert asked == FetchEpochEnd(leader_epoch=5, epoch=4)
    again = follower.on_epoch_end(asked, answer)
    assert again == replace(action, leader_ends={4: end})
    assert follower.next_request() is None


def test_a_failed_attempt_begins_again_with_the_fetch():
    follower, _ = building(Log(12, {0: 0}))
    follower.on_remote_log_aux_failed()
    assert follower.next_request() == FetchRecords(
        leader_epoch=5, fetch_offset=12, last_fetched_epoch=0, log_start_offset=0
    )


def test_answers_about_tiers_of_an_older_epoch_are_ignored():
    follower, action = building(Log(12, {0: 0}))
    follower.on_unconfirmed_copy(action, epoch=4)
    follower.follow(6)
    assert follower.state is ReplicaState.FETCHING
    assert (
        follower.on_epoch_end(FetchEpochEnd(leader_epoch=5, epoch=4), EpochEnd(epoch=4, end_offset=130))
        is None
    )
    assert follower.on_leader_offsets(_ASKED, _LOCAL) is None
    follower.on_unconfirmed_copy(action, epoch=4)
    follower.on_remote_log_aux_failed()
    assert follower.state is ReplicaState.FETCHING


def test_a_fenced_request_for_offsets_waits_for_the_next_epoch():
    follower, request = fetching(Log(12, {0: 0}))
    follower.on_offset_moved(request)
    follower.on_fenced(_ASKED)
    assert follower.next_request() is None


@pytest.mark.parametrize(("divergence", "is_truncated"), [
    (Divergence(epoch=1, end_offset=8), True),
    (Divergence(epoch=1, end_offset=6), True),
    (Divergence(epoch=1, end_offset=5), False),   # within the part that only the remote tier has
    (Divergence(epoch=0, end_offset=3), False),
])  # fmt: skip
def test_a_log_whose_local_segments_all_diverge_begins_again(divergence, is_truncated):
    """Truncated to 5 it would start there, and the tiered records before would be lost with the old leader."""
    log = Log(10, {0: 0, 1: 4}, log_start_offset=2, local_start=6)
    follower, request = fetching(log)
    action = follower.on_divergence(request, divergence)
    if is_truncated:
        assert action == TruncateTo(offset=divergence.end_offset)
        return
    assert action is None
    asked = follower.next_request()
    assert asked == FetchBounds(leader_epoch=5)
    bounds = Bounds(log_start_offset=1, log_end_offset=30)
    assert follower.on_bounds(asked, bounds) == TruncateFullyAndStartAt(offset=1)


@pytest.mark.parametrize(("leader_end", "action"), [
    (8, TruncateTo(offset=8)),
    (6, TruncateTo(offset=6)),
    (5, TruncateFullyAndStartAt(offset=1)),
])  # fmt: skip
def test_an_unclean_leader_ends_before_our_local_segments(leader_end, action):
    log = Log(10, {0: 0, 1: 4}, log_start_offset=2, local_start=6)
    follower, request = fetching(log)
    follower.on_out_of_range(request)
    bounds = Bounds(log_start_offset=1, log_end_offset=leader_end)
    assert follower.on_bounds(FetchBounds(leader_epoch=5), bounds) == action


_LINEAGES = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=6)


def _log(common: list[tuple[int, int]], own: list[tuple[int, int]], parity: int) -> Log:
    """Common epochs, then epochs of its own: an epoch has one leader, so it begins in one place only."""
    log, epoch = Log(), 0
    for gap, length in common:
        epoch += gap
        log.epochs[epoch] = log.log_end_offset
        log.log_end_offset += length
    epoch += parity
    for gap, length in own:
        epoch += 2 * gap
        log.epochs[epoch] = log.log_end_offset
        log.log_end_offset += length
    return log


def _epoch_at(log: Log, offset: int) -> int:
    return max(epoch for epoch, start in log.epochs.items() if start <= offset)


@given(common=_LINEAGES, ours=_LINEAGES, theirs=_LINEAGES)
def test_two_logs_come_to_agree_on_their_longest_common_beginning(common, ours, theirs):
    """Epochs name batches: where both have the same epoch at an offset, they have the same record."""
    mine, leader = _log(common, ours, 0), _log(common, theirs, 1)
    agreed = 0
    while agreed < min(mine.log_end_offset, leader.log_end_offset) and (
        _epoch_at(mine, agreed) == _epoch_at(leader, agreed)
    ):
        agreed += 1
    follower, _ = fetching(mine, epoch=99)
    rounds = 0
    while True:
        rounds += 1
        assert rounds < 20
        asked = follower.next_request()
        assert isinstance(asked, FetchRecords)
        if asked.last_fetched_epoch is None:
            break
        epoch, end = leader.end_offset_for_epoch(asked.last_fetched_epoch) or (-1, -1)
        if epoch == asked.last_fetched_epoch and end >= asked.fetch_offset:
            break
        if epoch == -1:
            return  # out of range: the bounds are asked for, which is another story
        action = follower.on_divergence(asked, Divergence(epoch=epoch, end_offset=end))
        assert isinstance(action, TruncateTo)
        mine.truncate_to(action.offset)
        follower.on_truncated()
    assert mine.log_end_offset <= leader.log_end_offset
    assert all(_epoch_at(mine, at) == _epoch_at(leader, at) for at in range(mine.log_end_offset))
    assert mine.log_end_offset == agreed


# -- KIP-1023 --------------------------------------------------------------------------------------------

EMPTY, TWELVE_RECORDS, TRUNCATED_FULLY = Log(), Log(12, {0: 0}), Log(30, log_start_offset=30)


def asks_after_refusal(log: Log, *, prefers: bool, is_out_of_range: bool = False) -> bool:
    """Whether the follower asks for the earliest pending upload offset when the leader refuses its Fetch."""
    follower, request = fetching(replace(log), prefers_last_tiered=prefers)
    if is_out_of_range:
        follower.on_out_of_range(request)
        bounds = Bounds(log_start_offset=50, log_end_offset=90)
        if follower.on_bounds(FetchBounds(leader_epoch=5), bounds) is not None:
            return False
    else:
        follower.on_offset_moved(request)
    asked = follower.next_request()
    assert isinstance(asked, FetchLeaderOffsets)
    return asked.prefers_last_tiered


@pytest.mark.parametrize("is_out_of_range", [False, True], ids=["moved to tiered storage", "out of range"])
@pytest.mark.parametrize(("log", "prefers", "asks"), [
    (EMPTY,           True,  True),
    (EMPTY,           False, False),
    (TWELVE_RECORDS,  True,  False),
    (TRUNCATED_FULLY, True,  True),    # for Kafka, this log is not empty
])  # fmt: skip
def test_only_an_empty_follower_starts_after_what_is_tiered(log, prefers, asks, is_out_of_range):
    assert asks_after_refusal(log, prefers=prefers, is_out_of_range=is_out_of_range) is asks


@pytest.mark.parametrize(("lso", "llso", "epuo", "is_empty", "prefer_last_tiered", "begins"), [
    # LSO LLSO  EPUO  empty  KIP-1023  begins
    (   0,   3,    6, True,  True,      6),                   # the KIP's own scenario
    (   0,   3,    6, True,  False,     3),                   # KIP-405 behaviour
    (   0,   3,    6, False, True,      3),                   # only an empty follower
    (   0,   3, None, True,  True,      OffsetNotAvailable),  # new leader: not learnt yet
    (   0,   3, None, True,  False,     3),
    (  50,  50,   20, True,  True,     50),                   # tiered part has expired
    (  50,  50, None, True,  True,     50),                   # nothing is tiered yet
    (  50,  50,   50, True,  True,     50),
    (  50,  50,   80, True,  True,     80),                   # DeleteRecords within local segments, which are tiered
    (  50,  70,   70, True,  True,     70),                   # local retention has removed all that is tiered
    (  40,  70,   60, True,  True,     70),                   # the leader has removed more since it was asked
    (  40,  70,   20, True,  True,     70),                   # a leader that does not limit it to its log start
    (   0,   3,    9, True,  True,      9),                   # everything is tiered: the leader's log end
])  # fmt: skip
def test_where_a_follower_begins(lso, llso, epuo, is_empty, prefer_last_tiered, begins):
    log = Log() if is_empty else Log(2, {0: 0})
    follower, request = fetching(log, prefers_last_tiered=prefer_last_tiered)
    follower.on_offset_moved(request)
    asked = follower.next_request()
    assert isinstance(asked, FetchLeaderOffsets)

    def found() -> int:
        return bootstrap_offset(
            log_start_offset=lso,
            local_log_start_offset=llso,
            earliest_pending_upload_offset=epuo,
            prefers_last_tiered=asked.prefers_last_tiered,
        )

    if begins is OffsetNotAvailable:
        with pytest.raises(OffsetNotAvailable):
            found()
        return
    answer = LeaderOffsets(
        log_start_offset=lso,
        local_log_start_offset=llso,
        bootstrap_offset=found(),
        previous_epoch=3 if found() > lso else None,
    )
    action = follower.on_leader_offsets(asked, answer)
    if begins == lso:  # the leader's local segments have all of its log
        assert action == TruncateFullyAndStartAt(offset=begins)
    else:
        assert action == BuildRemoteLogAux(
            leader_epoch=5, log_start_offset=lso, end_offset=begins, previous_epoch=3, leader_ends={}
        )


_OFFSETS = st.integers(0, 20)


@given(st.lists(_OFFSETS, min_size=2, max_size=2).map(sorted), st.none() | _OFFSETS, st.booleans())
def test_a_follower_begins_where_the_leader_can_continue(starts, pending, prefers):
    """Never before the leader's local log start, since the leader would refuse that; never after what is tiered."""
    log_start, local_start = starts
    try:
        begins = bootstrap_offset(
            log_start_offset=log_start,
            local_log_start_offset=local_start,
            earliest_pending_upload_offset=pending,
            prefers_last_tiered=prefers,
        )
    except OffsetNotAvailable:
        assert prefers
        assert pending is None
        assert log_start < local_start
        return
    assert begins >= local_start
    assert begins in ({local_start, pending} if prefers else {local_start})


def test_the_feature_is_asked_for_again_with_each_request():
    """A follower that waits for a leader that does not know its offset begins as before when it is switched off."""
    is_on = True
    follower = Follower(Log(), prefers_last_tiered=lambda: is_on)
    follower.follow(5)
    follower.on_truncated()
    request = follower.next_request()
    assert isinstance(request, FetchRecords)
    follower.on_offset_moved(request)
    assert follower.next_request() == FetchLeaderOffsets(leader_epoch=5, prefers_last_tiered=True)
    is_on = False
    assert follower.next_request() == _ASKED


def test_an_empty_follower_whose_offset_is_refused_twice_does_not_ask_for_both_offsets_by_turns():
    """Its log end is within the leader's log: not the offset is refused, but the epoch."""
    follower, request = fetching(Log(30, log_start_offset=30), prefers_last_tiered=True)
    bounds = Bounds(log_start_offset=10, log_end_offset=90)
    follower.on_out_of_range(request)
    assert follower.on_bounds(FetchBounds(leader_epoch=5), bounds) is None
    assert follower.state is ReplicaState.FETCHING
    follower.on_out_of_range(request)
    assert follower.on_bounds(FetchBounds(leader_epoch=5), bounds) == TruncateFullyAndStartAt(offset=10)
