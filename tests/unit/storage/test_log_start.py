"""Where a log starts while it changes: retention beside threads that read, and in a power cut."""

from random import Random

import pytest

from protocol.errors import OffsetOutOfRange
from protocol.records.batch import read_header
from storage.log_config import LogConfig
from storage.log_reader import LogReader
from tests.harness.faulty_files import FaultyFiles
from tests.unit.storage.storage_support import NOW_MS, batch, open_log


def test_a_replay_in_a_thread_reads_what_retention_leaves(tmp_path):
    """Whatever file operation of the removal it runs beside: a load of a coordinator's log."""
    files = FaultyFiles(random=Random(1))
    log = open_log(tmp_path / "l", files=files, config=LogConfig(segment_bytes=1000, retention_ms=1000))
    for _ in range(4):
        log.append_as_leader(batch(value=b"x" * 600), leader_epoch=0, now_ms=NOW_MS)
    log.append_as_leader(batch(value=b"x" * 600, timestamp=NOW_MS + 2000), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(5)
    starts = []

    def replay(operation, path):
        if operation == "rename":
            starts.append(read_header(log.reader.read_for_replay(0, max_bytes=100)).base_offset)

    files.on_operation = replay
    assert log.apply_retention(NOW_MS + 1001) == 4
    files.on_operation = None
    assert set(starts) == {4}


def test_a_replay_goes_on_at_a_log_start_that_advances_meanwhile(tmp_path, monkeypatch):
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=1000, retention_ms=1000))
    for at in (0, 0, 2000):
        log.append_as_leader(batch(value=b"x" * 600, timestamp=NOW_MS + at), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(3)
    read = LogReader.read

    def read_after_retention(reader, offset, **options):
        log.apply_retention(NOW_MS + 1001)
        return read(reader, offset, **options)

    monkeypatch.setattr(LogReader, "read", read_after_retention)
    assert read_header(log.reader.read_for_replay(0, max_bytes=100)).base_offset == 2
    with pytest.raises(OffsetOutOfRange):
        log.reader.read_for_replay(4, max_bytes=100)
