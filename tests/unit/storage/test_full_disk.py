"""Disks that are really full, and writes that the operating system cuts short: with real files and real limits."""

import os
import resource
import subprocess
import sys
from contextlib import suppress
from random import Random

import pytest

from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.records.batch import crc_is_valid
from ottla.protocol.records.record import records
from ottla.storage.files import Files
from tests.unit.storage.crash_child import CONFIG, value_of
from tests.unit.storage.log_manager_support import TOPIC_ID, A, append, open_manager, run
from tests.unit.storage.storage_support import NOW_MS, TP, batch, offsets_in, open_log


@pytest.fixture
def short_writes(monkeypatch):
    """Every write takes some of the bytes only: a signal, a quota or a disk that is nearly full does that."""
    really_pwrite, random = os.pwrite, Random(1)

    def pwrite(fd, data, position):
        view = memoryview(data)
        return really_pwrite(fd, view[: random.randint(1, len(view))], position)

    def pwritev(fd, buffers, position):
        return pwrite(fd, b"".join(buffers), position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "pwritev", pwritev)


def test_short_writes_are_completed(tmp_path, short_writes):
    log = open_log(tmp_path / "l", config=CONFIG)
    for count in range(1, 60):
        log.append_as_leader(batch(count, value=b"v" * 9 * count), leader_epoch=count, now_ms=NOW_MS)
    end = log.log_end_offset
    log.close()
    again = open_log(tmp_path / "l", config=CONFIG, is_clean=False)
    assert again.log_end_offset == end
    assert len(offsets_in(again)) == 59
    assert [entry.epoch for entry in again.leader_epochs.entries] == list(range(1, 60))


@pytest.mark.parametrize("counts", [[1], [3], [1025], [5000]])
def test_short_vectored_writes_are_completed(tmp_path, short_writes, counts):
    """More buffers than one call takes, too."""
    files = Files()
    fd = files.open(tmp_path / "f", write=True, create=True)
    buffers = [b"%d," % at for at in range(counts[0])]
    files.writev(fd, buffers, 7)
    assert files.read(tmp_path / "f") == bytes(7) + b"".join(buffers)
    files.close(fd)


def append_until_the_limit(directory, *, seed, limit_bytes):
    """The child may not make a file longer than that: its writes are cut short, then fail with EFBIG."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.storage.crash_child", str(directory), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 1  # not killed by SIGXFSZ
    assert "KafkaStorageError" in done.stderr.splitlines()[-1]
    assert "File too large" in done.stderr.splitlines()[-1]
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("limit_bytes", [4321, 12_345, 49_999])
@pytest.mark.logs("are not valid batches, truncated")
def test_a_file_that_may_not_grow(tmp_path, limit_bytes):
    directory = tmp_path / "orders-0"
    acknowledged = append_until_the_limit(directory, seed=1, limit_bytes=limit_bytes)
    assert max(path.stat().st_size for path in directory.iterdir()) == limit_bytes
    log = open_log(directory, config=CONFIG, is_clean=False)
    assert log.log_end_offset == acknowledged
    expected = 0
    for header, data in log.reader.records_since(0):
        assert crc_is_valid(data)
        assert next(iter(records(data))).value == value_of(expected)
        expected = header.next_offset
    assert expected == acknowledged
    log.append_as_leader(
        batch(1, producer_id=5, producer_epoch=0, base_sequence=acknowledged), leader_epoch=1, now_ms=NOW_MS
    )
    log.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 KiB; a user who may not mount one has the limits of the tests above."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(path)]
    with suppress(FileNotFoundError):
        if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
            yield path
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            return
    pytest.skip("no file system can be mounted here")


@pytest.mark.logs("Log directory", "is offline")
def test_a_full_disk(small_disk, tmp_path):
    """One directory fills up and goes offline; the other serves; with room again, everything is there."""
    paths = [small_disk / "a", tmp_path / "b"]
    manager = open_manager(*paths)
    log, other = (manager.get_or_create(at, topic_id=TOPIC_ID, now_ms=NOW_MS) for at in (A, TP))
    assert log.directory.parent == paths[0]
    failures = []
    manager.on_dir_failure = lambda path, error: failures.append((path, error.errno))
    with pytest.raises(KafkaStorageError, match="No space left"):
        append(log, 1000, value=b"v" * 700)
    end = log.log_end_offset
    assert end > 20
    assert failures == [(paths[0], 28)]
    append(other, 3)
    with pytest.raises(KafkaStorageError):
        append(log)
    run(manager.maintain(NOW_MS + 100_000))
    log.close_files()
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert not (paths[0] / ".kafka_cleanshutdown").exists()

    # Still full: it cannot be opened, and the other one can.
    manager = open_manager(*paths)
    is_open = A in manager.logs
    assert is_open != (paths[0] in manager.offline_dirs)
    for it in manager.logs.values():
        it.close_files()
    manager.unlock()

    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    manager = open_manager(*paths)
    assert not manager.offline_dirs
    assert offsets_in(manager.logs[A]) == list(range(end))
    assert manager.logs[TP].log_end_offset == 3
    append(manager.logs[A], value=b"v" * 700)
    for it in manager.logs.values():
        it.close_files()
    manager.unlock()
