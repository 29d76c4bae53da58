"""A log that has lost the leader epochs of its remote part: tables (KIP-405)."""

import pytest
from remote_support import cache_of, copy_of, to

from ottla.config.log_config import LogConfig
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.types import TopicPartition
from ottla.remote.lost_lineage import lineage_before, restore_lineage, restore_lineage_of_follower
from ottla.storage.leader_epoch_cache import FILE_NAME
from tests.unit.storage.storage_support import NOW_MS, batch, open_log


@pytest.mark.parametrize(
    ("copies", "end", "newest", "restored"),
    [
        ([], 80, 4, []),
        ([(60, 80, (2, 60), (4, 75))], 80, 4, [(2, 60), (4, 75)]),
        ([(40, 60, (1, 40), (2, 55)), (60, 80, (2, 60), (4, 75))], 80, 4, [(1, 40), (2, 55), (4, 75)]),
        ([(60, 80, (4, 60))], 80, None, [(4, 60)]),
        ([(60, 80, (4, 60))], 70, 4, [(4, 60)]),  # the local part begins within the copy
        ([(60, 90, (4, 60), (5, 80))], 80, 4, [(4, 60)]),  # what follows is known from the batches
        ([(60, 80, (5, 60))], 80, 4, []),  # of another branch: newer than what follows
        ([(60, 79, (4, 60))], 80, 4, []),  # not copied up to there
        ([(20, 40, (1, 20)), (60, 80, (4, 60))], 80, 4, [(4, 60)]),  # a copy is missing in between
        # The other branch's copy of [40, 70), written in epoch 2, and the log's in epoch 3.
        ([(40, 70, (2, 40)), (40, 60, (2, 40), (3, 50)), (60, 80, (3, 60))], 80, 4, [(2, 40), (3, 50)]),
        # Up to 40 both branches are the same.
        ([(40, 60, (2, 40)), (30, 60, (1, 30)), (60, 80, (3, 60))], 80, 4, [(1, 30), (2, 40), (3, 60)]),
        ([(11, 24, (0, 23)), (24, 39, (0, 24))], 23, 0, []),  # the log started at 23 when [11, 24) was copied
        # The module's example.
        ([(40, 60, (1, 40), (2, 55)), (50, 70, (3, 50)), (60, 80, (2, 60), (4, 75))],
         80, 4, [(1, 40), (2, 55), (4, 75)]),
    ],
)  # fmt: skip
def test_lineage_before(copies, end, newest, restored):
    of = [copy_of(number, start, end, *epochs) for number, (start, end, *epochs) in enumerate(copies, 1)]
    assert lineage_before(cache_of(*of).segments(), end, newest_epoch=newest) == restored


def test_a_copy_counts_whose_finish_may_be_lost():
    assert lineage_before([copy_of(1, 60, 80, (4, 60))], 80, newest_epoch=4) == [(4, 60)]


@pytest.fixture
def stopped(tmp_path):
    """The log [3, 13), of which [3, 8) is in the remote tier only; its epochs' file is damaged."""
    config = LogConfig(
        segment_bytes=300, index_interval_bytes=1, remote_storage_enable=True, local_retention_bytes=500
    )
    log = open_log(tmp_path / "t-0", config=config, topic_partition=TopicPartition("t", 0))
    for epoch, count in ((1, 5), (2, 2), (4, 6)):
        for _ in range(count):
            log.append_as_leader(batch(value=b"x" * 50), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(13)
    log.update_remote_end_offset(10)
    log.maybe_increment_log_start_offset(3)
    log.apply_retention(NOW_MS)
    log.close()
    (log.directory / FILE_NAME).write_bytes(b"")
    return open_log(log.directory, config=config, topic_partition=log.topic_partition, log_start_offset=3)


@pytest.mark.logs("is corrupt", "disagrees with the batches", "are lost")
@pytest.mark.parametrize(
    ("deleted", "log_start", "epochs", "is_whole"),
    [
        (0, 3, [(1, 3), (2, 5), (4, 7)], True),
        (1, 6, [(2, 6), (4, 7)], True),  # the rest has expired
        (2, 8, [(4, 8)], True),  # so has all of it
        (None, 3, [(4, 8)], False),  # there are no records of copies: they may be lost, and be rebuilt
    ],
)
def test_restored_logs(stopped, deleted, log_start, epochs, is_whole):
    log = stopped
    assert not log.has_whole_lineage
    copies = cache_of()
    if deleted is not None:
        copies = cache_of(copy_of(1, 2, 6, (1, 2), (2, 5)), copy_of(2, 6, 8, (2, 6), (4, 7)))
        for number in range(1, deleted + 1):
            copies.update(to(number, State.DELETE_SEGMENT_STARTED))
            copies.update(to(number, State.DELETE_SEGMENT_FINISHED))
    restore_lineage(log, copies)
    assert log.has_whole_lineage == is_whole
    assert log.log_start_offset == log_start
    assert list(log.leader_epochs.entries) == epochs
    log.close_files()


@pytest.mark.logs("is corrupt", "disagrees with the batches", "are lost")
@pytest.mark.parametrize(
    ("copy", "log_start"),
    [
        ((0, 8, (1, 4), (2, 5), (4, 7)), 4),  # the log started at 4 when [0, 8) was copied
        ((0, 8, (1, 3), (2, 5), (4, 7)), 3),
    ],
)
def test_a_log_start_offset_that_a_power_cut_took_back(stopped, copy, log_start):
    """DeleteRecords had advanced it, which its copy shows: no copy holds the records before, and none is missing."""
    log = stopped
    restore_lineage(log, cache_of(copy_of(1, *copy)))
    assert log.has_whole_lineage
    assert log.log_start_offset == log_start
    assert log.leader_epochs.earliest == (1, log_start)
    log.close_files()


@pytest.mark.logs("is corrupt", "disagrees with the batches", "are lost")
@pytest.mark.parametrize(
    ("copies", "is_whole", "epochs"),
    [
        ([(2, 6, (1, 2), (2, 5)), (6, 8, (2, 6), (4, 7))], True, [(1, 3), (2, 5), (4, 7)]),
        ([(6, 8, (2, 6), (4, 7))], False, [(4, 8)]),  # it may not have read the metadata of the others yet
        ([], False, [(4, 8)]),
    ],
)
def test_a_follower_restores_it_only_with_all_copies(stopped, copies, is_whole, epochs):
    """Its log start is the leader's: it does not decide what is not part of the log any more."""
    log = stopped
    of = [copy_of(number, start, end, *its) for number, (start, end, *its) in enumerate(copies, 1)]
    restore_lineage_of_follower(log, cache_of(*of))
    assert log.has_whole_lineage == is_whole
    assert log.log_start_offset == 3
    assert list(log.leader_epochs.entries) == epochs
    log.close_files()
