"""Reads of what is not in memory: the event loop's thread raises WouldBlock, a thread reads, then the loop has it."""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from storage_support import NOW_MS, batch, offsets_in, open_log

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage import index, segment_reader
from ottla.storage.files import Files, WouldBlock
from ottla.storage.manager.log_manager import LogManager
from tests.harness.cold_files import ColdFiles

COUNT = 1000
CONFIG = LogConfig(segment_bytes=40_000, index_interval_bytes=100)


def in_thread(function, *args, **options):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **options).result()


@pytest.fixture
def files(monkeypatch):
    # So that small files have parts that are not kept in memory.
    monkeypatch.setattr(index, "WARM_BYTES", 256)
    monkeypatch.setattr(segment_reader, "WARM_TAIL_BYTES", 4096)
    return ColdFiles()


@pytest.fixture(params=["as written", "opened again"])
def log(request, tmp_path, files):
    log = open_log(tmp_path / "l", files=files, config=CONFIG)
    for number in range(COUNT):
        log.append_as_leader(batch(timestamp=NOW_MS + number), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(COUNT)
    if request.param == "opened again":
        in_thread(log.flush)
        in_thread(log.close)
        log = in_thread(open_log, tmp_path / "l", files=files, config=CONFIG)
        log.update_high_watermark(COUNT)
    files.drop_caches()
    return log


@pytest.mark.parametrize("end", [COUNT, COUNT - 2, 434])
@pytest.mark.parametrize("offset", [0, 170, 433])
def test_index_headers_and_batches_are_read_by_a_thread(log, files, offset, end):
    how = {"max_bytes": 20_000, "max_offset": end}
    with pytest.raises(WouldBlock):
        log.reader.read(offset, may_block=False, **how)
    in_thread(log.reader.warm_up, offset, **how)
    assert log.reader.read(offset, **how).base_offset == offset  # from memory: see ColdFiles
    assert log.reader.read(offset, may_block=False, **how).base_offset == offset


@pytest.mark.parametrize("offset", [0, 433, COUNT - 200])
def test_no_read_of_the_loop_waits_for_the_disk(log, offset):
    """Any part may be in memory, by chance the log and not the index."""
    for path in log.directory.glob("*.log"):
        fd = log.files.file_system.open(path)
        in_thread(log.files.file_system.pread, fd, path.stat().st_size, 0)
        os.close(fd)
    try:
        log.reader.read(offset, max_bytes=1000, may_block=False)
    except WouldBlock:
        in_thread(log.reader.warm_up, offset, max_bytes=1000)
    assert log.reader.read(offset, max_bytes=1000).base_offset == offset


def test_a_batch_larger_than_was_asked_for_is_read_as_a_whole(tmp_path, files):
    log = open_log(tmp_path / "l", files=files, config=CONFIG)
    for _ in range(3):
        log.append_as_leader(batch(value=b"x" * 30_000), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    files.drop_caches()
    in_thread(log.reader.warm_up, 0, max_bytes=100)
    assert len(log.reader.read(0, max_bytes=100, min_one_message=True).records) > 30_000


def state_of(segment):
    parts = (segment, segment.files, segment.log, segment.indexes, segment.reader)
    return [{name: getattr(part, name) for name in part.__slots__} for part in parts]


def test_a_thread_that_warms_up_changes_nothing(log, files):
    """The segment belongs to the loop's thread, which may append to it, close or delete it meanwhile."""
    first = log.segments.first
    before = state_of(first)
    folders = (Path("/proc/self/fd"), log.directory)
    names = [[path.name for path in folder.iterdir()] for folder in folders]
    in_thread(log.reader.warm_up, 200, max_bytes=1000, max_offset=300)
    assert state_of(first) == before
    assert [[path.name for path in folder.iterdir()] for folder in folders] == names


@pytest.mark.parametrize("extension", ["log", "index", "timeindex"])
def test_files_that_are_deleted_meanwhile_are_not_made_again(log, extension):
    path = log.segments.first.path_of(f".{extension}")
    path.unlink()
    in_thread(log.reader.warm_up, 200, max_bytes=1000)
    assert not path.exists()


def test_damage_is_left_to_the_read(log, files):
    path = log.segments.first.path_of(".index")
    path.write_bytes(b"\x7f" * path.stat().st_size)
    in_thread(log.reader.warm_up, 200, max_bytes=1000)
    assert path.read_bytes() == b"\x7f" * path.stat().st_size
    assert in_thread(offsets_in, log) == list(range(COUNT))


@pytest.mark.parametrize(("kept_ms", "removed"), [(COUNT, 0), (300, 1), (0, 2)])
def test_retention_does_not_wait_for_the_disk(log, kept_ms, removed):
    """The first use of a segment's largest timestamp after a start reads both indexes and the log."""
    log.update_config(replace(CONFIG, retention_ms=kept_ms))
    now_ms = NOW_MS + COUNT
    if log.start.retention_waits_for_disk(now_ms):
        in_thread(log.start.warm_up_retention, now_ms)
    assert log.apply_retention(now_ms) == removed
    assert not log.start.retention_waits_for_disk(now_ms)


def test_retention_by_the_time_of_files_does_not_wait_for_the_disk(log):
    """The segments are tiered, and their timestamps are in the future."""
    log.update_config(replace(CONFIG, remote_storage_enable=True, local_retention_ms=1000))
    log.update_remote_end_offset(COUNT)
    for segment in log.segments:
        segment.files.set_modified_ms(NOW_MS - 5000)
    now_ms = NOW_MS - 1
    for _ in range(2):
        in_thread(log.start.warm_up_retention, now_ms)
        assert log.start.apply_some_retention(now_ms, most=1)


def test_maintenance_does_not_wait_for_the_disk(tmp_path, files):
    at = TopicPartition("a", 0)
    options = {
        "files": files, "cluster_id": "cluster", "node_id": 3, "random": Random(1),
        "now_ms": NOW_MS, "directory_id": lambda: UUID(int=5),
        "default_config": replace(CONFIG, retention_ms=500),
    }  # fmt: skip

    def begin():
        manager = LogManager.open([tmp_path], **options)
        log = manager.get_or_create(at, topic_id=UUID(int=7), now_ms=NOW_MS)
        for number in range(0 if log.log_end_offset else COUNT):
            log.append_as_leader(batch(timestamp=NOW_MS + number), leader_epoch=0, now_ms=NOW_MS)
        log.update_high_watermark(COUNT)
        return manager

    in_thread(in_thread(begin).shutdown, NOW_MS, broker_epoch=1)
    manager = in_thread(begin)
    files.drop_caches()
    now_ms = NOW_MS + COUNT + manager.settings.retention_check_interval_ms
    for job in manager.maintain(now_ms):
        in_thread(job.run)
        job.finish()
    assert manager.logs[at].log_start_offset == COUNT


@pytest.mark.logs("is offline")
def test_a_failing_disk_takes_the_log_offline(log, files, monkeypatch):
    def fails(*_, **__):
        raise OSError(5, "the disk")

    monkeypatch.setattr(files, "pread", fails)
    with pytest.raises(KafkaStorageError):
        in_thread(log.reader.warm_up, 200, max_bytes=1000)
    assert not log.is_writable


@pytest.mark.logs("is offline")
def test_a_disk_that_cannot_say_when_a_file_was_written_takes_the_log_offline(log, files, monkeypatch):
    def fails(*_, **__):
        raise OSError(5, "the disk")

    log.update_config(replace(CONFIG, retention_ms=0))
    in_thread(log.start.is_retention_due, NOW_MS + COUNT)
    monkeypatch.setattr(files, "modified_ms", fails)
    with pytest.raises(KafkaStorageError):
        log.start.retention_waits_for_disk(NOW_MS + COUNT)
    assert not log.is_writable


@pytest.mark.logs("a corrupt index is rebuilt", "rebuilding the offset and time index")
def test_a_position_that_is_damaged_after_the_index_was_loaded(log):
    """A negative one made the kernel refuse the read (EINVAL), which took the log directory offline."""

    def damage_and_read():
        assert log.reader.read(0, max_bytes=1000).base_offset == 0
        first = log.segments.first
        path = first.path_of(".index")
        entry = first.indexes.offset_index.lookup(80)
        data = path.read_bytes()
        at = data.index(struct.pack(">ii", entry.offset, entry.position))
        path.write_bytes(data[:at] + struct.pack(">ii", entry.offset, -5) + data[at + 8 :])
        return log.reader.read(81, max_bytes=1000).base_offset

    assert in_thread(damage_and_read) == 81
    assert log.is_writable


def test_real_files_are_read_from_memory(tmp_path):
    files, path = Files(), tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    fd = files.open(path)
    assert files.pread(fd, 300, 25_500, may_block=False) == files.pread(fd, 300, 25_500)
    assert files.pread(fd, 10, 30_000, may_block=False) == b""
    files.close(fd)


@pytest.mark.parametrize(("error", "raised"), [(11, WouldBlock), (95, None), (22, None), (5, OSError)])
def test_what_the_file_system_answers(tmp_path, monkeypatch, error, raised):
    """EAGAIN: not in memory; EOPNOTSUPP and EINVAL: it cannot say; all else is an error."""

    def preadv(*_):
        raise OSError(error, os.strerror(error))

    files, path = Files(), tmp_path / "file"
    path.write_bytes(b"content")
    fd = files.open(path)
    monkeypatch.setattr(os, "preadv", preadv)
    if raised is None:
        assert files.pread(fd, 7, 0, may_block=False) == b"content"
    else:
        with pytest.raises(raised):
            files.pread(fd, 7, 0, may_block=False)
    files.close(fd)


def test_a_file_of_which_only_the_beginning_is_in_memory(tmp_path, monkeypatch):
    answers = iter([4, BlockingIOError(11, "not in memory")])

    def preadv(fd, buffers, position, flags):
        answer = next(answers)
        if isinstance(answer, int):
            return answer
        raise answer

    files, path = Files(), tmp_path / "file"
    path.write_bytes(b"content")
    fd = files.open(path)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(WouldBlock):
        files.pread(fd, 7, 0, may_block=False)
    files.close(fd)
