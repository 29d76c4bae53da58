"""One log over time: truncation, retention, flushes, and what a failing disk or a damaged index leaves."""

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import (
    InconsistentTopicId,
    KafkaStorageError,
    OffsetOutOfRange,
)
from ottla.protocol.records.batch import patch
from ottla.protocol.types import ZERO_UUID
from ottla.storage.files import Files
from ottla.storage.segment import Segment
from tests.unit.storage.log_support import end, fill, names, transact
from tests.unit.storage.storage_support import NOW_MS, batch, offsets_in, open_log

pytestmark = pytest.mark.logs("rebuilding the offset and time index")


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "orders-0")


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
    log.assign_epoch(3, start_offset=log.log_end_offset)
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
    """Otherwise the event loop stood still for a second with 8,000 of them."""
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
    job = log.flusher.job(4, now_ms=NOW_MS)
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
    """The rule includes a segment whose batches are flushed: its indexes are flushed with the next flush."""
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
