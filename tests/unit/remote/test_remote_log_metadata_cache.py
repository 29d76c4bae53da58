"""The metadata cache against a naive model, and the rows of its docstring."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from remote_support import PARTITION, cache_of, copy_of, to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.errors import RemoteResourceNotFound
from ottla.remote.metadata_cache import IllegalStateTransition, RemoteLogMetadataCache
from ottla.storage.leader_epoch_cache import EpochEntry


def number_at(cache, offset, epoch=0):
    found = cache.segment(epoch=epoch, offset=offset)
    return found and found.segment_id.id.int


@pytest.mark.parametrize(
    ("copies", "found"),
    [
        ([(1, 0, 101), (2, 0, 201)], {0: 2, 150: 2, 201: None}),  # the second leader's copy is a superset
        ([(1, 10, 90), (2, 5, 100)], {7: 2, 50: 2, 95: 2}),
        (
            [(1, 0, 200), (2, 0, 100)],
            {0: 1, 150: 1},
        ),  # the old leader finishes late: Kafka finds nothing at 150
        ([(1, 0, 100), (2, 50, 150)], {0: 1, 49: 1, 50: 2, 149: 2}),
        ([(1, 0, 100), (2, 200, 300)], {100: None, 199: None, 200: 2}),
        ([(1, 0, 10), (2, 0, 10)], {0: 1}),  # the same offsets twice: readers stay with the first copy
    ],
)
def test_which_copy_holds_an_offset(copies, found):
    cache = cache_of(*(copy_of(*each) for each in copies))
    assert {offset: number_at(cache, offset) for offset in found} == found


def test_a_copy_belongs_to_each_epoch_that_has_records_in_it():
    cache = cache_of(copy_of(1, 0, 30, (0, 0), (2, 10), (3, 20)))
    assert [
        number_at(cache, offset, epoch)
        for epoch, offset in [(0, 9), (0, 10), (2, 10), (2, 20), (3, 29), (3, 30)]
    ] == [1, None, 1, None, 1, None]
    assert [cache.end_offset_for_epoch(epoch) for epoch in range(4)] == [10, None, 20, 30]


def test_after_an_unclean_election_each_branch_has_its_own_copies():
    cache = cache_of(copy_of(1, 0, 10), copy_of(2, 10, 20), copy_of(3, 8, 20, (1, 8)))
    assert (number_at(cache, 15, epoch=0), number_at(cache, 15, epoch=1)) == (2, 3)


def test_the_deletion_of_a_copy_brings_back_those_that_it_contained():
    cache = cache_of(copy_of(1, 10, 90), copy_of(2, 5, 100))
    cache.update(to(2, State.DELETE_SEGMENT_STARTED))
    assert (number_at(cache, 7), number_at(cache, 50)) == (None, 1)
    assert {each.segment_id.id.int for each in cache.segments()} == {1, 2}
    cache.update(to(2, State.DELETE_SEGMENT_FINISHED))
    assert [each.segment_id.id.int for each in cache.segments()] == [1]
    assert cache.end_offset_for_epoch(0) == 100  # a deletion does not lower it


@pytest.mark.parametrize(
    ("copies", "deleted", "until"),
    [
        ([(0, 10), (10, 20)], [], None),
        ([(0, 10), (10, 20)], [1], 10),
        ([(0, 10), (10, 20)], [1, 2], 20),
        ([(0, 10), (10, 20)], [2, 1], 20),
        ([(10, 90), (5, 100)], [1], None),  # the other one contains it
        ([(10, 90), (5, 100)], [2], 100),
        ([(0, 10), (0, 10)], [2], None),  # a duplicate
        ([(0, 10), (0, 10)], [1, 2], 10),
    ],
)
def test_what_was_deleted_of_an_epoch(copies, deleted, until):
    cache = cache_of(*(copy_of(number, *each) for number, each in enumerate(copies, 1)))
    for number in deleted:
        cache.update(to(number, State.DELETE_SEGMENT_STARTED))
        cache.update(to(number, State.DELETE_SEGMENT_FINISHED))
    assert cache.removed_until(0) == until
    assert cache.removed_until(1) is None
    assert cache.removed_before_epoch(3) == until


def test_what_was_deleted_of_a_lost_branch_is_not_of_the_log_before_it():
    """Epoch 0 ends at 20 in the log, and went on in a branch: the record of [10, 20) may be lost."""
    cache = cache_of(copy_of(1, 0, 10), copy_of(2, 20, 30), copy_of(3, 30, 40), copy_of(4, 5, 12))
    for number in (3, 2):
        cache.update(to(number, State.DELETE_SEGMENT_STARTED))
    assert [cache.removed_until(0, end) for end in (20, 25, 40, 60)] == [None, 25, 40, 40]
    for number in (1, 4):
        cache.update(to(number, State.DELETE_SEGMENT_STARTED))
    assert [cache.removed_until(0, end) for end in (6, 20, 25, 60)] == [6, 12, 25, 40]


@pytest.mark.parametrize(
    ("lineage", "expected"),
    [
        ([(0, 0), (2, 20)], [3, 4]),
        ([(0, 0), (2, 25)], [3, 5, 4]),
        ([(0, 0), (1, 20)], [5]),
        ([(0, 0), (1, 25)], [3, 5]),
        ([(0, 5), (1, 20)], [1, 5]),
        ([(2, 20)], [1, 2, 3, 4]),
    ],
)
def test_which_copies_have_what_a_log_does_not_have(lineage, expected):
    cache = cache_of(
        copy_of(1, 0, 10),
        copy_of(2, 10, 20),
        copy_of(3, 15, 30, (0, 15), (1, 20)),
        copy_of(4, 30, 40, (1, 30)),
        copy_of(5, 20, 50, (2, 20)),
    )
    found = cache.outside([EpochEntry(*each) for each in lineage])
    assert [each.segment_id.id.int for each in found] == expected


def test_a_copy_that_was_never_finished_is_not_deleted_of_the_log():
    cache = RemoteLogMetadataCache(PARTITION)
    cache.add(copy_of(1, 0, 10))
    cache.update(to(1, State.DELETE_SEGMENT_STARTED))
    assert cache.removed_until(0) is None


def test_an_update_keeps_what_the_record_does_not_have():
    cache = RemoteLogMetadataCache(PARTITION)
    cache.add(copy_of(1, 0, 10, is_transaction_index_empty=True))
    cache.update(to(1, State.COPY_SEGMENT_FINISHED, custom_metadata=b"key"))
    assert cache.segment(epoch=0, offset=0) == copy_of(1, 0, 10, is_transaction_index_empty=True).updated(
        to(1, State.COPY_SEGMENT_FINISHED, custom_metadata=b"key")
    )


def test_the_next_segment_with_a_transaction_index():
    """KIP-1058 adds this look-up to the metadata manager."""
    flags = [True, False, True, False]
    cache = cache_of(
        *(
            copy_of(at + 1, at * 10, at * 10 + 10, is_transaction_index_empty=flag)
            for at, flag in enumerate(flags)
        )
    )
    found = [
        cache.next_segment_with_transaction_index(epoch=0, offset=offset) for offset in (0, 10, 20, 39, 40)
    ]
    assert [each and each.start_offset for each in found] == [10, 10, 30, 30, None]
    assert cache.next_segment_with_transaction_index(epoch=1, offset=0) is None


def test_illegal_transitions_are_refused():
    cache = cache_of(copy_of(1, 0, 10))
    with pytest.raises(RemoteResourceNotFound):
        cache.update(to(2, State.COPY_SEGMENT_FINISHED))
    with pytest.raises(IllegalStateTransition):
        cache.add(copy_of(1, 0, 10))
    with pytest.raises(IllegalStateTransition):
        cache.update(to(1, State.DELETE_SEGMENT_FINISHED))
    with pytest.raises(IllegalStateTransition):
        cache.add(copy_of(3, 0, 10, state=State.COPY_SEGMENT_FINISHED))
    assert [each.segment_id.id.int for each in cache.segments()] == [1]


def test_the_zero_id_is_not_found_in_a_free_slot():
    cache = cache_of(copy_of(1, 0, 10))
    cache.update(to(1, State.DELETE_SEGMENT_STARTED))
    cache.update(to(1, State.DELETE_SEGMENT_FINISHED))
    with pytest.raises(RemoteResourceNotFound):
        cache.update(to(0, State.COPY_SEGMENT_FINISHED))
    cache.add(copy_of(0, 10, 20))
    cache.update(to(0, State.COPY_SEGMENT_FINISHED))
    assert number_at(cache, 10) == 0


class Cache(RuleBasedStateMachine):
    """Random copies of two branches, their transitions in any legal order, repeated ones included."""

    ids = Bundle("ids")

    def __init__(self):
        super().__init__()
        self.cache = RemoteLogMetadataCache(PARTITION)
        self.model = {}
        self.ends = {}
        self.count = 0

    @rule(target=ids, start=st.integers(0, 30), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3))
    def begin(self, start, lengths):
        self.count += 1
        epochs, at = [], start
        for step, length in enumerate(lengths):
            epochs.append((step, at))
            at += length
        copy = copy_of(self.count, start, at, *epochs)
        self.cache.add(copy)
        self.cache.add(copy)
        self.model[self.count] = copy
        return self.count

    @rule(number=ids)
    def finish(self, number):
        if self.move(number, State.COPY_SEGMENT_FINISHED):
            for entry in self.model[number].leader_epochs:
                end = self.model[number].epoch_range(entry.epoch)[1]
                self.ends[entry.epoch] = max(end, self.ends.get(entry.epoch, 0))

    @rule(number=ids)
    def begin_deletion(self, number):
        self.move(number, State.DELETE_SEGMENT_STARTED)

    @rule(number=consumes(ids))
    def finish_deletion(self, number):
        if self.move(number, State.DELETE_SEGMENT_FINISHED):
            del self.model[number]

    def move(self, number, state):
        old = self.model.get(number)
        update = to(number, state)
        try:
            self.cache.update(update)
        except IllegalStateTransition:
            return False
        self.model[number] = old.updated(update)
        return True

    @invariant()
    def agrees(self):
        assert sorted(self.cache.segments(), key=lambda each: each.segment_id) == sorted(
            self.model.values(), key=lambda each: each.segment_id
        )
        for epoch in range(3):
            of_epoch = {each.segment_id for each in self.model.values() if each.epoch_range(epoch)}
            assert {each.segment_id for each in self.cache.segments(epoch)} == of_epoch
            assert self.cache.end_offset_for_epoch(epoch) == self.ends.get(epoch)
            assert self.cache.size_bytes(epoch) == sum(
                each.segment_size_bytes for each in self.model.values() if each.segment_id in of_epoch
            )
            for offset in range(0, 60, 3):
                holders = {
                    number
                    for number, each in self.model.items()
                    if each.state is State.COPY_SEGMENT_FINISHED
                    and (held := each.epoch_range(epoch))
                    and held[0] <= offset < held[1]
                }
                found = number_at(self.cache, offset, epoch)
                assert found in holders if holders else found is None


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
