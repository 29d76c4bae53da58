"""The local half of a tiered log (KIP-405): segments to copy, and what is known about the copies."""

from dataclasses import replace

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import OffsetMovedToTieredStorage, OffsetOutOfRange
from ottla.protocol.types import TopicPartition
from ottla.storage import leader_epoch_cache, producer_snapshot
from ottla.storage.appending import AppendOrigin
from ottla.storage.retention import Limits
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

pytestmark = pytest.mark.logs("below the high watermark")

TIERED = LogConfig(segment_bytes=300, index_interval_bytes=1, remote_storage_enable=True, retention_ms=None)


@pytest.fixture
def log(tmp_path):
    log = open_log(tmp_path / "orders-0", config=TIERED)
    yield log
    log.close_files()


def fill(log, count, *, epoch=0, committed=True, **fields):
    """One batch of one record each; two are in a segment."""
    for number in range(count):
        if "producer_id" in fields:
            fields["base_sequence"] = number
        log.append_as_leader(batch(value=b"x" * 50, **fields), leader_epoch=epoch, now_ms=NOW_MS)
    if committed:
        log.update_high_watermark(log.log_end_offset)


def ranges(segments):
    return [(each.base_offset, each.end_offset) for each in segments]


# -- segments to copy --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_offset", "high_watermark", "found"),
    [
        (0, 7, [(0, 2), (2, 4), (4, 6)]),  # [6, 7) is active
        (2, 7, [(2, 4), (4, 6)]),
        (3, 7, [(2, 4), (4, 6)]),  # the segment that holds it
        (6, 7, []),
        (7, 7, []),
        (0, 6, [(0, 2), (2, 4), (4, 6)]),
        (0, 5, [(0, 2), (2, 4)]),  # not all of it is committed
        (0, 0, []),
    ],
)
def test_closed_and_committed_segments_are_copied(log, from_offset, high_watermark, found):
    fill(log, 7, committed=False)
    log.update_high_watermark(high_watermark)
    assert ranges(log.segments_to_copy(from_offset)) == found


def test_a_segment_of_an_open_transaction_is_not_copied(log):
    fill(log, 2)
    fill(log, 1, producer_id=5, producer_epoch=0, is_transactional=True)
    fill(log, 4)
    assert ranges(log.segments_to_copy(0)) == [(0, 2)]
    log.append_as_leader(
        marker(producer_id=5, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
    )
    fill(log, 2)
    copied = log.segments_to_copy(0)
    assert ranges(copied)[:2] == [(0, 2), (2, 4)]
    with_marker = [each for each in copied if each.transaction_index is not None]
    assert [(each.base_offset, each.transaction_index.name) for each in with_marker] == [
        (6, "00000000000000000006.txnindex")
    ]


def test_what_is_copied_with_a_segment(log):
    fill(log, 3, epoch=1, producer_id=5, producer_epoch=0)
    fill(log, 4, epoch=3)
    _, segment, *_ = log.segments_to_copy(0)
    assert (segment.base_offset, segment.end_offset) == (2, 4)
    assert segment.leader_epochs == [(1, 2), (3, 3)]
    assert leader_epoch_cache.decode(segment.leader_epoch_checkpoint) == [(1, 0), (3, 3)]
    assert segment.log_segment.stat().st_size == segment.size_bytes == log.segments.first.size
    assert segment.offset_index.exists()
    assert segment.time_index.exists()
    assert segment.transaction_index is None
    assert segment.snapshot_job is None
    (state,) = producer_snapshot.decode(segment.producer_snapshot.read_bytes())
    assert (state.producer_id, state.batches[-1].last_offset) == (5, 2)
    assert segment.read_times() == (NOW_MS, None)
    assert segment.modified_ms() > 0


def test_a_missing_producer_snapshot_is_written_again(log):
    """Kafka's copy task fails without it, whenever it runs: the partition is never copied."""
    fill(log, 3, producer_id=5, producer_epoch=0)
    fill(log, 4)
    expected = log.files.snapshots.path_of(4).read_bytes()
    log.files.snapshots.remove(4)
    segment = next(each for each in log.segments_to_copy(0) if each.end_offset == 4)
    assert not segment.producer_snapshot.exists()
    segment.snapshot_job.complete()
    assert segment.producer_snapshot.read_bytes() == expected
    assert log.segments_to_copy(2)[0].snapshot_job is None


def test_a_snapshot_of_a_segment_that_was_truncated_meanwhile_is_removed(log):
    fill(log, 7, committed=False)
    log.update_high_watermark(4)
    log.files.snapshots.remove(4)
    segment = log.segments_to_copy(2)[0]
    segment.snapshot_job.run()
    log.truncate_to(3, now_ms=NOW_MS)
    segment.snapshot_job.finish()
    assert not segment.producer_snapshot.exists()


def test_many_segments_are_copied_in_parts(log):
    """Tiering is switched on for a topic with years of data: no call blocks the event loop for long."""
    fill(log, 501)
    first = log.segments_to_copy(0)
    assert ranges(first) == [(at, at + 2) for at in range(0, 200, 2)]
    assert log.segments_to_copy(first[-1].end_offset)[0].base_offset == 200


@pytest.mark.parametrize(
    ("change", "is_current"),
    [
        (lambda log: fill(log, 5), True),
        (lambda log: log.truncate_to(3, now_ms=NOW_MS), False),
        (lambda log: log.truncate_to(5, now_ms=NOW_MS), False),  # behind it: the copy is repeated
        (lambda log: log.truncate_fully_and_start_at(0, now_ms=NOW_MS), False),
        (lambda log: log.rename_directory(log.directory.with_name("orders-0.1-delete")), False),
        (lambda log: (log.maybe_increment_log_start_offset(4), log.apply_retention(NOW_MS)), False),
    ],
)
def test_a_segment_may_change_during_its_copy(log, change, is_current):
    fill(log, 7)
    segment = log.segments_to_copy(2)[0]
    assert segment.is_current(log)
    change(log)
    assert segment.is_current(log) == is_current


# -- what is copied ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "config", "is_tiered"),
    [
        ("orders", {"remote_storage_enable": True}, True),
        ("orders", {}, False),
        (
            "orders",
            {"remote_storage_enable": True, "cleanup_policy": ("compact",)},
            True,
        ),  # the broker's default
        ("__consumer_offsets", {"remote_storage_enable": True}, False),
        ("__remote_log_metadata", {"remote_storage_enable": True}, False),
        ("__cluster_metadata", {"remote_storage_enable": True}, False),
    ],
)
def test_which_logs_are_tiered(tmp_path, topic, config, is_tiered):
    log = open_log(tmp_path / "l", config=LogConfig(**config), topic_partition=TopicPartition(topic, 0))
    assert log.is_tiered == is_tiered
    assert log.update_remote_end_offset(0) == is_tiered
    log.close_files()


def test_local_only_bytes(log):
    """While it is unknown what is copied, there is no sum: KAFKA-20732 is data loss by a wrong one."""
    fill(log, 7)
    assert log.local_only_bytes() is None
    log.update_remote_end_offset(0)
    assert log.local_only_bytes() == log.segments.size_bytes
    log.update_remote_end_offset(3)  # in the middle of [2, 4)
    assert log.local_only_bytes() == log.segments.size_bytes - 2 * log.segments.first.size


def test_the_remote_end_advances_and_is_within_the_log(log):
    fill(log, 7)
    assert log.update_remote_end_offset(4)
    assert not log.update_remote_end_offset(2)  # expired copies have not become local again
    assert log.offsets.remote_end_offset == 4
    assert log.update_remote_end_offset(9)  # a power cut has taken the end of this log, but not the copy
    assert log.offsets.remote_end_offset == 7


@pytest.mark.parametrize(("end", "remote_end"), [(5, 4), (4, 4), (3, None)])
def test_a_truncation_below_the_remote_end_makes_it_unknown(log, end, remote_end):
    """The copies may hold what an unclean election has taken: local segments with other records are not copied yet."""
    fill(log, 7)
    log.update_remote_end_offset(4)
    log.truncate_to(end, now_ms=NOW_MS)
    assert log.offsets.remote_end_offset == remote_end


def test_a_search_that_a_truncation_overtakes_is_ignored(log):
    fill(log, 7)
    generation = log.files.generation
    log.truncate_to(3, now_ms=NOW_MS)
    assert not log.update_remote_end_offset(4, generation=generation)
    assert log.offsets.remote_end_offset is None
    assert log.update_remote_end_offset(2, generation=log.files.generation)


def test_the_remote_end_is_unknown_after_a_start(log):
    fill(log, 7)
    log.update_remote_end_offset(4)
    log.close()
    again = open_log(log.directory, config=TIERED)
    assert again.offsets.remote_end_offset is None
    assert again.offsets.earliest_pending_upload_offset is None
    again.close_files()


# -- reads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "raised"),
    [
        (1, OffsetOutOfRange),
        (2, OffsetMovedToTieredStorage),
        (9, OffsetMovedToTieredStorage),
        (10, None),
        (12, None),
        (13, OffsetOutOfRange),
    ],
)
def test_reads_of_the_remote_part_have_an_error_of_their_own(log, offset, raised):
    """A follower continues in BUILDING_REMOTE_LOG_AUX, a consumer reads the other tier (KIP-405)."""
    log.truncate_fully_and_start_at(10, now_ms=NOW_MS, log_start_offset=2)
    fill(log, 2)
    if raised is None:
        assert log.reader.read(offset, max_bytes=1000).offset == offset
        return
    with pytest.raises(raised):
        log.reader.read(offset, max_bytes=1000)


# -- retention ---------------------------------------------------------------------------------------


def tiered(**configs):
    return replace(TIERED, **configs)


LONG_AGO = (
    NOW_MS + 1_000_000
)  # the time of a retention run, when everything is older than a limit of 1,000 ms


@pytest.mark.parametrize(
    ("remote_end", "high_watermark", "log_start", "bases", "starts"),
    [
        # The log: [0, 2) [2, 4) [4, 6), and [6, 7) is active. All of it is older than local.retention.ms.
        (None, 7, 0, [0, 2, 4, 6], (0, 0)),  # unknown: nothing goes, and nothing is rolled
        (0, 7, 0, [0, 2, 4, 6], (0, 0)),  # nothing is copied
        (1, 7, 0, [0, 2, 4, 6], (0, 0)),  # not all of [0, 2)
        (2, 7, 0, [2, 4, 6], (0, 2)),
        (4, 7, 0, [4, 6], (0, 4)),
        (4, 3, 0, [2, 4, 6], (0, 2)),  # only what is committed
        (6, 7, 0, [6, 7], (0, 6)),  # everything before the active segment is copied: it is rolled
        (7, 7, 0, [7], (0, 7)),  # this replica became follower of one that had rolled, and copied, more
        (6, 6, 0, [6], (0, 6)),  # not all of the active segment is committed
        (2, 7, 4, [4, 6], (4, 4)),  # before the log start nothing needs a copy
        (None, 7, 5, [4, 6], (5, 5)),
        (2, 7, 1, [2, 4, 6], (1, 2)),
    ],
)  # fmt: skip
def test_local_retention_removes_what_is_copied(
    tmp_path, remote_end, high_watermark, log_start, bases, starts
):
    log = open_log(tmp_path / "orders-0", config=tiered(local_retention_ms=1000))
    fill(log, 7, committed=False)
    log.update_high_watermark(high_watermark)
    if remote_end is not None:
        log.update_remote_end_offset(remote_end)
    log.maybe_increment_log_start_offset(log_start)
    log.apply_retention(LONG_AGO)
    assert [segment.base_offset for segment in log.segments] == bases
    assert (log.log_start_offset, log.local_log_start_offset) == starts
    log.close_files()


@pytest.mark.parametrize(
    ("configs", "bases"),
    [
        ({"local_retention_ms": 1000}, [6, 7]),
        ({"local_retention_ms": 2_000_000}, [0, 2, 4, 6]),
        ({"retention_ms": 1000}, [6, 7]),  # local.retention.ms is -2
        ({"retention_ms": 1000, "local_retention_ms": 2_000_000}, [0, 2, 4, 6]),  # the remote tier's to apply
        ({"local_retention_bytes": 300}, [4, 6]),
        ({"retention_bytes": 300}, [4, 6]),
        ({"local_retention_bytes": 0}, [6, 7]),
        ({"cleanup_policy": (), "local_retention_ms": 1000}, [6, 7]),  # nothing expires, but the local tier is a part
    ],
)  # fmt: skip
def test_limits_of_the_local_tier(tmp_path, configs, bases):
    log = open_log(tmp_path / "orders-0", config=tiered(**configs))
    fill(log, 7)
    log.update_remote_end_offset(6)
    log.apply_retention(LONG_AGO)
    assert [segment.base_offset for segment in log.segments] == bases
    assert log.log_start_offset == 0
    log.close_files()


@pytest.mark.parametrize("remote_end", [None, 2, 4])
def test_without_copies_total_retention_is_the_local_one(tmp_path, remote_end):
    """remote.log.copy.disable: what is expired goes in both tiers, so the log start advances (as in Kafka)."""
    log = open_log(tmp_path / "orders-0", config=tiered(retention_bytes=300, remote_log_copy_disable=True))
    fill(log, 7)
    if remote_end is not None:
        log.update_remote_end_offset(remote_end)
    assert log.apply_retention(LONG_AGO) == 2
    assert (log.log_start_offset, log.local_log_start_offset) == (4, 4)
    log.close_files()


def test_local_retention_never_wedges(tmp_path):
    """Whatever stopped it, the next run continues without a restart (Aiven#596, KAFKA-17020, KAFKA-16890).

    A follower, whose segments end elsewhere than those that its leader copies.
    """
    log = open_log(tmp_path / "orders-0", config=tiered(local_retention_ms=1000))
    fill(log, 7)
    bases = []
    for remote_end in (1, 3, 5, 6, 7):
        log.update_remote_end_offset(remote_end)
        log.apply_retention(LONG_AGO)
        bases.append(log.local_log_start_offset)
        assert log.local_log_start_offset <= remote_end
        assert remote_end - log.local_log_start_offset < 2  # less than a segment stays
    assert bases == [0, 2, 4, 6, 7]
    assert log.segments.size_bytes == 0
    fill(log, 3)
    log.update_remote_end_offset(9)
    log.apply_retention(LONG_AGO + NOW_MS)
    assert log.local_log_start_offset == 9
    log.close_files()


@pytest.mark.parametrize(("limits", "largest_ms", "goes_by_file"), [
    (Limits(1000, None), NOW_MS, False),
    (Limits(1000, None), NOW_MS + 1, False),  # total retention: the records' own time counts
    (Limits(1000, None), -1, True),
    (Limits(1000, None, must_be_copied=True), NOW_MS + 1, False),  # remote.log.copy.disable
    (Limits(1000, None, must_be_copied=True), -1, True),
    (Limits(1000, None, must_be_copied=True, is_local=True), NOW_MS - 1, False),
    (Limits(1000, None, must_be_copied=True, is_local=True), NOW_MS, False),
    (Limits(1000, None, must_be_copied=True, is_local=True), NOW_MS + 1, True),
    (Limits(1000, None, must_be_copied=True, is_local=True), -1, True),
])  # fmt: skip
def test_when_a_segment_ages_from_the_time_of_its_file(limits, largest_ms, goes_by_file):
    assert limits.go_by_file(largest_ms, now_ms=NOW_MS) == goes_by_file


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize(("configs", "remote_end", "written_ms", "bases"), [
    # A copied segment goes, whatever its clients' clocks say, and the active one is rolled for its copy.
    ({"local_retention_ms": 1000}, 6, NOW_MS, [6, 7]),
    ({"retention_ms": 1000}, 6, NOW_MS, [6, 7]),
    ({"local_retention_ms": 1000}, 2, NOW_MS, [2, 4, 6]),  # the others are not copied
    ({"local_retention_ms": 1000}, None, NOW_MS, [0, 2, 4, 6]),
    ({"local_retention_ms": 1000}, 6, LONG_AGO - 1000, [0, 2, 4, 6]),  # it was written within local.retention.ms
    ({"retention_ms": 1000, "remote_log_copy_disable": True}, 6, NOW_MS, [0, 2, 4, 6]),
    ({"retention_ms": 1000, "remote_storage_enable": False}, None, NOW_MS, [0, 2, 4, 6]),
])  # fmt: skip
def test_a_timestamp_in_the_future_does_not_keep_a_copied_segment(
    tmp_path, is_warm, configs, remote_end, written_ms, bases
):
    log = open_log(tmp_path / "orders-0", config=tiered(**configs))
    fill(log, 7, timestamp=LONG_AGO + 1)
    if not is_warm:
        log.close()
        log = open_log(log.directory, config=log.config)
        log.update_high_watermark(7)
    for segment in log.segments:
        segment.files.set_modified_ms(written_ms)
    if remote_end is not None:
        log.update_remote_end_offset(remote_end)
    if log.start.retention_waits_for_disk(LONG_AGO):
        log.start.warm_up_retention(LONG_AGO)
    log.apply_retention(LONG_AGO)
    assert [segment.base_offset for segment in log.segments] == bases
    assert log.log_start_offset == 0
    log.close_files()


def test_an_unknown_remote_end_is_found_again_after_a_truncation(tmp_path):
    log = open_log(tmp_path / "orders-0", config=tiered(local_retention_ms=1000))
    fill(log, 7)
    log.update_remote_end_offset(6)
    log.truncate_to(5, now_ms=NOW_MS)  # an unclean election: the copy of [4, 6) is of another branch
    fill(log, 3, epoch=1)
    assert log.apply_retention(LONG_AGO) == 0
    log.update_remote_end_offset(4)
    assert log.apply_retention(LONG_AGO) == 2
    log.close_files()


def test_retention_reads_no_timestamp_of_what_is_not_copied(tmp_path):
    """A backlog of years, while the store is down: no run reads all of its indexes."""
    log = open_log(tmp_path / "orders-0", config=tiered(local_retention_ms=1000))
    fill(log, 7)
    log.close()
    again = open_log(log.directory, config=log.config)
    again.update_high_watermark(7)
    assert not again.start.retention_waits_for_disk(LONG_AGO)
    again.update_remote_end_offset(2)
    assert again.start.retention_waits_for_disk(LONG_AGO)
    again.start.warm_up_retention(LONG_AGO)
    assert again.apply_retention(LONG_AGO) == 1
    again.close_files()


def test_epochs_and_producers_when_local_segments_go(tmp_path):
    """Epochs are kept from the log start on: the remote tier finds the log's copies by them."""
    log = open_log(tmp_path / "orders-0", config=tiered(local_retention_bytes=0))
    fill(log, 2, epoch=1, producer_id=5, producer_epoch=0)
    fill(log, 2, epoch=2)
    fill(log, 3, epoch=4)
    log.update_remote_end_offset(6)
    log.apply_retention(NOW_MS)
    assert log.leader_epochs.entries == ((1, 0), (2, 2), (4, 4))
    assert log.producers.producers[5].last_sequence == 1
    assert log.files.snapshots.offsets == [6, 7]
    log.maybe_increment_log_start_offset(3, reason="expired in the remote tier")
    assert log.leader_epochs.entries == ((2, 3), (4, 4))
    assert (log.log_start_offset, log.local_log_start_offset) == (3, 6)
    assert log.producers.producers[5].last_sequence == 1
    log.close()
    again = open_log(log.directory, config=log.config, log_start_offset=3)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (3, 6, 7)
    assert again.leader_epochs.entries == ((2, 3), (4, 4))
    assert again.producers.producers[5].last_sequence == 1
    again.close_files()


@pytest.mark.parametrize("is_crash", [False, True])
def test_without_tiering_the_log_begins_with_its_local_part(tmp_path, is_crash):
    """The configuration is `remote.storage.enable=false` with `remote.log.delete.on.disable=true`."""
    log = open_log(tmp_path / "orders-0", config=tiered(local_retention_bytes=0))
    fill(log, 4, epoch=1)
    fill(log, 3, epoch=2)
    log.update_remote_end_offset(4)
    log.apply_retention(NOW_MS)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 4)
    now_local = LogConfig(segment_bytes=300, index_interval_bytes=1)
    if is_crash:  # before it was applied, or before the checkpoint was written
        log.close_files()
        log = open_log(log.directory, config=now_local, log_start_offset=0, is_clean=False)
    else:
        log.update_config(now_local)
    assert (log.log_start_offset, log.local_log_start_offset) == (4, 4)
    assert log.offsets.remote_end_offset is None
    assert log.leader_epochs.entries == ((2, 4),)
    assert log.local_only_bytes() is None
    # Switched on again, it begins to be copied from its start.
    log.update_config(TIERED)
    log.update_high_watermark(7)
    log.update_remote_end_offset(0)
    assert ranges(log.segments_to_copy(log.offsets.earliest_pending_upload_offset)) == [(4, 6)]
    log.close_files()
