"""Faults that test_crash_stories has found, one by one; the power fails, and all that was not flushed is
gone."""

from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.log import AppendOrigin
from ottla.storage.manager.log_manager import LogManager
from ottla.storage.recovery import valid_batches
from ottla.stories.partition.faulty_files import FaultyFiles, Killed, Loss
from tests.unit.storage.storage_support import NOW_MS, batch, marker, offsets_in, open_log

pytestmark = pytest.mark.logs("")  # whatever a crash leaves

TP = TopicPartition("t", 0)
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=1)
#: Every append is on the disk when it is answered.
AT_ONCE = LogConfig(segment_bytes=1000, index_interval_bytes=1, flush_messages=1)


def open_manager(files, config=AT_ONCE):
    return LogManager.open(
        [Path("/data/a")], files=files, cluster_id="c", node_id=1, directory_id=lambda: UUID(int=5), random=Random(1),
        now_ms=NOW_MS, default_config=config,
    )  # fmt: skip


def new_log(files, config=AT_ONCE):
    manager = open_manager(files, config)
    return manager, manager.get_or_create(TP, topic_id=UUID(int=7), config=config, now_ms=NOW_MS)


def append(log, count=1, *, epoch=0, **fields):
    for at in range(count):
        log.append_as_leader(
            batch(1, timestamp=NOW_MS + log.log_end_offset, value=b"%d" % at * 30, **fields),
            leader_epoch=epoch,
            now_ms=NOW_MS,
        )
        flush_if_due(log)


def flush_if_due(log):
    """Flush, as a broker does before it responds."""
    if log.flusher.is_due:
        log.flush()


def checkpoint(manager):
    for job in manager.maintain(NOW_MS + 100_000):
        job.complete()


def abort(log):
    fields = {"producer_id": 5, "producer_epoch": 0}
    append(log, base_sequence=0, is_transactional=True, **fields)
    log.append_as_leader(
        marker(producer_id=5, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
    )
    flush_if_due(log)


def after_power_cut(files, config=AT_ONCE):
    files = files.after_crash(Random(1), Loss.EVERYTHING)
    manager = open_manager(files, config)
    return manager, manager.logs[TP]


@pytest.mark.parametrize("ending", ["stop", "roll"])
def test_indexes_of_what_is_flushed_already(ending):
    """The batches were, by flush.messages; the aborted transaction was forgotten, and its records served."""
    files = FaultyFiles(random=Random(1))
    manager, log = new_log(files)
    abort(log)
    append(log, 3)
    expected = log.reader.aborted_transactions(0, 100)
    assert len(expected) == 1
    if ending == "stop":
        manager.shutdown(NOW_MS, broker_epoch=1)
    else:
        checkpoint(manager)
        log.roll(NOW_MS)
        append(log)
    manager, log = after_power_cut(files)
    assert manager.was_clean is (ending == "stop")
    assert log.reader.aborted_transactions(0, 100) == expected
    assert log.reader.offset_for_timestamp(NOW_MS + 4).offset == 4


def _truncated(files, manager, log):
    checkpoint(manager)
    end = log.log_end_offset
    append(log, 2)
    checkpoint(manager)
    log.truncate_to(end, now_ms=NOW_MS)
    return files, log


def _truncated_and_flushed(files, manager, log):
    _, log = _truncated(files, manager, log)
    log.flush()
    checkpoint(manager)
    return files, log


def _truncated_to_a_segment(files, manager, log):
    end = log.roll(NOW_MS).base_offset
    append(log, 2)
    checkpoint(manager)
    log.truncate_to(end, now_ms=NOW_MS)
    log.truncate_to(end - 1, now_ms=NOW_MS)
    return files, log


def _stopped(files, manager, log):
    manager.shutdown(NOW_MS, broker_epoch=1)
    files = files.after_kill()
    return files, open_manager(files).logs[TP]


def _stopped_and_killed(files, manager, log):
    files, _ = _stopped(files, manager, log)
    files = files.after_kill()
    return files, open_manager(files).logs[TP]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "happens", [_truncated, _truncated_and_flushed, _truncated_to_a_segment, _stopped, _stopped_and_killed]
)
def test_a_roll_at_the_recovery_point_waits_for_nothing(happens, seed):
    """Recovery does not trust the indexes of the closed segment then."""
    files = FaultyFiles(random=Random(seed))
    manager, log = new_log(files)
    abort(log)
    append(log, 3)
    files, log = happens(files, manager, log)
    end, left, expected = log.log_end_offset, offsets_in(log), log.reader.aborted_transactions(0, 100)
    assert len(expected) == 1
    waits = []
    files.on_operation = lambda operation, path: waits.append(path) if operation.startswith("fsync") else None
    assert log.roll(NOW_MS).base_offset == end
    files.on_operation = None
    assert waits == []
    files = files.after_crash(Random(seed), Loss.ANYTHING)
    log = open_manager(files).logs[TP]
    assert offsets_in(log)[: len(left)] == left  # the truncation may not be on the disk
    assert log.reader.aborted_transactions(0, 100) == expected
    assert log.reader.offset_for_timestamp(NOW_MS + 3).offset == 3


def test_recovery_point_before_a_truncation():
    """New batches before the old point were believed without a look."""
    files = FaultyFiles(random=Random(1))
    manager, log = new_log(files)
    append(log, 30)
    checkpoint(manager)
    log.truncate_to(10, now_ms=NOW_MS)
    row = files.contents()[Path("/data/a/recovery-point-offset-checkpoint")].decode().split()
    assert int(row[-1]) <= 10


def test_log_start_before_a_truncation():
    """The log ended before the old start, and was removed."""
    files = FaultyFiles(random=Random(1))
    manager, log = new_log(files)
    append(log, 30)
    log.update_high_watermark(30)
    log.maybe_increment_log_start_offset(25)
    checkpoint(manager)
    log.truncate_fully_and_start_at(3, now_ms=NOW_MS)
    append(log, 5, epoch=1)
    _, log = after_power_cut(files)
    assert offsets_in(log) == [3, 4, 5, 6, 7]


def test_truncation_before_a_clean_stop():
    """The entries of the directory were not flushed: segments came back."""
    files = FaultyFiles(random=Random(1))
    manager, log = new_log(files)
    append(log, 30)
    log.truncate_fully_and_start_at(12, now_ms=NOW_MS)
    manager.shutdown(NOW_MS, broker_epoch=1)
    _, log = after_power_cut(files)
    assert (log.log_start_offset, log.log_end_offset) == (12, 12)


def test_a_new_log_directory_is_on_the_disk():
    files = FaultyFiles(random=Random(1))
    _, log = new_log(files)
    append(log, 3)
    _, log = after_power_cut(files)
    assert offsets_in(log) == [0, 1, 2]


def test_batches_of_before_a_truncation_end_the_log(tmp_path):
    """They are sound, and of an older epoch than those that took their place."""
    old = open_log(tmp_path / "old", config=SMALL)
    append(old, 20, epoch=1)
    old.close()
    new = open_log(tmp_path / "new", config=SMALL)
    append(new, 3, epoch=2)
    new.close()
    stale = max((tmp_path / "old").glob("*.log"))
    (tmp_path / "new" / stale.name).write_bytes(stale.read_bytes())
    log = open_log(tmp_path / "new", config=SMALL, is_clean=False)
    assert offsets_in(log) == [0, 1, 2]


def test_an_epoch_at_the_start_of_an_empty_log(tmp_path):
    """It was kept by the first opening, and dropped by the second."""
    log = open_log(tmp_path / "l", config=SMALL)
    append(log, 2, epoch=3)
    log.update_high_watermark(2)
    log.close_files()
    seen = []
    for _ in range(2):
        log = open_log(tmp_path / "l", config=SMALL, is_clean=False, log_start_offset=9)
        seen.append(log.leader_epochs.entries)
        log.close_files()
    assert seen[0] == seen[1]


def test_an_epoch_file_that_was_cut_within_a_number(tmp_path):
    """`1 15` became `1 1`, and was believed."""
    log = open_log(tmp_path / "l", config=SMALL)
    append(log, 15)
    append(log, 5, epoch=1)
    log.close()
    path = tmp_path / "l" / "leader-epoch-checkpoint"
    path.write_bytes(path.read_bytes()[:-2])
    log = open_log(tmp_path / "l", config=SMALL, is_clean=False, recovery_point=20)
    assert log.leader_epochs.entries == ((0, 0), (1, 15))


def test_recovery_that_is_killed_while_it_reads_the_epochs():
    """Half of them were written, and believed by the next recovery."""
    for nth in range(1, 40):
        files = FaultyFiles(random=Random(nth))
        manager, log = new_log(files)
        for epoch in range(4):
            append(log, 10, epoch=epoch)
        checkpoint(manager)
        files.unlink(log.directory / "leader-epoch-checkpoint")
        files = files.after_crash(Random(1), Loss.NOTHING)
        files.fail(None, nth=nth, errno=None)
        with suppress(Killed):
            open_manager(files)
        log = open_manager(files.after_crash(Random(1), Loss.NOTHING)).logs[TP]
        assert log.leader_epochs.entries == ((0, 0), (1, 10), (2, 20), (3, 30)), nth


def test_changed_configuration_of_a_running_log(tmp_path):
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=100_000, index_interval_bytes=100_000))
    append(log, 10)
    assert len(log.segments) == 1
    assert log.segments.active.indexes.offset_index.count == 0
    log.update_config(LogConfig(segment_bytes=100_000, index_interval_bytes=1))
    append(log, 2)
    assert log.segments.active.indexes.offset_index.count == 2
    assert log.recovery_point == 0
    log.update_config(LogConfig(segment_bytes=100_000, flush_messages=1))
    append(log)
    assert log.recovery_point == log.log_end_offset
    log.update_config(LogConfig(segment_bytes=500, retention_bytes=600, retention_ms=None))
    append(log, 12)
    assert len(log.segments) > 2
    log.update_high_watermark(log.log_end_offset)
    assert log.apply_retention(NOW_MS) > 0


@pytest.mark.parametrize("is_first_gone", [False, True])
def test_a_transaction_from_before_the_log_start(is_first_gone):
    """Snapshots up to the log start were removed: the second recovery did not know any more what the first one knew."""
    files = FaultyFiles(random=Random(1))
    manager, log = new_log(files)
    append(log, base_sequence=0, is_transactional=True, producer_id=5, producer_epoch=0)
    start = log.roll(NOW_MS).base_offset
    append(log, base_sequence=1, is_transactional=True, producer_id=5, producer_epoch=0)
    log.update_high_watermark(start)
    log.maybe_increment_log_start_offset(start)
    if is_first_gone:
        assert log.apply_retention(NOW_MS) == 1
        log.flush()
    checkpoint(manager)
    seen = []
    for _ in range(3):
        _, log = after_power_cut(files)
        files = log.files.file_system
        log.update_high_watermark(log.log_end_offset)
        state = log.producers.producers[5]
        seen.append((state.last_sequence, state.transaction_first_offset, log.last_stable_offset))
    assert seen == [(1, 0, start)] * 3


def test_a_truncation_to_the_first_byte_before_a_clean_stop():
    """There was no offset to flush, and so the file was not: what had been flushed before was there again."""
    files = FaultyFiles(random=Random(1))
    manager, log = new_log(files)
    append(log, 2)
    log.truncate_to(0, now_ms=NOW_MS)
    manager.shutdown(NOW_MS, broker_epoch=1)
    manager, log = after_power_cut(files)
    assert manager.was_clean
    assert log.log_end_offset == 0


def test_killed_while_truncating():
    """The oldest segment went first, and left a hole."""
    for nth in range(1, 40):
        files = FaultyFiles(random=Random(nth))
        _, log = new_log(files)
        append(log, 40)
        assert len(log.segments) > 3
        files.fail(None, nth=nth, errno=None)
        with suppress(Killed):
            log.truncate_to(3, now_ms=NOW_MS)
        log = open_manager(files.after_crash(Random(1), Loss.NOTHING)).logs[TP]
        offsets = offsets_in(log)
        assert offsets == list(range(len(offsets))), nth
        assert len(offsets) >= 3


def test_a_gap_reappears_with_the_truncated_records():
    """An unflushed part may have a hole, and so may records that an unflushed truncation has removed: that
    hole, and no other."""
    files = FaultyFiles(random=Random(1))
    _, log = new_log(files)
    append(log, 20)
    first, second = log.segments.closed[:2]
    hole = second.base_offset - 1
    log.close_files()
    files.unlink(Path("/data/a/recovery-point-offset-checkpoint"))
    files.tear(first.path_of(".log"), first.reader.start_of(hole))
    log = open_manager(files.after_crash(Random(1), Loss.NOTHING)).logs[TP]
    expected = [*range(hole), *range(hole + 1, 20)]
    assert offsets_in(log) == expected
    log.flush()
    log.truncate_fully_and_start_at(0, now_ms=NOW_MS)
    _, log = after_power_cut(log.files.file_system)
    assert offsets_in(log) == expected


@pytest.mark.parametrize("then", ["flush", "roll", "close"])
def test_power_cut_while_a_truncation_is_flushed(then):
    """The shortened segment was on the disk before the removal of those behind it: they came back after a hole."""
    for nth in range(1, 40):
        files = FaultyFiles(random=Random(nth))
        _, log = new_log(files)
        append(log, 40)
        log.truncate_to(log.segments.closed[1].base_offset - 2, now_ms=NOW_MS)
        files.fail(None, nth=nth, errno=None)
        with suppress(Killed):
            log.roll(NOW_MS) if then == "roll" else log.close() if then == "close" else log.flush()
        _, log = after_power_cut(files)
        offsets = offsets_in(log)
        assert offsets == list(range(len(offsets))), nth


@pytest.mark.parametrize("seed", range(40))
def test_a_truncation_is_on_the_disk_before_a_segment_that_begins_where_it_ends(seed):
    """Nothing else has changed in the segment: its indexes are those of the start. Any pages reach the disk."""
    files = FaultyFiles(random=Random(seed))
    config = LogConfig(segment_bytes=10_000)
    manager, log = new_log(files, config)
    append(log, 3)
    manager.shutdown(NOW_MS, broker_epoch=1)
    manager = open_manager(files, config)
    log = manager.get(TP)
    log.append_as_leader(batch(1, timestamp=NOW_MS, value=b"old"), leader_epoch=0, now_ms=NOW_MS)
    log.truncate_to(3, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.append_as_leader(batch(1, timestamp=NOW_MS, value=b"new"), leader_epoch=1, now_ms=NOW_MS)
    manager.shutdown(NOW_MS, broker_epoch=1)
    after = open_manager(files.after_crash(Random(seed), Loss.PAGES), config).get(TP)
    assert offsets_in(after) == [0, 1, 2, 3]
    assert after.epoch_for_offset(3) == 1


#: Its segments are rolled by the test only.
LONG = LogConfig(segment_bytes=100_000, index_interval_bytes=1)


@pytest.mark.parametrize("seed", range(10))
def test_a_truncation_of_a_segment_that_was_rolled_after_a_checkpoint(seed):
    """The roll moves the recovery point back in memory only: the one on the disk was behind what is written again."""
    files = FaultyFiles(random=Random(seed))
    manager, log = new_log(files, LONG)
    append(log, 10)
    log.flush()
    checkpoint(manager)
    log.roll(NOW_MS)
    log.truncate_to(5, now_ms=NOW_MS)
    append(log, 2, epoch=1)
    log.roll(NOW_MS)
    append(log, 3, epoch=1)
    files = files.after_crash(Random(seed), Loss.ANYTHING)
    log = open_manager(files, LONG).logs[TP]
    ends = []
    for segment in log.segments:
        found = [
            (header.next_offset, position + header.size_bytes)
            for header, position, _ in valid_batches(segment)
        ]
        end, size_bytes = found[-1] if found else (segment.base_offset, 0)
        assert size_bytes == segment.size
        ends.append(end)
    has_gap = any(end < later.base_offset for end, later in zip(ends, [*log.segments][1:], strict=False))
    assert (log.first_gap_offset is not None) is has_gap
