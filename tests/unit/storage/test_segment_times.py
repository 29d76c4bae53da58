"""Nothing is deleted by the timestamp that a header claims: the records decide, if they were written later than it."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import patch
from ottla.protocol.records.compression import Compression
from ottla.storage import log_reader, segment_times
from ottla.storage.file_records import FileRecords
from ottla.storage.files import Files
from ottla.storage.time_search import TimeSearch
from tests.harness.bombs import MANY, batch_claiming, batch_of, understated_batch
from tests.unit.storage.storage_support import NOW_MS, open_log

HOUR_MS = 3_600_000
CONFIG = LogConfig(segment_bytes=2**20, retention_ms=24 * HOUR_MS)


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "orders-0", config=CONFIG)


def append(log, data) -> None:
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def retain(log, now_ms=NOW_MS) -> int:
    if log.start.retention_waits_for_disk(now_ms):
        log.start.warm_up_retention(now_ms)
    assert not log.start.retention_waits_for_disk(now_ms)
    return log.apply_retention(now_ms)


OLD, NEW = NOW_MS - 48 * HOUR_MS, NOW_MS - HOUR_MS


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize(("last_ms", "claimed_ms", "written_ms", "removed"), [
    # claimed, records and the file are old
    (OLD,    OLD + 60,   OLD,    1),
    # a mirror: written now
    (OLD,    OLD + 60,   NOW_MS, 1),
    # kafka-go's Conn claims the last record's time
    (NEW,    OLD + 60,   NOW_MS, 0),
    (NEW,    NEW,        NOW_MS, 0),
    # the records are as old as the file, whatever they say
    (NEW,    OLD + 60,   OLD,    1),
])  # fmt: skip
def test_retention(log, codec, last_ms, claimed_ms, written_ms, removed):
    append(log, understated_batch(base_ms=OLD, last_ms=last_ms, claimed_ms=claimed_ms, codec=codec))
    Files().set_modified_ms(log.segments.active.path_of(".log"), written_ms)
    assert retain(log) == removed


def test_a_thread_reads_the_records_once_for_the_loop(log, monkeypatch):
    append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60))
    assert log.start.retention_waits_for_disk(NOW_MS)
    log.start.warm_up_retention(NOW_MS)
    with monkeypatch.context() as patched:
        patched.setattr(segment_times, "payload_of", lambda *_: pytest.fail("the loop reads records"))
        assert not log.start.retention_waits_for_disk(NOW_MS)
        assert log.apply_retention(NOW_MS) == 0
    append(log, understated_batch(base_ms=OLD, last_ms=OLD, claimed_ms=OLD + 60))
    assert log.start.retention_waits_for_disk(NOW_MS), "more has been appended"
    assert retain(log) == 0
    assert retain(log, NOW_MS + 24 * HOUR_MS) == 1


@pytest.mark.logs("below the high watermark")
def test_what_was_read_is_forgotten_when_the_segment_is_truncated(log):
    append(log, understated_batch(base_ms=OLD, last_ms=OLD, claimed_ms=OLD + 60))
    append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60))
    assert retain(log) == 0
    log.truncate_to(MANY, now_ms=NOW_MS)
    log.update_high_watermark(MANY)
    assert retain(log) == 1


@pytest.mark.logs("below the high watermark")
def test_what_a_thread_reads_during_a_truncation_is_forgotten(log, monkeypatch):
    """Otherwise records that are appended there later would count as read, and be deleted by what their
    header claims."""
    append(log, understated_batch(base_ms=OLD, last_ms=OLD, claimed_ms=OLD + 60))
    append(log, understated_batch(base_ms=OLD, last_ms=OLD, claimed_ms=OLD + 60))
    segment = log.segments.active
    truncate_to = FileRecords.truncate_to

    def truncate_while_a_thread_reads(self, size):
        segment.times.read(self, end=self.size)
        truncate_to(self, size)

    with monkeypatch.context() as patched:
        patched.setattr(FileRecords, "truncate_to", truncate_while_a_thread_reads)
        log.truncate_to(MANY, now_ms=NOW_MS)
    append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60))
    assert retain(log) == 0


@pytest.mark.parametrize(("last_ms", "claimed_ms", "largest_ms"), [
    (NEW,    OLD + 60,   NEW),
    (OLD,    OLD + 60,   OLD + MANY - 3),
    (NOW_MS, NOW_MS - 5, NOW_MS),
    (NEW,    NOW_MS,     NEW),
])  # fmt: skip
def test_a_copy_expires_by_its_records(log, last_ms, claimed_ms, largest_ms):
    append(log, understated_batch(base_ms=OLD, last_ms=last_ms, claimed_ms=claimed_ms))
    log.roll(NOW_MS)
    (segment,) = log.segments_to_copy(0)
    assert segment.read_times().largest == largest_ms
    assert segment.known_times is None
    log.reader.offset_for_timestamp(NOW_MS + 1)
    is_known = segment.known_times == (largest_ms, None)
    assert is_known is (claimed_ms >= largest_ms)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 50), min_size=MANY, max_size=MANY + 2), st.integers(0, 50)),
        min_size=1,
    ),
    st.integers(0, 1000),
)
@settings(max_examples=50, deadline=None)
def test_the_time_index_of_the_records_is_that_of_honest_headers(batches, interval_bytes):
    with TemporaryDirectory() as folder:
        files = []
        for is_honest in (True, False):
            config = LogConfig(index_interval_bytes=interval_bytes)
            log = open_log(Path(folder) / str(is_honest), config=config)
            for times, claimed in batches:
                batch = batch_claiming(
                    [NOW_MS + time for time in times],
                    claimed_ms=NOW_MS + (max(times) if is_honest else claimed),
                )
                patch(batch, base_offset=log.log_end_offset, leader_epoch=0)
                log.append_as_follower(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
            log.update_high_watermark(log.log_end_offset)
            log.roll(NOW_MS)
            files += log.segments_to_copy(0)
        honest, other = files
        largest = NOW_MS + max(max(times) for times, _ in batches)
        assert honest.read_times() == (largest, None)
        is_understated = any(claimed < max(times) for times, claimed in batches)
        index = honest.time_index.read_bytes() if is_understated else None
        assert other.read_times() == (largest, index)


def test_records_that_cannot_be_read_have_the_time_of_their_header(log):
    garbage = batch_of(
        b"not zstd", count=MANY, is_compressed=True, base_timestamp=OLD, max_timestamp=OLD + 60
    )
    append(log, bytearray(garbage))
    assert retain(log) == 1


def test_tiered_segments_go_by_their_headers(tmp_path):
    """Local retention goes by them when the segments are copied: that deletes nothing."""
    config = replace(CONFIG, remote_storage_enable=True, local_retention_ms=HOUR_MS * 24, retention_ms=None)
    log = open_log(tmp_path / "orders-0", config=config)
    append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60))
    assert not log.start.retention_waits_for_disk(NOW_MS)


@pytest.mark.parametrize("codec", Compression)
def test_a_look_up_finds_what_a_header_does_not_claim(log, codec):
    append(log, understated_batch(base_ms=OLD, last_ms=OLD, claimed_ms=OLD + 60, codec=codec))
    append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60, codec=codec))
    offset = 2 * MANY - 2
    for at in (NEW - HOUR_MS, NEW):
        assert log.reader.offset_for_timestamp(at) == (NEW, offset, 0)
    assert log.reader.max_timestamp_offset() == (NEW, offset, 0)
    assert log.reader.offset_for_timestamp(NEW + 1) is None
    # A later batch is found by its header, the one before it by its records.
    append(log, understated_batch(base_ms=NEW, last_ms=NEW, claimed_ms=NEW, codec=codec))
    assert log.reader.offset_for_timestamp(NEW - 1) == (NEW, offset, 0)
    assert log.reader.offset_for_timestamp(OLD) == (OLD, 0, 0)
    log.maybe_increment_log_start_offset(offset + 1)
    assert log.reader.offset_for_timestamp(NEW - 1).offset == 2 * MANY


def test_the_largest_timestamp_from_the_log_start_on_is_of_the_records(log):
    largest_of_others_ms = OLD + MANY - 3
    for last_ms in (NEW + 2, NEW, NEW + 1, OLD):
        append(log, understated_batch(base_ms=OLD, last_ms=last_ms, claimed_ms=largest_of_others_ms))
    assert log.reader.offset_for_timestamp(NOW_MS) is None  # it reads the records
    last_but_one = MANY - 2
    found = []
    for start in (last_but_one, last_but_one + 1, 2 * MANY, 3 * MANY - 1):
        log.maybe_increment_log_start_offset(start)
        found.append(log.reader.max_timestamp_offset()[:2])
    assert found == [
        (NEW + 2, last_but_one),
        *[(NEW + 1, 2 * MANY + last_but_one)] * 2,
        (largest_of_others_ms, 4 * MANY - 3),
    ]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("timestamp", [NEW, None])
def test_a_look_up_reads_in_pieces_and_nothing_twice(log, monkeypatch, codec, timestamp):
    for last_ms in (OLD, OLD, OLD, OLD, OLD, NEW):
        append(log, understated_batch(base_ms=OLD, last_ms=last_ms, claimed_ms=OLD + 60, codec=codec))
        log.roll(NOW_MS)
    opened = []
    payload_of = segment_times.payload_of
    monkeypatch.setattr(
        segment_times,
        "payload_of",
        lambda header, batch: opened.append(header.base_offset) or payload_of(header, batch),
    )
    monkeypatch.setattr(log_reader, "PIECE_BYTES", 1)
    search = TimeSearch(log.reader, timestamp, is_cancelled=lambda: False)
    steps = 1
    while not search.step():
        assert len(opened) == steps
        steps += 1
    assert search.found == (NEW, 6 * MANY - 2, 0)
    assert opened == [MANY * number for number in range(6)]
    assert log.reader.offset_for_timestamp(NEW) == search.found
    assert len(opened) == 6


def test_a_look_up_of_an_early_time_reads_no_more_than_what_is_before_it(log, monkeypatch):
    for _ in range(5):
        append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60))
    monkeypatch.setattr(log_reader, "PIECE_BYTES", 1)
    assert log.reader.offset_for_timestamp(NEW) == (NEW, MANY - 2, 0)
    segment = log.segments.active
    assert segment.times.known.position == segment.size // 5


def test_what_is_known_of_a_segment_is_small(log, monkeypatch):
    monkeypatch.setattr(segment_times, "STRETCH_BYTES", 1000)
    for number in range(50):
        append(log, understated_batch(base_ms=OLD, last_ms=NEW - number % 10, claimed_ms=OLD + 60))
    segment = log.segments.active
    assert segment.times.read(segment.log, end=segment.size) == NEW
    starts = [position for position, _ in segment.times.known.understated]
    assert 1 < len(starts) <= segment.size // 1000 + 1
    assert all(two - one >= 1000 for one, two in pairwise(starts))


def test_damage_ends_a_look_up(log):
    append(log, understated_batch(base_ms=OLD, last_ms=OLD, claimed_ms=OLD + 60))
    append(log, understated_batch(base_ms=OLD, last_ms=NEW, claimed_ms=OLD + 60))
    segment = log.segments.active
    fd = Files().open(segment.path_of(".log"), write=True)
    Files().pwrite(fd, bytes(61), segment.size // 2)
    Files().close(fd)
    assert log.reader.offset_for_timestamp(NEW) is None
    assert log.reader.offset_for_timestamp(OLD) == (OLD, 0, 0)
