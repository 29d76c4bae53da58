"""The epoch cache against a list with one epoch for each record, and Kafka's file."""

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.files import Files
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache, decode, encode


def cache(text: str) -> LeaderEpochCache:
    """`e1@3` is epoch 1 from offset 3."""
    words = [word.removeprefix("e").split("@") for word in text.split()]
    return LeaderEpochCache(EpochEntry(int(epoch), int(start)) for epoch, start in words)


# KIP-101
@pytest.mark.parametrize(("epochs", "asked", "answer"), [
    # epochs            asked  (epoch, end)
    ("",                    0, None),
    ("e0@0",                0, (0, 10)),       # the epoch that is being written ends at the log end
    ("e0@0",                1, None),          # newer than all we know
    ("e0@0 e1@3 e3@7",      0, (0, 3)),
    ("e0@0 e1@3 e3@7",      1, (1, 7)),
    ("e0@0 e1@3 e3@7",      2, (1, 7)),        # KIP-279: the epoch that was found, not the one asked for
    ("e0@0 e1@3 e3@7",      3, (3, 10)),
    ("e0@0 e1@3 e3@7",      4, None),
    ("e2@5 e4@8",           1, (1, 5)),        # deleted by retention: the follower copies us from our start
    ("e0@0 e1@10",          1, (1, 10)),       # a leader that has written nothing
])  # fmt: skip
def test_end_offset_for(epochs, asked, answer):
    assert cache(epochs).end_offset_for(asked, log_end_offset=10) == answer


@pytest.mark.parametrize(("before", "assigned", "after"), [
    ("",               (0, 0), "e0@0"),
    ("e0@0",           (0, 5), "e0@0"),              # the same leader goes on
    ("e0@0",           (1, 5), "e0@0 e1@5"),
    ("e0@0 e1@5",      (2, 5), "e0@0 e2@5"),         # epoch 1 wrote nothing
    ("e0@0 e1@5 e2@8", (1, 6), "e0@0 e1@6"),         # an older epoch than the last: what contradicts it goes
    ("e0@0 e1@5 e2@8", (3, 5), "e0@0 e3@5"),
    ("e0@0 e1@5",      (1, 3), "e0@0 e1@3"),
])  # fmt: skip
def test_assign(before, assigned, after, caplog):
    epochs = cache(before)
    epochs.assign(assigned[0], start_offset=assigned[1])
    assert epochs.entries == cache(after).entries


@pytest.mark.parametrize(("start", "after"), [
    (0, "e0@0 e1@3 e3@7"), (1, "e0@1 e1@3 e3@7"), (3, "e1@3 e3@7"), (5, "e1@5 e3@7"), (7, "e3@7"), (9, "e3@9"),
])  # fmt: skip
def test_truncate_from_start(start, after):
    epochs = cache("e0@0 e1@3 e3@7")
    epochs.truncate_from_start(start)
    assert epochs.entries == cache(after).entries


@pytest.mark.parametrize(("end", "after"), [
    (8, "e0@0 e1@3 e3@7"), (7, "e0@0 e1@3"), (4, "e0@0 e1@3"), (3, "e0@0"), (0, ""),
])  # fmt: skip
def test_truncate_from_end(end, after):
    epochs = cache("e0@0 e1@3 e3@7")
    epochs.truncate_from_end(end)
    assert epochs.entries == cache(after).entries


def test_file_is_kafkas():
    entries = [EpochEntry(0, 0), EpochEntry(3, 7)]
    assert encode(entries) == b"0\n2\n0 0\n3 7\n"
    assert decode(b"0\n2\n0 0\n3 7\n") == entries
    assert decode(b"") == []


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"x", b"0\n1\n-1 0\n", b"\xff\n1\n"]
)
def test_file_that_is_none(data):
    with pytest.raises(CorruptCheckpoint):
        decode(data)


def test_reopened_cache_is_the_same(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = LeaderEpochCache.open(path, Files())
    epochs.assign(0, start_offset=0)
    epochs.assign(4, start_offset=12)
    assert LeaderEpochCache.open(path, Files()).entries == ((0, 0), (4, 12))


@pytest.mark.logs("is corrupt")
def test_the_latest_epoch_after_each_change(tmp_path):
    files, path = Files(), tmp_path / "leader-epoch-checkpoint"
    cache = LeaderEpochCache.open(path, files)
    assert cache.latest_epoch is None
    cache.assign(3, start_offset=7)
    assert (cache.latest_epoch, LeaderEpochCache.open(path, files).latest_epoch) == (3, 3)
    cache.restore_older([EpochEntry(1, 2)])
    assert cache.latest_epoch == 3
    cache.replace([EpochEntry(0, 0), EpochEntry(2, 5)])
    assert cache.latest_epoch == 2
    files.write_atomically(tmp_path / "copy", encode([EpochEntry(4, 9)]))
    cache.adopt(tmp_path / "copy", [EpochEntry(4, 9)])
    assert cache.latest_epoch == 4
    cache.clear()
    assert cache.latest_epoch is None
    files.write_atomically(path, b"0\n2\n0 0\n-1 5\n")
    assert LeaderEpochCache.open(path, files).latest_epoch is None


class OneEpochARecord(RuleBasedStateMachine):
    """The model: the epoch of every offset from the log's start on."""

    def __init__(self):
        super().__init__()
        self.cache = LeaderEpochCache()
        self.start = 0
        self.records: list[int] = []

    @property
    def end(self):
        return self.start + len(self.records)

    @rule(newer=st.integers(0, 3), count=st.integers(1, 4))
    def append(self, newer, count):
        epoch = (self.records[-1] if self.records else self.cache.latest_epoch or 0) + newer
        epoch = max(epoch, self.cache.latest_epoch or 0)
        self.cache.assign(epoch, start_offset=self.end)
        self.records += [epoch] * count

    @rule(data=st.data())
    def truncate(self, data):
        end = data.draw(st.integers(self.start, self.end))
        del self.records[end - self.start :]
        self.cache.truncate_from_end(end)

    @rule(data=st.data())
    def delete_before(self, data):
        start = data.draw(st.integers(self.start, self.end))
        del self.records[: start - self.start]
        self.start = start
        self.cache.truncate_from_start(start)

    @invariant()
    def every_offset_has_its_epoch(self):
        for offset, epoch in enumerate(self.records, self.start):
            assert self.cache.epoch_for_offset(offset) == epoch

    @invariant()
    def epochs_end_where_the_next_begins(self):
        for epoch in set(self.records):
            end = max(at for at, other in enumerate(self.records, self.start) if other <= epoch) + 1
            answer = self.cache.end_offset_for(epoch, log_end_offset=self.end)
            assert answer == (epoch, end)

    @invariant()
    def entries_grow(self):
        entries = self.cache.entries
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries))

    @invariant()
    def the_latest_epoch_is_that_of_the_last_entry(self):
        assert self.cache.latest_epoch == (self.cache.entries[-1].epoch if self.cache.entries else None)


TestOneEpochARecord = OneEpochARecord.TestCase
TestOneEpochARecord.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
