"""Making many logs beside the event loop's work."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import InconsistentTopicId, KafkaStorageError, UnknownTopicOrPartition
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.log_availability import TooManyOpenFiles
from ottla.storage.manager.log_manager import NewLog
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.unit.storage.log_manager_support import TOPIC_ID, A, B, append, open_manager, run
from tests.unit.storage.storage_support import NOW_MS

PARTITIONS = [TopicPartition("t", number) for number in range(40)]


def wanted(partitions=PARTITIONS, **fields):
    return [NewLog(at, TOPIC_ID, **fields) for at in partitions]


def all_of(creation):
    return creation.next_part(creation.planned_count)


def run_in_a_thread(creation):
    part = all_of(creation)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(creation.run, part).result()
    return part


def complete(creation):
    part = all_of(creation)
    creation.run(part)
    creation.finish(part)


def test_made_in_a_thread(tmp_path):
    manager = open_manager(tmp_path / "a", tmp_path / "b")
    there = manager.get_or_create(PARTITIONS[3], topic_id=TOPIC_ID, now_ms=NOW_MS)
    config = LogConfig(segment_bytes=4321)
    creation = manager.creation(wanted(config=config), now_ms=NOW_MS)
    other = manager.creation([NewLog(A, TOPIC_ID)], now_ms=NOW_MS)
    with ThreadPoolExecutor(2) as pool:
        parts = [all_of(it) for it in (creation, other)]
        running = [pool.submit(it.run, part) for it, part in zip((creation, other), parts, strict=True)]
        append(there, 3)
    assert [it.result() for it in running] == [None, None]
    assert list(manager.logs) == [PARTITIONS[3]]  # no request finds half of a topic
    creation.finish(parts[0])
    other.finish(parts[1])
    assert not creation.errors
    assert {at: manager.logs[at] for at in PARTITIONS} == creation.logs
    assert manager.logs[PARTITIONS[3]] is there
    assert {log.config.segment_bytes for log in creation.logs.values()} == {4321}
    assert manager.logs[A] is other.logs[A]
    counts = [sum(log.directory.parent == tmp_path / it for log in manager.logs.values()) for it in "ab"]
    assert sorted(counts) == [20, 21]
    for log in manager.logs.values():
        append(log)
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert len(open_manager(tmp_path / "a", tmp_path / "b").logs) == 41


def test_deleted_meanwhile(tmp_path):
    manager = open_manager(tmp_path)
    creation = manager.creation(wanted(), now_ms=NOW_MS)
    part = run_in_a_thread(creation)
    manager.delete(PARTITIONS[0])
    creation.finish(part)
    assert isinstance(creation.errors[PARTITIONS[0]], UnknownTopicOrPartition)
    assert set(manager.logs) == set(PARTITIONS[1:])
    # Its name is free for the next topic of that name.
    log = manager.get_or_create(PARTITIONS[0], topic_id=UUID(int=99), now_ms=NOW_MS)
    assert log.topic_id == UUID(int=99)
    run(manager.maintain(NOW_MS + 100_000))
    assert len([it for it in tmp_path.iterdir() if it.is_dir()]) == 40


def test_part_after_part(tmp_path):
    manager = open_manager(tmp_path)
    there = manager.get_or_create(PARTITIONS[7], topic_id=TOPIC_ID, now_ms=NOW_MS)
    creation = manager.creation(wanted(leader_epoch=5), now_ms=NOW_MS)
    assert creation.logs == {PARTITIONS[7]: there}  # needs no waiting
    known = 1
    while part := creation.next_part(16):
        creation.run(part)
        assert len(manager.logs) == known
        creation.finish(part)
        known += len(part)
        assert len(manager.logs) == known
    assert known == len(PARTITIONS)
    assert {log.latest_epoch for log in manager.logs.values()} == {5, None}
    assert there.latest_epoch is None


def test_what_is_deleted_before_its_turn_is_not_made(tmp_path):
    manager = open_manager(tmp_path)
    creation = manager.creation(wanted(), now_ms=NOW_MS)
    first = creation.next_part(30)
    creation.run(first)
    creation.finish(first)
    for at in PARTITIONS:
        manager.delete(at)
    last = all_of(creation)
    creation.run(last)
    assert not any((tmp_path / str(new.topic_partition)).exists() for new, _ in last)
    creation.finish(last)
    assert not manager.logs
    assert set(creation.errors) == set(PARTITIONS[30:])
    complete(manager.creation(wanted(), now_ms=NOW_MS))
    assert len(manager.logs) == 40


@pytest.mark.logs("Log directory")
def test_a_failing_directory():
    files = FaultyFiles(random=Random(1))
    paths = [Path("/data/a"), Path("/data/b")]
    manager = open_manager(*paths, files=files)
    creation = manager.creation(wanted(), now_ms=NOW_MS)
    files.fail("create", nth=9, errno=28, under=paths[0], is_lasting=True)
    creation.finish(run_in_a_thread(creation))
    assert list(manager.offline_dirs) == paths[:1]
    # Those that were made before the disk failed are offline, too.
    assert len(creation.errors) == len(creation.logs) == 20
    assert all(isinstance(error, KafkaStorageError) for error in creation.errors.values())
    assert {log.directory.parent for log in manager.logs.values()} == {paths[1]}
    assert manager.logs == creation.logs


@pytest.mark.logs("Log directory", "is offline")
def test_deleted_meanwhile_and_the_disk_fails():
    """The other logs of the part get their due: no partition stays being made."""
    files = FaultyFiles(random=Random(1))
    manager = open_manager(Path("/data/a"), Path("/data/b"), files=files)
    creation = manager.creation(wanted(), now_ms=NOW_MS)
    part = run_in_a_thread(creation)
    gone, path = PARTITIONS[0], part[0].path
    manager.delete(gone)
    files.fail("rename", errno=5, under=path)
    creation.finish(part)
    assert list(manager.offline_dirs) == [path.parent]
    assert gone in creation.errors
    assert all(isinstance(error, KafkaStorageError) for error in creation.errors.values())
    assert len(creation.errors) == len(creation.logs) == 20
    assert manager.logs == creation.logs
    complete(manager.creation(wanted(), now_ms=NOW_MS))
    assert set(manager.logs) == set(PARTITIONS)


def test_what_cannot_be_made(tmp_path):
    manager = open_manager(tmp_path)
    manager.get_or_create(A, topic_id=UUID(int=1), now_ms=NOW_MS)
    creation = manager.creation(wanted([A, B]), now_ms=NOW_MS)
    complete(creation)
    assert isinstance(creation.errors[A], InconsistentTopicId)
    assert list(creation.logs) == [B]


def test_never_run(tmp_path):
    """The node stops before a thread was free."""
    manager = open_manager(tmp_path)
    creation = manager.creation(wanted([A]), now_ms=NOW_MS)
    creation.finish(all_of(creation))
    assert isinstance(creation.errors[A], KafkaStorageError)
    assert manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS) is manager.logs[A]


def test_no_log_is_created_twice(tmp_path):
    manager = open_manager(tmp_path)
    manager.creation(wanted([A]), now_ms=NOW_MS)
    with pytest.raises(AssertionError):
        manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)


@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("is_leader", [True, False])
def test_no_descriptor_half_way(tmp_path, monkeypatch, nth, is_leader):
    """Nothing is left of it: the log may be created in another directory next, and would be a second one at
    the next start.
    """
    directories = tmp_path / "a", tmp_path / "b"
    manager = open_manager(*directories)
    opened, closed = Files.open, Files.close
    opens, descriptors = [], set()

    def may_fail(files, path, **arguments):
        opens.append(path)
        if len(opens) == nth + 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        descriptors.add(fd := opened(files, path, **arguments))
        return fd

    def close(files, fd):
        descriptors.discard(fd)
        closed(files, fd)

    [new] = wanted(PARTITIONS[:1], leader_epoch=3 if is_leader else None)
    with monkeypatch.context() as patch:
        patch.setattr(Files, "open", may_fail)
        patch.setattr(Files, "close", close)
        creation = manager.creation([new], now_ms=NOW_MS)
        complete(creation)
    assert not manager.offline_dirs
    has_failed = len(opens) > nth
    if has_failed:
        assert isinstance(creation.errors[PARTITIONS[0]], TooManyOpenFiles)
        assert not [*tmp_path.glob(f"?/{PARTITIONS[0]}")]
        assert not descriptors
        manager.cordoned_dirs = frozenset([directories[0]])  # the other one is chosen now
        creation = manager.creation([new], now_ms=NOW_MS)
        complete(creation)
    assert len([*tmp_path.glob(f"?/{PARTITIONS[0]}")]) == 1
    append(creation.logs[PARTITIONS[0]])
    run(manager.maintain(NOW_MS + 100_000))
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert not [*tmp_path.glob("?/*-delete")]
    assert open_manager(*directories).get(PARTITIONS[0]).log_end_offset == 1
