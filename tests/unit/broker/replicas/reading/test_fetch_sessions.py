"""KIP-227: session ids and epochs, what a session holds, eviction, and what an incremental fetch returns."""

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.broker.replicas.reading.fetch_contexts import FetchContext, new_context
from ottla.broker.replicas.reading.fetch_session_cache import EVICTION_MS, FetchSessionCache
from ottla.broker.replicas.reading.fetch_sessions import MAX_EPOCH, NO_SESSION, FetchSession, next_epoch
from ottla.broker.replicas.waiting.watchers import Watchers
from ottla.protocol.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)
from ottla.protocol.messages.fetch import EpochEndOffset, FetchPartition, PartitionData


def make_cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots=slots, random=Random(1))


def asked(*keys, offset=0):
    return {key: FetchPartition(partition=key[1], fetch_offset=offset) for key in keys}


def begin(cache, *, session_id=0, epoch=0, partitions=(), forgotten=(), now_ms=0, **others) -> FetchContext:
    flags = {"is_follower": False, "uses_topic_ids": False, "is_read_committed": False} | others
    return new_context(
        cache,
        session_id=session_id,
        epoch=epoch,
        requested=(partitions if isinstance(partitions, dict) else asked(*partitions)).items(),
        forgotten=forgotten,
        now_ms=now_ms,
        **flags,
    )


def row(key, **fields) -> PartitionData:
    return PartitionData(partition_index=key[1], **({"high_watermark": 0, "log_start_offset": 0} | fields))


def answer_all(context, *, now_ms=0, **fields):
    """Answer every candidate that has new data; (error, session id, keys returned)."""
    answers = []
    for fetched in list(context.to_read):
        reported = row(fetched.key, **fields)
        if context.must_send(fetched, reported):
            answers.append((fetched, reported))
    error, session_id = context.update_session(answers, now_ms=lambda: now_ms)
    return error, session_id, [fetched.key for fetched, _ in answers]


def open_session(cache, *keys, now_ms=0, **others) -> int:
    _, session_id, _ = answer_all(begin(cache, partitions=keys, now_ms=now_ms, **others), now_ms=now_ms)
    return session_id


A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


@pytest.mark.parametrize(
    ("epoch", "after"), [(0, 1), (1, 2), (MAX_EPOCH - 1, MAX_EPOCH), (MAX_EPOCH, 1), (-1, -1)]
)
def test_epochs_wrap_to_one(epoch, after):
    assert next_epoch(epoch) == after


def test_a_full_fetch_opens_a_session_that_returns_changes_only():
    cache = make_cache()
    session_id = open_session(cache, A0, A1)
    assert session_id > 0
    assert answer_all(begin(cache, session_id=session_id, epoch=1)) == (ErrorCode.none, session_id, [])
    reported = answer_all(begin(cache, session_id=session_id, epoch=2, partitions=[B0]))
    assert reported == (ErrorCode.none, session_id, [B0])
    assert len(cache) == 1
    assert cache.partition_count == 3


def test_the_final_epoch_closes_and_opens_none():
    cache = make_cache()
    session_id = open_session(cache, A0)
    assert answer_all(begin(cache, session_id=session_id, epoch=-1, partitions=[A0])) == (
        ErrorCode.none,
        NO_SESSION,
        [A0],
    )
    assert len(cache) == 0
    assert cache.partition_count == 0


def test_a_full_fetch_within_a_session_replaces_it():
    cache = make_cache()
    first = open_session(cache, A0)
    _, second, _ = answer_all(begin(cache, session_id=first, epoch=0, partitions=[A1]))
    assert second not in (first, NO_SESSION)
    assert cache.get(first) is None


def test_a_closed_session_and_a_forgotten_partition_watch_nothing_again():
    """A fetch may still be parked in the session, and reads its partitions when it is over."""
    cache = make_cache()
    session = cache.get(open_session(cache, A0, A1))
    forgotten, kept = session.partitions[A0], session.partitions[A1]
    begin(cache, session_id=session.session_id, epoch=1, forgotten=[A0])
    assert (forgotten.session, kept.session) == (None, session)
    cache.remove(session)
    assert kept.session is None


@pytest.mark.parametrize(
    ("session", "epoch", "uses_topic_ids", "error"),
    [
        # session     epoch  ids
        ("another",   1,     False, FetchSessionIdNotFound),
        ("it",        2,     False, InvalidFetchSessionEpoch),     # ahead
        ("it",        1,     True,  FetchSessionTopicIdError),     # the client learnt v13 meanwhile
        ("it",        2,     True,  InvalidFetchSessionEpoch),     # the epoch is checked first
        ("another",   5,     True,  FetchSessionIdNotFound),
    ],
)  # fmt: skip
def test_out_of_order(session, epoch, uses_topic_ids, error):
    cache = make_cache()
    session_id = open_session(cache, A0)
    asks = session_id if session == "it" else session_id % 1000 + 1
    with pytest.raises(error):
        begin(cache, session_id=asks, epoch=epoch, uses_topic_ids=uses_topic_ids)
    # The session is as it was.
    assert answer_all(begin(cache, session_id=session_id, epoch=1))[:2] == (ErrorCode.none, session_id)


def test_the_epoch_before_is_refused():
    cache = make_cache()
    session_id = open_session(cache, A0)
    answer_all(begin(cache, session_id=session_id, epoch=1))
    with pytest.raises(InvalidFetchSessionEpoch):
        begin(cache, session_id=session_id, epoch=1)


def test_a_request_with_an_old_session_epoch_is_refused():
    cache = make_cache()
    session_id = open_session(cache, A0)
    parked = begin(cache, session_id=session_id, epoch=1, partitions=[B0])
    overtaking = begin(cache, session_id=session_id, epoch=2)
    assert answer_all(parked, high_watermark=5)[:2] == (ErrorCode.invalid_fetch_session_epoch, session_id)
    # What the first one found was not returned, so it still counts as changed.
    assert set(answer_all(overtaking, high_watermark=5)[2]) == {A0, B0}


def test_forgetting_the_last_partition_closes():
    cache = make_cache()
    session_id = open_session(cache, A0, A1)
    context = begin(cache, session_id=session_id, epoch=1, forgotten=[A0, A1, B0])
    assert answer_all(context) == (ErrorCode.none, NO_SESSION, [])
    assert len(cache) == 0


def test_forgetting_wins_over_asking():
    cache = make_cache()
    session_id = open_session(cache, A0)
    answer_all(begin(cache, session_id=session_id, epoch=1, partitions=[A1], forgotten=[A1]))
    session = cache.get(session_id)
    assert session is not None
    assert list(session.partitions) == [A0]


def test_errors_are_returned_each_time_and_their_end_too():
    cache = make_cache()
    session_id = open_session(cache, A0)
    unknown = {"error_code": ErrorCode.not_leader_or_follower, "high_watermark": -1}
    for epoch in (1, 2):
        assert answer_all(begin(cache, session_id=session_id, epoch=epoch), **unknown)[2] == [A0]
    assert answer_all(begin(cache, session_id=session_id, epoch=3))[2] == [A0]
    assert answer_all(begin(cache, session_id=session_id, epoch=4))[2] == []


def test_what_a_follower_skips_with_a_divergence_is_returned_again():
    """It truncates its log and takes nothing else from that answer: its high watermark would stay behind."""
    cache = make_cache()
    session_id = open_session(cache, A0)
    parts = {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=99), "high_watermark": 99}
    assert answer_all(begin(cache, session_id=session_id, epoch=1), **parts)[2] == [A0]
    assert answer_all(begin(cache, session_id=session_id, epoch=2), high_watermark=99)[2] == [A0]
    assert answer_all(begin(cache, session_id=session_id, epoch=3), high_watermark=99)[2] == []


@pytest.mark.parametrize(
    "change",
    [
        {"high_watermark": 1},
        {"log_start_offset": 1},
        {"records": b"batch"},
        {"error_code": ErrorCode.offset_out_of_range},
        {"preferred_read_replica": 0},
        {"diverging_epoch": EpochEndOffset(epoch=0, end_offset=0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_which_rows_have_changed(change):
    cache = make_cache()
    session_id = open_session(cache, A0)
    assert answer_all(begin(cache, session_id=session_id, epoch=1))[2] == []
    assert answer_all(begin(cache, session_id=session_id, epoch=2), **change)[2] == [A0]


def test_a_partition_whose_records_were_sent_goes_to_the_end():
    cache = make_cache()
    session_id = open_session(cache, A0, A1, B0)
    context = begin(cache, session_id=session_id, epoch=1)
    first = next(iter(context.to_read))
    context.update_session([(first, row(A0, records=b"batch"))], now_ms=lambda: 0)
    assert [fetched.key for fetched in context.to_read] == [A1, B0, A0]


def test_the_other_isolation_level_makes_everything_worth_a_look():
    cache = make_cache()
    session_id = open_session(cache, A0, A1)
    context = begin(cache, session_id=session_id, epoch=1)
    for fetched in list(context.to_read):
        context.mark_clean(fetched)
    assert not context.to_read
    context = begin(cache, session_id=session_id, epoch=2, is_read_committed=True)
    assert len(context.to_read) == 2


# -- slots -----------------------------------------------------------------------------------------------

OLD = EVICTION_MS + 1


@pytest.mark.parametrize(
    ("kept_sizes", "kept_privileged", "made_ms", "used_ms", "is_follower", "size", "gets_slot"),
    [
        # the one there: size, follower, made, used | the new one, at OLD: follower, size | gets the slot
        (1, False,   0,     0, False,  1, True),    # stale: not used for too long
        (9, True,    0,     0, False,  1, True),    # even a follower's
        (1, False, OLD,   OLD, False,  9, False),   # young: safe from consumers
        (1, False, OLD,   OLD, True,   1, True),    # but not from followers
        (1, True,  OLD,   OLD, True,   9, False),   # a young follower's is safe from everyone
        (2, False,   0,   OLD, False,  1, False),   # old but in use: leaves only for a larger or equal one
        (2, False,   0,   OLD, False,  2, False),   # equal: the id decides, and a new one has 0
        (2, False,   0,   OLD, False,  3, True),
        (9, False,   0,   OLD, True,   1, True),    # a follower is worth more than any consumer
        (1, True,    0,   OLD, False,  9, False),   # and a consumer less than any follower
    ],
)  # fmt: skip
def test_which_session_is_evicted(
    kept_sizes, kept_privileged, made_ms, used_ms, is_follower, size, gets_slot
):
    cache = make_cache(slots=1)
    keys = [("kept", index) for index in range(kept_sizes)]
    kept_id = open_session(cache, *keys, now_ms=made_ms, is_follower=kept_privileged)
    kept = cache.get(kept_id)
    assert kept is not None
    cache.touch(kept, used_ms)
    new_keys = [("new", index) for index in range(size)]
    new_id = open_session(cache, *new_keys, now_ms=OLD, is_follower=is_follower)
    assert (new_id != NO_SESSION) == gets_slot
    assert (cache.get(kept_id) is None) == gets_slot
    assert cache.evictions_count == gets_slot


def test_no_slots_no_sessions():
    cache = make_cache(slots=0)
    assert open_session(cache, A0) == NO_SESSION


# KIP-516
def test_topic_ids_name_partitions_too():
    cache = make_cache()
    key = (UUID(int=7), 0)
    session_id = open_session(cache, key, uses_topic_ids=True)
    context = begin(cache, session_id=session_id, epoch=1, forgotten=[key], uses_topic_ids=True)
    assert answer_all(context) == (ErrorCode.none, NO_SESSION, [])


class CacheMachine(RuleBasedStateMachine):
    """The cache's sorted lists against a search through all sessions."""

    def __init__(self):
        super().__init__()
        self.cache = make_cache(slots=3)
        self.now_ms = 0
        self.model: dict[int, FetchSession] = {}
        self.evictable: dict[int, tuple[bool, bool, tuple[bool, int, int]]] = {}

    def note(self, session):
        is_old = self.now_ms - session.created_ms > EVICTION_MS
        worth = (session.is_privileged, len(session.partitions), session.session_id)
        self.evictable[session.session_id] = (is_old, is_old or not session.is_privileged, worth)

    @rule(ms=st.sampled_from([1, 1000, EVICTION_MS // 2, EVICTION_MS + 1]))
    def wait(self, ms):
        self.now_ms += ms

    @rule(is_follower=st.booleans(), size=st.integers(0, 4))
    def open(self, is_follower, size):
        expected_victim = None
        is_room = len(self.model) < 3
        if not is_room:
            stale = min(self.model.values(), key=lambda session: session.last_used_ms)
            if self.now_ms - stale.last_used_ms > EVICTION_MS:
                expected_victim = "stale"
            else:
                rank = 1 if is_follower else 0
                ranked = sorted(worth for *flags, worth in self.evictable.values() if flags[rank])
                if ranked and (is_follower, size, 0) >= ranked[0]:
                    expected_victim = ranked[0][2]
        keys = [("t", index) for index in range(size)]
        session_id = open_session(self.cache, *keys, now_ms=self.now_ms, is_follower=is_follower)
        assert (session_id != NO_SESSION) == (is_room or expected_victim is not None)
        gone = [known for known in self.model if self.cache.get(known) is None]
        if expected_victim == "stale":
            (victim,) = gone
            assert self.now_ms - self.model[victim].last_used_ms > EVICTION_MS
        else:
            assert gone == ([] if expected_victim is None else [expected_victim])
        for known in gone:
            del self.model[known], self.evictable[known]
        session = self.cache.get(session_id)
        if session is not None:
            self.model[session_id] = session
            self.note(session)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), size=st.integers(1, 5))
    def fetch(self, data, size):
        session_id = data.draw(st.sampled_from(sorted(self.model)))
        session = self.model[session_id]
        keys = [("u", index) for index in range(size)]
        begin(self.cache, session_id=session_id, epoch=session.epoch, partitions=keys, now_ms=self.now_ms)
        self.note(session)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def close(self, data):
        session_id = data.draw(st.sampled_from(sorted(self.model)))
        begin(self.cache, session_id=session_id, epoch=-1)
        del self.model[session_id], self.evictable[session_id]

    @invariant()
    def counts(self):
        assert len(self.cache) == len(self.model) <= 3
        assert self.cache.partition_count == sum(len(session.partitions) for session in self.model.values())
        assert len(self.cache._evictable_by_all) == sum(old for old, _, _ in self.evictable.values())
        assert len(self.cache._evictable_by_privileged) == sum(any_ for _, any_, _ in self.evictable.values())


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestCache = CacheMachine.TestCase


# -- dirty sets against a walk through everything ------------------------------------------------------


@dataclass(eq=False)
class FakePartition:
    """Offsets; notifies its watchers of changes as the real one does."""

    high_watermark: int = 0
    log_start_offset: int = 0
    watchers: Watchers = field(default_factory=lambda: Watchers("t-0", signal=lambda key: None))

    def notify(self):
        self.watchers.notify()


@dataclass
class NaiveSession:
    """A session as in Kafka: every partition is read for every fetch and compared with the last returned row."""

    offsets: dict = field(default_factory=dict)
    reported: dict = field(default_factory=dict)

    def fetch(self, partitions):
        rows = {}
        for key, offset in self.offsets.items():
            partition = partitions.get(key)
            if partition is None:
                rows[key] = "unknown"
                self.reported[key] = None
            else:
                now = (partition.high_watermark, partition.log_start_offset)
                has_records = offset < partition.high_watermark
                if has_records or self.reported.get(key) != now:
                    rows[key] = (*now, has_records)
                self.reported[key] = now
        return rows


def fetch_like_the_broker(context, partitions):
    answers, rows = [], {}
    for fetched in list(context.to_read):
        partition = partitions.get(fetched.key)
        if fetched.session is not None:
            fetched.watch(partition)
        if partition is None:
            answer = row(fetched.key, error_code=3, high_watermark=-1, log_start_offset=-1)
            rows[fetched.key] = "unknown"
            answers.append((fetched, answer))
            assert context.must_send(fetched, answer)
            continue
        has_records = fetched.request.fetch_offset < partition.high_watermark
        answer = row(
            fetched.key,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log_start_offset,
            records=b"batch" if has_records else b"",
        )
        if context.must_send(fetched, answer):
            answers.append((fetched, answer))
            rows[fetched.key] = (partition.high_watermark, partition.log_start_offset, has_records)
        elif not has_records:
            context.mark_clean(fetched)
    error, session_id = context.update_session(answers, now_ms=lambda: 0)
    assert error == ErrorCode.none
    return session_id, rows


KEYS = [("t", index) for index in range(4)]
keys = st.sampled_from(KEYS)


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), keys, st.integers(1, 3)),
            st.tuples(st.just("delete records"), keys, st.none()),
            st.tuples(st.just("create"), keys, st.none()),
            st.tuples(st.just("delete"), keys, st.none()),
            st.tuples(st.just("fetch"), st.dictionaries(keys, st.integers(0, 6)), st.sets(keys, max_size=2)),
        ),
        max_size=40,
    )
)
def test_dirty_sets_give_what_a_walk_through_all_partitions_gives(steps):
    cache = make_cache()
    partitions = {key: FakePartition() for key in KEYS[:3]}
    naive = NaiveSession(offsets=dict.fromkeys(KEYS, 0))
    session_id, rows = fetch_like_the_broker(begin(cache, partitions=KEYS), partitions)
    assert rows == naive.fetch(partitions)
    epoch = 1
    for what, argument, extra in steps:
        partition = None if what == "fetch" else partitions.get(argument)
        if what == "append" and partition:
            partition.high_watermark += extra
            partition.notify()
        elif what == "delete records" and partition:
            partition.log_start_offset = partition.high_watermark
            partition.notify()
        elif what == "create" and not partition:
            partitions[argument] = FakePartition()
        elif what == "delete" and partition:
            del partitions[argument]
            partition.notify()
        elif what == "fetch":
            wanted = {
                key: FetchPartition(partition=key[1], fetch_offset=offset) for key, offset in argument.items()
            }
            naive.offsets.update(argument)
            for key in extra:
                naive.offsets.pop(key, None)
                naive.reported.pop(key, None)
            context = begin(cache, session_id=session_id, epoch=epoch, partitions=wanted, forgotten=extra)
            if not naive.offsets:
                assert len(cache) == 0
                return
            _, rows = fetch_like_the_broker(context, partitions)
            assert rows == naive.fetch(partitions)
            epoch += 1
            for key, gone in partitions.items():
                watching = {fetched.key for fetched in gone.watchers.consumers}
                assert watching <= {key}
                if key not in naive.offsets:
                    assert not watching
