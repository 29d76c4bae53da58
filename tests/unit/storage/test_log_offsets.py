"""LogOffsets: random legal changes keep its invariants, and each illegal one is refused."""

import re
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.storage.log_offsets import LogOffsets, start_offsets

ROOT = Path(__file__).parents[3]


def offsets_of(*, start=0, local=None, end=0, recovery_point=0, high_watermark=None, gap=None) -> LogOffsets:
    offsets = LogOffsets(
        log_start_offset=start,
        local_log_start_offset=start if local is None else local,
        log_end_offset=end,
        recovery_point=recovery_point,
        first_gap_offset=gap,
    )
    if high_watermark is not None:
        offsets.reset_high_watermark(high_watermark, first_unstable_offset=None)
    return offsets


class LegalChanges(RuleBasedStateMachine):
    """Every change that a log makes, in any order. The high watermark that readers know never moves back."""

    @initialize(data=st.data(), is_tiered=st.booleans())
    def load(self, data, is_tiered):
        checkpointed, first_segment = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
        self.is_tiered = is_tiered
        start, local = start_offsets(
            log_start_offset=checkpointed, first_segment_offset=first_segment, is_tiered=is_tiered
        )
        end = local + data.draw(st.integers(0, 20))
        self.offsets = LogOffsets(
            log_start_offset=start,
            local_log_start_offset=local,
            log_end_offset=end,
            recovery_point=data.draw(st.integers(0, end)),
        )
        self.known_high_watermark = 0

    def draw(self, data, low, high):
        return data.draw(st.integers(low, high))

    @rule(gap=st.integers(0, 3), count=st.integers(1, 5))
    def append(self, gap, count):
        first = self.offsets.log_end_offset + gap
        self.offsets.advance_end(first_offset=first, end_offset=first + count)

    @rule(data=st.data())
    def truncate(self, data):
        offsets = self.offsets
        end = self.draw(data, 0, offsets.log_end_offset)
        start, local = offsets.log_start_offset, offsets.local_log_start_offset
        remote_end = offsets.remote_end_offset
        offsets.begin_truncation(end)
        assert offsets.recovery_point <= end
        assert offsets.remote_end_offset == (
            remote_end if remote_end is not None and remote_end <= end else None
        )
        unstable = data.draw(st.none() | st.integers(0, end - 1)) if end else None
        offsets.truncate(end, first_unstable_offset=unstable)
        assert offsets.log_end_offset == end
        assert (offsets.log_start_offset, offsets.local_log_start_offset) == (
            min(start, end),
            min(local, end),
        )
        self.known_high_watermark = min(self.known_high_watermark, end)

    @rule(data=st.data(), offset=st.integers(0, 60))
    def restart(self, data, offset):
        start = self.draw(data, 0, offset) if self.is_tiered else offset
        recovery_point = min(offset, self.draw(data, 0, self.offsets.recovery_point))
        self.offsets.restart(offset, log_start_offset=start, recovery_point=recovery_point)
        assert self.offsets.high_watermark == self.offsets.log_end_offset == offset
        assert self.offsets.remote_end_offset is None
        self.known_high_watermark = 0

    @precondition(lambda self: self.offsets.high_watermark < self.offsets.log_end_offset)
    @rule(data=st.data())
    def commit(self, data):
        offsets = self.offsets
        to = self.draw(data, offsets.high_watermark + 1, offsets.log_end_offset)
        offsets.advance_high_watermark(to, first_unstable_offset=offsets.first_unstable_offset)
        self.known_high_watermark = to

    @precondition(lambda self: self.offsets.log_end_offset > 0)
    @rule(data=st.data(), is_open=st.booleans())
    def transact(self, data, is_open):
        self.offsets.set_first_unstable(
            self.draw(data, 0, self.offsets.log_end_offset - 1) if is_open else None
        )

    @precondition(lambda self: self.offsets.log_start_offset < self.offsets.high_watermark)
    @rule(data=st.data())
    def delete_records(self, data):
        to = self.draw(data, self.offsets.log_start_offset + 1, self.offsets.high_watermark)
        self.offsets.advance_log_start(to)

    @rule(data=st.data())
    def remove_segments(self, data):
        offsets = self.offsets
        base = self.draw(data, offsets.local_log_start_offset, offsets.high_watermark)
        start, local = start_offsets(
            log_start_offset=offsets.log_start_offset, first_segment_offset=base, is_tiered=self.is_tiered
        )
        if start > offsets.log_start_offset:
            offsets.advance_log_start(start)
        offsets.advance_local_log_start(local)
        assert offsets.local_log_start_offset == base
        if not self.is_tiered:
            assert offsets.log_start_offset == base

    @rule(data=st.data())
    def copy_to_the_remote_tier(self, data):
        known = self.offsets.remote_end_offset
        to = self.draw(data, 0, self.offsets.log_end_offset)
        assert self.offsets.advance_remote_end(to) == (known is None or to > known)
        assert self.offsets.remote_end_offset == max(to, known or 0)

    @rule(data=st.data())
    def flush(self, data):
        self.offsets.advance_recovery_point(
            self.draw(data, self.offsets.recovery_point, self.offsets.log_end_offset)
        )

    @rule(data=st.data())
    def flush_again(self, data):
        self.offsets.move_recovery_point_back(self.draw(data, 0, self.offsets.recovery_point))

    @invariant()
    def invariants(self):
        it = self.offsets
        assert 0 <= it.log_start_offset <= it.local_log_start_offset <= it.high_watermark <= it.log_end_offset
        assert it.log_start_offset <= it.last_stable_offset <= it.high_watermark
        assert 0 <= it.recovery_point <= it.log_end_offset
        assert it.high_watermark >= self.known_high_watermark
        assert it.remote_end_offset is None or 0 <= it.remote_end_offset <= it.log_end_offset
        assert (it.earliest_pending_upload_offset is None) == (it.remote_end_offset is None)
        if it.first_unstable_offset is None:
            assert it.last_stable_offset == it.high_watermark
        if not self.is_tiered:
            assert it.log_start_offset == it.local_log_start_offset


TestLegalChanges = LegalChanges.TestCase
TestLegalChanges.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

USUAL = {"start": 2, "local": 4, "recovery_point": 6, "high_watermark": 8, "end": 10}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda it: it.advance_end(first_offset=9, end_offset=12), "the log has this offset already"),
        (lambda it: it.advance_end(first_offset=10, end_offset=10), "nothing is appended"),
        (lambda it: it.begin_truncation(11), "the log ends before"),
        (lambda it: it.begin_truncation(-1), "no offset is negative"),
        (lambda it: it.truncate(5, first_unstable_offset=None), "the recovery point has not moved back"),
        (lambda it: it.truncate(11, first_unstable_offset=None), "a truncation does not append"),
        (lambda it: it.truncate(10, first_unstable_offset=10), "a transaction that is not in the log"),
        (lambda it: it.restart(20, log_start_offset=21, recovery_point=0), "the log starts behind its end"),
        (lambda it: it.restart(20, log_start_offset=20, recovery_point=7), "nothing was flushed"),
        (lambda it: it.restart(5, log_start_offset=5, recovery_point=6), "the recovery point is behind the end"),
        (lambda it: it.advance_log_start(2), "it is there already"),
        (lambda it: it.advance_log_start(1), "deleted records do not come back"),
        (lambda it: it.advance_log_start(9), "it is not committed"),
        (lambda it: it.advance_local_log_start(3), "removed segments do not come back"),
        (lambda it: it.advance_local_log_start(9), "only committed records are removed"),
        (lambda it: it.advance_high_watermark(8), "it is there already"),
        (lambda it: it.advance_high_watermark(7), "committed is forever"),
        (lambda it: it.advance_high_watermark(11), "the log ends before"),
        (lambda it: it.reset_high_watermark(3, first_unstable_offset=None), "removed records were committed"),
        (lambda it: it.reset_high_watermark(11, first_unstable_offset=None), "the log ends before"),
        (lambda it: it.set_first_unstable(10), "a transaction that is not in the log"),
        (lambda it: it.advance_recovery_point(5), "it moves back by name only"),
        (lambda it: it.advance_recovery_point(11), "the log ends before"),
        (lambda it: it.move_recovery_point_back(7), "it advances by name only"),
        (lambda it: it.advance_remote_end(11), "the log ends before"),
        (lambda it: it.advance_remote_end(-1), "no offset is negative"),
    ],
)  # fmt: skip
def test_an_illegal_change_is_refused(change, why):
    with pytest.raises(AssertionError):
        change(offsets_of(**USUAL))


@pytest.mark.parametrize(
    ("start", "local", "end", "recovery_point"),
    [
        (5, 4, 10, 0),  # local segments start before the log
        (5, 11, 10, 0),  # they start behind its end
        (11, 11, 10, 0),  # the log does
        (-1, 0, 10, 0),
        (0, 0, 10, 11),  # more is flushed than there is
        (0, 0, 10, -1),
    ],
)
def test_impossible_offsets_are_refused(start, local, end, recovery_point):
    with pytest.raises(AssertionError):
        offsets_of(start=start, local=local, end=end, recovery_point=recovery_point)


@pytest.mark.parametrize(
    ("high_watermark", "unstable", "last_stable"),
    [
        (8, None, 8),
        (8, 6, 6),  # an open transaction
        (8, 8, 8),  # it begins behind what is committed
        (8, 9, 8),
        (8, 1, 2),  # it began before DeleteRecords moved the log start to 2
    ],
)
def test_last_stable_offset(high_watermark, unstable, last_stable):
    offsets = offsets_of(**{**USUAL, "high_watermark": high_watermark})
    offsets.set_first_unstable(unstable)
    assert offsets.last_stable_offset == last_stable


@pytest.mark.parametrize(
    ("remote_end", "log_start", "pending"),
    [
        (None, 2, None),  # not known yet
        (0, 0, 0),  # nothing is copied
        (0, 2, 2),  # deleted records are never copied
        (5, 2, 5),
        (5, 7, 7),
    ],
)
def test_earliest_pending_upload_offset(remote_end, log_start, pending):
    offsets = offsets_of(start=log_start, end=10)
    if remote_end is not None:
        offsets.advance_remote_end(remote_end)
    assert offsets.earliest_pending_upload_offset == pending


@pytest.mark.parametrize(("end", "gap"), [(7, None), (6, None), (8, 7)])
def test_a_truncation_removes_the_gap_or_what_is_behind_it(end, gap):
    offsets = offsets_of(end=10, gap=7)
    offsets.begin_truncation(end)
    offsets.truncate(end, first_unstable_offset=None)
    assert offsets.first_gap_offset == gap


def test_no_other_module_sets_an_offset():
    """The attributes are plain, so that reading them costs nothing; this keeps them owned."""
    names = "|".join(LogOffsets.__slots__)
    assignment = re.compile(rf"\b_?offsets\.({names}) (=|\+=|-=) ")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for folder in ("storage", "broker", "controller", "remote")
        for path in (ROOT / folder).rglob("*.py")
        for match in assignment.finditer(path.read_text())
    ]
    assert found == []
