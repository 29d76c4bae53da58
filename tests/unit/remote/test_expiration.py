"""Copies that retention deletes in the remote tier: tables.

Copies have 10 offsets and 1,000 bytes, offset 10 is from time 100.
"""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_support import PARTITION, copy_of, to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.expiration import MAX_EXPIRED, LogView, Reason, expire
from ottla.remote.lineage import is_within
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.storage.leader_epoch_cache import EpochEntry

NOW_MS = 1000


def tier(*copies):
    """Finished copies by (number, start offset, *epochs); a fourth field is the state of another one."""
    cache = RemoteLogMetadataCache(PARTITION)
    for number, start, *rest in copies:
        state = rest.pop() if rest and isinstance(rest[-1], State) else State.COPY_SEGMENT_FINISHED
        cache.add(copy_of(number, start, start + 10, *rest))
        if state is not State.COPY_SEGMENT_STARTED:
            cache.update(to(number, State.COPY_SEGMENT_FINISHED))
        if state is State.DELETE_SEGMENT_STARTED:
            cache.update(to(number, state))
    return cache


def decide(
    cache,
    *,
    lineage=((0, 0),),
    start=0,
    local_start=0,
    end=100,
    local_only=0,
    ms=None,
    size=None,
    being_copied=(),
    abandoned=(),
    in_sync=True,
):
    log = LogView(
        lineage=[EpochEntry(*each) for each in lineage],
        log_start_offset=start,
        local_log_start_offset=max(start, local_start),
        log_end_offset=end,
        local_only_bytes=local_only,
        retention_ms=ms,
        retention_bytes=size,
        is_fully_in_sync=in_sync,
    )
    found = expire(
        cache,
        log,
        being_copied=[UUID(int=each) for each in being_copied],
        abandoned=[UUID(int=each) for each in abandoned],
        now_ms=NOW_MS,
    )
    return {copy.segment_id.id.int: reason for copy, reason in found.deleted}, found.log_start_offset


FOUR = ((1, 0), (2, 10), (3, 20), (4, 30))


@pytest.mark.parametrize(
    ("settings", "deleted", "log_start_offset"),
    [
        ({}, {}, None),
        (
            {"ms": 850},
            {1: Reason.RETENTION_TIME, 2: Reason.RETENTION_TIME},
            20,
        ),  # times 0 and 100 are older than 150
        ({"ms": 900}, {1: Reason.RETENTION_TIME}, 10),  # 100 is exactly 900 ms old
        ({"ms": 0}, dict.fromkeys([1, 2, 3, 4], Reason.RETENTION_TIME), 40),
        ({"size": 4000}, {}, None),
        ({"size": 3999}, {}, None),  # a copy goes only if the rest is still as large as retention.bytes
        ({"size": 3000}, {1: Reason.RETENTION_SIZE}, 10),
        ({"size": 3000, "local_only": 999}, {1: Reason.RETENTION_SIZE}, 10),
        ({"size": 3000, "local_only": 1000}, {1: Reason.RETENTION_SIZE, 2: Reason.RETENTION_SIZE}, 20),
        ({"size": 0}, dict.fromkeys([1, 2, 3, 4], Reason.RETENTION_SIZE), 40),
        ({"size": 2000, "ms": 900}, {1: Reason.RETENTION_TIME, 2: Reason.RETENTION_SIZE}, 20),
        ({"start": 20}, {1: Reason.LOG_START_OFFSET, 2: Reason.LOG_START_OFFSET}, None),
        ({"start": 19}, {1: Reason.LOG_START_OFFSET}, None),
        ({"start": 10, "size": 2000}, {1: Reason.LOG_START_OFFSET, 2: Reason.RETENTION_SIZE}, 20),
    ],
)
def test_time_size_and_log_start_offset(settings, deleted, log_start_offset):
    assert decide(tier(*FOUR), **settings) == (deleted, log_start_offset)


def test_bytes_in_both_tiers_count_once():
    """KAFKA-20732: 4,000 bytes are copied and all of them still local; 4,000 are allowed, and nothing is deleted.

    The caller counts as local only what lies behind the end of what is copied: here nothing.
    """
    assert decide(tier(*FOUR), size=4000, end=40, local_only=0) == ({}, None)


def test_another_branch_does_not_count_and_stays_until_all_replicas_are_in_sync():
    branches = tier((1, 0), (2, 10), (3, 20), (4, 15, (1, 15)), (5, 25, (1, 25)))
    lineage = (
        (0, 0),
        (1, 15),
    )  # epoch 0 ends at 15: copies 2 and 3 are of the lost branch, 2 has five records of this log
    assert decide(branches, lineage=lineage, size=3000, in_sync=False) == ({}, None)
    assert decide(branches, lineage=lineage, size=2000, in_sync=False) == ({1: Reason.RETENTION_SIZE}, 10)
    assert decide(branches, lineage=lineage) == ({3: Reason.LOST_BRANCH}, None)
    assert decide(branches, lineage=((1, 15),), start=15, in_sync=False) == (
        {1: Reason.LOG_START_OFFSET},
        None,
    )
    assert decide(branches, lineage=((1, 15),), start=15) == (
        {1: Reason.LOG_START_OFFSET, 2: Reason.LOST_BRANCH, 3: Reason.LOST_BRANCH}, None,
    )  # fmt: skip


def test_copies_that_no_reader_finds_are_deleted_at_any_age():
    cache = tier(
        (1, 0, State.COPY_SEGMENT_STARTED), (2, 0), (3, 0), (4, 10, State.DELETE_SEGMENT_STARTED), (5, 10)
    )
    assert decide(cache, abandoned=[1]) == (
        {1: Reason.ABANDONED, 3: Reason.DUPLICATE, 4: Reason.RETRY}, None,
    )  # fmt: skip
    assert decide(cache) == (
        {3: Reason.DUPLICATE, 4: Reason.RETRY},
        None,
    )  # 1 may still be finished


def test_a_copy_that_this_broker_makes_now_is_left_alone():
    cache = tier((1, 0), (2, 10, State.COPY_SEGMENT_STARTED))
    assert decide(cache, abandoned=[2], being_copied=[2]) == ({}, None)
    assert decide(cache, abandoned=[2]) == ({2: Reason.ABANDONED}, None)


@pytest.mark.parametrize("finished", [(1, 2, 3), (1, 3, 2)])
def test_overlapping_copies_of_two_leaders_expire(finished):
    """The second leader copies all of its segment, of which the first leader has copied one that ends there, too."""
    cache = RemoteLogMetadataCache(PARTITION)
    cache.add(copy_of(1, 0, 50, (1, 0)))
    cache.add(copy_of(2, 50, 100, (1, 50), (2, 60)))
    cache.add(copy_of(3, 0, 100, (1, 0), (2, 60)))
    for number in finished:
        cache.update(to(number, State.COPY_SEGMENT_FINISHED))
    deleted, log_start_offset = decide(
        cache, lineage=((1, 0), (2, 60), (3, 150)), local_start=150, end=200, ms=0
    )
    assert set(deleted) == {1, 2, 3}
    assert log_start_offset == 100


def test_an_unfinished_copy_does_not_stop_retention():
    cache = tier((1, 0), (2, 10, State.COPY_SEGMENT_STARTED), (3, 10), (4, 20))
    assert decide(cache, ms=850) == ({1: Reason.RETENTION_TIME, 3: Reason.RETENTION_TIME}, 20)


def test_a_log_without_epochs_deletes_nothing():
    assert decide(tier(*FOUR), lineage=(), ms=0, size=0) == ({}, None)


def test_what_is_before_the_lineage_is_deleted_once():
    cache = tier(
        (1, 0), (2, 0, State.DELETE_SEGMENT_STARTED), (3, 10, State.COPY_SEGMENT_STARTED), (4, 90, (5, 90))
    )
    assert decide(cache, lineage=((5, 90),), start=90) == (
        {1: Reason.LOG_START_OFFSET, 2: Reason.RETRY}, None,
    )  # fmt: skip


def test_unfinished_copies_of_a_lost_branch_are_deleted_before_the_lineage_has_passed_it():
    cache = tier(
        (1, 0),
        (2, 10, (1, 10), State.COPY_SEGMENT_STARTED),
        (3, 20, (1, 20), State.DELETE_SEGMENT_STARTED),
        (4, 30, (1, 30)),  # a replica that has this branch may be elected
    )
    assert decide(cache, lineage=((0, 0), (2, 10)), abandoned=[2]) == (
        {2: Reason.ABANDONED, 3: Reason.RETRY}, None,
    )  # fmt: skip


def test_copies_of_another_branch_do_not_count_when_retention_by_size_is_exact():
    """The sum of all finished copies exceeds retention.bytes by a segment; that of the lineage does not."""
    branches = tier((1, 0), (2, 10), (3, 20), (4, 10, (1, 10)), (5, 20, (1, 20)))
    assert decide(branches, lineage=((0, 0), (1, 10)), size=3000, in_sync=False) == ({}, None)
    assert decide(branches, lineage=((0, 0), (1, 10)), size=2000, in_sync=False) == (
        {1: Reason.RETENTION_SIZE}, 10,
    )  # fmt: skip


def test_the_copies_of_a_lost_branch_expire():
    branches = tier((1, 0), (2, 10), (3, 10, (1, 10)))
    lineage = ((0, 0), (1, 10))
    assert decide(branches, lineage=lineage, end=10, ms=900) == ({1: Reason.RETENTION_TIME}, 10)
    assert decide(branches, lineage=lineage, end=10, ms=899) == (
        {1: Reason.RETENTION_TIME, 2: Reason.LOST_BRANCH}, 10,
    )  # fmt: skip


STARTED = State.COPY_SEGMENT_STARTED


@pytest.mark.parametrize(
    ("copies", "lineage", "start", "local_start", "is_needed"),
    [
        # The unfinished copy is always number 1, [10, 20).
        (((1, 10, STARTED), (2, 0)), ((0, 0),), 0, 10, False),  # the local log has it
        (((1, 10, STARTED), (2, 0)), ((0, 0),), 0, 11, True),  # but for its first record
        (((1, 10, STARTED), (2, 0)), ((0, 0),), 0, 20, True),
        (((1, 10, STARTED),), ((0, 0),), 0, 20, True),
        (((1, 10, STARTED), (2, 10)), ((0, 0),), 0, 20, False),  # a finished copy has it
        (((1, 10, STARTED), (2, 5), (3, 12)), ((0, 0),), 0, 20, False),  # two have it
        (((1, 10, STARTED), (2, 5), (3, 16)), ((0, 0),), 0, 20, True),  # 15 is missing
        (((1, 10, STARTED), (2, 10, STARTED)), ((0, 0),), 0, 20, True),  # that one is not finished either
        (((1, 10, STARTED), (2, 10, State.DELETE_SEGMENT_STARTED)), ((0, 0),), 0, 20, True),
        (((1, 10, STARTED),), ((0, 0),), 20, 20, False),  # before the log start
        (((1, 10, STARTED),), ((0, 0),), 19, 30, True),
        (((1, 10, (1, 10), STARTED),), ((0, 0), (2, 10)), 0, 30, False),  # of another branch
        (
            ((1, 10, (1, 10), STARTED),),
            ((0, 0), (1, 10), (2, 12)),
            0,
            30,
            True,
        ),  # two records are of this log
        (((1, 10, (1, 10), STARTED),), ((0, 0), (1, 10), (2, 12)), 0, 10, False),
        (((1, 10, (1, 10), STARTED),), ((3, 30),), 0, 30, True),  # the older epochs of the log are lost
        (((1, 10, (1, 10), STARTED),), ((3, 30),), 30, 30, False),
    ],
)
def test_an_unfinished_copy_that_may_be_the_only_one_is_not_deleted(
    copies, lineage, start, local_start, is_needed
):
    cache = tier(*copies)
    deleted, _ = decide(cache, lineage=lineage, start=start, local_start=local_start, abandoned=[1])
    assert (deleted.get(1) is None) == is_needed


def test_older_epochs_are_not_deleted_while_the_lineage_does_not_reach_the_log_start():
    cache = tier((1, 0), (2, 90, (5, 90)))
    assert decide(cache, lineage=((5, 90),), start=0, local_start=90) == ({}, None)


def test_a_decision_deletes_a_bounded_number_of_copies_and_the_next_one_continues():
    """A turn of the loop does not grow with what is due: a retention that was lowered, of 100,000 copies."""
    count = MAX_EXPIRED * 2 + 7
    cache = tier(*((number, number * 10, (0, number * 10)) for number in range(1, count + 1)))
    end, rounds = (count + 1) * 10, []
    while True:
        log = LogView(
            lineage=[EpochEntry(0, 0)], log_start_offset=0, local_log_start_offset=end, log_end_offset=end,
            local_only_bytes=0, retention_ms=1, retention_bytes=None, is_fully_in_sync=True,
        )  # fmt: skip
        found = expire(cache, log, being_copied=(), abandoned=(), now_ms=2**60)
        rounds.append((len(found.deleted), found.has_more))
        for copy, _ in found.deleted:
            number = copy.segment_id.id.int
            cache.update(to(number, State.DELETE_SEGMENT_STARTED))
            cache.update(to(number, State.DELETE_SEGMENT_FINISHED))
        if not found.has_more:
            break
        assert found.log_start_offset == found.deleted[-1][0].end_offset
    assert rounds == [(MAX_EXPIRED, True), (MAX_EXPIRED, True), (7, False)]
    assert len(cache) == 0


def test_former_epochs_are_deleted_in_bounded_numbers_too():
    cache = tier(*((number, number * 10, (0, number * 10)) for number in range(1, MAX_EXPIRED + 8)))
    start = (MAX_EXPIRED + 9) * 10
    log = LogView(
        lineage=[EpochEntry(3, start)], log_start_offset=start, local_log_start_offset=start, log_end_offset=start,
        local_only_bytes=0, retention_ms=None, retention_bytes=None, is_fully_in_sync=True,
    )  # fmt: skip
    found = expire(cache, log, being_copied=(), abandoned=(), now_ms=0)
    assert (len(found.deleted), found.has_more) == (MAX_EXPIRED, True)


@st.composite
def copies_and_lineage(draw):
    """Copies of up to three of five epochs each, in any order, also of other branches; and a lineage of some epochs."""
    copies = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        start = draw(st.integers(0, 80))
        epochs = sorted(draw(st.sets(st.integers(0, 4), min_size=1, max_size=3)))
        starts = [start, *sorted(draw(st.sets(st.integers(start + 1, start + 9), min_size=2, max_size=2)))]
        copies.append((number, start, *zip(epochs, starts, strict=False)))
    epochs = sorted(draw(st.sets(st.integers(0, 4), min_size=1)))
    starts = sorted(draw(st.sets(st.integers(0, 90), min_size=len(epochs), max_size=len(epochs))))
    return copies, [EpochEntry(*each) for each in zip(epochs, starts, strict=True)]


@given(copies_and_lineage(), st.integers(0, 90), st.integers(60, 100))
def test_the_size_of_the_copies_of_a_log_is_that_of_each_of_them(drawn, log_start_offset, log_end_offset):
    copies, lineage = drawn
    cache = tier(*copies)
    found = {copy.segment_id.id: copy for entry in lineage for copy in cache.referenced(entry.epoch)}
    expected = sum(
        copy.segment_size_bytes
        for copy in found.values()
        if copy.end_offset > log_start_offset and is_within(copy, lineage, log_end_offset=log_end_offset)
    )
    bounds = {"log_start_offset": log_start_offset, "log_end_offset": log_end_offset}
    assert cache.bytes_within(lineage, **bounds) == expected
