"""Offset and time index: Kafka's bytes, and the same answers as a list whatever is in memory."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.storage import index as module
from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex, OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex


@pytest.fixture(autouse=True)
def small_warm_part(monkeypatch):
    """Make the warm part small, so that a few entries already leave memory."""
    monkeypatch.setattr(module, "WARM_BYTES", 48)


def offset_index(path, *, is_new=True, max_bytes=8000, base_offset=100):
    return OffsetIndex(path, base_offset=base_offset, max_bytes=max_bytes, files=Files(), is_new=is_new)


def time_index(path, *, is_new=True, max_bytes=12000, base_offset=100):
    return TimeIndex(path, base_offset=base_offset, max_bytes=max_bytes, files=Files(), is_new=is_new)


def test_bytes_are_kafkas(tmp_path):
    offsets, times = offset_index(tmp_path / "o"), time_index(tmp_path / "t")
    offsets.add(105, position=4096)
    times.maybe_add(1_000, offset=105)
    offsets.trim()
    times.trim()
    assert (tmp_path / "o").read_bytes().hex() == "0000000500001000"
    assert (tmp_path / "t").read_bytes().hex() == "00000000000003e800000005"


def test_the_file_has_nothing_but_entries(tmp_path):
    index = offset_index(tmp_path / "o", max_bytes=8_000_000)
    index.make()

    def in_file():
        return [first for first, _ in OffsetIndex.ENTRY.iter_unpack((tmp_path / "o").read_bytes())]

    for number in range(5_000):
        index.add(100 + number, position=number)
        assert number % 100 or in_file() == [*range(len(in_file()))]
    assert len(in_file()) > 2_000
    index.truncate_to(150)
    assert in_file() == [*range(50)]
    index.add(150, position=1)
    assert in_file() == [*range(50)]
    index.trim()
    assert in_file() == [*range(51)]


@pytest.mark.parametrize("size", [7, 9])
def test_impossible_size(tmp_path, size):
    (tmp_path / "o").write_bytes(bytes(size))
    with pytest.raises(CorruptIndex):
        offset_index(tmp_path / "o", is_new=False).load()


def test_offsets_must_grow(tmp_path):
    index = offset_index(tmp_path / "o")
    index.add(105, position=1)
    with pytest.raises(CorruptIndex):
        index.add(105, position=2)


def test_time_index_keeps_a_place_for_closing(tmp_path):
    index = time_index(tmp_path / "t", max_bytes=36)
    index.maybe_add(1, offset=101)
    assert index.count < index.full_count
    index.maybe_add(2, offset=102)
    assert index.count == index.full_count
    index.maybe_add(2, offset=103)  # not larger: no entry
    assert index.count == 2


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=40),
    cut=st.integers(95, 500),
    reopen=st.booleans(),
)
def test_lookups_are_those_of_a_list(tmp_path_factory, steps, cut, reopen):
    directory = tmp_path_factory.mktemp("index")
    offsets, times = offset_index(directory / "o"), time_index(directory / "t")
    model: list[tuple[int, int, int]] = []
    offset, other = 100, 0
    for step, other_step in steps:
        offset, other = offset + step, other + other_step
        offsets.add(offset, position=other)
        times.maybe_add(other, offset=offset)
        model.append((offset, other, other))
    if reopen:
        for index in (offsets, times):
            index.trim()
            index.close()
        offsets, times = (
            offset_index(directory / "o", is_new=False),
            time_index(directory / "t", is_new=False),
        )
        offsets.load()
        times.load()
    offsets.truncate_to(cut)
    times.truncate_to(cut)
    model = [row for row in model if row[0] < cut]
    for target in range(95, 110 + offset - 95, 3):
        found = [row for row in model if row[0] <= target]
        assert offsets.lookup(target) == (OffsetPosition(found[-1][0], found[-1][1]) if found else (100, 0))
    for target in range(-1, other + 3):
        found = [row for row in model if row[2] <= target]
        expected = TimestampOffset(found[-1][2], found[-1][0]) if found else TimestampOffset(-1, 100)
        assert times.lookup(target) == expected
        above = [row[0] for row in model if row[1] >= target]
        assert offsets.upper_bound(target) == (above[0] if above else None)
    assert times.last == (TimestampOffset(model[-1][2], model[-1][0]) if model else TimestampOffset(-1, 100))
    offsets.add(1000, position=7)
    assert offsets.lookup(2000) == (1000, 7)


class IndexesAsLists(RuleBasedStateMachine):
    """The model: (last offset, position) of each batch that is indexed; (largest timestamp so far, its last offset)."""

    def __init__(self):
        super().__init__()
        self.directory = Path(mkdtemp())
        self.offsets = offset_index(self.directory / "o")
        self.times = time_index(self.directory / "t")
        self.rows: list[tuple[int, int]] = []
        self.peaks: list[tuple[int, int]] = []

    def teardown(self):
        self.offsets.close()
        self.times.close()
        shutil.rmtree(self.directory)

    @rule(
        steps=st.lists(
            st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(-3, 6)), min_size=1, max_size=8
        )
    )
    def append(self, steps):
        """After a trim, too."""
        for step, size, later in steps:
            offset = (
                max([100, *(row[0] for row in self.rows[-1:]), *(it[1] for it in self.peaks[-1:])]) + step
            )
            position = (self.rows[-1][1] if self.rows else 0) + size
            timestamp = (self.peaks[-1][0] if self.peaks else 0) + later
            self.offsets.add(offset, position=position)
            self.rows.append((offset, position))
            self.times.maybe_add(timestamp, offset=offset)
            if timestamp > (self.peaks[-1][0] if self.peaks else -1):
                self.peaks.append((timestamp, offset))

    @rule(back=st.integers(0, 5))
    def go_back(self, back):
        if self.rows:
            with pytest.raises(CorruptIndex):
                self.offsets.add(self.rows[-1][0] - back, position=self.rows[-1][1] + 1)
        if self.peaks:
            with pytest.raises(CorruptIndex):
                self.times.maybe_add(self.peaks[-1][0] + 1, offset=self.peaks[-1][1] - 1 - back)
            self.times.maybe_add(
                self.peaks[-1][0] - back, offset=self.peaks[-1][1] + 1
            )  # not larger: no entry

    @rule(data=st.data())
    def truncate(self, data):
        cut = data.draw(st.sampled_from([99, 100, *(row[0] + more for row in self.rows for more in (0, 1))]))
        self.offsets.truncate_to(cut)
        self.times.truncate_to(cut)
        self.rows = [row for row in self.rows if row[0] < cut]
        self.peaks = [it for it in self.peaks if it[1] < cut]

    @rule()
    def trim(self):
        """The files are cut to the entries, which are Kafka's bytes."""
        for index, name, entries in self.all():
            index.trim()
            pairs = (
                (offset - 100, second) if name == "o" else (offset, second - 100)
                for offset, second in entries
            )
            expected = b"".join(index.ENTRY.pack(*pair) for pair in pairs)
            path = self.directory / name
            assert (path.read_bytes() if path.exists() else b"") == expected

    @rule()
    def reset(self):
        self.offsets.reset()
        self.times.reset()
        self.rows, self.peaks = [], []

    @rule(is_loaded=st.booleans())
    def reopen(self, is_loaded):
        """Descriptors are given back at any time; another process reads what was trimmed."""
        for index, name, _ in self.all():
            if is_loaded:
                index.trim()
                if not (self.directory / name).exists():
                    index.make()
            index.close()
        if is_loaded:
            self.offsets = offset_index(self.directory / "o", is_new=False)
            self.times = time_index(self.directory / "t", is_new=False)
            self.offsets.load()
            self.times.load()

    def all(self):
        return (self.offsets, "o", self.rows), (self.times, "t", self.peaks)

    @invariant()
    def entries(self):
        for index, _, entries in self.all():
            assert [index.entry(number)[:2] for number in range(index.count)] == entries
        assert self.offsets.last_offset == (self.rows[-1][0] if self.rows else 100)
        assert self.times.last[:2] == (self.peaks[-1] if self.peaks else (-1, 100))

    @invariant()
    def lookups(self):
        for target in {99, 100, *(row[0] + more for row in self.rows for more in (-1, 0, 1))}:
            before = [row for row in self.rows if row[0] <= target]
            assert self.offsets.lookup(target) == (before[-1] if before else (100, 0))
        for target in {0, *(row[1] + more for row in self.rows for more in (0, 1))}:
            after = [row for row in self.rows if row[1] >= target]
            assert self.offsets.upper_bound(target) == (after[0][0] if after else None)
        for target in {-1, *(it[0] + more for it in self.peaks for more in (-1, 0, 1))}:
            before = [it for it in self.peaks if it[0] <= target]
            assert self.times.lookup(target)[:2] == (before[-1] if before else (-1, 100))


TestIndexesAsLists = IndexesAsLists.TestCase
TestIndexesAsLists.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("target", range(100, 400, 5))
def test_lookup_in_a_thread_while_the_loop_drops_warm_entries(tmp_path, target):
    """The loop drops them after any of the entries that the thread reads."""

    class Interrupted(OffsetIndex):
        entries_left = -1

        def _entry(self, number, **how):
            found = super()._entry(number, **how)
            self.entries_left -= 1
            if self.entries_left == 0:
                self.add(400, position=400)
            return found

    for entries_left in range(1, 9):
        path = tmp_path / str(entries_left)
        index = Interrupted(path, base_offset=100, max_bytes=8000, files=Files(), is_new=True)
        for offset in range(110, 400, 10):
            index.add(offset, position=offset)
        expected = index.lookup(target)
        index.entries_left = entries_left
        assert index.lookup(target) == expected
        index.close()


def test_transaction_index(tmp_path):
    path = tmp_path / "x.txnindex"
    index = TransactionIndex(path, base_offset=10, files=Files(), is_new=True)
    assert index.aborted_in(0, 99) == ([], False)
    assert not path.exists()
    first, second = AbortedTransaction(7, 10, 14, 12), AbortedTransaction(8, 12, 20, 21)
    index.add(first)
    index.add(second)
    assert path.read_bytes()[:34].hex() == "0000" + "".join(f"{it:016x}" for it in first)
    again = TransactionIndex(path, base_offset=10, files=Files(), is_new=False)
    assert again.entries == [first, second]
    assert again.aborted_in(15, 30) == ([second], False)
    assert again.aborted_in(10, 12) == ([first], True)  # later markers leave later stable offsets
    again.truncate_to(20)
    assert TransactionIndex(path, base_offset=10, files=Files(), is_new=False).entries == [first]
    path.write_bytes(b"\x00\x01" + bytes(32))
    with pytest.raises(CorruptIndex):
        TransactionIndex(path, base_offset=10, files=Files(), is_new=False).check()
