"""Logs that move from one directory to another (KIP-113), and what a crash leaves of that."""

from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import InconsistentTopicId, KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage.manager.log_manager import InconsistentMetaProperties
from ottla.storage.remote_restart import RemoteState
from ottla.stories.partition.faulty_files import FaultyFiles, Killed, Loss
from tests.unit.storage.log_manager_support import TOPIC_ID, A, append, crash, delete, open_manager, run
from tests.unit.storage.storage_support import NOW_MS, offsets_in

PATHS = [Path("/data/a"), Path("/data/b")]


def copy(source, target):
    """Copy the log as a fetcher does."""
    for _, data in source.reader.records_since(target.log_end_offset):
        target.append_as_follower(bytes(data), leader_epoch=source.latest_epoch, now_ms=NOW_MS)


@pytest.fixture
def files():
    return FaultyFiles(random=Random(1))


def begin(files, count=10):
    """A manager with a log in one directory, its empty future log, and that log's directory."""
    manager = open_manager(*PATHS, files=files)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, count)
    log.update_high_watermark(count - 1)
    other = next(path for path in PATHS if path != log.directory.parent)
    return manager, manager.moving.create(A, other, topic_id=TOPIC_ID, now_ms=NOW_MS), other


def folders(files):
    return sorted({path.parent.name for path in files.contents() if "-" in path.parent.name})


def test_promotion(files):
    manager, future, other = begin(files)
    current = manager.logs[A]
    assert future.directory.parent == other
    assert future.directory.name.startswith("a-0.")
    assert future.directory.name.endswith("-future")
    assert manager.get(A) is current
    assert manager.moving.create(A, other, topic_id=TOPIC_ID, now_ms=NOW_MS) is future
    copy(current, future)
    current.maybe_increment_log_start_offset(4, reason="DeleteRecords, after the last copy")
    assert manager.moving.promote(A, now_ms=NOW_MS) is future
    assert manager.get(A) is future
    assert future.directory == other / "a-0"
    assert not future.files.is_future
    assert not manager.future_logs
    assert (future.log_start_offset, future.high_watermark) == (4, 9)
    append(future)
    assert offsets_in(future) == list(range(4, 11))
    assert current.directory.name.endswith("-delete")
    run(manager.maintain(NOW_MS + 100_000))
    assert folders(files) == ["a-0"]
    # The old one's files go only when all of the new one is on the disk.
    manager = open_manager(*PATHS, files=files.after_crash(Random(1), Loss.EVERYTHING))
    assert offsets_in(manager.logs[A]) == list(range(4, 11))


def test_promotion_of_a_tiered_log(files):
    """The future log has what is local, and what is known of the remote part: nothing is copied again (KIP-405)."""
    manager = open_manager(*PATHS, files=files)
    config = LogConfig(segment_bytes=300, remote_storage_enable=True, local_retention_bytes=0)
    current = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS, config=config)
    append(current, 10)
    current.update_high_watermark(10)
    current.update_remote_end_offset(8)
    current.maybe_increment_log_start_offset(2)
    current.apply_retention(NOW_MS)
    local = current.local_log_start_offset
    assert 2 < local < 8
    other = next(path for path in PATHS if path != current.directory.parent)
    future = manager.moving.create(A, other, topic_id=TOPIC_ID, now_ms=NOW_MS)
    state = RemoteState.of(
        offset=local,
        log_start_offset=2,
        leader_epochs=current.leader_epochs.entries,
        producer_snapshot=files.read(current.files.snapshots.path_of(local)),
    )
    future.restart_from_remote(state, now_ms=NOW_MS)
    copy(current, future)
    current.maybe_increment_log_start_offset(3, reason="expired in the remote tier")
    manager.moving.promote(A, now_ms=NOW_MS)
    assert (future.log_start_offset, future.local_log_start_offset) == (3, local)
    assert future.offsets.remote_end_offset == 8
    assert future.leader_epochs.entries == current.leader_epochs.entries
    manager.shutdown(NOW_MS, broker_epoch=1)
    again = open_manager(*PATHS, files=files.after_crash(Random(1), Loss.EVERYTHING), default_config=config)
    assert again.logs[A].log_start_offset == 3
    assert offsets_in_local(again.logs[A]) == list(range(local, 10))


def offsets_in_local(log):
    return [header.base_offset for header, _ in log.reader.records_since(log.local_log_start_offset)]


def test_future_logs_are_loaded_as_such(files):
    manager, future, other = begin(files)
    copy(manager.logs[A], future)
    future.update_high_watermark(7)
    run(manager.maintain(NOW_MS + 100_000))
    rows = (other / "replication-offset-checkpoint", other / "recovery-point-offset-checkpoint")
    assert [files.contents()[path].decode().splitlines()[2:] for path in rows] == [["a 0 7"], ["a 0 0"]]
    name = future.directory.name
    manager.shutdown(NOW_MS, broker_epoch=1)
    manager = open_manager(*PATHS, files=files)
    assert manager.future_logs[A].directory.name == name
    assert (manager.future_logs[A].high_watermark, manager.future_logs[A].recovery_point) == (7, 10)
    assert manager.logs[A].directory.name == "a-0"
    assert manager.logs[A].directory.parent != manager.future_logs[A].directory.parent == other
    assert manager.moving.promote(A, now_ms=NOW_MS).log_end_offset == 10


def test_new_logs_count_future_ones(files):
    manager, _, other = begin(files)
    manager.get_or_create(TopicPartition("n", 0), topic_id=TOPIC_ID, now_ms=NOW_MS)
    third = manager.get_or_create(TopicPartition("n", 1), topic_id=TOPIC_ID, now_ms=NOW_MS)
    fourth = manager.get_or_create(TopicPartition("n", 2), topic_id=TOPIC_ID, now_ms=NOW_MS)
    assert {third.directory.parent, fourth.directory.parent} == set(PATHS)
    assert other in PATHS


def test_given_up(files):
    manager, _, other = begin(files)
    manager.moving.delete(A, now_ms=NOW_MS)
    assert not manager.future_logs
    assert folders(files)[0] == "a-0"
    assert folders(files)[1].endswith("-delete")
    with pytest.raises(KafkaStorageError, match="future log"):
        manager.moving.promote(A, now_ms=NOW_MS)
    assert manager.moving.create(A, other, topic_id=TOPIC_ID, now_ms=NOW_MS).log_end_offset == 0


def test_a_deleted_partition_takes_its_future_along(files):
    manager, _, _ = begin(files)
    delete(manager, A)
    assert not manager.logs
    assert not manager.future_logs
    run(manager.maintain(NOW_MS + 100_000))
    assert folders(files) == []


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.logs("Log directory", "is offline", "the deleted log")
def test_a_deleted_partition_on_a_failing_disk(files, failing):
    """The log on the other disk is removed all the same, since it would never be found later."""
    manager, _, _ = begin(files)
    files.fail("rename", errno=5, under=PATHS[failing])
    delete(manager, A)
    assert [*manager.offline_dirs] == [PATHS[failing]]
    assert not manager.logs
    assert not manager.future_logs
    assert [name.endswith("-delete") for name in folders(files)].count(True) == 1


@pytest.mark.logs("Log directory", "is offline")
def test_offline(files):
    manager, future, other = begin(files)
    copy(manager.logs[A], future)
    files.fail("write", errno=5, under=other, is_lasting=True)
    with pytest.raises(KafkaStorageError):
        append(future)
    assert not manager.future_logs
    with pytest.raises(KafkaStorageError, match="future log"):
        manager.moving.promote(A, now_ms=NOW_MS)
    with pytest.raises(KafkaStorageError):
        manager.moving.create(A, other, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(manager.logs[A])


@pytest.mark.logs("Log directory", "is offline", "cannot be deleted")
def test_the_old_directory_fails_while_it_gives_the_log_away(files):
    manager, future, _ = begin(files)
    copy(manager.logs[A], future)
    files.fail("rename", errno=5, under=manager.logs[A].directory.parent)
    assert manager.moving.promote(A, now_ms=NOW_MS) is future
    assert len(manager.offline_dirs) == 1
    append(manager.logs[A])


def test_compaction_resumes_where_it_stopped(files):
    manager, future, other = begin(files)
    manager.cleaned_offsets[A] = 5
    copy(manager.logs[A], future)
    run(manager.maintain(NOW_MS + 100_000))
    assert other / "cleaner-offset-checkpoint" not in files.contents()
    manager.moving.promote(A, now_ms=NOW_MS)
    run(manager.maintain(NOW_MS + 200_000))
    assert files.contents()[other / "cleaner-offset-checkpoint"].endswith(b"\na 0 5\n")


@pytest.mark.parametrize("began_before", [True, False])
def test_a_log_that_moves_is_not_compacted(files, began_before):
    """The copy may be of before: what would count as clean is not so in it."""
    config = LogConfig(segment_bytes=1000, cleanup_policy=("compact",))
    manager = open_manager(*PATHS, files=files, default_config=config)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 50)
    log.update_high_watermark(50)
    other = next(path for path in PATHS if path != log.directory.parent)
    job = manager.clean_one(NOW_MS) if began_before else None
    future = manager.moving.create(A, other, topic_id=TOPIC_ID, now_ms=NOW_MS)
    copy(log, future)
    if job is not None:
        job.complete()
    assert manager.clean_one(NOW_MS) is None
    manager.moving.promote(A, now_ms=NOW_MS)
    assert not manager.cleaned_offsets
    manager.clean_one(NOW_MS).complete()
    assert len(offsets_in(manager.logs[A])) < 50


@pytest.mark.parametrize("is_current_there", [True, False])
@pytest.mark.logs("a stray log")
def test_abandoned_by_a_dead_process(files, is_current_there):
    """The controller has the assignment, and the process died before the swap."""
    manager, future, other = begin(files)
    copy(manager.logs[A], future)
    directory_id = manager.directory_ids[other]
    if not is_current_there:
        # As if the old directory had failed, and its partition had been put aside.
        manager.logs.pop(A).rename_directory(next(it for it in PATHS if it != other) / "a-0.00-stray")
    crash(manager)
    manager = open_manager(*PATHS, files=files.after_crash(Random(1), Loss.NOTHING))
    asked = []

    def is_assigned(topic_partition, topic_id, to):
        asked.append((topic_partition, topic_id, to))
        return to == directory_id

    assert not manager.moving.promote_abandoned(lambda *_: False, now_ms=NOW_MS)
    if is_current_there:
        # It may have more than was copied: the move goes on.
        assert not manager.moving.promote_abandoned(is_assigned, now_ms=NOW_MS)
        assert manager.logs[A].directory != other / "a-0"
        return
    assert manager.moving.promote_abandoned(is_assigned, now_ms=NOW_MS) == [A]
    assert asked == [(A, TOPIC_ID, directory_id)]
    assert manager.logs[A].directory == other / "a-0"
    assert offsets_in(manager.logs[A]) == list(range(10))


@pytest.mark.logs("the log is renamed to a stray")
def test_an_older_topics_future_log_takes_no_other_logs_place(files):
    """The metadata may know one of two logs of one name: the other one is a stray."""
    manager, future, other = begin(files)
    manager.logs[A].topic_id = new_id = UUID(int=8)
    with pytest.raises(InconsistentTopicId, match=r"-future belongs to another topic id"):
        manager.moving.promote(A, now_ms=NOW_MS)
    manager.rename_strays(lambda _, topic_id: topic_id != new_id, now_ms=NOW_MS)
    assert list(manager.logs) == [A]
    assert not manager.future_logs
    assert future.directory.parent == other
    assert future.directory.name.endswith("-stray")


@pytest.mark.logs("so it is renamed to a stray")
def test_a_future_log_whose_log_was_in_a_removed_directory(files):
    """An operator has removed the failed disk from `log.dirs`; the partition's new log is in the future log's
    directory.
    """
    manager, future, other = begin(files)
    copy(manager.logs[A], future)
    manager.shutdown(NOW_MS, broker_epoch=1)
    manager = open_manager(other, files=files)
    assert list(manager.future_logs) == [A]
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS, is_new=False)
    assert log.directory == other / "a-0"
    assert not manager.future_logs
    assert [name[-6:] for name in folders(files) if name.startswith("a-0.")] == ["-stray"]


def test_killed_at_every_step_of_a_swap():
    """There is always one whole log, or two that a start refuses to choose from."""
    ends = set()
    for nth in range(1, 60):
        files = FaultyFiles(random=Random(nth))
        manager, future, _ = begin(files)
        copy(manager.logs[A], future)
        files.fail(None, nth=nth, errno=None)
        is_killed = False
        try:
            manager.moving.promote(A, now_ms=NOW_MS)
            run(manager.maintain(NOW_MS + 100_000))
        except Killed:
            is_killed = True
        with suppress(InconsistentMetaProperties):
            manager = open_manager(*PATHS, files=files.after_crash(Random(1), Loss.NOTHING))
            assert offsets_in(manager.logs[A]) == list(range(10))
            ends.add(len(manager.future_logs))
            if not is_killed:
                assert not manager.future_logs
                return
            continue
        ends.add("refused")
    raise AssertionError(ends)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss", Loss)
def test_a_power_cut_behind_a_promotion(loss, seed):
    """The flushed records of the old log are in one of the two, whatever of the renames is on the disk, or
    the start refuses."""
    files = FaultyFiles(random=Random(seed))
    manager, future, other = begin(files)
    assigned = manager.directory_ids[other]
    manager.logs[A].flush()
    copy(manager.logs[A], future)
    manager.moving.promote(A, now_ms=NOW_MS)
    with suppress(InconsistentMetaProperties):
        manager = open_manager(*PATHS, files=files.after_crash(Random(seed), loss))
        manager.moving.promote_abandoned(lambda _, __, to: to == assigned, now_ms=NOW_MS)
        assert offsets_in(manager.logs[A]) == list(range(10))


def test_two_futures_are_refused(files):
    manager, future, other = begin(files)
    manager.shutdown(NOW_MS, broker_epoch=1)
    files.make_dir(other / "a-0.ff-future")
    assert future.directory.name != "a-0.ff-future"
    with pytest.raises(InconsistentMetaProperties):
        open_manager(*PATHS, files=files)


def test_what_left_the_log_before_its_promotion_is_removed_in_its_new_folder(files):
    manager, future, _ = begin(files, 40)
    copy(manager.logs[A], future)
    future.truncate_to(2, now_ms=NOW_MS)
    run(manager.maintain(NOW_MS))
    copy(manager.logs[A], future)
    manager.moving.promote(A, now_ms=NOW_MS)
    assert any(path.suffix == ".deleted" for path in files.contents(future.directory))
    run(manager.maintain(NOW_MS + 100_000))
    run(manager.maintain(NOW_MS + 200_000))
    assert not any(path.suffix == ".deleted" for path in files.contents(future.directory))


@pytest.mark.logs("Log directory", "Cannot remove deleted files")
def test_a_log_that_cannot_be_removed_yet_affects_no_other(files):
    """The log that took its place cannot be flushed, since its directory has failed."""
    manager, future, other = begin(files)
    copy(manager.logs[A], future)
    manager.moving.promote(A, now_ms=NOW_MS)
    manager.take_offline(other, OSError(5, "EIO"))
    deleted = [TopicPartition("t", number) for number in range(3)]
    for at in deleted:
        manager.get_or_create(at, topic_id=TOPIC_ID, now_ms=NOW_MS)
        delete(manager, at)
    files.fail("fsync", errno=5, under=other, is_lasting=True)
    run(manager.maintain(NOW_MS + 100_000))
    assert [name.split(".")[0] for name in folders(files)] == [
        "a-0",
        "a-0",
    ]  # the new one, and the old one's files
