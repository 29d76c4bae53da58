"""A tiered log against a list of batches and a list of copies: no hole between the tiers, whatever happens (KIP-405).

The other half of tiering is as simple as can be: a copy is the batches of a segment, and is part of the log
if the log has the same batches. What retention, truncation, rebuilds and stops do to the local half is the
real code.
"""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import OffsetMovedToTieredStorage
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.storage import leader_epoch_cache
from ottla.storage.remote_restart import RemoteState
from ottla.storage.tiered_log import SegmentToCopy
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

pytestmark = pytest.mark.logs("")

#: Two or three batches are in a segment, and one segment's worth stays local.
CONFIG = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    retention_ms=None,
    remote_storage_enable=True,
    local_retention_bytes=300,
)


class Row(NamedTuple):
    """A batch. No two have the same value, also of different branches."""

    base: int
    last: int
    epoch: int
    value: bytes


class Copy(NamedTuple):
    """A finished copy of a segment."""

    base: int
    end: int
    rows: tuple[Row, ...]
    epochs: bytes
    producer_snapshot: bytes


def rows_of(data: bytes) -> tuple[Row, ...]:
    return tuple(
        Row(header.base_offset, header.last_offset, header.partition_leader_epoch, next(iter(records(view))).value)
        for header, view in batches(memoryview(data))
    )  # fmt: skip


class TieredLog(RuleBasedStateMachine):
    """The model: the rows of the log, in either tier, and where it begins and ends; and all copies, of any branch."""

    def __init__(self):
        super().__init__()
        self.directory = Path(mkdtemp()) / "orders-0"
        self.rows: list[Row] = []
        self.start = self.end = 0
        self.epoch = 0
        self.copies: list[Copy] = []
        #: A copy that is not finished.
        self.copying: tuple[SegmentToCopy, Copy] | None = None
        self.values = count()

    @initialize()
    def begin(self):
        self.log = open_log(self.directory, config=CONFIG)
        self.log.update_remote_end_offset(0)

    def teardown(self):
        self.log.close_files()
        shutil.rmtree(self.directory.parent)

    # -- the log -----------------------------------------------------------------------------------

    def _append(self, size, offsets, *, is_committed):
        value = b"%d " % next(self.values) + b"x" * size
        data = batch(offsets, value=value)
        self.log.append_as_leader(data, leader_epoch=self.epoch, now_ms=NOW_MS)
        self.rows.append(Row(self.end, self.end + offsets - 1, self.epoch, value))
        self.end += offsets
        if is_committed:
            self.log.update_high_watermark(self.end)

    @rule(size=st.integers(0, 60), offsets=st.integers(1, 2), is_committed=st.booleans())
    def append(self, size, offsets, is_committed):
        self._append(size, offsets, is_committed=is_committed)

    @rule(sizes=st.lists(st.integers(20, 60), min_size=3, max_size=9))
    def append_many(self, sizes):
        self._append_many(sizes)

    def _append_many(self, sizes):
        for size in sizes:
            self._append(size, 1, is_committed=True)

    @rule()
    def lead(self):
        self.epoch += 1
        self.log.assign_epoch(self.epoch, start_offset=self.end)

    @rule()
    def commit(self):
        self.log.update_high_watermark(self.end)

    @rule()
    def roll(self):
        self.log.roll(NOW_MS)

    @rule(data=st.data())
    def delete_records(self, data):
        offset = data.draw(st.integers(self.start, self.log.high_watermark))
        self.log.maybe_increment_log_start_offset(offset)
        self.start = max(self.start, offset)

    @rule()
    def retain(self):
        self._retain()

    def _retain(self):
        before, remote_end = self.log.segments, self.log.offsets.remote_end_offset
        self.log.apply_retention(NOW_MS)
        for segment in before:
            end = before.end_of(segment) or self.end
            if segment not in self.log.segments:
                assert end <= max(remote_end or 0, self.start), (segment, end, remote_end, self.start)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), where=st.sampled_from(["anywhere", "below the remote end", "in the copy"]))
    def truncate(self, data, where):
        """Truncate the log, even below the high watermark, as after an unclean election."""
        local, remote_end = self.log.segments.first.base_offset, self.log.offsets.remote_end_offset
        ends = [copy.end for copy in self._own_copies() if self.start <= copy.end < local]
        offsets = [row.base for row in self.rows if row.base >= local] + ends + [self.end]
        if where == "below the remote end" and remote_end is not None:
            offsets = [offset for offset in offsets if offset < remote_end] or offsets
        elif where == "in the copy" and self.copying is not None:
            offsets = [row.base for row in self.copying[1].rows]
        self._truncate(data.draw(st.sampled_from(offsets)))

    def _truncate(self, offset):
        self.log.truncate_to(offset, now_ms=NOW_MS)
        self.rows = [row for row in self.rows if row.base < offset]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        self.epoch += 1

    @rule(is_clean=st.booleans())
    def stop_and_start(self, is_clean):
        self.log.close() if is_clean else self.log.close_files()
        self.log = open_log(
            self.directory,
            config=CONFIG,
            is_clean=is_clean,
            recovery_point=self.log.recovery_point,
            log_start_offset=self.start,
        )
        self.log.ignore_gap()  # it leads
        self.copying = None

    # -- the remote tier ---------------------------------------------------------------------------

    def _own_copies(self) -> list[Copy]:
        """The copies of this log, without those of other branches."""
        rows = set(self.rows)
        return [copy for copy in self.copies if rows.issuperset(copy.rows) and copy.end <= self.end]

    @precondition(lambda self: self.copying is None and self.log.offsets.remote_end_offset is not None)
    @rule()
    def begin_copy(self):
        self._begin_copy()

    def _begin_copy(self):
        found = self.log.segments_to_copy(self.log.offsets.earliest_pending_upload_offset)
        if not found:
            return
        segment = found[0]
        if segment.snapshot_job is not None:
            segment.snapshot_job.complete()
        data = segment.log_segment.read_bytes()
        assert len(data) == segment.size_bytes
        rows = rows_of(data)
        assert rows == tuple(row for row in self.rows if segment.base_offset <= row.base < segment.end_offset)
        assert segment.end_offset <= self.log.last_stable_offset
        copy = Copy(
            segment.base_offset,
            segment.end_offset,
            rows,
            segment.leader_epoch_checkpoint,
            segment.producer_snapshot.read_bytes(),
        )
        self.copying = segment, copy

    @precondition(lambda self: self.copying is not None)
    @rule()
    def finish_copy(self):
        self._finish_copy()

    def _finish_copy(self):
        (segment, copy), self.copying = self.copying, None
        if segment.is_current(self.log):
            self.copies.append(copy)
            self.log.update_remote_end_offset(copy.end)

    @precondition(lambda self: self.log.offsets.remote_end_offset is not None)
    @rule(sizes=st.lists(st.integers(20, 60), min_size=3, max_size=9), count=st.integers(1, 5))
    def append_and_copy(self, sizes, count):
        self._append_many(sizes)
        for _ in range(count):
            if self.copying is None:
                self._begin_copy()
            if self.copying is not None:
                self._finish_copy()

    @precondition(lambda self: self.copying is None and self.log.offsets.remote_end_offset is not None)
    @rule(data=st.data(), sizes=st.lists(st.integers(20, 60), min_size=3, max_size=9))
    def truncate_during_a_copy(self, data, sizes):
        self._append_many(sizes)
        self._begin_copy()
        if self.copying is not None:
            self._truncate(data.draw(st.sampled_from([row.base for row in self.copying[1].rows])))
            self._append_many(data.draw(st.just([]) | st.just(sizes)))
            self._finish_copy()

    @rule()
    def find_remote_end(self):
        self._find_remote_end()

    def _find_remote_end(self):
        """Find the unknown remote end offset, as the manager does."""
        self.log.update_remote_end_offset(max((copy.end for copy in self._own_copies()), default=0))

    @precondition(lambda self: self._own_copies())
    @rule()
    def expire(self):
        """Total retention: the log start first, then the copies before it."""
        oldest = min(self._own_copies(), key=lambda copy: copy.end)
        if oldest.end <= self.log.high_watermark:
            self.log.maybe_increment_log_start_offset(oldest.end)
            self.start = max(self.start, oldest.end)
            self.copies = [copy for copy in self.copies if copy.end > self.start]

    @precondition(lambda self: self._own_copies())
    @rule(data=st.data())
    def rebuild(self, data):
        """This replica is far behind, and continues where a copy ends."""
        own = [copy for copy in self._own_copies() if copy.end >= self.start]
        if not own:
            return
        copy = data.draw(st.sampled_from(own))
        state = RemoteState.of(
            offset=copy.end,
            log_start_offset=self.start,
            leader_epochs=leader_epoch_cache.decode(copy.epochs),
            producer_snapshot=copy.producer_snapshot,
        )
        for _ in range(data.draw(st.integers(0, 2))):
            if (job := self.log.remote_restart.next_job(state)) is not None:
                job.complete()
        self.log.restart_from_remote(state, now_ms=NOW_MS)
        self.rows = [row for row in self.rows if row.base < copy.end]
        self.end = copy.end
        self.epoch += 1

    @rule()
    def settle(self):
        """Everything is copied, and then removed, without a restart: local retention does not wedge."""
        self.copying = None
        self.log.update_config(LogConfig(remote_storage_enable=True, local_retention_bytes=0))
        self.log.update_high_watermark(self.end)
        self._find_remote_end()
        for _ in range(len(self.log.segments) + 1):
            self._retain()  # rolls the active segment, when all before it is copied
            self._begin_copy()
            if self.copying is not None:
                self._finish_copy()
        self._retain()
        assert self.log.segments.size_bytes == 0
        assert self.log.local_log_start_offset == self.end
        self.log.update_config(CONFIG)

    # -- what holds --------------------------------------------------------------------------------

    @invariant()
    def offsets(self):
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert self.start <= log.local_log_start_offset <= log.high_watermark <= self.end
        assert self.start <= log.last_stable_offset <= log.high_watermark

    @invariant()
    def no_hole_between_the_tiers(self):
        local = self.log.segments.first.base_offset
        copied = {row for copy in self._own_copies() for row in copy.rows}
        for row in self.rows:
            if row.last >= self.start:
                assert row.base >= local or row in copied, row

    @invariant()
    def only_what_is_copied_is_before_the_remote_end(self):
        remote_end = self.log.offsets.remote_end_offset
        copied = {row for copy in self._own_copies() for row in copy.rows}
        for row in self.rows:
            if remote_end is not None and self.start <= row.base and row.last < remote_end:
                assert row in copied, (row, remote_end)

    @invariant()
    def epochs_of_both_tiers(self):
        for row in self.rows:
            if row.base >= self.start:
                assert self.log.epoch_for_offset(row.base) == row.epoch
        assert self.log.has_whole_lineage or not any(row.last >= self.start for row in self.rows)

    @invariant()
    def reads_of_the_local_tier(self):
        local = self.log.local_log_start_offset
        for offset in range(self.start, local):
            with pytest.raises(OffsetMovedToTieredStorage):
                self.log.reader.read(offset, max_bytes=1)
        found = b"".join(bytes(data) for _, data in self.log.reader.records_since(local))
        assert rows_of(found) == tuple(row for row in self.rows if row.last >= local)


TestTieredLog = TieredLog.TestCase
TestTieredLog.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
