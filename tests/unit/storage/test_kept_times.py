"""The times that look-ups have read are known after a restart, for segments that are still the same (KIP-79)."""

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import patch
from ottla.storage import kept_times, segment_times
from tests.harness.bombs import MANY, understated_batch
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

LATEST = NOW_MS + 5000
END = 3 * MANY


def append(log, *, last_ms, epoch=0):
    log.assign_epoch(epoch, start_offset=log.log_end_offset)
    sent = understated_batch(base_ms=NOW_MS, last_ms=last_ms, claimed_ms=NOW_MS + MANY)
    patch(sent, base_offset=log.log_end_offset, leader_epoch=epoch)
    log.append_as_follower(memoryview(sent), leader_epoch=epoch, now_ms=NOW_MS)
    log.roll(NOW_MS)


@pytest.fixture
def folder(tmp_path):
    log = open_log(tmp_path / "orders-0")
    for last_ms in (NOW_MS, LATEST, LATEST):
        append(log, last_ms=last_ms)
    assert log.reader.offset_for_timestamp(LATEST + 1) is None
    log.close()
    return log.directory


@pytest.fixture
def opened(monkeypatch):
    """The base offsets of the batches that are opened to know their times."""
    found = []
    payload_of = segment_times.payload_of

    def opens(header, *others):
        found.append(header.base_offset)
        return payload_of(header, *others)

    monkeypatch.setattr(segment_times, "payload_of", opens)
    return found


def test_a_restart_reads_nothing_again(folder, opened):
    log = open_log(folder)
    assert log.reader.offset_for_timestamp(LATEST) == (LATEST, 2 * MANY - 2, 0)
    assert log.reader.max_timestamp_offset() == (LATEST, 2 * MANY - 2, 0)
    assert not opened
    append(log, last_ms=LATEST + 1)
    assert log.reader.max_timestamp_offset() == (LATEST + 1, END + MANY - 2, 0)
    assert opened == [END]
    log.close()
    assert open_log(folder).reader.max_timestamp_offset() == (LATEST + 1, END + MANY - 2, 0)
    assert opened == [END]


@pytest.mark.logs("below the high watermark")
def test_what_was_truncated_and_written_again_is_read_again(folder, opened):
    """Another leader has written as much, at the same offsets."""
    log = open_log(folder)
    sizes = [segment.size for segment in log.segments]
    log.truncate_to(MANY, now_ms=NOW_MS)
    append(log, last_ms=LATEST - 1, epoch=1)
    append(log, last_ms=LATEST + 1, epoch=1)
    log.close()
    again = open_log(folder)
    assert [segment.size for segment in again.segments] == sizes
    assert again.reader.max_timestamp_offset() == (LATEST + 1, END - 2, 1)
    assert opened == [MANY, 2 * MANY]


@pytest.mark.parametrize("position", [0, 2, 10, 40, -2])
def test_a_damaged_file_is_ignored(folder, opened, position):
    path = folder / kept_times.FILE_NAME
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert open_log(folder).reader.max_timestamp_offset() == (LATEST, 2 * MANY - 2, 0)
    assert opened == [0, MANY, 2 * MANY]


def test_a_compacted_log_keeps_nothing(tmp_path):
    log = open_log(tmp_path / "orders-0", config=LogConfig(cleanup_policy=("compact",)))
    log.append_as_leader(batch(3), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    assert log.reader.offset_for_timestamp(LATEST) is None
    assert not (log.directory / kept_times.FILE_NAME).exists()


def test_a_log_that_is_deleted_meanwhile_is_no_error(folder):
    log = open_log(folder)
    append(log, last_ms=NOW_MS)
    log.reader._files.directory = folder / "gone"
    assert log.reader.offset_for_timestamp(LATEST + 1) is None
