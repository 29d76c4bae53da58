"""Opening many logs: several at a time, each logged, and those beside a log that fails."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier
from uuid import UUID

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.background import run_one_by_one
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.manager.log_manager import InconsistentMetaProperties, LogManager, LogManagerSettings
from ottla.stories.partition.faulty_files import FaultyFiles, Loss
from tests.unit.storage.log_manager_support import CONFIG, TOPIC_ID, append, crash, open_manager
from tests.unit.storage.storage_support import NOW_MS

PARTITIONS = [TopicPartition("t", number) for number in range(12)]


def side_by_side(groups, *, threads_per_group=2):
    """Four at a time, of all directories."""
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(job) for group in groups for job in group]
    for future in futures:
        future.result()


def make(*paths, **options):
    manager = open_manager(*paths, **options)
    for number, at in enumerate(PARTITIONS):
        append(manager.get_or_create(at, topic_id=TOPIC_ID, now_ms=NOW_MS), number)
    return manager


@pytest.mark.parametrize("is_clean", [True, False])
def test_several_at_a_time(tmp_path, monkeypatch, is_clean):
    manager = make(tmp_path / "a", tmp_path / "b")
    manager.shutdown(NOW_MS, broker_epoch=1) if is_clean else crash(manager)
    meeting = Barrier(4, timeout=60)
    really_open = Log.open

    def open_together(*args, **options):
        meeting.wait()
        return really_open(*args, **options)

    monkeypatch.setattr(Log, "open", open_together)
    manager = open_manager(tmp_path / "a", tmp_path / "b", run_parallel=side_by_side)
    assert manager.was_clean is is_clean
    assert [manager.logs[at].log_end_offset for at in PARTITIONS] == list(range(12))
    monkeypatch.undo()
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert open_manager(tmp_path / "a", tmp_path / "b").was_clean


def test_groups_are_directories(tmp_path):
    make(tmp_path / "a", tmp_path / "b").shutdown(NOW_MS, broker_epoch=1)
    sizes = []

    def count(groups, *, threads_per_group):
        sizes.append(([len(group) for group in groups], threads_per_group))
        side_by_side(groups)

    manager = open_manager(tmp_path / "a", tmp_path / "b", run_parallel=count)
    manager.settings = LogManagerSettings(recovery_threads_per_data_dir=3)  # altered meanwhile
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert sizes == [([6, 6], 2), ([6, 6], 3)]  # opened and closed


def test_the_progress_of_a_recovery_is_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    crash(make(tmp_path))
    caplog.clear()
    open_manager(tmp_path)
    reported = [
        record.getMessage() for record in caplog.records if record.name == "ottla.storage.manager.log_loading"
    ]
    assert reported[0] == f"{tmp_path} was not shut down cleanly: recovering 12 logs"
    assert reported[1] == f"t-0: opened, 1 segments, offsets [0, 0); 1 of 12 logs in {tmp_path}, 11 remain"
    assert len(reported) == 13
    assert reported[-1].endswith(f"12 of 12 logs in {tmp_path}, 0 remain")


def test_a_clean_start_logs_two_lines(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    make(tmp_path).shutdown(NOW_MS, broker_epoch=1)
    caplog.clear()
    open_manager(tmp_path)
    reported = [
        record.getMessage() for record in caplog.records if record.name == "ottla.storage.manager.log_loading"
    ]
    assert reported[0] == f"{tmp_path} was shut down cleanly: 12 logs need no recovery"
    assert len(reported) == 2


@pytest.mark.logs("Log directory")
def test_what_is_opened_after_its_directory_has_failed(tmp_path):
    """The third log of a directory cannot be read: those before and after it are offline, too."""
    files = FaultyFiles(random=Random(1))
    paths = [Path("/data/a"), Path("/data/b")]
    make(*paths, files=files)
    files = files.after_crash(Random(1), Loss.NOTHING)
    in_a = sorted(it.parent.name for it in files.contents(paths[0]) if it.parent != paths[0])
    in_a = list(dict.fromkeys(in_a))
    files.fail("read", errno=5, under=paths[0] / in_a[2], is_lasting=True)
    manager = open_manager(*paths, files=files)
    assert list(manager.offline_dirs) == paths[:1]
    assert len(manager.logs) == 6
    assert {log.directory.parent for log in manager.logs.values()} == {paths[1]}


@pytest.mark.parametrize("run_parallel", [None, side_by_side])
def test_the_same_log_twice_is_refused(tmp_path, run_parallel):
    make(tmp_path / "a").shutdown(NOW_MS, broker_epoch=1)
    manager = open_manager(tmp_path / "b", cluster_id="cluster")
    manager.get_or_create(PARTITIONS[0], topic_id=TOPIC_ID, now_ms=NOW_MS)
    manager.shutdown(NOW_MS, broker_epoch=1)
    options = {} if run_parallel is None else {"run_parallel": run_parallel}
    with pytest.raises(InconsistentMetaProperties, match="t-0 has two logs"):
        open_manager(tmp_path / "a", tmp_path / "b", **options)


@pytest.mark.logs("the log is renamed to a stray")
@pytest.mark.parametrize("run_parallel", [run_one_by_one, side_by_side])
@pytest.mark.parametrize("assigned", ["a", "b"])
def test_of_two_logs_the_assigned_one_is_kept(tmp_path, assigned, run_parallel):
    """A directory is back that had left, while the replica was copied to another one."""
    paths = [tmp_path / name for name in "ab"]
    options = {
        "files": Files(),
        "cluster_id": "c",
        "node_id": 1,
        "now_ms": NOW_MS,
        "run_parallel": run_parallel,
    }
    for number, path in enumerate(paths):
        ids, random = [UUID(int=number + 1)], Random(number)
        manager = LogManager.open([path], directory_id=ids.pop, random=random, **options)
        append(manager.get_or_create(PARTITIONS[0], topic_id=TOPIC_ID, now_ms=NOW_MS), 5)
        manager.shutdown(NOW_MS, broker_epoch=1)
        if path.name != assigned:
            (path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    manager = LogManager.lock(paths, directory_id=lambda: UUID(int=9), random=Random(1), **options)
    directory_id = manager.directory_ids[tmp_path / assigned]
    manager.load(
        lambda topic: LogConfig(),
        lambda topic_partition, topic_id: False,
        NOW_MS,
        is_assigned=lambda at, directory: (at, directory) == (PARTITIONS[0], directory_id),
    )
    assert manager.logs[PARTITIONS[0]].directory == tmp_path / assigned / "t-0"
    [stray] = tmp_path.glob("*/*-stray")
    assert stray.parent.name != assigned
    assert manager.cleaned_offsets == {}, "of the stray"


@pytest.mark.parametrize("run_parallel", [None, side_by_side])
@pytest.mark.parametrize("older", ["a", "b"])
def test_a_stray_is_no_second_log_of_its_name(tmp_path, caplog, older, run_parallel):
    """Its topic was deleted while its directory was away, and created again in another one."""
    newer = "b" if older == "a" else "a"
    for name, topic_id, count in ((older, TOPIC_ID, 5), (newer, UUID(int=8), 2)):
        manager = open_manager(tmp_path / name)
        append(manager.get_or_create(PARTITIONS[0], topic_id=topic_id, now_ms=NOW_MS), count)
        manager.shutdown(NOW_MS, broker_epoch=1)
        (tmp_path / name / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {count - 1}\n")
    options = {} if run_parallel is None else {"run_parallel": run_parallel}
    manager = open_manager(
        tmp_path / "a",
        tmp_path / "b",
        is_stray=lambda at, topic_id: (at, topic_id) != (PARTITIONS[0], UUID(int=8)),
        **options,
    )
    assert {at: log.directory for at, log in manager.logs.items()} == {
        PARTITIONS[0]: tmp_path / newer / "t-0"
    }
    assert manager.logs[PARTITIONS[0]].log_end_offset == 2
    assert manager.cleaned_offsets == {PARTITIONS[0]: 1}, "not what was compacted of the other one"
    assert len(list((tmp_path / older).glob("t-0.*-stray"))) == 1
    assert f"{tmp_path / older / 't-0'}: the metadata has no such replica" in caplog.text


@pytest.mark.logs(
    "Log directory", "the log is renamed to a stray", "is offline", "the stray log cannot be renamed"
)
def test_a_stray_that_cannot_be_set_aside_takes_its_directory_offline():
    files = FaultyFiles(random=Random(1))
    paths = [Path("/data/a"), Path("/data/b")]
    make(*paths, files=files)
    files = files.after_crash(Random(1), Loss.NOTHING)
    files.fail("rename", errno=5, under=paths[0], is_lasting=True)
    manager = open_manager(*paths, files=files, is_stray=lambda *_: True)
    assert list(manager.offline_dirs) == paths[:1]
    assert not manager.logs


@pytest.mark.logs("the log is renamed to a stray")
def test_a_stray_is_flushed_by_a_job():
    """A start may set thousands of logs aside, and the loop does not wait for their flushes."""
    files = FaultyFiles(random=Random(1))
    path = Path("/data")
    make(path, files=files)
    files = files.after_kill()
    manager = open_manager(path, files=files, is_stray=lambda *_: False)
    flushed = []
    files.on_operation = lambda operation, path: flushed.append(path) if operation == "fsync" else None
    manager.rename_strays(lambda *_: True, now_ms=NOW_MS)
    assert not [each for each in flushed if each.suffix == ".log"]
    for job in manager.maintain(NOW_MS):
        job.complete()
    assert len({each.parent for each in flushed if each.suffix == ".log"}) == len(PARTITIONS)


def test_a_topics_configuration_is_asked_once(tmp_path):
    make(tmp_path).shutdown(NOW_MS, broker_epoch=1)
    asked = []
    open_manager(tmp_path, topic_config=lambda topic: asked.append(topic) or CONFIG)
    assert asked == ["t"]
