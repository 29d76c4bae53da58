"""The start of a log while it changes: retention beside threads that read, and in a power cut."""

from pathlib import Path
from random import Random

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import OffsetOutOfRange
from ottla.protocol.records.batch import read_header
from ottla.storage.log_reader import LogReader
from ottla.stories.partition.faulty_files import FaultyFiles, Killed, Loss
from tests.unit.storage.storage_support import NOW_MS, batch, open_log


def test_a_replay_in_a_thread_reads_what_retention_leaves(tmp_path):
    """A load of a coordinator's log runs beside each file operation of the removal."""
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


def tiered_log(files):
    """Five segments of an offset each, of which the first four are copied."""
    config = LogConfig(segment_bytes=1000, remote_storage_enable=True, local_retention_bytes=0)
    log = open_log(Path("/disk/orders-0"), files=files, config=config)
    for _ in range(5):
        log.append_as_leader(batch(value=b"x" * 600), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(5)
    log.flush()
    files.fsync_dir(Path("/"))
    log.update_remote_end_offset(4)
    return log


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_leaves_no_gap_behind_local_retention(seed):
    """The disk writes changes of a directory in any order: a reader of a gap would get what follows it."""
    files = FaultyFiles(random=Random(seed))
    log = tiered_log(files)
    files.fail("rename", nth=seed % 12 + 1, errno=None)
    with pytest.raises(Killed):
        log.apply_retention(NOW_MS)
    left = files.after_crash(Random(seed), Loss.ANYTHING)
    bases = sorted(int(path.stem) for path in left.contents(log.directory) if path.suffix == ".log")
    assert bases == list(range(bases[0], 5))


def test_the_loop_removes_a_segment_of_a_tiered_log_after_a_thread_has_flushed_the_removal_before():
    files = FaultyFiles(random=Random(1))
    log = tiered_log(files)
    flushed = []
    files.on_operation = lambda operation, path: (
        flushed.append(path) if operation.startswith("fsync") else None
    )
    assert log.start.apply_some_retention(NOW_MS, most=4)
    assert not log.start.apply_some_retention(NOW_MS, most=4)
    assert (log.local_log_start_offset, flushed) == (1, [])
    for removed in (2, 3, 4):
        log.start.warm_up_retention(NOW_MS)
        assert set(flushed) == {log.directory}
        flushed.clear()
        assert log.start.apply_some_retention(NOW_MS, most=4)
        assert (log.local_log_start_offset, flushed) == (removed, [])
    log.start.warm_up_retention(NOW_MS)
    assert not log.start.apply_some_retention(NOW_MS, most=4)


def test_what_a_killed_process_removed_may_not_be_on_the_disk():
    files = FaultyFiles(random=Random(1))
    log = tiered_log(files)
    assert log.start.apply_some_retention(NOW_MS, most=1)
    again = open_log(
        log.directory, files=files.after_kill(), config=log.config, is_clean=False, recovery_point=5
    )
    again.update_high_watermark(5)
    again.update_remote_end_offset(4)
    assert not again.start.apply_some_retention(NOW_MS, most=1)
    again.start.warm_up_retention(NOW_MS)
    assert again.start.apply_some_retention(NOW_MS, most=1)
