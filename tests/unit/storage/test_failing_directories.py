"""Log directories that fail, and a process without free file descriptors, which is no fault of a disk."""

import errno
import os
from pathlib import Path

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage.file_names import METADATA_LOG
from ottla.storage.files import Files
from ottla.storage.log_availability import TooManyOpenFiles
from tests.unit.storage.log_manager_support import TOPIC_ID, A, B, append, crash, open_manager, run
from tests.unit.storage.storage_support import NOW_MS, offsets_in, open_log

pytestmark = pytest.mark.logs("Log directory")


def test_no_log_is_created_again_that_may_be_in_an_offline_directory(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    manager = open_manager(one, two)
    manager.take_offline(one, OSError(5, "Input/output error"))
    with pytest.raises(KafkaStorageError, match="in an offline directory"):
        manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS, is_new=False)
    assert manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS).directory.parent == two


class BadDisk(Files):
    """Fails for one directory, once the test says so."""

    bad = None

    def pwrite(self, fd, data, position):
        if self.bad and self.bad in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(5, "Input/output error")
        super().pwrite(fd, data, position)


# KIP-112
@pytest.mark.logs("is offline")
def test_a_failing_directory_goes_offline_alone(tmp_path):
    files, reported = BadDisk(), []
    one, two = tmp_path / "one", tmp_path / "two"
    manager = open_manager(one, two, files=files)
    manager.on_dir_failure = lambda path, error: reported.append(path)
    logs = [
        manager.get_or_create(TopicPartition("t", number), topic_id=TOPIC_ID, now_ms=NOW_MS)
        for number in range(4)
    ]
    for log in logs:
        append(log, 3)
    files.bad = "/one/"
    of_one = [log for log in logs if log.directory.parent == one]
    of_two = [log for log in logs if log.directory.parent == two]
    with pytest.raises(KafkaStorageError):
        append(of_one[0])
    with pytest.raises(KafkaStorageError):
        append(of_one[1])
    append(of_two[0])
    assert reported == [one]
    assert sorted(manager.logs.values(), key=id) == sorted(of_two, key=id)
    rows = {row.path: row.error is None for row in manager.describe_dirs()}
    assert rows == {one: False, two: True}
    assert manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS).directory.parent == two
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert not (one / ".kafka_cleanshutdown").exists()
    again = open_manager(one, two)
    assert not again.was_clean
    assert all(offsets_in(log)[:3] == [0, 1, 2] for tp, log in again.logs.items() if tp != A)


@pytest.mark.parametrize(
    ("call", "number"),
    [("pwrite", errno.ENOSPC), ("pread", errno.EIO), ("open", errno.EIO), ("size_of", errno.EIO)],
)
@pytest.mark.logs("begins after a gap")
def test_a_disk_that_fails_a_cleaning_goes_offline(tmp_path, monkeypatch, call, number):
    """The log is not given up: when the disk is well again, the next start cleans it."""

    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    files, config = Files(), LogConfig(segment_bytes=1000, cleanup_policy=("compact",))
    manager = open_manager(tmp_path, default_config=config, files=files)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 50)
    log.flush()
    log.update_high_watermark(50)
    monkeypatch.setattr(files, call, fails)
    job = manager.clean_one(NOW_MS)
    if job is not None:
        job.complete()
    monkeypatch.undo()
    assert manager.offline_dirs[tmp_path].errno == number
    assert not log.is_writable
    crash(manager)
    again = open_manager(tmp_path, default_config=config)
    assert again.get(A).log_end_offset == 50
    assert A not in again.cleaned_offsets
    again.get(A).update_high_watermark(50)
    again.clean_one(NOW_MS).complete()
    assert again.cleaned_offsets == {A: again.get(A).segments.active.base_offset}


@pytest.mark.logs("is not cleaned now", "is not written now")
def test_too_many_open_files_are_no_fault_of_a_disk(tmp_path, monkeypatch):
    """Each operation is refused with nothing changed, and succeeds when a descriptor is free."""
    config = LogConfig(segment_bytes=1000, cleanup_policy=("compact",))
    manager = open_manager(tmp_path, default_config=config)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS), 50)
    manager.shutdown(NOW_MS, broker_epoch=1)
    manager = open_manager(tmp_path, default_config=config)
    log = manager.get(A)
    log.update_high_watermark(50)

    def refused(operation):
        with monkeypatch.context() as patch:
            patch.setattr("ottla.storage.files._unreserved", lambda: 0)
            with pytest.raises(TooManyOpenFiles):
                operation()
        assert not manager.offline_dirs

    before = log.log_end_offset, log.segments.active.log.size
    refused(lambda: log.reader.read(0, max_bytes=100))
    refused(lambda: append(log))
    append(log)
    refused(lambda: log.roll(NOW_MS))
    refused(lambda: manager.get_or_create(B, topic_id=TOPIC_ID, now_ms=NOW_MS))
    assert not (tmp_path / str(B)).exists()
    with monkeypatch.context() as patch:
        patch.setattr("ottla.storage.files._unreserved", lambda: 0)
        log.segments.active.log.truncate_to(before[1])  # what has begun has the reserve
    with monkeypatch.context() as patch:
        patch.setattr(Files, "open", _no_descriptor)
        job = manager.clean_one(NOW_MS)
        if job is not None:
            job.complete()
        run(manager.maintain(NOW_MS + 60_000))
    assert not manager.offline_dirs
    assert log.is_writable
    append(manager.get_or_create(B, topic_id=TOPIC_ID, now_ms=NOW_MS))
    manager.shutdown(NOW_MS, broker_epoch=1)


def test_a_truncation_that_has_begun_has_the_reserved_descriptors(tmp_path, monkeypatch):
    """Otherwise later segments are gone, and the log ends where it did before."""
    log = open_log(tmp_path / str(A))
    append(log, 40)
    log.close()
    log = open_log(tmp_path / str(A))
    assert len(log.segments) > 2
    end = log.segments.first.base_offset + 3
    assert end < log.segments.end_of(log.segments.first)
    with monkeypatch.context() as patch:
        patch.setattr("ottla.storage.files._unreserved", lambda: 0)
        log.truncate_to(end, now_ms=NOW_MS)
    assert log.log_end_offset == end
    append(log)
    assert offsets_in(log) == list(range(end + 1))
    log.close()


def _no_descriptor(self, path, **_):
    raise OSError(errno.ENFILE, os.strerror(errno.ENFILE), str(path))


def test_the_metadata_log_has_the_reserved_descriptors(tmp_path, monkeypatch):
    log = open_log(tmp_path / METADATA_LOG)
    append(log)
    log.close()
    again = open_log(tmp_path / METADATA_LOG)
    monkeypatch.setattr("ottla.storage.files._unreserved", lambda: 0)
    append(again)
    again.roll(NOW_MS)
    append(again)
    assert offsets_in(again) == [0, 1, 2]
    again.close()


def test_a_directory_fails_in_a_thread_beside_a_truncation(tmp_path):
    """The one goes through the logs while the other takes some of them away."""
    first, second = tmp_path / "a", tmp_path / "b"
    manager = open_manager(first, second)
    partitions = [TopicPartition("t", number) for number in range(8)]
    logs = [manager.get_or_create(at, topic_id=TOPIC_ID, now_ms=NOW_MS) for at in partitions]
    log = next(it for it in logs if it.directory.parent == first)
    append(log, 20)
    log.flush()

    class CleanedOffsets(dict):
        def __contains__(self, topic_partition):
            manager.take_offline(second, OSError(errno.EIO, "EIO"))
            return super().__contains__(topic_partition)

    manager.cleaned_offsets = CleanedOffsets()
    assert log.truncate_to(5, now_ms=NOW_MS)
    assert list(manager.offline_dirs) == [second]
    assert (log.log_end_offset, log.recovery_point) == (5, log.segments.active.base_offset)
