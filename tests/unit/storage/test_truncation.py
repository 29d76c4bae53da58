"""Truncation beside readers and slow disks: no slice changes, no read mixes two files, and nothing waits on
the loop.
"""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from storage_support import NOW_MS, batch, offsets_in, open_log

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.records.batch import batches
from ottla.storage.files import Files
from ottla.stories.partition.faulty_files import FaultyFiles

VALUE = b"x" * 200_000
ONE_SEGMENT = LogConfig()
THREE_A_SEGMENT = LogConfig(segment_bytes=700_000)
#: What waits for the disk, or for its size.
WAITS = {"fsync", "fsync_path", "fsync_dir", "copy_prefix"}


class Recorded(Files):
    """Files that record the calls, and run an action while a file is copied."""

    def __init__(self):
        self.calls = []
        self.while_copying = lambda: None

    def fsync(self, fd):
        self.calls.append("fsync")
        super().fsync(fd)

    def fsync_path(self, path):
        self.calls.append("fsync_path")
        super().fsync_path(path)

    def copy_prefix(self, source_fd, target_fd, size):
        super().copy_prefix(source_fd, target_fd, size)
        self.calls.append("copy_prefix")
        self.while_copying()

    def pread(self, fd, size, position, *, may_block=True):
        self.calls.append("pread")
        return super().pread(fd, size, position)


def append(log, count, *, epoch=0, value=VALUE, **fields):
    for _ in range(count):
        data = batch(value=value, base_offset=log.log_end_offset, **fields)
        data[12:16] = struct.pack(">i", epoch)
        log.append_as_follower(data, leader_epoch=epoch, now_ms=NOW_MS)


def lent(log, offset):
    """The slice that a response holds while its socket is full."""
    read = log.reader.read(offset, max_bytes=500_000, lend=True)
    assert isinstance(read.records, memoryview)
    return read.records


def epoch_of(records):
    header, _ = next(iter(batches(memoryview(records))))
    return header.partition_leader_epoch


def truncate(log, offset):
    """Truncate as a follower does; returns the jobs that it took."""
    names = []
    while (job := log.truncation.next_job(offset, now_ms=NOW_MS)) is not None:
        names.append(job.name.split()[0])
        job.complete()
    log.truncate_to(offset, now_ms=NOW_MS)
    log.truncation.discard()
    return names


def test_a_read_in_a_thread_beside_a_copy_leaves_no_mapping_of_the_old_file(tmp_path):
    files = Recorded()
    log = open_log(tmp_path / "l", config=ONE_SEGMENT, files=files)
    append(log, 30, epoch=1)
    held = lent(log, 25)
    # In a thread, as a Fetch of records that are not in memory.
    files.while_copying = lambda: log.reader.read(0, max_bytes=1 << 20)
    log.truncate_to(20, now_ms=NOW_MS)
    append(log, 10, epoch=2)
    assert [
        epoch_of(log.reader.read(offset, max_bytes=1 << 20, lend=True).records) for offset in (19, 20, 28)
    ] == [
        1,
        2,
        2,
    ]
    assert epoch_of(held) == 1


@pytest.mark.parametrize("may_prepare", [True, False])
def test_slices_that_are_truncated_keep_their_bytes(tmp_path, may_prepare):
    log = open_log(tmp_path / "l", config=ONE_SEGMENT)
    append(log, 3)
    held = lent(log, 1)
    before = bytes(held)
    if may_prepare:
        assert truncate(log, 2) == ["producers", "copy"]
    else:
        log.truncate_to(2, now_ms=NOW_MS)
    append(log, 2, value=b"y" * 200_000)
    assert bytes(held) == before
    assert offsets_in(log) == [0, 1, 2, 3]
    log.close()
    assert offsets_in(open_log(log.directory, config=ONE_SEGMENT)) == [0, 1, 2, 3]


def test_nothing_is_copied_for_slices_that_stay(tmp_path):
    files = Recorded()
    log = open_log(tmp_path / "l", config=ONE_SEGMENT, files=files)
    append(log, 3)
    held = log.reader.read(0, max_bytes=250_000, lend=True).records
    before = bytes(held)
    assert truncate(log, 2) == ["producers"]
    append(log, 1, value=b"y" * 200_000)
    assert "copy_prefix" not in files.calls
    assert bytes(held) == before
    assert bytes(log.reader.read(0, max_bytes=250_000, lend=True).records) == before


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("config", [ONE_SEGMENT, THREE_A_SEGMENT])
def test_after_its_jobs_a_truncation_waits_for_nothing(tmp_path, config, is_flushed):
    files = Recorded()
    log = open_log(tmp_path / "l", config=config, files=files)
    append(log, 8, producer_id=1, producer_epoch=0)
    if is_flushed:
        log.flush()
    held = lent(log, 1)
    while (job := log.truncation.next_job(2, now_ms=NOW_MS)) is not None:
        files.calls.clear()
        job.run()
        in_thread = list(files.calls)
        job.finish()
        assert not WAITS & set(files.calls[len(in_thread) :]), job.name
    files.calls.clear()
    log.truncate_to(2, now_ms=NOW_MS)
    assert not WAITS & set(files.calls)
    assert log.log_end_offset == log.producers.map_end_offset == 2
    assert len(log.segments) == 1
    assert len(held) > 0


def test_a_leader_epoch_that_begins_between_two_jobs_finds_a_whole_log(tmp_path):
    """Truncating from 8 to 2 over three segments is given up after each of its jobs, and the log appended to."""
    for given_up_after in range(8):
        log = open_log(tmp_path / f"l{given_up_after}", config=THREE_A_SEGMENT)
        append(log, 8, epoch=1)
        held = [lent(log, 1)]
        for _ in range(given_up_after):
            if (job := log.truncation.next_job(2, now_ms=NOW_MS)) is not None:
                job.complete()
        log.truncation.discard()
        end = log.log_end_offset
        assert end in (3, 8)  # as it was, or without its last segments
        append(log, 2, epoch=2)
        assert offsets_in(log) == [*range(end + 2)]
        assert log.producers.map_end_offset == end + 2
        truncate(log, 1)
        append(log, 1, epoch=3)
        assert held
        log.close()
        assert offsets_in(open_log(log.directory, config=THREE_A_SEGMENT)) == [0, 1]


def test_a_copy_of_before_another_truncation_is_not_used(tmp_path):
    log = open_log(tmp_path / "l", config=ONE_SEGMENT)
    append(log, 4, epoch=1)
    held = lent(log, 1)
    log.truncation.next_job(3, now_ms=NOW_MS).complete()
    copying = log.truncation.next_job(3, now_ms=NOW_MS)
    assert copying.name.startswith("copy")
    copying.run()
    log.truncate_to(1, now_ms=NOW_MS)  # another leader epoch's
    append(log, 3, epoch=2)
    copying.finish()
    held = [held, lent(log, 2)]
    truncate(log, 3)
    assert [epoch_of(log.reader.read(offset, max_bytes=1 << 20).records) for offset in (0, 1, 2)] == [1, 2, 2]
    assert held
    log.close()
    assert not [path for path in log.directory.iterdir() if path.suffix == ".tmp"]


def test_a_reader_in_a_thread_has_the_replaced_file_until_its_delay_is_over(tmp_path):
    log = open_log(tmp_path / "l", config=ONE_SEGMENT)
    append(log, 3)
    held = lent(log, 1)
    fd = log.segments.active.log.fd
    truncate(log, 2)
    assert log.segments.active.log.fd != fd
    assert len(log.files.file_system.pread(fd, 100, 0)) == 100
    (deleted,) = log.files.deleted_files
    assert deleted.due_ms == NOW_MS + log.config.file_delete_delay_ms
    deleted.remove()
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.files.file_system.pread(fd, 100, 0)
    assert held


@pytest.mark.logs("is offline")
def test_a_disk_that_fails_under_a_job_takes_the_log_offline():
    files = FaultyFiles(random=Random(1))
    failed = []
    log = open_log(Path("/data/t-0"), config=ONE_SEGMENT, files=files, on_io_error=failed.append)
    append(log, 3)
    log.flush()
    held = lent(log, 1)
    files.fail("fsync", errno=5, is_lasting=True)
    with pytest.raises(KafkaStorageError):
        truncate(log, 2)
    assert failed
    assert not log.is_writable
    assert held


def test_a_copy_is_removed_though_the_segment_was_rolled_meanwhile(tmp_path):
    """The truncation is given up: this broker leads by now, and its log has grown into another segment."""
    log = open_log(tmp_path / "l", config=ONE_SEGMENT)
    append(log, 3)
    held = lent(log, 1)
    log.truncation.next_job(2, now_ms=NOW_MS).complete()
    copying = log.truncation.next_job(2, now_ms=NOW_MS)
    copying.run()
    log.roll(NOW_MS)
    copying.finish()
    log.truncation.discard()
    assert not list(log.directory.glob("*.tmp"))
    assert held


@pytest.mark.logs("is offline")
def test_a_copy_that_fails_leaves_no_file(tmp_path):
    files = Recorded()

    def fail():
        raise OSError(28, "No space left on device")

    files.while_copying = fail
    log = open_log(tmp_path / "l", config=ONE_SEGMENT, files=files)
    append(log, 3)
    held = lent(log, 1)
    with pytest.raises(KafkaStorageError):
        truncate(log, 2)
    assert not list(log.directory.glob("*.tmp"))
    assert held
