"""Roles and epochs (KIP-320), the ISR's rules for writing, and which offsets a partition returns."""

from uuid import UUID

import pytest
from replicas_support import NODE_ID, NOW_MS, PartitionOnDisk, batch, follower_fetches, image

from ottla.broker.replicas.reading.list_offsets import is_searched, offset_for_timestamp
from ottla.protocol.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownLeaderEpoch,
)
from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from ottla.storage.time_search import TimeSearch

OTHER = 2


@pytest.fixture
def on_disk(tmp_path):
    return PartitionOnDisk(tmp_path)


@pytest.mark.parametrize(
    ("leads", "asked_epoch", "error"),
    [
        # leader? the peer's epoch (ours is 5)
        (True,  None, None),
        (True,     5, None),
        (True,     4, FencedLeaderEpoch),
        (True,     6, UnknownLeaderEpoch),
        (False, None, NotLeaderOrFollower),
        (False,    5, NotLeaderOrFollower),
        (False,    4, FencedLeaderEpoch),      # the epoch is checked first
        (False,    6, UnknownLeaderEpoch),
    ],
)  # fmt: skip
def test_epoch_and_leader_checks(on_disk, leads, asked_epoch, error):
    on_disk.partition.apply(image(leader=NODE_ID if leads else OTHER, epoch=5, replicas=(NODE_ID, OTHER)))
    if error is None:
        on_disk.partition.local_log(asked_epoch, must_lead=True)
    else:
        with pytest.raises(error):
            on_disk.partition.local_log(asked_epoch, must_lead=True)


def test_a_follower_may_be_read_but_not_written(on_disk):
    on_disk.partition.apply(image(leader=OTHER, epoch=1, replicas=(NODE_ID, OTHER)))
    assert on_disk.partition.local_log(1, must_lead=False) is on_disk.log
    with pytest.raises(NotLeaderOrFollower):
        on_disk.append(b"x")


def test_a_deleted_partition_answers_no_request(on_disk):
    on_disk.partition.apply(image())
    on_disk.partition.resign()
    for must_lead in (True, False):
        with pytest.raises(NotLeaderOrFollower):
            on_disk.partition.local_log(None, must_lead=must_lead)
    with pytest.raises(NotLeaderOrFollower):
        on_disk.append(b"x")


# KIP-101
def test_each_leadership_has_its_place_in_the_epoch_cache(on_disk):
    partition = on_disk.partition
    assert partition.apply(image(epoch=1))
    on_disk.append(b"a", b"b")
    assert partition.apply(image(epoch=2))
    assert partition.end_offset_for_epoch(2, current_leader_epoch=2) == (2, 2)
    assert partition.apply(image(epoch=4))
    on_disk.append(b"c")
    rows = [(entry.epoch, entry.start_offset) for entry in on_disk.log.leader_epochs.entries]
    assert rows == [(1, 0), (4, 2)]  # an epoch that wrote nothing gives way to the next one
    assert partition.end_offset_for_epoch(1, current_leader_epoch=4) == (1, 2)
    assert partition.end_offset_for_epoch(3, current_leader_epoch=None) == (1, 2)
    assert partition.end_offset_for_epoch(4, current_leader_epoch=4) == (4, 3)
    assert partition.end_offset_for_epoch(5, current_leader_epoch=4) is None


def test_an_image_that_is_not_newer_changes_nothing(on_disk):
    partition = on_disk.partition
    assert partition.apply(image(epoch=3, partition_epoch=7))
    assert not partition.apply(image(leader=OTHER, epoch=3, partition_epoch=7))
    assert partition.is_leader
    assert not partition.apply(image(epoch=3, partition_epoch=8, isr=(NODE_ID,)))
    assert partition.partition_epoch == 8


def test_becoming_leader_alone_commits_the_whole_log(tmp_path):
    first = PartitionOnDisk(tmp_path)
    first.partition.apply(image(epoch=0))
    first.append(b"a")
    first.log.close()
    again = PartitionOnDisk(tmp_path)
    again.partition.apply(image(epoch=1))
    assert again.log.high_watermark == 1


@pytest.mark.parametrize(
    ("min_insync", "replicas", "isr", "acks", "is_accepted"),
    [
        # min.insync.replicas, replicas, ISR, acks
        (1, (1,),      (1,),    -1, True),
        (2, (1,),      (1,),    -1, True),     # capped by the replicas there are (as in Kafka)
        (2, (1, 2),    (1,),    -1, False),
        (2, (1, 2),    (1,),     1, True),     # no request waits for the others
        (2, (1, 2),    (1, 2),  -1, True),
        (3, (1, 2),    (1, 2),  -1, True),
        (3, (1, 2, 3), (1, 2),  -1, False),
    ],
)  # fmt: skip
def test_min_insync_replicas(tmp_path, min_insync, replicas, isr, acks, is_accepted):
    on_disk = PartitionOnDisk(tmp_path, min_insync_replicas=min_insync)
    on_disk.partition.apply(image(replicas=replicas, isr=isr))
    if is_accepted:
        on_disk.append(b"x", acks=acks)
    else:
        with pytest.raises(NotEnoughReplicas):
            on_disk.append(b"x", acks=acks)
    assert on_disk.log.log_end_offset == is_accepted


# KIP-497
def test_the_high_watermark_is_the_slowest_of_the_isr(tmp_path):
    on_disk = PartitionOnDisk(tmp_path, min_insync_replicas=2)
    partition, log = on_disk.partition, on_disk.log
    partition.apply(image(epoch=1, replicas=(1, 2, 3), isr=(1, 2)))
    on_disk.append(b"a", b"b", b"c")
    assert log.high_watermark == 0
    follower_fetches(partition, 2, 2)
    partition.on_config_changed()
    assert log.high_watermark == 2
    # The ISR shrinks below its minimum, and the replica that has left may not rejoin: nothing is committed any more.
    on_disk.cluster.broker_epochs[2] = 7
    follower_fetches(partition, 2, 2, broker_epoch=6)
    partition.apply(image(epoch=1, partition_epoch=2, replicas=(1, 2, 3), isr=(1,)))
    assert log.high_watermark == 2
    with pytest.raises(NotEnoughReplicasAfterAppend):
        partition.leader_since(1).is_committed(2)
    assert not partition.leader_since(1).is_committed(3)
    partition.apply(image(leader=OTHER, epoch=2, replicas=(1, 2, 3)))
    with pytest.raises(NotLeaderOrFollower):
        partition.leader_since(1).is_committed(2)


def test_who_has_lost_his_directory_does_not_join_the_isr(tmp_path):
    """He had everything until his disk failed: nothing else keeps him from being proposed at once."""
    on_disk = PartitionOnDisk(tmp_path)
    partition, proposed = on_disk.partition, on_disk.cluster.proposed
    directories = {"replicas": (1, OTHER), "directories": (UUID(int=1), UUID(int=2))}
    partition.apply(image(epoch=1, **directories))
    follower_fetches(partition, OTHER, 0)
    on_disk.cluster.lost_directories.add(UUID(int=2))
    partition.apply(image(epoch=1, partition_epoch=2, isr=(1,), **directories))
    follower_fetches(partition, OTHER, 0)
    assert not proposed
    on_disk.cluster.lost_directories.clear()
    follower_fetches(partition, OTHER, 0)
    assert proposed == [{1, OTHER}]


def test_appends_and_roles_signal(on_disk):
    on_disk.partition.apply(image(epoch=1))
    on_disk.signals.clear()
    on_disk.append(b"x")
    assert on_disk.signals == [on_disk.partition]
    on_disk.partition.apply(image(leader=OTHER, epoch=2, replicas=(1, 2)))
    assert len(on_disk.signals) == 2


def offset_at(partition, timestamp, *, is_read_committed=False):
    found = None
    if is_searched(timestamp):
        wanted = None if timestamp == MAX_TIMESTAMP else timestamp
        search = TimeSearch(partition.log.reader, wanted, is_cancelled=lambda: False)
        assert search.step(), "all of it is one piece"
        found = search.found
    return offset_for_timestamp(partition, timestamp, found=found, is_read_committed=is_read_committed)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (LATEST, (-1, 3, 7)),
        (EARLIEST, (-1, 0, 7)),
        (EARLIEST_LOCAL, (-1, 0, 7)),
        (MAX_TIMESTAMP, (300, 1, 7)),
        (LATEST_TIERED, None),
        (EARLIEST_PENDING_UPLOAD, None),
        (0, (100, 0, 7)),
        (100, (100, 0, 7)),
        (101, (300, 1, 7)),
        (300, (300, 1, 7)),
        (301, None),
    ],
)
def test_offsets_by_time(on_disk, timestamp, found):
    on_disk.partition.apply(image(epoch=7))
    for at in (100, 300, 200):
        on_disk.append(b"x", timestamp=at)
    assert offset_at(on_disk.partition, timestamp) == found


def test_latest_of_an_empty_log_and_its_earliest_after_deletion(on_disk):
    partition = on_disk.partition
    partition.apply(image(epoch=0))

    assert offset_at(partition, LATEST) == (-1, 0, 0)
    assert offset_at(partition, MAX_TIMESTAMP) is None
    on_disk.append(b"a", b"b")
    assert partition.as_leader().delete_records(None) == 2
    assert offset_at(partition, EARLIEST) == (-1, 2, 0)


def test_latest_is_not_known_before_the_high_watermark_reaches_the_epoch(tmp_path):
    """KIP-207: an older leader may have shown consumers more than this one knows to be committed."""
    on_disk = PartitionOnDisk(tmp_path, min_insync_replicas=2)
    partition = on_disk.partition
    partition.apply(image(epoch=1, replicas=(1, 2)))
    on_disk.append(b"a", timestamp=NOW_MS)
    partition.apply(image(epoch=2, replicas=(1, 2)))  # led again, from offset 1 on; nothing committed

    with pytest.raises(OffsetNotAvailable):
        offset_at(partition, LATEST)
    with pytest.raises(OffsetNotAvailable):
        offset_at(partition, NOW_MS)
    assert offset_at(partition, EARLIEST) == (-1, 0, 1)
    assert offset_at(partition, LATEST, is_read_committed=None) == (-1, 1, 2)  # a replica sees the log end
    follower_fetches(partition, 2, 1)
    partition.on_config_changed()
    assert offset_at(partition, LATEST) == (-1, 1, 2)


@pytest.mark.parametrize(
    ("cleanup_policy", "offset", "outcome"),
    [
        (("delete",),           None, 3),
        (("delete",),              2, 2),
        (("delete",),              0, 0),
        (("compact", "delete"),    1, 1),
        (("compact",),             1, PolicyViolation),
        (("delete",),              4, OffsetOutOfRange),   # above the high watermark
        (("delete",),             -5, OffsetOutOfRange),
    ],
)  # fmt: skip
def test_delete_records(tmp_path, cleanup_policy, offset, outcome):
    on_disk = PartitionOnDisk(tmp_path, cleanup_policy=cleanup_policy)
    on_disk.partition.apply(image())
    on_disk.append(b"a", b"b", b"c", key=b"k")
    if isinstance(outcome, int):
        assert on_disk.partition.as_leader().delete_records(offset) == outcome
        assert on_disk.log.log_start_offset == outcome
    else:
        with pytest.raises(outcome):
            on_disk.partition.as_leader().delete_records(offset)


# KIP-595
@pytest.mark.parametrize(
    ("epoch", "offset", "outcome"),
    [
        # The leader's log: epoch 1 from 0, epoch 3 from 2, end 5. The follower fetches at `offset` after `epoch`.
        (3, 5, None),              # in step
        (3, 4, None),
        (1, 2, None),
        (1, 3, (1, 2)),            # has a record of epoch 1 that we have not
        (2, 3, (1, 2)),            # an epoch that we never had
        (3, 6, (3, 5)),            # longer than we are
        (9, 5, OffsetOutOfRange),  # newer than all we know
    ],
)  # fmt: skip
def test_where_a_follower_diverges(on_disk, epoch, offset, outcome):
    on_disk.partition.apply(image(epoch=1))
    on_disk.append(b"a", b"b")
    on_disk.partition.apply(image(epoch=3))
    on_disk.append(b"c", b"d", b"e")

    def ask():
        return on_disk.partition.diverging_epoch(last_fetched_epoch=epoch, fetch_offset=offset)

    if outcome is OffsetOutOfRange:
        with pytest.raises(OffsetOutOfRange):
            ask()
    else:
        assert ask() == outcome


@pytest.mark.parametrize(("leader", "leader_epoch"), [(2, 4), (2, 6), (1, 5)])
def test_what_was_asked_for_in_another_epoch_is_asserted_not_to_be_appended(on_disk, leader, leader_epoch):
    """The second of the TLA+ rules; nor does a leader append what others send."""
    on_disk.partition.apply(image(leader=leader, epoch=5, replicas=(1, 2)))
    with pytest.raises(AssertionError):
        on_disk.partition.follower.append(
            memoryview(batch(b"a")),
            leader_epoch=leader_epoch,
            high_watermark=0,
            log_start_offset=0,
            now_ms=NOW_MS,
        )
    assert on_disk.log.log_end_offset == 0


def test_the_only_member_of_an_isr_leads_on_behind_a_gap(on_disk):
    """After an unclean election all that it has is committed at once, also behind what a crash has taken."""
    partition = on_disk.partition
    partition.apply(image(leader=NODE_ID, epoch=1, replicas=(NODE_ID, OTHER)))
    for _ in range(3):
        partition.as_leader().append_records(batch(b"x"), required_acks=1, now_ms=NOW_MS)
    partition.apply(image(leader=OTHER, epoch=2, replicas=(NODE_ID, OTHER), isr=(OTHER,)))
    partition.log.offsets.first_gap_offset = 1
    partition.apply(image(leader=NODE_ID, epoch=3, replicas=(NODE_ID, OTHER), isr=(NODE_ID,)))
    assert partition.log.first_gap_offset is None
    assert partition.log.high_watermark == partition.log.log_end_offset == 3
