"""Deleted logs and strays: their folders are renamed, and their names and checkpoints are free for new logs."""

from uuid import UUID

import pytest

from tests.unit.storage.log_manager_support import TOPIC_ID, A, B, append, crash, delete, open_manager, run
from tests.unit.storage.storage_support import NOW_MS

pytestmark = pytest.mark.logs("Log directory")


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
