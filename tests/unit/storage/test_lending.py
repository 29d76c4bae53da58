"""Slices of mapped files: only responses of Fetch get them; other readers get an I/O error from a disk that
cannot be read.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from storage_support import NOW_MS, batch, open_log

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.storage import lending
from ottla.storage.files import Files
from ottla.stories.partition.faulty_files import FaultyFiles

ROOT = Path(__file__).parents[3]
VALUE = b"x" * 200_000
CONFIG = LogConfig(segment_bytes=700_000)


class Unmapped(Files):
    """No file is mapped for a reader that looks into it."""

    def map(self, fd, size):
        raise AssertionError("mapped")


def filled(log):
    for number in range(9):
        log.append_as_leader(
            batch(
                value=VALUE, timestamp=NOW_MS + number, producer_id=1, producer_epoch=0, base_sequence=number
            ),
            leader_epoch=number // 4,
            now_ms=NOW_MS,
        )
    log.update_high_watermark(9)
    return log


def test_only_fetch_responses_borrow():
    """Everything else parses what it reads: a page that the disk cannot read would end the process."""
    folders = ("storage", "controller", "broker", "remote")
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "lend=True" in path.read_text()
    }
    assert found == {"broker/replicas/reading/read_from_log.py"}


@pytest.mark.parametrize(
    "look",
    [
        lambda log: list(log.reader.records_since(0)),
        lambda log: log.reader.read(0, max_bytes=500_000),
        lambda log: log.reader.read(0, max_bytes=500_000, may_block=False),
        lambda log: log.reader.offset_for_timestamp(NOW_MS + 3),
        lambda log: log.reader.max_timestamp_offset(),
        lambda log: log.truncate_to(2, now_ms=NOW_MS),
        lambda log: log.flush(),
        lambda log: open_log(log.directory, config=CONFIG, files=log.files.file_system, is_clean=False),
    ],
    ids=["replay", "read", "read now", "timestamp", "max timestamp", "truncate", "flush", "recover"],
)
@pytest.mark.logs("below the high watermark")
def test_nothing_is_mapped_for_python_code(tmp_path, look):
    log = filled(open_log(tmp_path / "l", config=CONFIG, files=Unmapped()))
    look(log)
    with pytest.raises(AssertionError, match="mapped"):
        log.reader.read(0, max_bytes=500_000, lend=True)


@pytest.mark.logs("is offline")
def test_a_page_that_cannot_be_read_takes_the_log_offline():
    files = FaultyFiles(random=Random(1))
    failed = []
    log = filled(open_log(Path("/data/t-0"), config=CONFIG, files=files, on_io_error=failed.append))
    replay = log.reader.records_since(0)
    next(replay)
    files.fail("read", errno=errno.EIO, is_lasting=True)
    with pytest.raises(KafkaStorageError):
        list(replay)
    assert [error.errno for error in failed] == [errno.EIO]
    assert not log.is_writable


def test_nothing_is_lent_when_a_socket_has_found_an_unreadable_page(tmp_path):
    log = filled(open_log(tmp_path / "l", config=CONFIG))
    assert isinstance(log.reader.read(0, max_bytes=500_000, lend=True).records, memoryview)
    log.files.file_system.may_map = False
    assert isinstance(log.reader.read(0, max_bytes=500_000, lend=True).records, bytes)


class Unmappable(Files):
    """Cannot map any more once `error` is set."""

    error = None

    def map(self, fd, size):
        if self.error is not None:
            raise self.error
        return super().map(fd, size)


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many open files"), ValueError("mmap length is greater")]
)
def test_a_mapping_that_cannot_be_made_is_no_fault_of_the_disk(tmp_path, error):
    """Each mapping has a descriptor of its own, and a broker may have no more."""
    files = Unmappable()
    log = filled(open_log(tmp_path / "l", config=CONFIG, files=files))
    expected = bytes(log.reader.read(0, max_bytes=500_000, lend=True).records)
    more = batch(value=VALUE, timestamp=NOW_MS, producer_id=1, producer_epoch=0, base_sequence=9)
    log.append_as_leader(more, leader_epoch=2, now_ms=NOW_MS)
    log.update_high_watermark(10)
    files.error = error
    assert isinstance(log.reader.read(9, max_bytes=500_000, lend=True).records, bytes)
    # What was mapped before is read, too.
    assert bytes(log.reader.read(0, max_bytes=500_000, lend=True).records) == expected
    assert log.is_writable


def test_a_mapping_takes_no_reserved_descriptor(tmp_path, monkeypatch):
    log = filled(open_log(tmp_path / "l", config=CONFIG))
    expected = bytes(log.reader.read(0, max_bytes=500_000).records)
    monkeypatch.setattr("ottla.storage.files._unreserved", lambda: 0)
    found = log.reader.read(0, max_bytes=500_000, lend=True).records
    assert isinstance(found, bytes)
    assert found == expected


class Counted(Files):
    """Counts mappings; each is as long as the batches."""

    def __init__(self):
        self.sizes = []

    def map(self, fd, size):
        self.sizes.append(size)
        return super().map(fd, size)


def test_the_newest_batches_are_lent_to_all_that_read_them(tmp_path):
    """Followers and consumers at the end of the log share one mapping for each append, however many read it."""
    files = Counted()
    log = open_log(tmp_path / "l", config=LogConfig(), files=files)
    sizes = []
    for offset in range(5):
        log.append_as_leader(batch(value=VALUE), leader_epoch=0, now_ms=NOW_MS)
        sizes.append(log.files.segments.active.size)
        for _ in range(3):
            read = log.reader.read(offset, max_bytes=500_000, lend=True)
            assert isinstance(read.records, memoryview)
            assert bytes(read.records) == log.reader.read(offset, max_bytes=500_000).records
    assert files.sizes == sizes


def test_a_preallocated_file_is_mapped_up_to_its_last_batch(tmp_path):
    files = Counted()
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=1 << 20, preallocate=True), files=files)
    log.append_as_leader(batch(value=VALUE), leader_epoch=0, now_ms=NOW_MS)
    assert isinstance(log.reader.read(0, max_bytes=500_000, lend=True).records, memoryview)
    assert files.sizes == [log.files.segments.active.size]


def test_slow_readers_hold_a_bounded_number_of_mappings(tmp_path):
    files = Counted()
    log = open_log(tmp_path / "l", config=LogConfig(), files=files)
    held = []
    for offset in range(lending.MAX_MAPPINGS + 3):
        log.append_as_leader(batch(value=VALUE), leader_epoch=0, now_ms=NOW_MS)
        held.append(log.reader.read(offset, max_bytes=500_000, lend=True).records)
    kinds = [type(records) for records in held]
    assert kinds == [memoryview] * lending.MAX_MAPPINGS + [bytes] * 3
    before = [bytes(records) for records in held]
    del held[3:5]
    del before[3:5]
    # What the newest mapping has is still lent, and the rest again as soon as others have been released.
    for offset in (lending.MAX_MAPPINGS - 1, lending.MAX_MAPPINGS + 2):
        assert isinstance(log.reader.read(offset, max_bytes=500_000, lend=True).records, memoryview)
    assert [bytes(records) for records in held] == before
