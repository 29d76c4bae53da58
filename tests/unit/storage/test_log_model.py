"""A log against a list of batches, through appends, rolls, truncations, deletions, and stops of both kinds."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import batches
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

pytestmark = pytest.mark.logs("")

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=64)


class LogAsAList(RuleBasedStateMachine):
    """The model: (base offset, last offset, epoch, timestamp) of every batch, and where the log begins and ends."""

    def __init__(self):
        super().__init__()
        self.directory = Path(mkdtemp()) / "orders-0"
        self.model: list[tuple[int, int, int, int]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.clock = NOW_MS

    @initialize()
    def begin(self):
        self.log = open_log(self.directory, config=CONFIG)

    def teardown(self):
        self.log.close_files()
        shutil.rmtree(self.directory.parent)

    @rule(count=st.integers(1, 5), size=st.integers(0, 300), step=st.integers(-5, 20), newer=st.booleans())
    def append(self, count, size, step, newer):
        self.epoch += newer
        self.clock += step
        info = self.log.append_as_leader(
            batch(count, value=b"x" * (size // count), timestamp=self.clock),
            leader_epoch=self.epoch,
            now_ms=self.clock,
        )
        assert info.first_offset == self.end
        self.model.append((self.end, self.end + count - 1, self.epoch, self.clock + count - 1))
        self.end += count

    @rule(gap=st.integers(0, 4), count=st.integers(1, 3))
    def replicate(self, gap, count):
        base = self.end + gap
        data = batch(count, base_offset=base, leader_epoch=self.epoch, timestamp=self.clock)
        self.log.append_as_follower(data, leader_epoch=self.epoch, now_ms=self.clock)
        self.model.append((base, base + count - 1, self.epoch, self.clock + count - 1))
        self.end = base + count

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data):
        offset = data.draw(st.sampled_from([row[0] for row in self.model] + [self.end]))
        self.log.truncate_to(offset, now_ms=self.clock)
        self.model = [row for row in self.model if row[0] < offset]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        self.epoch += 1

    @rule(data=st.data())
    def replicated(self, data):
        self.log.update_high_watermark(data.draw(st.integers(self.start, self.end)))

    @rule(data=st.data())
    def delete_before(self, data):
        offset = data.draw(st.integers(0, self.log.high_watermark))
        self.log.maybe_increment_log_start_offset(offset)
        self.start = max(self.start, offset)
        self.log.apply_retention(self.clock)

    @rule()
    def roll(self):
        self.log.roll(self.clock)

    @rule()
    def flush(self):
        self.log.flush()
        assert self.log.recovery_point == self.end

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        if is_clean:
            self.log.close()
        else:
            self.log.close_files()
        self.log = open_log(
            self.directory,
            config=CONFIG,
            is_clean=is_clean,
            recovery_point=self.log.recovery_point,
            log_start_offset=self.start,
        )
        # Offsets at the end that a truncation has emptied are not in the files: the next segment says them.
        self.end = max(self.model[-1][1] + 1 if self.model else 0, self.log.segments.active.base_offset)

    @invariant()
    def offsets(self):
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == self.start
        assert self.start <= self.log.last_stable_offset <= self.log.high_watermark <= self.end
        assert self.start <= self.log.local_log_start_offset <= self.end
        assert self.log.recovery_point <= self.end

    @invariant()
    def every_offset_is_found(self):
        readable = [row for row in self.model if row[1] >= self.start]
        for offset in range(self.start, self.end + 1):
            after = [row for row in readable if row[1] >= offset]
            read = self.log.reader.read(offset, max_bytes=1, min_one_message=True)
            assert read.base_offset == (after[0][0] if after else None), offset

    @rule(data=st.data(), max_bytes=st.sampled_from((0, 1, 61, 100, 10_000)))
    def read_newest(self, data, max_bytes):
        """The same as `read`, or nothing; from the first to the last of two newest batches it is not nothing."""
        offset, bound = data.draw(st.integers(0, self.end + 1)), data.draw(st.integers(0, self.end + 1))
        newest = self.log.reader.read_newest(offset, max_bytes=max_bytes, max_offset=bound)
        if newest is None:
            bases = [row[0] for row in self.model if row[0] >= self.log.segments.active.base_offset]
            is_newest = offset in bases and bound in (*bases, self.end) and self.start <= offset < bound
            assert not is_newest or max_bytes < 10_000 or not self.log.segments.active.log.recent
        else:
            for may_block in (False, True):
                read = self.log.reader.read(
                    offset, max_bytes=max_bytes, max_offset=bound, may_block=may_block, lend=True
                )
                assert newest == read.records

    @invariant()
    def batches_are_those_of_the_model(self):
        readable = [row for row in self.model if row[1] >= self.start]
        found = []
        for header, _ in self.log.reader.records_since(self.start):
            found.append(
                (header.base_offset, header.last_offset, header.partition_leader_epoch, header.max_timestamp)
            )
        assert found == readable
        if readable:
            bound = readable[len(readable) // 2][0]
            read = self.log.reader.read(self.start, max_bytes=10_000, max_offset=bound)
            below = [header.base_offset for header, _ in batches(memoryview(read.records))]
            assert below == [row[0] for row in readable if row[0] < bound][: len(below)]

    @invariant()
    def epochs_are_the_batches(self):
        for base, _, epoch, _ in self.model:
            if base >= self.start:
                assert self.log.epoch_for_offset(base) == epoch

    @invariant()
    def timestamps(self):
        for target in (NOW_MS, self.clock - 10, self.clock, self.clock + 3):
            found = self.log.reader.offset_for_timestamp(target)
            expected = None
            for base, last, epoch, largest in self.model:
                first = max(base, self.start, last - (largest - target) if target <= largest else last + 1)
                if largest >= target and first <= last:
                    expected = (largest - (last - first), first, epoch)
                    break
            assert found == expected


TestLogAsAList = LogAsAList.TestCase
TestLogAsAList.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
