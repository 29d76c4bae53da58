"""One log: appending, rolling, reading, timestamps, truncation, retention, offsets."""

import os
from random import Random

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import (
    CorruptMessage,
    InconsistentTopicId,
    InvalidRecord,
    KafkaStorageError,
    OffsetOutOfRange,
    RecordListTooLarge,
    UnsupportedForMessageFormat,
)
from ottla.protocol.records.batch import batches, patch, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record
from ottla.protocol.types import ZERO_UUID
from ottla.storage.files import Files
from ottla.storage.log import AppendOrigin, UnexpectedAppendOffset
from ottla.storage.segment import Segment
from ottla.storage.segment_indexes import SegmentIndexes
from ottla.storage.segment_reader import SegmentReader
from tests.unit.storage.storage_support import NOW_MS, batch, marker, offsets_in, open_log

pytestmark = pytest.mark.logs("rebuilding the offset and time index")


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "orders-0")


def fill(log, count, *, records=2, leader_epoch=0, **fields):
    return [
        log.append_as_leader(batch(records, **fields), leader_epoch=leader_epoch, now_ms=NOW_MS)
        for _ in range(count)
    ]


def names(log):
    return sorted(path.name for path in log.directory.iterdir())


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
    """Neither what comes before it has read, nor the batch that is in the file, but not before the log end yet."""
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


def transact(log, producer_id, sequence=0):
    log.append_as_leader(
        batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True),
        leader_epoch=0,
        now_ms=NOW_MS,
    )


def end(log, producer_id, *, commit):
    log.append_as_leader(
        marker(producer_id=producer_id, commit=commit),
        leader_epoch=0,
        now_ms=NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )


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


# -- truncation --------------------------------------------------------------------------------------


@pytest.mark.logs("below the high watermark")
def test_truncate_to(log):
    fill(log, 20, leader_epoch=1, value=b"x" * 100)
    fill(log, 5, leader_epoch=2)
    log.update_high_watermark(30)
    assert log.truncate_to(40, now_ms=NOW_MS)
    assert log.log_end_offset == 40
    assert log.leader_epochs.entries == ((1, 0),)
    assert not log.truncate_to(41, now_ms=NOW_MS)
    assert log.truncate_to(10, now_ms=NOW_MS)
    assert (log.log_end_offset, log.high_watermark) == (10, 10)
    fill(log, 1, leader_epoch=3)
    assert offsets_in(log) == [0, 2, 4, 6, 8, 10]
    log.close()
    again = open_log(log.directory)
    assert offsets_in(again) == [0, 2, 4, 6, 8, 10]
    assert again.leader_epochs.entries == ((1, 0), (3, 10))


def test_truncation_forgets_producers_and_aborts(log):
    transact(log, 1)
    end(log, 1, commit=False)
    transact(log, 1, sequence=1)
    log.truncate_to(1, now_ms=NOW_MS)
    assert log.reader.aborted_transactions(0, 9) == []
    log.update_high_watermark(1)
    assert log.last_stable_offset == 0
    end(log, 1, commit=True)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2


def test_truncate_fully(log):
    fill(log, 20, value=b"x" * 100)
    log.truncate_fully_and_start_at(500, now_ms=NOW_MS, log_start_offset=400)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset, log.high_watermark) == (
        400,
        500,
        500,
        500,
    )
    fill(log, 1)
    assert log.reader.read(500, max_bytes=500).base_offset == 500
    log.close()
    assert open_log(log.directory, log_start_offset=500).log_end_offset == 502


def test_log_start_and_local_log_start_of_a_tiered_log(tmp_path):
    """Retention of local segments, and a start without them, leave the log start where it is (KIP-405)."""
    config = LogConfig(segment_bytes=300, remote_storage_enable=True, retention_bytes=300)
    log = open_log(tmp_path / "l", config=config)
    fill(log, 10, value=b"x" * 100)
    log.update_high_watermark(10)
    log.update_remote_end_offset(8)
    assert log.apply_retention(NOW_MS) > 0
    local = log.segments.first.base_offset
    assert (log.log_start_offset, log.local_log_start_offset) == (0, local)
    assert log.checkpoints.log_start_to_write() == 0
    log.maybe_increment_log_start_offset(1)
    assert (log.log_start_offset, log.local_log_start_offset) == (1, local)
    log.close()
    for is_clean in (True, False):
        again = open_log(log.directory, config=config, log_start_offset=1, is_clean=is_clean)
        assert (again.log_start_offset, again.local_log_start_offset) == (1, local)
        assert again.high_watermark == local  # what is in the remote tier was committed
    not_tiered = open_log(log.directory, log_start_offset=1)
    assert (not_tiered.log_start_offset, not_tiered.local_log_start_offset) == (local, local)


def test_truncation_of_an_epoch_without_records(log):
    fill(log, 1)
    log.assign_epoch(3, log.log_end_offset)
    assert not log.truncate_to(5, now_ms=NOW_MS)
    assert log.leader_epochs.entries == ((0, 0),)


# -- retention and log start -------------------------------------------------------------------------


# KIP-107
def test_delete_records(log):
    fill(log, 20, value=b"x" * 100)
    log.update_high_watermark(30)
    with pytest.raises(OffsetOutOfRange):
        log.maybe_increment_log_start_offset(31)
    assert log.maybe_increment_log_start_offset(25)
    assert not log.maybe_increment_log_start_offset(25)
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(24, max_bytes=100)
    assert log.reader.read(25, max_bytes=500).base_offset == 24
    removed = log.apply_retention(NOW_MS)
    assert removed > 0
    assert log.segments.first.base_offset <= 25
    assert log.log_start_offset == 25
    assert sum(name.endswith(".log.deleted") for name in names(log)) == removed
    for deleted in log.files.deleted_files:
        assert deleted.due_ms == NOW_MS + 60_000
        deleted.remove()
    assert not [name for name in names(log) if name.endswith(".deleted")]


def test_retention_by_time(tmp_path):
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=1000, retention_ms=1000))
    for at in (0, 0, 500, 2000):
        log.append_as_leader(batch(value=b"x" * 600, timestamp=NOW_MS + at), leader_epoch=0, now_ms=NOW_MS)
    assert log.apply_retention(NOW_MS + 1001) == 0  # not replicated
    log.update_high_watermark(4)
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 1001) == 2
    assert log.log_start_offset == 2
    assert log.apply_retention(NOW_MS + 3001) == 2  # the active one, too: an empty one follows it
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (4, 4, 1)
    assert log.apply_retention(NOW_MS + 9999) == 0
    fill(log, 1)
    assert offsets_in(log) == [4]


def test_retention_by_size(tmp_path):
    log = open_log(
        tmp_path / "l", config=LogConfig(segment_bytes=1000, retention_bytes=1500, retention_ms=None)
    )
    fill(log, 4, records=1, value=b"x" * 600)
    log.update_high_watermark(4)
    size = log.segments.first.size
    assert log.apply_retention(NOW_MS) == 1
    assert log.segments.size_bytes == 3 * size


class CountedOffset(int):
    """An offset that counts how often it is read."""

    looks = 0

    def __eq__(self, other):
        CountedOffset.looks += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("how", ["retention", "truncation"])
@pytest.mark.logs("below the high watermark")
def test_many_segments_are_removed_without_a_search_for_each(tmp_path, monkeypatch, how):
    """Else the event loop stood still for a second with 8,000 of them."""
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=100, index_interval_bytes=1))
    fill(log, 120, records=1)
    log.update_high_watermark(120)
    assert len(log.segments) == 120
    log.files.snapshots.offsets = [CountedOffset(at) for at in log.files.snapshots.offsets]
    compared = []
    monkeypatch.setattr(Segment, "__eq__", lambda one, two: compared.append(two) or one is two)
    CountedOffset.looks = 0
    if how == "retention":
        log.maybe_increment_log_start_offset(110)
        assert log.apply_retention(NOW_MS) == 110
    else:
        log.truncate_to(10, now_ms=NOW_MS)
    assert len(compared) < 500
    assert CountedOffset.looks < 500


def test_compacted_logs_are_not_retained(tmp_path):
    config = LogConfig(segment_bytes=1000, retention_ms=0, cleanup_policy=("compact",))
    log = open_log(tmp_path / "l", config=config)
    fill(log, 4, records=1, value=b"x" * 600)
    log.update_high_watermark(4)
    assert log.apply_retention(NOW_MS + 10_000) == 0


# -- flushing, identity, failure ---------------------------------------------------------------------


class CountingFiles(Files):
    def __init__(self):
        self.flushed = []

    def fsync_path(self, path):
        self.flushed.append(path.name)
        super().fsync_path(path)


def test_flush_moves_the_recovery_point(tmp_path):
    files = CountingFiles()
    log = open_log(tmp_path / "l", files=files)
    fill(log, 20, value=b"x" * 100)
    assert files.flushed == []  # an append waits for nothing
    assert log.flusher.due_end(NOW_MS) == log.segments.active.base_offset
    log.flush()
    assert log.recovery_point == 40
    assert {segment.path_of(".log").name for segment in log.segments} <= set(files.flushed)
    assert "leader-epoch-checkpoint" in files.flushed
    files.flushed.clear()
    log.flush()
    assert files.flushed == []
    fill(log, 1)
    log.flush()
    assert files.flushed == [log.segments.active.path_of(".log").name]


def test_flush_messages(tmp_path):
    """The append waits for nothing: a flush is due, for the caller and for the next upkeep."""
    files = CountingFiles()
    log = open_log(tmp_path / "l", config=LogConfig(flush_messages=4), files=files)
    fill(log, 1)
    assert not log.flusher.is_due
    assert log.flusher.committable_end == 2
    fill(log, 1)
    assert log.flusher.is_due
    assert (log.recovery_point, log.flusher.committable_end, log.flusher.due_end(NOW_MS)) == (0, 0, 4)
    assert files.flushed == []
    job = log.flusher.job(4, NOW_MS)
    job.run()
    fill(log, 1)
    job.finish()
    assert (log.recovery_point, log.flusher.committable_end, log.flusher.is_due) == (4, 6, False)


def test_the_recovery_point_of_a_checkpoint_is_no_end_of_what_is_committed(tmp_path):
    """With `flush.messages`, after a crash: that recovery point may be within a batch."""
    config = LogConfig(flush_messages=1)
    log = open_log(tmp_path / "l", config=config)
    fill(log, 2)
    log.flush()
    log.close_files()
    # As `LogCheckpoints.recovery_point_to_write` has it of an active segment with indexes.
    after = open_log(tmp_path / "l", config=config, is_clean=False, recovery_point=3)
    assert (after.log_end_offset, after.recovery_point, after.flusher.is_due) == (4, 3, True)
    assert after.flusher.committable_end == after.offsets.high_watermark == 0
    after.flush()
    assert after.flusher.committable_end == 4
    after.close_files()


def test_a_roll_waits_for_nothing(tmp_path):
    """Also of a segment whose batches are flushed: its indexes are, with the next flush."""
    files = CountingFiles()
    log = open_log(tmp_path / "l", files=files)
    fill(log, 2)
    log.flush()
    closed = log.segments.active
    assert log.checkpoints.recovery_point_to_write() == 3  # a crash must not find the indexes believed
    files.flushed.clear()
    log.roll(NOW_MS)
    assert files.flushed == []
    assert (log.recovery_point, log.flusher.due_end(NOW_MS)) == (0, 4)
    log.flush()
    assert closed.path_of(".index").name in files.flushed
    assert log.checkpoints.recovery_point_to_write() == log.recovery_point == 4


def test_idle_logs_are_closed_without_io(tmp_path):
    log = open_log(tmp_path / "l")
    fill(log, 3)
    log.close()
    files = CountingFiles()
    before = {path.name: path.stat().st_mtime_ns for path in log.directory.iterdir()}
    open_log(log.directory, files=files).close()
    assert files.flushed == []
    assert before == {path.name: path.stat().st_mtime_ns for path in log.directory.iterdir()}


def test_topic_id(log):
    other = ZERO_UUID.__class__(int=7)
    log.assign_topic_id(other)
    assert (
        log.directory / "partition.metadata"
    ).read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"
    with pytest.raises(InconsistentTopicId):
        log.assign_topic_id(ZERO_UUID.__class__(int=8))
    log.close()
    assert open_log(log.directory).topic_id == other


class FullDisk(Files):
    """Fails after writing half of what it is given, once `left` bytes are written."""

    left = 10**9

    def pwrite(self, fd, data, position):
        if len(data) > self.left:
            super().pwrite(fd, memoryview(data)[: len(data) // 2], position)
            raise OSError(28, "No space left on device")
        self.left -= len(data)
        super().pwrite(fd, data, position)


# KIP-112
@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.logs("is damaged", "is offline", "are not valid batches, truncated")
def test_full_disk(tmp_path, is_clean):
    files, failures = FullDisk(), []
    log = open_log(tmp_path / "l", files=files, on_io_error=failures.append)
    fill(log, 3)
    log.flush()
    files.left = 20
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
    assert len(failures) == 1
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
    assert len(failures) == 1
    assert log.log_end_offset == 6
    assert log.reader.read(0, max_bytes=900).base_offset == 0  # reading goes on
    log.close_files()
    again = open_log(log.directory, is_clean=is_clean)
    assert offsets_in(again)[:3] == [0, 2, 4]
    fill(again, 1)
    assert offsets_in(again) == [0, 2, 4, 6]


@pytest.mark.logs("a corrupt index is rebuilt")
def test_read_of_a_patched_index_is_right_all_the_same(log):
    """A position in the index is believed only if the batch there is the indexed one."""
    fill(log, 6)
    log.close()
    path = log.directory / f"{0:020d}.index"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    again = open_log(log.directory)
    for offset in range(12):
        assert again.reader.read(offset, max_bytes=500).base_offset == offset // 2 * 2


@pytest.fixture(params=range(0, 96, 7))
def with_a_flipped_bit(request, tmp_path):
    """Two segments of four batches, closed; in each one bit of the last time index entry is another."""
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=310, index_interval_bytes=1))
    for at in range(8):
        log.append_as_leader(batch(timestamp=NOW_MS + at), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    for path in log.directory.glob("*.timeindex"):
        data = bytearray(path.read_bytes())
        data[request.param // 8 - 12] ^= 1 << request.param % 8
        path.write_bytes(data)
    log = open_log(log.directory, config=LogConfig(index_interval_bytes=1, retention_ms=1000))
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    return log


@pytest.mark.logs("a corrupt index is rebuilt")
def test_batches_are_written_once_whatever_the_time_index_says(with_a_flipped_bit):
    log = with_a_flipped_bit
    for at in (8, 9):
        log.append_as_leader(batch(timestamp=NOW_MS + at), leader_epoch=0, now_ms=NOW_MS)
    assert [log.reader.offset_for_timestamp(NOW_MS + at).offset for at in range(10)] == list(range(10))
    log.close()
    assert offsets_in(open_log(log.directory)) == list(range(10))


@pytest.mark.logs("a corrupt index is rebuilt")
def test_retention_checks_the_batch_of_the_time_index_entry(with_a_flipped_bit):
    log = with_a_flipped_bit
    log.update_high_watermark(8)
    assert log.apply_retention(NOW_MS + 1002) == 0
    assert log.apply_retention(NOW_MS + 1004) == 1


@pytest.mark.parametrize("offset", [2, 6])
@pytest.mark.logs("a corrupt index is rebuilt")
def test_truncation_whatever_the_time_index_says(with_a_flipped_bit, offset):
    log = with_a_flipped_bit
    log.truncate_to(offset, now_ms=NOW_MS)
    assert log.reader.max_timestamp_offset().timestamp == NOW_MS + offset - 1
    fill(log, 1, records=1)
    assert offsets_in(log) == list(range(offset + 1))


@pytest.mark.logs("a corrupt index is rebuilt")
def test_an_index_that_goes_back_is_rebuilt_when_an_entry_is_due(log):
    """The batch is written by then: its offset is not given again."""
    fill(log, 2)
    log.segments.active.indexes.offset_index.add(1000, position=0)
    fill(log, 2)
    assert (log.log_end_offset, offsets_in(log)) == (8, [0, 2, 4, 6])


def test_idle_segments_hold_no_descriptor_for_their_age(tmp_path):
    log = open_log(tmp_path / "l")
    fill(log, 2)
    log.close()
    log = open_log(log.directory)
    assert log.segments.active.indexes.largest == (NOW_MS + 1, 1, None)
    assert log.segments.active.log.is_open is False


def test_in_place_patch_is_in_the_callers_buffer(log):
    fill(log, 2)
    data = batch(2)
    log.append_as_leader(memoryview(data), leader_epoch=7, now_ms=NOW_MS)
    expected = batch(2)
    patch(expected, base_offset=4, leader_epoch=7)
    assert data == expected
