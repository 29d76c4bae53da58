"""A tiered log is opened after a stop, with parts of its local state missing or damaged (KIP-405)."""

from dataclasses import replace

import pytest

from ottla.config.log_config import LogConfig
from ottla.storage import file_names
from ottla.storage.appending import AppendOrigin
from ottla.storage.leader_epoch_cache import FILE_NAME, EpochEntry
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

TIERED = LogConfig(
    segment_bytes=300, index_interval_bytes=1, remote_storage_enable=True, retention_ms=None,
    local_retention_bytes=500,
)  # fmt: skip


def fill(log, count, *, epoch):
    for _ in range(count):
        log.append_as_leader(batch(value=b"x" * 50), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)


@pytest.fixture
def stopped(tmp_path):
    """The directory of the log [3, 13), of which [3, 8) is in the remote tier only."""
    log = open_log(tmp_path / "orders-0", config=TIERED)
    fill(log, 5, epoch=1)
    fill(log, 2, epoch=2)
    fill(log, 6, epoch=4)
    log.update_remote_end_offset(10)
    log.maybe_increment_log_start_offset(3, reason="expired in the remote tier")
    log.apply_retention(NOW_MS)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (3, 8, 13)
    assert log.leader_epochs.entries == ((1, 3), (2, 5), (4, 7))
    log.close()
    return log.directory


def offsets_of(log):
    return log.log_start_offset, log.local_log_start_offset, log.log_end_offset


@pytest.mark.parametrize("is_clean", [True, False])
def test_with_its_checkpoint(stopped, is_clean):
    log = open_log(stopped, config=TIERED, log_start_offset=3, is_clean=is_clean)
    assert offsets_of(log) == (3, 8, 13)
    assert log.leader_epochs.entries == ((1, 3), (2, 5), (4, 7))
    assert log.high_watermark == 8  # what is in the remote tier only was committed
    assert log.has_whole_lineage
    assert log.offsets.remote_end_offset is None
    log.close_files()


@pytest.mark.parametrize("is_clean", [True, False])
def test_without_its_checkpoint(stopped, is_clean):
    """The log start is 0 then, never too high: what is before it counts as expired, and would be deleted.

    A follower adopts its leader's log start, a leader that of the oldest copy.
    Source: FetchFromLeaderWithCorruptedCheckpointTest of Kafka 4.3.1.
    """
    log = open_log(stopped, config=TIERED, is_clean=is_clean)
    assert offsets_of(log) == (0, 8, 13)
    log.maybe_increment_log_start_offset(3, reason="the oldest copy's")
    assert log.has_whole_lineage
    log.close_files()


@pytest.mark.logs("leader-epoch-checkpoint")
@pytest.mark.parametrize("content", [None, b"", b"0\n3\n1 3"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_without_its_leader_epochs(stopped, is_clean, content):
    """The batches have those of the local part only; a copy's have the others (a power cut may take the file)."""
    path = stopped / FILE_NAME
    path.write_bytes(content) if content is not None else path.unlink()
    log = open_log(stopped, config=TIERED, log_start_offset=3, is_clean=is_clean)
    assert offsets_of(log) == (3, 8, 13)
    assert log.leader_epochs.entries == ((4, 8),)
    assert not log.has_whole_lineage
    log.restore_lineage([EpochEntry(1, 0), EpochEntry(2, 5), EpochEntry(4, 7)])  # of the copy [6, 8)
    assert log.leader_epochs.entries == ((1, 3), (2, 5), (4, 7))
    assert log.has_whole_lineage
    log.close()
    again = open_log(stopped, config=TIERED, log_start_offset=3)
    assert again.leader_epochs.entries == ((1, 3), (2, 5), (4, 7))
    again.close_files()


@pytest.mark.parametrize(
    ("known", "of_copy", "restored"),
    [
        ([(4, 8)], [(1, 0), (2, 5), (4, 7)], [(1, 0), (2, 5), (4, 7)]),
        ([(4, 8), (5, 11)], [(4, 7)], [(4, 7), (5, 11)]),
        ([(4, 8)], [(1, 0), (2, 5)], [(1, 0), (2, 5), (4, 8)]),
        ([(4, 8)], [(1, 0), (5, 6)], [(1, 0), (4, 8)]),  # a newer epoch is of another branch
        ([(4, 8)], [(1, 0), (2, 9)], [(1, 0), (4, 8)]),
        ([(4, 8)], [], [(4, 8)]),
        ([], [(1, 0), (2, 5)], [(1, 0), (2, 5)]),
    ],
)
def test_restored_lineages(stopped, known, of_copy, restored):
    log = open_log(stopped, config=TIERED)
    log.leader_epochs.replace([EpochEntry(*entry) for entry in known])
    log.restore_lineage([EpochEntry(*entry) for entry in of_copy])
    assert list(log.leader_epochs.entries) == restored
    log.close_files()


@pytest.mark.logs("not valid batches", "Removing", "is damaged", "rebuil")
@pytest.mark.parametrize("position", [0, 40, 200])
def test_damage_of_the_first_local_segment_does_not_move_the_log_start(stopped, position):
    """A log that is not tiered would begin behind it; here a leader would take that for an expiration."""
    with (stopped / "00000000000000000008.log").open("r+b") as file:
        file.seek(position)
        file.write(b"\xff" * 30)
    log = open_log(stopped, config=TIERED, log_start_offset=3, is_clean=False)
    assert log.log_start_offset == 3
    assert log.local_log_start_offset == 8
    assert log.log_end_offset in (8, 9)
    assert log.leader_epochs.entries == ((1, 3), (2, 5), (4, 7))
    log.close_files()


@pytest.mark.logs("leader-epoch-checkpoint")
@pytest.mark.parametrize("is_clean", [True, False])
def test_without_any_local_segment(stopped, is_clean):
    """Nothing is left of the local log but its folder: it is an empty follower's, which is rebuilt from its leader."""
    for path in stopped.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            path.unlink()
    log = open_log(stopped, config=TIERED, log_start_offset=3, is_clean=is_clean)
    assert offsets_of(log) == (3, 3, 3)
    assert log.leader_epochs.entries == ()
    log.close_files()


@pytest.mark.logs("removing its segments")
def test_a_log_that_ends_before_its_log_start(stopped):
    """A power cut has taken its end, and the records before the log start were deleted: it begins again there."""
    log = open_log(stopped, config=TIERED, log_start_offset=20, is_clean=False)
    assert offsets_of(log) == (20, 20, 20)
    assert log.leader_epochs.entries == ()
    log.close_files()


def test_a_log_that_was_tiered(stopped):
    """Disabled while the broker was down: the copies are deleted, so the log begins with its local part."""
    log = open_log(stopped, config=replace(TIERED, remote_storage_enable=False), log_start_offset=3)
    assert offsets_of(log) == (8, 8, 13)
    assert log.leader_epochs.entries == ((4, 8),)
    assert log.has_whole_lineage
    log.close_files()


def without_first_segment(directory, *, snapshot):
    """A power cut has taken the first segment of [0, 8), or the record of its copy; where the rest begins.

    A transaction begins in it, and is aborted behind it.
    """
    log = open_log(directory, config=TIERED)
    for sequence in range(2):
        data = batch(
            value=b"x" * 50,
            producer_id=5,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS)
    fill(log, 5, epoch=1)
    abort = marker(producer_id=5, commit=False)
    log.append_as_leader(abort, leader_epoch=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.close_files()
    first, start = [segment.base_offset for segment in log.segments][:2]
    for path in directory.glob(f"{file_names.of_offset(first, '')}.*"):
        path.unlink()
    if snapshot is not None:
        (directory / file_names.of_offset(start, file_names.PRODUCER_SNAPSHOT)).write_bytes(snapshot)
    assert 2 <= start < 7, start
    return start


@pytest.mark.logs("is not usable", "begins after a gap", "leader-epoch-checkpoint", "truncating to")
def test_a_follower_copies_again_what_nothing_shows_to_be_copied(tmp_path):
    """The producers at the first segment are unknown, and what was before it perhaps lost: a leader has both.

    Otherwise its index has a transaction that was aborted as begun there, and readers of the first copy get
    its records.
    """
    start = without_first_segment(tmp_path / "orders-0", snapshot=b"")
    for _ in range(
        2
    ):  # the first start does not write what the second one would take for the producers' state
        log = open_log(tmp_path / "orders-0", config=TIERED, is_clean=False)
        assert log.segments.first.base_offset == start
        assert log.first_gap_offset == 0
        assert (*offsets_of(log), log.update_high_watermark(8)) == (0, 0, 8, 0)
        assert next(log.reader.records_since(0))[0].base_offset == start
        log.close_files()
    log = open_log(tmp_path / "orders-0", config=TIERED, is_clean=False)
    log.truncate_to(0, now_ms=NOW_MS)
    assert log.first_gap_offset is None
    assert offsets_of(log) == (0, 0, 0)
    log.close_files()


@pytest.mark.logs("is not usable", "begins after a gap", "leader-epoch-checkpoint")
def test_a_leader_goes_on_with_what_it_has(tmp_path):
    start = without_first_segment(tmp_path / "orders-0", snapshot=b"")
    log = open_log(tmp_path / "orders-0", config=TIERED, is_clean=False)
    log.ignore_gap()
    assert (*offsets_of(log), log.high_watermark) == (0, start, 8, start)
    log.close_files()


@pytest.mark.logs("is not usable", "leader-epoch-checkpoint")
@pytest.mark.parametrize(("snapshot", "is_flushed"), [(None, False), (b"", True)])
def test_what_local_retention_has_removed_is_no_gap(tmp_path, snapshot, is_flushed):
    """The producers at the first segment are known, or were flushed with it."""
    start = without_first_segment(tmp_path / "orders-0", snapshot=snapshot)
    log = open_log(
        tmp_path / "orders-0", config=TIERED, is_clean=False, recovery_point=start if is_flushed else 0
    )
    assert log.first_gap_offset is None
    assert offsets_of(log) == (0, start, 8)
    log.close_files()
