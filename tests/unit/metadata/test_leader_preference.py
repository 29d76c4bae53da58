"""The policy of the draft KIP-1303 by itself: which replicas are preferred, in both of the KIP's forms."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference, preference_order
from ottla.protocol.local_log import LocalLog

NOW_MS = 1_700_000_000_000
EARLY = LeaderPreference(prefers_early_start=True)
MINUTE, GIB = 60_000, 2**30
TEN_MINUTES = LeaderPreference(eligible_local_ms=10 * MINUTE)
ONE_GIB = LeaderPreference(eligible_local_bytes=GIB)
EITHER = LeaderPreference(eligible_local_ms=10 * MINUTE, eligible_local_bytes=GIB)
BOTH_FORMS = TEN_MINUTES._replace(prefers_early_start=True)


def log(start: int, *, minutes: int | None = 0, size: int = 0) -> LocalLog:
    return LocalLog(start, size, None if minutes is None else NOW_MS - minutes * MINUTE)


def order(candidates, logs, preference):
    return preference_order(candidates, logs, preference, now_ms=NOW_MS)


@pytest.mark.parametrize(("candidates", "starts", "groups"), [
    # The draft's example; the threshold is 10,000.
    ([1, 2, 3],    {1: 1_000_000, 2: 1_000_050, 3: 5_000_000},   [[1, 2], [3]]),
    ([3, 2, 1],    {1: 1_000_000, 2: 1_000_050, 3: 5_000_000},   [[2, 1], [3]]),  # in assignment order
    ([2, 3],       {1: 1_000_000, 2: 1_000_050, 3: 5_000_000},   [[2], [3]]),     # 1 cannot lead
    ([3],          {1: 1_000_000, 2: 1_000_050, 3: 5_000_000},   [[3]]),          # never excluded
    ([3, 4],       {3: 1_020_000, 4: 1_029_999, 1: 1_010_001},   [[3, 4]]),       # 1 is no anchor: it cannot lead
    # An unknown local log counts as 0.
    ([1, 2, 3],    {1: 1_000_000, 3: 1_000_050},                 [[2], [1, 3]]),
    ([1, 2, 3],    {},                                           [[1, 2, 3]]),
    # Less than the threshold is equivalent, the threshold itself is not.
    ([1, 2],       {1: 9_999, 2: 0},                             [[1, 2]]),
    ([1, 2],       {1: 10_000, 2: 0},                            [[2], [1]]),
    # The difference by less than the threshold is not transitive: groups are anchored at their lowest start.
    ([1, 2, 3],    {1: 0, 2: 9_000, 3: 18_000},                  [[1, 2], [3]]),
    ([3, 2, 1],    {1: 0, 2: 9_000, 3: 18_000},                  [[2, 1], [3]]),
    ([2, 3],       {1: 0, 2: 9_000, 3: 18_000},                  [[2, 3]]),
    ([],           {1: 0},                                       []),
])  # fmt: skip
def test_early_local_log_starts_come_first(candidates, starts, groups):
    assert order(candidates, {replica: log(start) for replica, start in starts.items()}, EARLY) == groups


@pytest.mark.parametrize("threshold", [-1, 0, 1])
def test_without_a_threshold_every_difference_counts(threshold):
    logs = {1: log(8), 2: log(7), 3: log(7)}
    assert order([1, 2, 3], logs, EARLY._replace(start_offset_threshold=threshold)) == [[2, 3], [1]]


@pytest.mark.parametrize(("logs", "preference", "groups"), [
    # By time: replica 3 has fetched from the last tiered offset.
    ({1: log(100, minutes=60), 2: log(150, minutes=50), 3: log(900, minutes=2)},   TEN_MINUTES, [[1, 2], [3]]),
    ({1: log(900, minutes=2), 2: log(150, minutes=50), 3: log(100, minutes=60)},   TEN_MINUTES, [[2, 3], [1]]),
    ({1: log(900, minutes=10), 2: log(150, minutes=50), 3: log(100, minutes=60)},  TEN_MINUTES, [[1, 2, 3]]),
    # By size.
    ({1: log(900, size=GIB - 1), 2: log(150, size=GIB), 3: log(100, size=2 * GIB)}, ONE_GIB,    [[2, 3], [1]]),
    # Either bound is enough; one that is off is not compared.
    ({1: log(900, size=GIB), 2: log(150, minutes=10), 3: log(100)},                EITHER,      [[1, 2, 3]]),
    ({1: log(900, size=GIB), 2: log(150, minutes=10), 3: log(100)},                TEN_MINUTES, [[2, 3], [1]]),
    ({1: log(900, size=GIB), 2: log(150, minutes=10), 3: log(100)},                ONE_GIB,     [[1, 3], [2]]),
    # Nothing spans a bound: a replica that lacks nothing which others have is eligible.
    ({1: log(500, minutes=2), 2: log(0, minutes=5), 3: log(0, minutes=5)},         TEN_MINUTES, [[2, 3], [1]]),
    ({1: log(500, minutes=2), 2: log(500, minutes=2), 3: log(500, minutes=2)},     TEN_MINUTES, [[1, 2, 3]]),
    # An unknown local log is a complete one, and shows that the others lack something.
    ({1: log(500, minutes=2), 2: log(400, minutes=5)},                             TEN_MINUTES, [[3], [1, 2]]),
    # An empty local log has no oldest record, so it spans no time.
    ({1: log(500, minutes=None), 2: log(400, minutes=20), 3: log(300, minutes=20)}, TEN_MINUTES, [[2, 3], [1]]),
    # A clock that is behind the timestamps: nothing spans the bound.
    ({1: log(500, minutes=-90), 2: log(400, minutes=-80), 3: log(300, minutes=-70)}, TEN_MINUTES, [[3], [1, 2]]),
    # Both forms: eligible ones first, then in each part by local log start.
    ({1: log(90_000, minutes=20), 2: log(10, minutes=30), 3: log(20, minutes=30)},  BOTH_FORMS, [[2, 3], [1]]),
    ({1: log(90_000, minutes=1), 2: log(50_000, minutes=2), 3: log(20, minutes=3)}, BOTH_FORMS, [[3], [2], [1]]),
    ({1: log(9_000, minutes=1), 2: log(10, minutes=30), 3: log(9_500, minutes=2)},  BOTH_FORMS, [[2], [1, 3]]),
    ({1: log(9_000, minutes=1), 2: log(10, minutes=30), 3: log(9_500, minutes=2)},  EARLY,      [[1, 2, 3]]),
])  # fmt: skip
def test_replicas_whose_local_data_spans_a_bound_are_eligible(logs, preference, groups):
    assert order([1, 2, 3], logs, preference) == groups


def test_which_preferences_are_on():
    assert [each.is_on for each in (NO_PREFERENCE, EARLY, TEN_MINUTES, ONE_GIB)] == [False, True, True, True]
    assert LeaderPreference(eligible_local_ms=0).is_on  # 0 is a bound, None is none


LOGS = st.builds(
    LocalLog,
    st.one_of(st.integers(0, 40_000), st.integers(0, 2**63 - 1)),
    st.integers(0, 5),
    st.none() | st.integers(NOW_MS - 9, NOW_MS + 3),
)
PREFERENCES = st.builds(
    LeaderPreference,
    st.booleans(),
    st.sampled_from([-5, 0, 1, 10_000, 2**63 - 1]),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 5),
)
REPLICAS = st.lists(st.integers(0, 9), unique=True)


@given(REPLICAS, st.dictionaries(st.integers(0, 9), LOGS), PREFERENCES)
def test_the_order_is_total_deterministic_and_stable(candidates, logs, preference):
    groups = order(candidates, logs, preference)
    assert sorted(replica for group in groups for replica in group) == sorted(candidates)
    assert all(groups)
    for group in groups:
        assert group == [replica for replica in candidates if replica in group]  # the assignment's order
    assert groups == order(tuple(candidates), dict(reversed(logs.items())), preference)
    # The order of the candidates does not decide who is in which group.
    assert [set(group) for group in groups] == [
        set(group) for group in order(sorted(candidates), logs, preference)
    ]


@given(REPLICAS.filter(bool), st.dictionaries(st.integers(0, 9), LOGS), PREFERENCES)
def test_the_first_group_has_a_replica_with_the_lowest_start(candidates, logs, preference):
    def start(replica):
        return logs[replica].start_offset if replica in logs else 0

    first = order(candidates, logs, preference)[0]
    assert min(map(start, first)) == min(map(start, candidates))


@given(
    REPLICAS.filter(bool), st.dictionaries(st.integers(0, 9), LOGS), PREFERENCES, st.sets(st.integers(0, 9))
)
def test_a_replica_of_the_first_group_is_in_it_among_fewer_candidates_too(
    candidates, logs, preference, missing
):
    for replica in order(candidates, logs, preference)[0]:
        fewer = [each for each in candidates if each == replica or each not in missing]
        assert replica in order(fewer, logs, preference)[0]


@given(REPLICAS, st.dictionaries(st.integers(0, 9), LOGS), PREFERENCES)
def test_groups_by_start_offset_are_at_least_the_threshold_apart(candidates, logs, preference):
    by_start = preference._replace(
        prefers_early_start=True, eligible_local_ms=None, eligible_local_bytes=None
    )
    threshold = max(1, preference.start_offset_threshold)

    def starts(group):
        return [logs[replica].start_offset if replica in logs else 0 for replica in group]

    groups = order(candidates, logs, by_start)
    for group in groups:
        assert max(starts(group)) - min(starts(group)) < threshold
    for group, following in pairwise(groups):
        assert min(starts(following)) - min(starts(group)) >= threshold


@given(REPLICAS, st.dictionaries(st.integers(0, 9), st.integers(100_000, 109_999), min_size=10))
def test_within_the_threshold_the_assignment_decides(candidates, starts):
    logs = {replica: log(start) for replica, start in starts.items()}
    assert order(candidates, logs, EARLY) == ([candidates] if candidates else [])


@given(REPLICAS, st.dictionaries(st.integers(0, 9), LOGS))
def test_while_it_is_off_the_assignment_decides(candidates, logs):
    off = NO_PREFERENCE._replace(start_offset_threshold=1)
    assert order(candidates, logs, off) == ([candidates] if candidates else [])
