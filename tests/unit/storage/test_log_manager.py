"""All logs of a broker: directories, their locks and owners, start and stop of both kinds, upkeep."""

import errno
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import InconsistentTopicId, KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage.file_names import METADATA_LOG
from ottla.storage.files import Files
from ottla.storage.log_availability import TooManyOpenFiles
from ottla.storage.manager.log_manager import (
    InconsistentMetaProperties,
    LogDirInUse,
    LogManager,
    LogManagerSettings,
)
from ottla.storage.manager.meta_properties import MetaProperties, read
from ottla.storage.manager.scheduled_tasks import SEGMENTS_OF_STEP
from ottla.storage.segment import Segment
from tests.unit.storage.storage_support import NOW_MS, batch, offsets_in, open_log

pytestmark = pytest.mark.logs("Log directory")

TOPIC_ID = UUID(int=7)
A, B = TopicPartition("a", 0), TopicPartition("b.c_d-e", 1)
CONFIG = LogConfig(segment_bytes=1000)


def open_manager(*paths, **options):
    random = Random(1)
    options = {
        "files": Files(), "cluster_id": "cluster", "node_id": 3, "random": random, "now_ms": NOW_MS,
        "directory_id": lambda: UUID(int=random.getrandbits(128)), "default_config": CONFIG, **options,
    }  # fmt: skip
    return LogManager.open(list(paths), **options)


def append(log, count=1, **fields):
    for _ in range(count):
        log.append_as_leader(batch(**fields), leader_epoch=0, now_ms=NOW_MS)


def run(jobs):
    for job in jobs:
        job.complete()


def delete(manager, topic_partition):
    """Delete a partition's logs, and put all that is deleted aside."""
    manager.delete(topic_partition)
    for _ in manager.rename_deleted(NOW_MS):
        pass


def crash(manager):
    """Leave the directory as a killed process does."""
    for log in manager.logs.values():
        log.close_files()
    manager.unlock()


def test_stop_and_start(tmp_path):
    manager = open_manager(tmp_path)
    assert not manager.was_clean
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 30)
    log.update_high_watermark(20)
    manager.shutdown(NOW_MS, broker_epoch=77)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 77}
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 30\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\na 0 20\n"

    again = open_manager(tmp_path)
    assert again.was_clean
    assert again.previous_broker_epoch == 77
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert again.directory_ids == manager.directory_ids
    log = again.get(A)
    assert (log.log_end_offset, log.high_watermark, log.topic_id) == (30, 20, TOPIC_ID)
    crash(again)
    killed = open_manager(tmp_path)
    assert not killed.was_clean
    assert killed.previous_broker_epoch is None
    assert offsets_in(killed.get(A)) == list(range(30))


def test_killed_process_loses_nothing(tmp_path):
    """A real one: without notice, so that nothing is closed."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.unit.storage.test_log_manager import *
manager = open_manager(Path({str(tmp_path)!r}))
log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
append(log, 100)
print(log.log_end_offset, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "100\n", done.stderr
    assert offsets_in(open_manager(tmp_path).get(A)) == list(range(100))


def test_a_directory_is_used_once(tmp_path):
    manager = open_manager(tmp_path)
    with pytest.raises(LogDirInUse, match="in use by another process"):
        open_manager(tmp_path)
    manager.shutdown(NOW_MS, broker_epoch=1)
    open_manager(tmp_path).shutdown(NOW_MS, broker_epoch=1)


@pytest.mark.parametrize(("options", "message"), [
    ({"cluster_id": "other"}, "belongs to cluster cluster"), ({"node_id": 4}, "belongs to node 3"),
])  # fmt: skip
def test_a_directory_of_someone_else(tmp_path, options, message):
    open_manager(tmp_path).shutdown(NOW_MS, broker_epoch=1)
    with pytest.raises(InconsistentMetaProperties, match=message):
        open_manager(tmp_path, **options)
    assert open_manager(tmp_path, cluster_id=None).cluster_id == "cluster"


def test_meta_properties_is_kafkas(tmp_path):
    (tmp_path / "meta.properties").write_text(
        "#\n#Sat Nov 21 09:12:11 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nversion=1\n"
        "directory.id=AAAAAAAAAAAAAAAAAAAABw\nnode.id=1\n"
    )
    assert read(tmp_path, Files()) == MetaProperties(
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg", node_id=1, directory_id=UUID(int=7)
    )


@pytest.mark.parametrize(
    "text",
    [
        b"version=0\nbroker.id=1\n",
        b"version=1\ncluster.id=x\n",
        b"version=1\ncluster.id=x\nnode.id=y\n",
        b"version=1\ncluster.id=\xff\xfe\nnode.id=1\n",
    ],
)
def test_meta_properties_that_say_nothing(tmp_path, text):
    (tmp_path / "meta.properties").write_bytes(text)
    with pytest.raises(InconsistentMetaProperties):
        open_manager(tmp_path)


def test_new_logs_go_where_there_are_fewest(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    manager = open_manager(one, two)
    for partition in range(5):
        manager.get_or_create(TopicPartition("t", partition), topic_id=TOPIC_ID, now_ms=NOW_MS)
    counts = Counter(log.directory.parent for log in manager.all_logs())
    assert sorted(counts.values()) == [2, 3]
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert len(open_manager(one, two).logs) == 5


def test_topic_id_of_an_older_topic(tmp_path):
    manager = open_manager(tmp_path)
    manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    with pytest.raises(InconsistentTopicId):
        manager.get_or_create(A, topic_id=UUID(int=8), now_ms=NOW_MS)


def test_delete(tmp_path):
    manager = open_manager(tmp_path)
    append(manager.get_or_create(B, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    delete(manager, B)
    assert manager.get(B) is None
    (folder,) = tmp_path.glob("b.c_d-e-1.*-delete")
    assert manager.get_or_create(B, topic_id=UUID(int=8), now_ms=NOW_MS).log_end_offset == 0
    run(manager.maintain(NOW_MS + 59_999))
    assert folder.exists()
    run(manager.maintain(NOW_MS + 60_000))
    assert not folder.exists()
    assert (tmp_path / str(B)).exists()


def test_deleted_folders_of_the_last_run_go(tmp_path):
    manager = open_manager(tmp_path)
    manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    delete(manager, A)
    crash(manager)
    again = open_manager(tmp_path)
    assert again.logs == {}
    run(again.maintain(NOW_MS))
    assert not list(tmp_path.glob("*-delete"))


def test_a_deleted_log_gives_up_its_name_before_the_next_one_of_that_name_is_made(tmp_path):
    manager = open_manager(tmp_path)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    append(manager.get_or_create(B, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    manager.delete(A)
    manager.delete(B)
    assert not manager.logs
    assert (tmp_path / str(A)).exists()
    log = manager.get_or_create(A, topic_id=UUID(int=8), now_ms=NOW_MS)
    assert (log.topic_id, log.log_end_offset) == (UUID(int=8), 0)
    assert manager.deleted_count == 1
    assert len(list(tmp_path.glob("*-delete"))) == 1
    # And with the other one, nothing happens to the new log.
    assert len(list(manager.rename_deleted(NOW_MS))) == 1
    assert manager.logs == {A: log}
    assert log.directory == tmp_path / str(A)
    assert len(list(tmp_path.glob("*-delete"))) == 2


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.logs("the log is renamed to a stray")
def test_a_process_dies_before_a_deleted_log_has_given_up_its_name(tmp_path, is_made_again):
    """The topic stays deleted; a topic that has its name by now begins empty."""
    manager = open_manager(tmp_path)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    manager.delete(A)
    run(manager.maintain(NOW_MS + 60_000))
    crash(manager)
    again = open_manager(tmp_path, is_stray=lambda _, topic_id: not is_made_again or topic_id != UUID(int=8))
    assert not again.logs
    assert len(list(tmp_path.glob("*-stray"))) == 1
    if is_made_again:
        assert again.get_or_create(A, topic_id=UUID(int=8), now_ms=NOW_MS).log_end_offset == 0


def test_a_shutdown_puts_aside_what_was_deleted(tmp_path):
    manager = open_manager(tmp_path)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    manager.delete(A)
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert not (tmp_path / str(A)).exists()
    again = open_manager(tmp_path)
    assert again.was_clean
    run(again.maintain(NOW_MS))
    assert not list(tmp_path.glob("a-0*"))


def test_a_directory_fails_before_a_deleted_log_has_given_up_its_name(tmp_path):
    """Its files are closed; the next start finds a stray."""
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 3)
    manager.delete(A)
    manager.take_offline(tmp_path, OSError(5, "EIO"))
    assert len(list(manager.rename_deleted(NOW_MS))) == 1
    assert manager.deleted_count == 0
    assert not log.is_writable
    assert (tmp_path / str(A)).exists()


@pytest.mark.logs("a stray log", "the log is renamed to a stray")
def test_strays_are_put_aside(tmp_path):
    manager = open_manager(tmp_path)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS))
    manager.rename_strays(lambda *log: log == (A, TOPIC_ID), now_ms=NOW_MS)
    run(manager.maintain(NOW_MS + 10**9))
    assert len(list(tmp_path.glob("a-0.*-stray"))) == 1
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert open_manager(tmp_path).logs == {}


def test_maintain_flushes_closed_segments_and_writes_checkpoints(tmp_path):
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 20)
    base = log.segments.active.base_offset
    assert base > 0
    run(manager.maintain(NOW_MS + 1))
    assert log.recovery_point == base
    assert manager.maintain(NOW_MS + 2) == []
    log.update_high_watermark(20)
    log.maybe_increment_log_start_offset(3)
    run(manager.maintain(NOW_MS + 60_000))
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == f"0\n1\na 0 {base}\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\na 0 3\n"
    crash(manager)
    log = open_manager(tmp_path).get(A)
    assert (log.log_start_offset, log.high_watermark, log.recovery_point) == (3, 20, base)


def test_a_flush_that_a_truncation_overtakes_moves_no_recovery_point(tmp_path):
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 20)
    (job,) = manager.maintain(NOW_MS + 1)
    job.run()
    log.truncate_to(2, now_ms=NOW_MS)
    append(log, 20)
    job.finish()
    assert log.recovery_point == 0


def test_flush_ms(tmp_path):
    manager = open_manager(tmp_path, default_config=LogConfig(flush_ms=1000))
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log)
    assert manager.maintain(NOW_MS + 999) == []
    run(manager.maintain(NOW_MS + 1000))
    assert log.recovery_point == 1


def test_retention_removes_a_few_segments_of_one_log_in_a_step(tmp_path, monkeypatch):
    """A hundred expiring logs, or one of a hundred segments, stop the event loop for no longer than a few do."""
    manager = open_manager(tmp_path)
    logs = [
        manager.get_or_create(TopicPartition("t", at), topic_id=TOPIC_ID, now_ms=NOW_MS) for at in range(5)
    ]
    for log, count in zip(logs, (1, 2, 3, 5, 300), strict=True):
        append(log, count)
        log.update_high_watermark(log.log_end_offset)
    manager.update_config("t", range(5), replace(CONFIG, retention_ms=1000))

    def segment_count():
        return sum(len(log.segments) for log in logs)

    before, removed = segment_count(), []
    assert before > 20
    examined = []
    largest_timestamp_ms = Segment.largest_timestamp_ms
    monkeypatch.setattr(
        Segment, "largest_timestamp_ms", lambda self: examined.append(self) or largest_timestamp_ms(self)
    )
    jobs = manager.maintain(NOW_MS + 300_000)
    assert segment_count() == before
    assert len(examined) <= len(logs) * SEGMENTS_OF_STEP
    for job in jobs:
        part = job
        while part is not None:
            part.run()
            left = [len(log.segments) for log in logs]
            examined.clear()
            part = part.finish()
            assert len(examined) <= 2 * SEGMENTS_OF_STEP, "not all segments in each step"
            removed.append(left)
    steps = [[one - other for one, other in zip(*pair, strict=True)] for pair in pairwise(removed)]
    assert max(map(sum, steps)) <= SEGMENTS_OF_STEP
    assert all(sum(map(bool, step)) <= 1 for step in steps)
    assert [len(log.segments) for log in logs] == [1] * 5
    assert all(log.log_start_offset == log.log_end_offset for log in logs)


def test_retention_and_config_changes(tmp_path):
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 50)
    log.update_high_watermark(50)
    run(manager.maintain(NOW_MS + 300_000))
    assert log.log_start_offset == 0
    manager.update_config("a", [0, 1], LogConfig(segment_bytes=1000, retention_ms=1000))
    run(manager.maintain(NOW_MS + 600_000))
    assert log.log_start_offset == 50
    run(manager.maintain(NOW_MS + 660_000))
    assert not list((tmp_path / "a-0").glob("*.deleted"))


@pytest.mark.parametrize("when", ["before the checkpoint's job", "while it runs", "after it"])
def test_a_topic_that_is_made_again_does_not_begin_where_the_old_one_did(tmp_path, when):
    """The checkpoint with the old log's start is still there when the process is killed."""
    manager = open_manager(tmp_path)

    def make_again():
        manager.delete(A)
        log = manager.get_or_create(A, topic_id=UUID(int=8), now_ms=NOW_MS)
        append(log, 20)

    old = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(old, 30)
    old.update_high_watermark(30)
    old.maybe_increment_log_start_offset(25)
    assert old.segments.first.base_offset < 25
    jobs = manager.maintain(NOW_MS + 60_000)
    if when.startswith("before"):
        make_again()
    for job in jobs:
        job.run()
        if when.startswith("while") and "log start" in job.name:
            make_again()
        job.finish()
    if when.startswith("after"):
        make_again()
    crash(manager)
    log = open_manager(tmp_path).get(A)
    assert (log.log_start_offset, log.log_end_offset) == (0, 20)


def test_no_log_is_created_again_that_may_be_in_an_offline_directory(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    manager = open_manager(one, two)
    manager.take_offline(one, OSError(5, "Input/output error"))
    with pytest.raises(KafkaStorageError, match="in an offline directory"):
        manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS, is_new=False)
    assert manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS).directory.parent == two


def test_checkpoints_are_written_each_in_its_interval(tmp_path):
    settings = LogManagerSettings(
        checkpoint_interval_ms=20_000,
        log_start_checkpoint_interval_ms=30_000,
        high_watermark_checkpoint_interval_ms=50_000,
    )
    manager = open_manager(tmp_path, settings=settings)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 10)
    log.flush()
    log.update_high_watermark(10)
    log.maybe_increment_log_start_offset(5, reason="test")
    written = []
    for seconds in (10, 20, 30, 50):
        jobs = manager.maintain(NOW_MS + seconds * 1000)
        written.append(
            {job.name.removeprefix("checkpoint of 1 ") for job in jobs if "checkpoint" in job.name}
        )
        run(jobs)
    assert written == [set(), {"recovery points"}, {"log start offsets"}, {"high watermarks"}]


def test_new_logs_go_where_nothing_is_cordoned(tmp_path):
    """KIP-1066 adds cordoned log directories."""
    paths = [tmp_path / name for name in ("one", "two", "three")]
    manager = open_manager(*paths)
    numbers = iter(range(100))

    def made(count=6):
        logs = [
            manager.get_or_create(TopicPartition("t", next(numbers)), topic_id=TOPIC_ID, now_ms=NOW_MS)
            for _ in range(count)
        ]
        return [paths.index(log.directory.parent) for log in logs]

    assert sorted(made()) == [0, 0, 1, 1, 2, 2]
    manager.cordoned_dirs = frozenset(paths[:1])
    assert sorted(made()) == [1, 1, 1, 2, 2, 2]
    manager.take_offline(paths[1], OSError(5, "Input/output error"))
    assert made() == [2] * 6
    manager.cordoned_dirs = frozenset(paths)
    assert made() == [0] * 6, "they have been put on this broker, and must go somewhere"


@pytest.mark.logs(
    "a corrupt index is rebuilt",
    "cannot be cleaned, and is not compacted until the next start",
    "is damaged",
    "rebuilding the offset and time index",
)
def test_a_damaged_log_does_not_keep_others_from_their_upkeep(tmp_path):
    config = LogConfig(segment_bytes=1000, cleanup_policy=("compact", "delete"), retention_ms=1000)
    manager = open_manager(tmp_path, default_config=config)
    damaged, good = (manager.get_or_create(tp, topic_id=TOPIC_ID, now_ms=NOW_MS) for tp in (A, B))
    for log in (damaged, good):
        append(log, 50)
        log.update_high_watermark(50)
    manager.shutdown(NOW_MS, broker_epoch=1)
    (tmp_path / "a-0" / f"{0:020d}.log").write_bytes(b"\xff" * 900)
    manager = open_manager(tmp_path, default_config=config)
    for log in manager.logs.values():
        log.update_high_watermark(log.log_end_offset)
    job = manager.clean_one(NOW_MS)
    assert "b.c_d-e-1" in job.name
    job.complete()
    assert manager.clean_one(NOW_MS) is None
    run(manager.maintain(NOW_MS + 10**12))  # empty segments are as old as their files
    assert manager.get(B).log_start_offset == 50


def test_a_topic_is_deleted_while_it_is_compacted(tmp_path):
    config = LogConfig(segment_bytes=1000, cleanup_policy=("compact",))
    manager = open_manager(tmp_path, default_config=config)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 50)
    log.update_high_watermark(50)
    job = manager.clean_one(NOW_MS)
    job.run()
    manager.delete(A)
    job.finish()
    assert not manager.offline_dirs
    manager.shutdown(NOW_MS + 60_000, broker_epoch=1)
    assert manager.logs == {}


def test_compaction_and_its_checkpoint(tmp_path):
    config = LogConfig(segment_bytes=1000, cleanup_policy=("compact",))
    manager = open_manager(tmp_path, default_config=config)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 50)
    log.update_high_watermark(50)
    base = log.segments.active.base_offset
    manager.clean_one(NOW_MS).complete()
    assert offsets_in(log)[0] == base - 1  # the same key in every record
    assert manager.clean_one(NOW_MS) is None
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == f"0\n1\na 0 {base}\n"
    again = open_manager(tmp_path, default_config=config)
    assert again.clean_one(NOW_MS) is None
    assert again.get(A).log_end_offset == 50


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


def test_a_log_that_cannot_be_cleaned_affects_no_other(tmp_path, caplog):
    manager = open_manager(
        tmp_path, default_config=LogConfig(segment_bytes=1000, cleanup_policy=("compact",))
    )
    for at, count in ((A, 50), (B, 40)):
        log = manager.get_or_create(at, topic_id=TOPIC_ID, now_ms=NOW_MS)
        append(log, count)
        log.update_high_watermark(count)
    first = manager.get(A).segments.first.path_of(".log")
    first.write_bytes(first.read_bytes()[:-1] + b"!")
    while (job := manager.clean_one(NOW_MS)) is not None:
        job.complete()
    assert f"{manager.get(A).directory} cannot be cleaned" in caplog.text
    assert list(manager.cleaned_offsets) == [B]
    assert not manager.offline_dirs


@pytest.mark.logs("is corrupt and not used")
def test_corrupt_checkpoints_are_done_without(tmp_path):
    manager = open_manager(tmp_path)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS), 30)
    run(manager.maintain(NOW_MS + 60_000))
    crash(manager)
    for path in tmp_path.glob("*-checkpoint"):
        path.write_bytes(b"\x00garbage")
    assert offsets_in(open_manager(tmp_path).get(A)) == list(range(30))


@pytest.mark.logs("its name is not that of a partition")
def test_what_is_no_log_is_left_alone(tmp_path):
    for name in ("__cluster_metadata-0", "lost+found", "t-x", "t-0-future", ".snapshots"):
        (tmp_path / name).mkdir()
    manager = open_manager(tmp_path)
    assert manager.logs == {}
    run(manager.maintain(NOW_MS + 10**9))
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 5


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


def test_timestamps_that_elections_ask_for_are_read_by_a_job(tmp_path):
    """Draft KIP-1303, where the preference is switched on later."""
    with_records = open_manager(tmp_path)
    for at in (A, B):
        append(with_records.get_or_create(at, topic_id=TOPIC_ID, now_ms=NOW_MS))
    with_records.shutdown(NOW_MS, broker_epoch=1)
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    on = replace(CONFIG, remote_storage_enable=True, leader_election_prefer_early_local_log_start_offset=True)
    log.update_config(on)
    assert log.local_log is None
    run(manager.maintain(NOW_MS))
    assert log.local_log.oldest_timestamp_ms == NOW_MS
    crash(manager)
