"""The local log that a replica reports for elections (draft KIP-1303), without I/O on the event loop."""

from dataclasses import replace

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.local_log import LocalLog
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.tiered_log import local_log_job
from ottla.stories.partition.tiered_log import remove_local_segments
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

pytestmark = pytest.mark.logs("below the high watermark")

OFF = LogConfig(segment_bytes=300, index_interval_bytes=1, remote_storage_enable=True, retention_ms=None)
ON = replace(OFF, leader_election_prefer_early_local_log_start_offset=True)


class CountingFiles(Files):
    """Files that count their reads."""

    reads = 0

    def pread(self, *args, **options):
        self.reads += 1
        return super().pread(*args, **options)


def fill(log, count):
    """One batch of one record each, a second apart; two are in a segment."""
    for _ in range(count):
        timestamp = NOW_MS + 1000 * log.log_end_offset
        log.append_as_leader(batch(value=b"x" * 50, timestamp=timestamp), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)


@pytest.mark.parametrize(("config", "topic"), [
    (OFF, "orders"),
    (replace(ON, remote_storage_enable=False), "orders"),
    (ON, "__consumer_offsets"),
])  # fmt: skip
def test_elections_do_not_ask_for_every_local_log(tmp_path, config, topic):
    log = open_log(tmp_path / "t-0", config=config, topic_partition=TopicPartition(topic, 0))
    fill(log, 3)
    assert log.local_log is None
    assert local_log_job([log]) is None
    log.close_files()


def test_start_size_and_oldest_timestamp(tmp_path):
    log = open_log(tmp_path / "orders-0", config=ON)
    assert log.local_log == LocalLog(0, 0, None)
    fill(log, 1)
    size = log.segments.active.size
    assert log.local_log == LocalLog(0, size, NOW_MS)
    fill(log, 6)
    assert log.local_log == LocalLog(0, 7 * size, NOW_MS)
    log.update_remote_end_offset(6)
    remove_local_segments(log, 4)
    assert log.local_log == LocalLog(4, 3 * size, NOW_MS + 4_000)
    log.truncate_to(5, now_ms=NOW_MS)
    assert log.local_log == LocalLog(4, size, NOW_MS + 4_000)
    log.truncate_fully_and_start_at(9, now_ms=NOW_MS)
    assert log.local_log == LocalLog(9, 0, None)
    fill(log, 1)
    assert log.local_log == LocalLog(9, size, NOW_MS + 9_000)
    log.close_files()


def test_records_without_timestamp(tmp_path):
    log = open_log(tmp_path / "orders-0", config=ON)
    log.append_as_follower(batch(value=b"x", timestamp=-1), leader_epoch=0, now_ms=NOW_MS)
    assert log.local_log.oldest_timestamp_ms is None
    log.close_files()


def test_a_timestamp_that_is_not_in_memory_is_read_by_a_job(tmp_path):
    files = CountingFiles()
    log = open_log(tmp_path / "orders-0", config=ON, files=files)
    fill(log, 7)
    log.close()
    log = open_log(tmp_path / "orders-0", config=ON, files=files)
    log.update_high_watermark(7)
    assert log.local_log.oldest_timestamp_ms == NOW_MS  # read when it was opened, in a thread
    log.update_remote_end_offset(6)
    remove_local_segments(log, 4)
    files.reads = 0
    assert log.local_log is None
    job = local_log_job([log])
    assert files.reads == 0
    job.run()
    assert files.reads > 0
    job.finish()
    reads = files.reads
    assert log.local_log.oldest_timestamp_ms == NOW_MS + 4_000
    assert local_log_job([log]) is None
    assert files.reads == reads
    log.close_files()


def test_a_segment_that_was_removed_while_its_timestamp_is_read(tmp_path):
    log = open_log(tmp_path / "orders-0", config=OFF)
    fill(log, 7)
    log.close()
    log = open_log(tmp_path / "orders-0", config=OFF)
    log.update_config(ON)
    assert log.local_log is None
    job = local_log_job([log])
    log.truncate_fully_and_start_at(9, now_ms=NOW_MS)
    fill(log, 1)
    for deleted in log.files.take_deleted():
        deleted.remove()
    job.complete()
    assert log.is_writable
    assert log.local_log.oldest_timestamp_ms == NOW_MS + 9_000
    log.close_files()


def test_a_damaged_first_batch_is_read_once(tmp_path):
    log = open_log(tmp_path / "orders-0", config=OFF)
    fill(log, 7)
    log.close()
    log = open_log(tmp_path / "orders-0", config=OFF)
    path = log.segments.first.path_of(".log")
    path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])
    log.update_config(ON)
    local_log_job([log]).complete()
    assert log.local_log.start_offset == 0
    assert log.local_log.oldest_timestamp_ms is None
    assert local_log_job([log]) is None
    log.close_files()
