"""One log: appending, rolling, reading, timestamps, transactions."""

import os
from random import Random

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    OffsetOutOfRange,
    RecordListTooLarge,
    UnsupportedForMessageFormat,
)
from ottla.protocol.records.batch import batches, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record
from ottla.storage.log import UnexpectedAppendOffset
from ottla.storage.segment_indexes import SegmentIndexes
from ottla.storage.segment_reader import SegmentReader
from tests.unit.storage.log_support import end, fill, names, transact
from tests.unit.storage.storage_support import NOW_MS, batch, offsets_in, open_log

pytestmark = pytest.mark.logs("rebuilding the offset and time index")


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "orders-0")


# -- appending ---------------------------------------------------------------------------------------


def test_offsets_and_epoch_are_given(log):
    infos = fill(log, 2, records=3, leader_epoch=5)
    assert [(info.first_offset, info.last_offset) for info in infos] == [(0, 2), (3, 5)]
    headers = [header for header, _ in log.reader.records_since(0)]
    assert [header.partition_leader_epoch for header in headers] == [5, 5]
    assert log.leader_epochs.entries == ((5, 0),)
    assert log.log_end_offset == 6


def test_a_buffer_that_cannot_be_written_is_left_alone(log):
    fill(log, 1)
    data = bytes(batch(2))
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    assert read_header(data).base_offset == 0
    assert offsets_in(log) == [0, 2]


def test_rolls_when_the_segment_is_full(log):
    fill(log, 20, value=b"x" * 100)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 2
    assert all(segment.size <= 1000 for segment in log.segments)
    assert f"{bases[1]:020d}.snapshot" in names(log)
    assert offsets_in(log) == list(range(0, 40, 2))


@pytest.mark.parametrize(("segment_ms", "timestamps", "segments"), [
    (100, [0, 100], 1), (100, [0, 101], 2), (100, [0, 50, 101, 150, 202], 3),
])  # fmt: skip
def test_rolls_by_the_records_time(tmp_path, segment_ms, timestamps, segments):
    log = open_log(tmp_path / "l", config=LogConfig(segment_ms=segment_ms))
    for at in timestamps:
        log.append_as_leader(batch(timestamp=NOW_MS + at), leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) == segments


def test_rolls_when_an_offset_is_too_far_from_the_base(log):
    log.append_as_follower(batch(base_offset=0), leader_epoch=0, now_ms=NOW_MS)
    log.append_as_follower(batch(base_offset=2**31), leader_epoch=0, now_ms=NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]
    assert log.log_end_offset == 2**31 + 1


def test_rolls_when_the_index_is_full(tmp_path):
    config = LogConfig(segment_index_bytes=24, index_interval_bytes=1)
    log = open_log(tmp_path / "l", config=config)
    for at in range(8):  # the time index keeps one of its two places
        log.append_as_leader(batch(timestamp=NOW_MS + at), leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) > 2
    assert offsets_in(log) == list(range(8))


@pytest.mark.logs("are not valid batches, truncated")
def test_preallocated_segments(tmp_path):
    """The file has its full size while it is written, and is cut when it is closed; a kill leaves zeros behind."""
    config = LogConfig(segment_bytes=10_000, preallocate=True)
    log = open_log(tmp_path / "l", config=config)
    fill(log, 2, value=b"x" * 3000)
    first, second = (segment.path_of(".log") for segment in log.segments)
    assert first.stat().st_size == log.segments.first.size < 10_000
    assert second.stat().st_size == 10_000 > log.segments.active.size
    assert offsets_in(log) == [0, 2]
    log.close_files()  # killed
    log = open_log(tmp_path / "l", config=config, is_clean=False)
    assert (log.log_end_offset, second.stat().st_size) == (4, log.segments.active.size)
    log.truncate_to(2, now_ms=NOW_MS)
    log.update_config(LogConfig(segment_bytes=10_000))
    fill(log, 4, value=b"x" * 3000)
    log.close()
    assert [path.stat().st_size for path in sorted((tmp_path / "l").glob("*.log"))] == [
        segment.size for segment in log.segments
    ]


def test_jitter_of_new_and_of_loaded_segments(tmp_path):
    """Each is drawn again, below segment.jitter.ms and segment.ms, whichever is smaller."""
    config = LogConfig(segment_ms=1000, segment_jitter_ms=400)
    drawn = set()
    for number in range(20):
        log = open_log(tmp_path / str(number), config=config, random=Random(number))
        fill(log, 1)
        drawn.add(log.segments.active.roll_jitter_ms)
        log.close()
        again = open_log(tmp_path / str(number), config=config, random=Random(number + 50))
        drawn.add(jitter := again.segments.active.roll_jitter_ms)
        for at, segments in ((1000 - jitter, 1), (1001 - jitter, 2)):
            again.append_as_leader(batch(timestamp=NOW_MS + 1 + at), leader_epoch=0, now_ms=NOW_MS)
            assert len(again.segments) == segments, jitter
    assert len(drawn) > 20
    assert all(0 <= jitter < 400 for jitter in drawn)
    wide = open_log(tmp_path / "wide", config=LogConfig(segment_ms=10, segment_jitter_ms=10**6))
    assert wide.segments.active.roll_jitter_ms < 10


def test_a_batch_longer_than_a_segment(log):
    with pytest.raises(RecordListTooLarge):
        fill(log, 1, value=b"x" * 2000)
    assert log.log_end_offset == 0


def test_duplicate_of_a_producer(log):
    fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    first = log.append_as_leader(batch(2, **fields), leader_epoch=0, now_ms=NOW_MS)
    again = log.append_as_leader(batch(2, **fields), leader_epoch=0, now_ms=NOW_MS)
    assert again.is_duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset)
    assert log.log_end_offset == 2


def test_follower_takes_what_the_leader_has(log):
    data = batch(2, base_offset=0, leader_epoch=1) + batch(3, base_offset=5, leader_epoch=2)
    info = log.append_as_follower(data + batch()[:40], leader_epoch=2, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.records_count) == (0, 7, 5)
    assert offsets_in(log) == [0, 5]
    assert log.leader_epochs.entries == ((1, 0), (2, 5))


# KIP-320
def test_follower_leaves_newer_epochs_out(log):
    data = batch(1, base_offset=0, leader_epoch=1) + batch(1, base_offset=1, leader_epoch=3)
    info = log.append_as_follower(data, leader_epoch=2, now_ms=NOW_MS)
    assert info.last_offset == 0
    assert log.log_end_offset == 1
    assert log.append_as_follower(b"", leader_epoch=2, now_ms=NOW_MS).size_bytes == 0


def test_follower_refuses_what_cannot_be(log):
    fill(log, 1)
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batch(base_offset=1), leader_epoch=0, now_ms=NOW_MS)
    damaged = batch(base_offset=2)
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage):
        log.append_as_follower(damaged, leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(CorruptMessage):
        log.append_as_follower(batch(base_offset=3) + batch(base_offset=2), leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == 2


# -- reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reopened", [False, True])
def test_read_begins_with_the_batch_that_holds_the_offset(log, is_reopened):
    fill(log, 100, records=3)
    if is_reopened:
        log.close()
        log = open_log(log.directory)
    for offset in range(300):
        read = log.reader.read(offset, max_bytes=500)
        assert read.base_offset == offset // 3 * 3
        assert len(read.records) <= 500
        header, _ = next(batches(memoryview(read.records)))
        assert header.base_offset == read.base_offset


def test_read_bounds(log):
    fill(log, 10)
    size = len(batch(2))
    one = log.reader.read(4, max_bytes=10, min_one_message=True)
    assert (len(one.records), one.base_offset) == (size, 4)
    none = log.reader.read(4, max_bytes=10)
    assert (bytes(none.records), none.is_first_batch_incomplete) == (b"", True)
    assert len(log.reader.read(4, max_bytes=10_000, max_offset=8).records) == 2 * size
    assert len(log.reader.read(4, max_bytes=10_000, max_offset=7).records) == size  # 7 is inside of a batch
    assert len(log.reader.read(4, max_bytes=0, min_one_message=True).records) == size
    at_end = log.reader.read(20, max_bytes=100)
    assert (at_end.records, at_end.base_offset, at_end.is_first_batch_incomplete) == (b"", None, False)
    assert log.reader.read(8, max_bytes=100, max_offset=8, min_one_message=True).records == b""
    for offset in (-1, 21):
        with pytest.raises(OffsetOutOfRange):
            log.reader.read(offset, max_bytes=100)


@pytest.mark.parametrize(("part", "step"), [(SegmentReader, "read"), (SegmentIndexes, "add_batches")])
def test_a_thread_reads_nothing_that_is_appended_meanwhile(tmp_path, monkeypatch, part, step):
    """It reads neither what comes before the batch in the file, nor that batch, before the log end includes
    it."""
    log = open_log(tmp_path / "l", config=LogConfig())
    fill(log, 3)
    original, seen = getattr(part, step), []

    def interrupted(segment, *args, **options):
        monkeypatch.undo()
        if step == "read":
            fill(log, 1)
        else:
            seen.append(log.reader.read(2, max_bytes=10_000, max_offset=6))
        return original(segment, *args, **options)

    monkeypatch.setattr(part, step, interrupted)
    if step == "read":
        seen.append(log.reader.read(2, max_bytes=10_000, max_offset=6))
    else:
        fill(log, 1)
    assert log.log_end_offset == 8
    assert [header.base_offset for header, _ in batches(memoryview(seen[0].records))] == [2, 4]


def test_a_read_continues_in_the_next_segment_after_a_gap(log):
    log.append_as_follower(batch(base_offset=0), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS, base_offset=10)
    log.append_as_follower(batch(base_offset=12), leader_epoch=0, now_ms=NOW_MS)
    for offset in (1, 9, 10, 12):
        assert log.reader.read(offset, max_bytes=500).base_offset == 12


def test_newest_batches_are_read_at_their_known_positions(tmp_path):
    log = open_log(tmp_path / "l", config=LogConfig())
    fill(log, 3, records=1, value=b"x" * 50_000)
    size = log.segments.active.size // 3

    def newest(offset, bound, max_bytes=10**6):
        return log.reader.read_newest(offset, max_bytes=max_bytes, max_offset=bound)

    assert newest(1, 3) == log.reader.read(1, max_bytes=10**6).records
    assert newest(1, 2) == log.reader.read(1, max_bytes=10**6, max_offset=2).records
    assert newest(1, 3, size + 5) == log.reader.read(1, max_bytes=size + 5).records
    assert len(newest(1, 3, size)) == size
    assert newest(1, 3, size - 1) is None  # `read` decides whether the first batch is sent all the same
    assert newest(0, 3) is None  # may be lent
    assert newest(1, 1) is newest(1, 4) is newest(3, 3) is None
    log.maybe_increment_high_watermark(3)
    log.maybe_increment_log_start_offset(2)
    assert newest(1, 3) is None
    log.segments.active.log.recent.clear()
    assert newest(2, 3) is None


@pytest.mark.parametrize(
    ("damage", "error"), [((16, b"\x03"), CorruptMessage), ((16, b"\1"), UnsupportedForMessageFormat)]
)
def test_a_damaged_newest_batch(log, damage, error):
    fill(log, 2)
    position, data = damage
    os.pwrite(log.segments.active.log.fd, data, position)
    for read in (log.reader.read, log.reader.read_newest):
        with pytest.raises(error):
            read(0, max_bytes=10_000, max_offset=2)


def test_large_reads_for_sockets_are_lent(tmp_path):
    log = open_log(tmp_path / "l", config=LogConfig())
    fill(log, 3, records=1, value=b"x" * 200_000)
    assert isinstance(log.reader.read(0, max_bytes=500_000, lend=True).records, memoryview)
    assert isinstance(log.reader.read(0, max_bytes=500_000).records, bytes)


def test_reads_that_may_not_block_are_answered_from_memory(log):
    fill(log, 50)
    assert log.reader.read(0, max_bytes=500, may_block=False).base_offset == 0
    log.close()
    assert open_log(log.directory).reader.read(0, max_bytes=500, may_block=False).base_offset == 0


# KIP-79
@pytest.mark.parametrize("codec", Compression)
def test_timestamps(log, codec):
    for start in (0, 10, 20, 15, 40):
        log.append_as_leader(
            batch(3, timestamp=NOW_MS + start, compression=codec), leader_epoch=4, now_ms=NOW_MS
        )
    log.update_high_watermark(15)
    # records: 0-2 | 10-12 | 20-22 | 15-17 | 40-42
    for at, offset in ((-5, 0), (0, 0), (2, 2), (3, 3), (11, 4), (21, 7), (23, 12), (42, 14)):
        assert log.reader.offset_for_timestamp(NOW_MS + at) == (
            NOW_MS + max(at, 0) + {3: 7, 23: 17}.get(at, 0),
            offset,
            4,
        )
    assert log.reader.offset_for_timestamp(NOW_MS + 43) is None
    assert log.reader.offset_for_timestamp(NOW_MS + 40, end=12) is None
    assert log.reader.max_timestamp_offset() == (NOW_MS + 42, 14, 4)
    log.maybe_increment_log_start_offset(5)
    assert log.reader.offset_for_timestamp(NOW_MS).offset == 5


def test_a_search_ends_with_its_client(log):
    for start in range(10):
        log.append_as_leader(batch(3, timestamp=NOW_MS + start), leader_epoch=4, now_ms=NOW_MS)
    assert log.reader.offset_for_timestamp(NOW_MS + 9, is_cancelled=lambda: True) is None
    (segment, *_) = log.segments
    assert segment.reader.find_timestamp(NOW_MS, start_offset=0, is_cancelled=lambda: True) is None
    assert log.reader.max_timestamp_offset(is_cancelled=lambda: True) is None
    log.update_high_watermark(1)
    log.maybe_increment_log_start_offset(1)
    assert log.reader.max_timestamp_offset(is_cancelled=lambda: True) is None


def test_a_search_has_the_bounds_of_the_topic(tmp_path):
    config = LogConfig(max_decompressed_message_bytes=100)
    log = open_log(tmp_path / "l", config=config)
    large = build_batch([Record(0, NOW_MS, None, bytes(1000))], compression=Compression.ZSTD)
    with pytest.raises(InvalidRecord, match="more than max"):
        log.append_as_leader(bytearray(large), leader_epoch=4, now_ms=NOW_MS)
    log.append_as_follower(memoryview(bytearray(large)), leader_epoch=4, now_ms=NOW_MS)
    for search in (lambda: log.reader.offset_for_timestamp(NOW_MS), log.reader.max_timestamp_offset):
        with pytest.raises(InvalidRecord, match="more than max"):
            search()


def test_empty_log_has_no_timestamps(log):
    assert log.reader.max_timestamp_offset() is None
    assert log.reader.offset_for_timestamp(0) is None


# -- transactions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False, None])
def test_last_stable_offset_and_aborted_transactions(log, is_clean):
    transact(log, 1)  # 0
    transact(log, 2)  # 1
    end(log, 1, commit=False)  # 2
    transact(log, 1, sequence=1)  # 3
    end(log, 2, commit=True)  # 4
    end(log, 1, commit=False)  # 5
    transact(log, 3)  # 6
    log.update_high_watermark(4)
    assert log.last_stable_offset == 1  # the commit at 4 is not replicated yet
    log.update_high_watermark(7)
    assert log.last_stable_offset == 6
    if is_clean is not None:
        log.close() if is_clean else log.close_files()
        log = open_log(log.directory, is_clean=is_clean)
        log.update_high_watermark(7)
        assert log.last_stable_offset == 6
    aborted = [
        (it.producer_id, it.first_offset, it.last_offset) for it in log.reader.aborted_transactions(0, 7)
    ]
    assert aborted == [(1, 0, 2), (1, 3, 5)]
    assert [it.first_offset for it in log.reader.aborted_transactions(3, 7)] == [3]
    assert [it.first_offset for it in log.reader.aborted_transactions(0, 2)] == [0]
