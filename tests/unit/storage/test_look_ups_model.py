"""Look-ups by time in a log are those in a list of its records, whatever the headers of its batches claim
(KIP-79, KIP-734).
"""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import patch
from ottla.protocol.records.compression import Compression
from ottla.storage import kept_times, log_reader, segment, segment_times
from ottla.storage.log import Log
from tests.harness.bombs import MANY, batch_claiming
from tests.unit.storage.storage_support import NOW_MS, open_log

TIMES = st.integers(0, 30)
BATCHES = st.tuples(
    st.just("append"),
    st.lists(TIMES, min_size=1, max_size=2 * MANY),
    TIMES,
    st.sampled_from([Compression.NONE, Compression.LZ4]),
    st.booleans(),
)
STEPS = st.one_of(
    BATCHES,
    BATCHES,
    st.tuples(st.just("roll")),
    st.tuples(st.just("look up"), st.none() | TIMES),
    st.tuples(st.just("delete before"), st.integers(0, 100)),
    st.tuples(st.just("truncate to"), st.integers(0, 100)),
    st.tuples(st.just("restart"), st.none() | st.integers(0, 300)),
)


@dataclass
class LogAsRecords:
    """A log, and the times of its records."""

    folder: Path
    log: Log = field(init=False)
    times: list[int] = field(default_factory=list)
    #: The offsets that batches begin with.
    bounds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.log = open_log(
            self.folder / "orders-0", config=LogConfig(segment_bytes=600, index_interval_bytes=100)
        )

    def append(self, times: list[int], claimed: int, codec: Compression, is_checked: bool) -> None:
        """A leader checks the headers of small batches only, a follower none."""
        batch = batch_claiming(
            [NOW_MS + time for time in times], claimed_ms=NOW_MS + claimed, codec=codec, value=b"12345678"
        )
        end = self.log.log_end_offset
        assert end == len(self.times)
        if is_checked:
            self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
        else:
            patch(batch, base_offset=end, leader_epoch=0)
            self.log.append_as_follower(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
        self.bounds.append(end)
        self.times += times
        self.log.leader_epochs.assign(0, start_offset=end)

    def step(self, kind: str, *args) -> None:
        match kind:
            case "append":
                self.append(*args)
            case "roll":
                self.log.roll(NOW_MS)
            case "look up":
                self.check(*args)
            case "delete before":
                self.log.update_high_watermark(self.log.log_end_offset)
                self.log.maybe_increment_log_start_offset(min(args[0], len(self.times)))
            case "truncate to":
                to = max((at for at in self.bounds if at <= args[0]), default=0)
                if self.log.log_start_offset <= to < len(self.times):
                    self.log.truncate_to(to, now_ms=NOW_MS)
                    del self.times[to:]
                    self.bounds = [at for at in self.bounds if at < to]
            case "restart":
                self.log.close()
                if args and args[0] is not None:
                    path = self.log.directory / kept_times.FILE_NAME
                    if path.exists():
                        data = bytearray(path.read_bytes())
                        data[args[0] % len(data)] ^= 1
                        path.write_bytes(data)
                start = self.log.log_start_offset
                self.open()
                self.log.update_high_watermark(self.log.log_end_offset)
                self.log.maybe_increment_log_start_offset(start)

    def check(self, time: int | None) -> None:
        start = self.log.log_start_offset
        left = self.times[start:]
        if time is None:
            found = self.log.reader.max_timestamp_offset()
            wanted = max(left, default=99)
        else:
            found = self.log.reader.offset_for_timestamp(NOW_MS + time)
            wanted = time
        expected = next(
            ((NOW_MS + at, start + number, 0) for number, at in enumerate(left) if at >= wanted), None
        )
        assert found == expected, (time, start)


@given(st.lists(STEPS, max_size=30), st.sampled_from([1, 300, 10**6]), st.sampled_from([1, 500, 10**6]))
@settings(max_examples=150, deadline=None)
@pytest.mark.logs("below the high watermark", "rebuilding it from them", "log start offset")
def test_look_ups_are_those_in_a_list(steps, piece_bytes, stretch_bytes):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_reader, "PIECE_BYTES", piece_bytes)
        for module in (segment_times, segment):
            patched.setattr(module, "STRETCH_BYTES", stretch_bytes)
        log = LogAsRecords(Path(folder))
        with closing(log.log):
            for step in steps:
                log.step(*step)
            for time in (None, *range(32)):
                log.check(time)
