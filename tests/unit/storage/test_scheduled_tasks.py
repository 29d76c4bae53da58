"""The periodic work of a broker's logs: flushes, retention, checkpoints, compaction, first timestamps."""

from dataclasses import replace
from itertools import pairwise

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.manager.log_manager import LogManagerSettings
from ottla.storage.manager.scheduled_tasks import SEGMENTS_OF_STEP
from ottla.storage.segment import Segment
from tests.unit.storage.log_manager_support import (
    CONFIG,
    TOPIC_ID,
    A,
    B,
    append,
    crash,
    delete,
    open_manager,
    run,
)
from tests.unit.storage.storage_support import NOW_MS, offsets_in

pytestmark = pytest.mark.logs("Log directory")


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


@pytest.mark.parametrize("back_ms", [90_000, 3_600_000])
def test_a_clock_that_steps_back_puts_nothing_off(tmp_path, back_ms):
    """Retention, expiry, checkpoints, flushes and the removal of files stopped until the clock had caught up."""
    manager = open_manager(tmp_path, default_config=LogConfig(flush_ms=1000))
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    manager.get_or_create(B, topic_id=TOPIC_ID, now_ms=NOW_MS)
    delete(manager, B)
    run(manager.maintain(NOW_MS + 1))
    append(log)
    log.update_high_watermark(1)
    now_ms = NOW_MS - back_ms
    assert manager.maintain(now_ms) == [], "nothing is due earlier, either"
    due = {job.name.partition(" ")[0] for job in manager.maintain(now_ms + 60_000)}
    assert due == {"flush", "remove", "checkpoint"}
