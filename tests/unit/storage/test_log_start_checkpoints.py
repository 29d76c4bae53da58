"""The log start offset of a tiered log is on the disk before local segments before it are removed."""

from dataclasses import replace

import pytest

from ottla.config.log_config import LogConfig
from tests.unit.storage.log_manager_support import TOPIC_ID, A, append, crash, open_manager, run
from tests.unit.storage.storage_support import NOW_MS

pytestmark = pytest.mark.logs("Log directory")

TIERED = LogConfig(segment_bytes=1000, remote_storage_enable=True, retention_ms=3_600_000)


@pytest.fixture
def manager(tmp_path):
    """A tiered log [0, 40) in segments of ten records or so, none of which is copied."""
    manager = open_manager(tmp_path, default_config=TIERED)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 40)
    log.update_high_watermark(40)
    assert len(log.segments) > 3
    return manager


def retain(manager, now_ms=NOW_MS + 300_000):
    """Run what `maintain` returns, and then what follows; without the checkpoints that are due by the clock."""
    run(job for job in manager.maintain(now_ms) if job.name.startswith("retention"))


def test_deleted_records_that_were_never_copied_leave_no_hole(tmp_path, manager):
    """DeleteRecords, retention, and a process that is killed before the checkpoint of log starts is due."""
    log = manager.get(A)
    log.maybe_increment_log_start_offset(35)
    first = log.segments.first.base_offset
    retain(manager)
    assert first < log.segments.first.base_offset <= 35
    crash(manager)
    log = open_manager(tmp_path, default_config=TIERED).get(A)
    assert log.log_start_offset == 35
    assert log.local_log_start_offset == 35


def test_a_log_start_that_is_not_written_keeps_the_segments(manager):
    log = manager.get(A)
    log.maybe_increment_log_start_offset(35)
    segments = list(log.segments)
    assert not log.start.apply_some_retention(NOW_MS + 300_000, most=4)
    assert list(log.segments) == segments
    assert log.apply_retention(NOW_MS) == len(segments) - len(log.segments) > 0


def test_one_write_is_enough_for_all_logs_of_a_directory(tmp_path, manager, monkeypatch):
    other = manager.get_or_create(A._replace(partition=1), topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(other, 40)
    other.update_high_watermark(40)
    written = []
    file = manager.checkpoints._directories[tmp_path].log_start_offsets
    write = file.write
    monkeypatch.setattr(file, "write", lambda rows, **options: written.append(rows) or write(rows, **options))
    for log in (manager.get(A), other):
        log.maybe_increment_log_start_offset(35)
    retain(manager)
    assert len(other.segments) == len(manager.get(A).segments) < 3
    assert written == [{A: 35, A._replace(partition=1): 35}]


def test_what_is_copied_goes_without_a_checkpoint(manager):
    log = manager.get(A)
    log.update_remote_end_offset(35)
    manager.update_config("a", [0], replace(TIERED, local_retention_bytes=1))
    retain(manager)
    assert log.log_start_offset == 0
    assert log.local_log_start_offset > 0


def test_a_log_that_becomes_tiered_begins_where_it_began_before(tmp_path):
    """Without a checkpoint an untiered log begins with its first segment; a tiered one would begin at 0."""
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 40)
    log.update_high_watermark(40)
    log.maybe_increment_log_start_offset(35)
    assert log.apply_retention(NOW_MS)
    start = log.segments.first.base_offset
    assert 0 < start < log.log_start_offset
    manager.update_config("a", [0], TIERED)
    run(manager.maintain(NOW_MS + 1000))
    crash(manager)
    assert open_manager(tmp_path, default_config=TIERED).get(A).log_start_offset == 35


def test_total_retention_of_a_log_that_is_copied_no_more_leaves_no_hole(tmp_path):
    """The removal itself moves the log start: the checkpoint has it before."""
    config = replace(TIERED, remote_log_copy_disable=True)
    manager = open_manager(tmp_path, default_config=config)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 40)
    log.update_high_watermark(40)
    run(job for job in manager.maintain(NOW_MS) if not job.name.startswith("retention"))
    manager.update_config("a", [0], replace(config, retention_bytes=1500))
    retain(manager)
    start = log.log_start_offset
    assert start == log.segments.first.base_offset > 0
    crash(manager)
    log = open_manager(tmp_path, default_config=config).get(A)
    assert log.local_log_start_offset == start
    assert log.log_start_offset == start
