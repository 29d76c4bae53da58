"""The positions that readers remember spare them a search, and are never those of an earlier content."""

from contextlib import suppress

import pytest
from storage_support import NOW_MS, batch, open_log

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import CorruptMessage
from ottla.protocol.records.batch import batches, read_header
from ottla.storage.file_records import RECENT_BATCHES
from ottla.storage.files import Files, WouldBlock
from ottla.storage.index import CorruptIndex
from ottla.storage.segment_indexes import SegmentIndexes
from ottla.storage.segment_reader import EXPECTED_READS, SegmentReader

LARGE = LogConfig(index_interval_bytes=1)
VALUE = b"v" * 300


@pytest.fixture(autouse=True)
def _small_batches_are_large(monkeypatch):
    monkeypatch.setattr("ottla.storage.segment_reader.LEND_BYTES", 300)


def filled(folder, count):
    log = open_log(folder, config=LARGE)
    for _ in range(count):
        log.append_as_leader(batch(value=VALUE), leader_epoch=0, now_ms=NOW_MS)
    return log


def read_one(log, offset):
    """The base offset of the one whole batch that such a fetch has room for."""
    return read_header(log.reader.read(offset, max_bytes=450, may_block=False).records).base_offset


def test_reading_on_does_not_search(tmp_path, monkeypatch):
    log = filled(tmp_path, 3 * RECENT_BATCHES)
    assert read_one(log, 5) == 5
    monkeypatch.setattr(SegmentReader, "find", None)
    for offset in range(6, 2 * RECENT_BATCHES):
        assert read_one(log, offset) == offset


def test_the_number_of_readers_that_are_remembered_is_bounded(tmp_path):
    log = filled(tmp_path, 5 * RECENT_BATCHES)
    for offset in range(3 * RECENT_BATCHES):
        assert read_one(log, offset) == offset
    assert len(log.segments.active.reader.expected) == EXPECTED_READS


def test_truncation_forgets(tmp_path):
    log = filled(tmp_path, 3 * RECENT_BATCHES)
    assert read_one(log, 7) == 7  # expects 8 behind it
    log.truncate_to(4, now_ms=NOW_MS)
    for _ in range(3):  # other boundaries: offsets 4 to 18 in three batches
        log.append_as_leader(batch(5, value=VALUE), leader_epoch=1, now_ms=NOW_MS)
    log.segments.active.log.recent.clear()
    assert log.reader.read(8, max_bytes=5000, may_block=False).base_offset == 4


def test_a_truncation_while_a_thread_looks_for_the_end_of_its_read(tmp_path, monkeypatch):
    """The high watermark is elsewhere after the truncation than before it."""
    log = filled(tmp_path, 10)
    look = SegmentReader.position_of

    def position_of(segment, offset, **how):
        position = look(segment, offset, **how)
        monkeypatch.setattr(SegmentReader, "position_of", look)
        log.truncate_to(0, now_ms=NOW_MS)
        for _ in range(10):
            log.append_as_leader(batch(value=VALUE * 2), leader_epoch=1, now_ms=NOW_MS)
        return position

    monkeypatch.setattr(SegmentReader, "position_of", position_of)
    log.reader.read(0, max_bytes=10_000, max_offset=5, may_block=True)
    read = log.reader.read(0, max_bytes=10_000, max_offset=5, may_block=False)
    assert [header.base_offset for header, _ in batches(memoryview(read.records))] == list(range(5))


class Interrupted(Files):
    """Something happens before the next read; in production the loop's thread does it while another one waits
    for the disk.
    """

    def __init__(self):
        self.before_read = None

    def pread(self, fd, size, position, **how):
        if (act := self.before_read) is not None:
            self.before_read = None
            act()
        return super().pread(fd, size, position, **how)


def test_a_look_up_in_a_thread_does_not_take_a_truncation_for_a_corrupt_index(tmp_path, monkeypatch):
    """It would rebuild the index in its thread, while the loop appends."""
    files = Interrupted()
    log = open_log(tmp_path, config=LARGE, files=files)
    for _ in range(5 * RECENT_BATCHES):
        log.append_as_leader(batch(value=VALUE), leader_epoch=0, now_ms=NOW_MS)
    monkeypatch.setattr(SegmentIndexes, "rebuild", None)
    files.before_read = lambda: log.truncate_to(10, now_ms=NOW_MS)
    with pytest.raises(CorruptMessage, match="truncated meanwhile"):
        log.reader.read(100, max_bytes=5000)
    assert log.log_end_offset == 10
    monkeypatch.undo()
    assert log.reader.read(9, max_bytes=5000).base_offset == 9


@pytest.mark.logs("corrupt index is rebuilt", "rebuilding the offset and time index")
def test_an_append_while_a_thread_loads_the_index(tmp_path):
    """The entries in memory may then lack the newest one: the index is rebuilt, and no offset is assigned twice."""
    log = filled(tmp_path, 100)
    log.close()
    files = Interrupted()
    log = open_log(tmp_path, config=LARGE, files=files)
    index = log.segments.active.indexes.times

    def append(count):
        for _ in range(count):
            timestamp = NOW_MS + log.log_end_offset
            log.append_as_leader(batch(value=VALUE, timestamp=timestamp), leader_epoch=0, now_ms=NOW_MS)

    files.before_read = lambda: append(20)
    with suppress(CorruptIndex):
        index.load()
    append(20)
    assert log.log_end_offset == 140
    assert [header.base_offset for header, _ in log.reader.records_since(0)] == list(range(140))
    for offset in range(140):
        assert log.segments.active.reader.find_by_index(offset).header.base_offset == offset


def test_the_end_of_a_read_while_many_batches_are_appended_at_once(tmp_path):
    """A thread has read the size after the append, and the log end offset before it: the new batches are beyond it."""
    log = filled(tmp_path, 10)
    segment, end = log.segments.active, log.log_end_offset
    size = segment.size
    view = bytearray()
    for at in range(end, end + 3 * RECENT_BATCHES):
        view += batch(value=VALUE, base_offset=at, leader_epoch=0)
    log.append_as_follower(view, leader_epoch=0, now_ms=NOW_MS)
    assert segment.log.end_before(end, segment.size) == size
    assert segment.log.end_before(log.log_end_offset, segment.size) == segment.size


def test_an_index_entry_that_a_truncation_takes_from_a_thread(tmp_path):
    log = filled(tmp_path, 100)
    index = log.segments.active.indexes.offset_index
    log.truncate_to(10, now_ms=NOW_MS)
    with pytest.raises(CorruptIndex):
        index.entry(90)


def test_a_late_reader_of_a_removed_segment_makes_no_file(tmp_path):
    log = filled(tmp_path, 10)
    (segment,) = log.segments
    log.truncate_fully_and_start_at(20, now_ms=NOW_MS)
    for deleted in log.files.deleted_files:
        deleted.remove()
    names = log.files.file_system.list(tmp_path)
    with pytest.raises(FileNotFoundError):
        segment.log.header_at(0)
    assert log.files.file_system.list(tmp_path) == names


def test_sizes_between_offsets_are_those_of_reads(tmp_path):
    """The rule applies to the newest batches and to those that the index finds, also within a batch."""
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=1000))
    for count in (1, 2, 3) * RECENT_BATCHES:
        log.append_as_leader(batch(count, value=VALUE), leader_epoch=0, now_ms=NOW_MS)
    log_end = log.log_end_offset
    for offset in (0, 4, 5, log_end // 2, log_end - 3, log_end - 1):
        for end in range(offset + 1, log_end + 1, 5):
            read = log.reader.read(offset, max_bytes=10**9, max_offset=end)
            assert log.reader.size_between(offset, end) == len(read.records)
        assert log.reader.size_between(offset, log_end) == len(
            log.reader.read(offset, max_bytes=10**9).records
        )


def test_the_size_between_offsets_is_left_to_a_read(tmp_path, monkeypatch):
    """It is of a closed segment, or takes a read of the disk."""
    log = open_log(tmp_path, config=LARGE)
    for base_offset in (0, 3):
        for _ in range(3):
            log.append_as_leader(batch(value=VALUE), leader_epoch=0, now_ms=NOW_MS)
        if not base_offset:
            log.roll(NOW_MS)
    assert log.reader.size_between(2, 6) is None
    assert log.reader.size_between(3, 6) is not None
    for error in (WouldBlock("cold"), OSError(5, "bad disk"), CorruptMessage("bytes")):

        def fails(*_, error=error, **__):
            raise error

        monkeypatch.setattr(SegmentReader, "position_of", fails)
        assert log.reader.size_between(3, 6) is None
        assert log.reader.size_between(3, 4) is None
