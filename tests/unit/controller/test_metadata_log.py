"""The metadata log as one of Raft's: comparisons, what a leader sends, truncation, snapshots, cleaning, damage."""

import errno
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.controller.metadata_log import snapshots
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.log_cleaning import DELETE_DELAY_MS, MetadataLogSettings, SnapshotTrigger
from ottla.controller.metadata_log.new_batches import NewBatch, batches_of
from ottla.controller.raft.log import Diverging, NeedsSnapshot, Valid
from ottla.controller.raft.types import OffsetAndEpoch
from ottla.metadata import records as r
from ottla.metadata.frame import UnknownMetadataRecord
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.protocol.errors import CorruptMessage, KafkaError, KafkaStorageError
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.voters_record import Voter, VotersRecord
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import control_key
from ottla.protocol.records.record import Record
from ottla.storage.appending import AppendOrigin
from ottla.stories.partition.faulty_files import FaultyFiles, Loss

HOME = Path("/disk")
VOTERS = VotersRecord(voters=[Voter(voter_id=7, voter_directory_id=UUID(int=77))])
SMALL = MetadataLogSettings(log_segment_bytes=1000, max_retention_bytes=2000, max_retention_ms=None)


def disk() -> FaultyFiles:
    files = FaultyFiles(random=Random(1))
    files.make_dir(HOME)
    files.fsync_path(Path("/"))
    return files


def open_log(
    files: FaultyFiles, settings: MetadataLogSettings = SMALL, *, is_clean: bool = False
) -> MetadataLog:
    return MetadataLog.open(
        HOME, files=files, random=Random(1), now_ms=0, settings=settings, is_clean=is_clean
    )


def write(log: MetadataLog, story: str) -> None:
    """`e1:3 e2:2`: three batches of one record in epoch 1, two in epoch 2. Values are their offsets."""
    for part in story.split():
        epoch, count = map(int, part.removeprefix("e").split(":"))
        for _ in range(count):
            records = [value_of(log.end_offset)]
            log.append(new_batch(*records), epoch=epoch, now_ms=log.end_offset)


def new_batch(*records: r.MetadataRecord) -> NewBatch:
    (batch,) = batches_of(records, metadata_version=30)
    return batch


def value_of(offset: int) -> r.ConfigRecord:
    return r.ConfigRecord(resource_type=4, resource_name="", name="v", value=str(offset))


def image_at(offset: int) -> MetadataImage:
    image = MetadataImage()
    image.replay_all([r.FeatureLevelRecord(name="metadata.version", feature_level=30), value_of(offset - 1)])
    return image


def take_snapshot(log: MetadataLog, offset: int) -> OffsetAndEpoch:
    log.update_high_watermark(max(offset, log.high_watermark))
    writer = log.create_snapshot(offset)
    assert writer is not None
    writer.write(image_at(offset), kraft_version=1, voters=VOTERS, now_ms=500)
    log.snapshot_written(writer)
    return writer.snapshot


def fetch_snapshot(source: MetadataLog, target: MetadataLog, snapshot: OffsetAndEpoch, piece: int = 100):
    download = target.begin_snapshot(snapshot)
    assert download is not None
    while True:
        data, size = source.snapshot_chunk(snapshot, position=download.size, max_bytes=piece)
        download.append(data)
        if download.size == size:
            return download


# -- comparing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        # A log e1: 0-2, e3: 3-6 (end 7); nothing was cut off its beginning.
        (0, 0, Valid()),
        (0, 9, Valid()),                                   # nothing to disagree about
        (2, 1, Valid()),
        (3, 1, Valid()),
        (4, 1, Diverging(OffsetAndEpoch(3, 1))),           # epoch 1 ended at 3 here
        (4, 2, Diverging(OffsetAndEpoch(3, 1))),           # epoch 2 wrote nothing here
        (5, 3, Valid()),
        (7, 3, Valid()),
        (8, 3, Diverging(OffsetAndEpoch(7, 3))),
        (7, 4, Diverging(OffsetAndEpoch(7, 3))),           # newer than all we know
    ],
)  # fmt: skip
def test_logs_are_compared_by_offset_and_epoch(offset, epoch, expected):
    log = open_log(disk())
    write(log, "e1:3 e3:4")
    assert log.validate(offset, epoch) == expected


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        # As above, but the log begins behind the snapshot 5-3, and there is a later one, 6-3.
        (0, 0, NeedsSnapshot(OffsetAndEpoch(6, 3))),
        (4, 3, NeedsSnapshot(OffsetAndEpoch(6, 3))),       # before the log's start
        (5, 2, NeedsSnapshot(OffsetAndEpoch(6, 3))),       # at its start, but not of this snapshot's history
        (6, 1, NeedsSnapshot(OffsetAndEpoch(6, 3))),       # of an epoch before the snapshot's
        (5, 3, Valid()),
        (6, 3, Valid()),
        (7, 3, Valid()),
        (9, 3, Diverging(OffsetAndEpoch(7, 3))),
        (9, 4, Diverging(OffsetAndEpoch(7, 3))),
    ],
)  # fmt: skip
def test_a_log_behind_a_snapshot_sends_others_there(offset, epoch, expected):
    log = open_log(disk(), MetadataLogSettings(max_retention_bytes=0))
    write(log, "e1:3 e3:4")
    for at in (4, 5, 6):
        take_snapshot(log, at)
    log._store.delete_before(OffsetAndEpoch(5, 3), now_ms=0)
    log._log.maybe_increment_log_start_offset(5)
    assert log.validate(offset, epoch) == expected


def test_an_empty_log_behind_a_snapshot_has_its_epoch():
    source = open_log(disk())
    write(source, "e1:3 e3:4")
    target = open_log(disk())
    write(target, "e1:2")
    download = fetch_snapshot(source, target, take_snapshot(source, 5))
    download.freeze()
    assert target.latest_snapshot is None
    target.add_snapshot(download.snapshot)
    assert target.end == OffsetAndEpoch(2, 1)
    assert target.truncate_to_latest_snapshot()
    assert not target.truncate_to_latest_snapshot()
    assert target.end == target.latest_snapshot == target.earliest_snapshot == OffsetAndEpoch(5, 3)
    assert (target.log_start_offset, target.high_watermark) == (5, 5)
    assert target.end_offset_for_epoch(3) == OffsetAndEpoch(5, 3)
    assert target.end_offset_for_epoch(7) == OffsetAndEpoch(5, 3)
    end = OffsetAndEpoch(5, 3)
    assert [target.validate(offset, epoch) for offset, epoch in ((5, 3), (6, 3), (6, 4), (5, 4))] == [
        Valid(), Diverging(end), Diverging(end), NeedsSnapshot(end)
    ]  # fmt: skip
    target.append_as_follower(source.read(5, max_bytes=10_000), epoch=3)
    assert target.end == source.end
    assert target.validate(5, 3) == Valid()


# -- what a leader sends ---------------------------------------------------------------------------------


def bytes_of(story: str) -> list[bytes]:
    log = open_log(disk(), MetadataLogSettings())
    write(log, story)
    return [log.read(offset, max_bytes=1) for offset in range(log.end_offset)]


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def test_a_follower_has_the_leaders_bytes():
    sent = bytes_of("e1:2 e2:3")
    log = open_log(disk(), MetadataLogSettings())
    log.append_as_follower(b"".join(sent)[:-1], epoch=2)  # the last one is cut off
    assert log.end == OffsetAndEpoch(4, 2)
    log.append_as_follower(memoryview(sent[4]), epoch=2)
    assert log.read(0, max_bytes=10_000) == b"".join(sent)
    assert log.read(2, max_bytes=len(sent[2]) + 1) == sent[2]
    assert log.read(5, max_bytes=10) == b""


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda sent: [sent[0], damaged(sent[1]), sent[2]], 1),
        (lambda sent: [damaged(sent[0])], 0),
        (lambda sent: [sent[1]], 0),                    # a gap
        (lambda sent: [sent[0], sent[2]], 1),           # a gap
        (lambda sent: [sent[0], sent[0]], 1),           # twice
        (lambda sent: sent, 3),                         # then come batches of a later epoch than the leader's
        (lambda sent: [sent[0], b"\0" * 100], 1),       # no batch at all
    ],
)  # fmt: skip
def test_what_does_not_follow_is_refused_and_what_stands_before_it_kept(change, kept):
    sent = bytes_of("e1:3 e2:1")
    log = open_log(disk())
    with pytest.raises(KafkaError):
        log.append_as_follower(b"".join(change(sent)), epoch=1)
    assert log.end_offset == kept
    log.append_as_follower(b"".join(sent[kept:]), epoch=2)
    assert log.read(0, max_bytes=10_000) == b"".join(sent)


def test_epochs_of_batches_never_go_back():
    log = open_log(disk())
    write(log, "e3:1")
    with pytest.raises(CorruptMessage):
        log.append_as_follower(bytes_of("e1:2")[1], epoch=4)
    assert log.end == OffsetAndEpoch(1, 3)


# -- truncation ------------------------------------------------------------------------------------------


def test_what_is_truncated_is_gone_and_the_epoch_too():
    log = open_log(disk())
    write(log, "e1:3 e2:2")
    log.update_high_watermark(2)
    log.truncate_to(3)
    assert log.end == OffsetAndEpoch(3, 1)
    with pytest.raises(AssertionError, match="is committed"):
        log.truncate_to(1)


@pytest.mark.logs("is offline")
def test_a_truncation_does_not_wait_for_the_disk():
    """It is on the event loop; a thread flushes it."""
    files = disk()
    log = open_log(files, MetadataLogSettings())
    write(log, "e1:20")
    log.flush(20)
    files.fail("fsync", errno=errno.EIO)
    log.truncate_to(10)
    with pytest.raises(KafkaStorageError):
        log.flush(10)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.logs("are not valid batches, truncated", "the epochs are read from the log again")
def test_no_crash_brings_batches_back_among_later_ones(seed):
    """Old and new batches have equal sizes: each page of a mixture would be sound by itself."""
    random = Random(seed)
    files = disk()
    log = open_log(files, MetadataLogSettings())
    write(log, "e1:20")
    log.flush(20)
    log.truncate_to(10)
    log.flush(10)
    write(log, "e2:10")
    files.random = random
    after = open_log(
        files.after_crash(random, random.choice([Loss.PAGES, Loss.ANYTHING])), MetadataLogSettings()
    )
    epochs = [epoch for offset in range(after.end_offset) for epoch in [after._log.epoch_for_offset(offset)]]
    assert epochs[:10] == [1] * 10
    assert set(epochs[10:]) <= {2}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.logs("its segment does not exist", "are not valid batches, truncated", "the log ends before it")
def test_any_crash_leaves_a_log_that_is_a_beginning(seed):
    """Everything flushed is there, and what is there has no gaps, across segments and snapshots."""
    random = Random(seed)
    files = disk()
    log = open_log(files)
    flushed = 0
    for _ in range(random.randint(1, 12)):
        write(log, f"e1:{random.randint(1, 9)}")
        if random.random() < 0.5:
            log.flush(flushed := log.end_offset)
        if random.random() < 0.3 and log.end_offset == flushed:
            take_snapshot(
                log, flushed
            ) if log.latest_snapshot is None or log.latest_snapshot.offset < flushed else ()
            log.clean(10**6)
    latest = log.latest_snapshot
    held = None if latest is None else list(log.snapshot_records(latest))
    after = open_log(files.after_crash(random, random.choice(list(Loss))))
    assert after.end_offset >= flushed
    offsets = [chunk.base_offset for chunk in after.decoded_batches(after.log_start_offset, after.end_offset)]
    assert offsets == list(range(after.log_start_offset, after.end_offset))
    if latest is not None:
        assert after.latest_snapshot == latest
        assert list(after.snapshot_records(latest)) == held
    if after.log_start_offset:
        assert after.earliest_snapshot.offset == after.log_start_offset


@pytest.mark.parametrize(
    ("torn", "snapshot_at", "begins", "ends"),
    [
        # Segments begin at 0, 10, 20, 30; those that are torn end five records too early.
        ([10], None,  0, 15),    # nothing behind the gap counts
        ([10],   12,  0, 15),    # nor has the snapshot what is missing
        ([10],   25, 25, 40),    # it has
        ([0],    25, 25, 40),
        ([0, 10], 25, 25, 40),
        ([0, 20], 25, 25, 25),   # a gap that it covers before one that it does not
        ([0, 20], 27, 27, 27),   # the snapshot itself is behind what is left
        ([0, 20], None, 0, 5),
    ],
)  # fmt: skip
@pytest.mark.logs("begins after a gap")
def test_a_log_with_a_gap_begins_with_a_snapshot_that_covers_it_or_ends_there(
    torn, snapshot_at, begins, ends
):
    files = disk()
    settings = MetadataLogSettings(log_segment_bytes=850)
    log = open_log(files, settings)
    write(log, "e1:40")
    assert [segment.base_offset for segment in log._log.segments] == [0, 10, 20, 30]
    log.flush(40)
    if snapshot_at is not None:
        take_snapshot(log, snapshot_at)
    files = files.after_kill()
    for base_offset in torn:
        path = log.directory / f"{base_offset:020}.log"
        files.tear(path, files.size_of(path) // 2)
    after = open_log(files, settings)
    assert (after.log_start_offset, after.end_offset) == (begins, ends)
    assert after.high_watermark == (snapshot_at or 0)
    # It goes on.
    write(after, "e2:20")
    after.update_high_watermark(after.end_offset)
    assert after.high_watermark == ends + 20
    chunks = after.decoded_batches(begins, after.end_offset)
    assert [chunk.base_offset for chunk in chunks] == list(range(begins, ends + 20))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.logs(
    "ends before its log start offset",
    "its segment does not exist",
    "the epochs are read from the log again",
    "begins after a gap",
    "are not valid batches",
    "disagrees with the batches",
)
def test_a_follower_may_die_at_any_moment_of_taking_a_snapshot(seed):
    source = open_log(disk())
    write(source, "e1:30 e4:40")
    random, files = Random(seed), disk()
    target = open_log(files)
    write(target, "e1:20 e2:30")
    target.flush(50)
    snapshot = take_snapshot(source, 60)
    download = fetch_snapshot(source, target, snapshot)
    stage = random.randint(0, 3)
    if stage > 0:
        download.freeze()
    if stage > 1:
        target.add_snapshot(snapshot)
        assert target.truncate_to_latest_snapshot()
    if stage > 2:
        target.append_as_follower(source.read(60, max_bytes=500), epoch=4)
    files.random = random
    files = files.after_crash(random, random.choice([Loss.PAGES, Loss.ANYTHING, Loss.SUFFIX]))
    after = open_log(files)
    assert not [name for name in files.list(target.directory) if ".part" in name]
    if stage == 0:
        assert after.end == OffsetAndEpoch(50, 2)
    else:
        assert (after.log_start_offset, after.latest_snapshot) == (60, snapshot)
        assert after.end_offset >= 60
        assert after.last_epoch == 4


# -- control records -------------------------------------------------------------------------------------


def test_control_records_come_with_their_offsets_snapshot_first():
    files = disk()
    files.make_dir(HOME / "__cluster_metadata-0")
    snapshots.write_voters(HOME / "__cluster_metadata-0", VOTERS, files, now_ms=0)
    log = open_log(files)
    assert log.latest_snapshot == log.earliest_snapshot == OffsetAndEpoch(0, 0)
    leader = LeaderChangeMessage(leader_id=7)
    assert log.append_control([leader, KRaftVersionRecord(k_raft_version=1)], epoch=1, now_ms=0) == 0
    write(log, "e1:1")
    assert log.append_control([VOTERS], epoch=1, now_ms=0) == 3
    in_log = [(0, leader), (1, KRaftVersionRecord(k_raft_version=1)), (3, VOTERS)]
    in_snapshot = [KRaftVersionRecord(k_raft_version=1), VOTERS]
    assert list(log.quorum_messages()) == [*((-1, each) for each in in_snapshot), *in_log]
    assert list(log.quorum_messages(3)) == in_log[2:]
    take_snapshot(log, 3)
    assert list(log.quorum_messages()) == [*((2, each) for each in in_snapshot), (3, VOTERS)]
    assert [chunk.records for chunk in log.decoded_batches(0, 4)] == [[], [value_of(2)], []]


@pytest.mark.parametrize(
    ("is_control", "key", "value", "read"),
    [
        (False, None, b"\x01\x63\x00", lambda log: list(log.decoded_batches(0, 1))),  # record type 99
        (False, None, b"\x01\x02\x09", lambda log: list(log.decoded_batches(0, 1))),  # Topic, version 9
        (False, None, b"\x05\x02\x00", lambda log: list(log.decoded_batches(0, 1))),  # another frame
        (True, control_key(99), b"\0\0", lambda log: list(log.quorum_messages())),
    ],
)
def test_records_of_unknown_type_or_version_stop_the_node(is_control, key, value, read):
    log = open_log(disk())
    batch = build_batch([Record(0, 0, key, value)], base_offset=0, leader_epoch=1, is_control=is_control)
    log._log.append_as_leader(batch, leader_epoch=1, now_ms=0, origin=AppendOrigin.RAFT_LEADER)
    with pytest.raises(UnknownMetadataRecord, match=r"/disk/__cluster_metadata-0.* offset 0"):
        read(log)


def test_damage_under_a_clean_log_is_found_when_it_is_read():
    files = disk()
    log = open_log(files)
    write(log, "e1:3")
    log.close()
    path = log.directory / f"{0:020d}.log"
    file = files._file(path)
    file.data[-3] ^= 1
    log = open_log(files, is_clean=True)
    with pytest.raises(
        InvalidMetadata, match=r"00000000000000000000\.log is damaged at offset 2. If other controllers have"
    ):
        list(log.decoded_batches(0, 3))


# -- snapshots -------------------------------------------------------------------------------------------


# KIP-630
def test_a_snapshot_holds_image_voters_and_the_last_records_time():
    files = disk()
    log = open_log(files)
    write(log, "e1:3 e2:3")
    log.update_high_watermark(6)
    assert take_snapshot(log, 5) == OffsetAndEpoch(5, 2) == log.latest_snapshot
    path = log.directory / "00000000000000000005-0000000002.checkpoint"
    header, *messages = snapshots.quorum_messages(path, files)
    assert header.last_contained_log_timestamp == 4
    assert messages == [KRaftVersionRecord(k_raft_version=1), VOTERS]
    image = MetadataImage()
    for records in log.snapshot_records(OffsetAndEpoch(5, 2)):
        image.replay_all(records)
    assert image == image_at(5)
    assert log.create_snapshot(5) is None
    assert log.create_snapshot(0) is None
    assert log.snapshot_chunk(OffsetAndEpoch(5, 1), position=0, max_bytes=10) is None
    data, size = log.snapshot_chunk(OffsetAndEpoch(5, 2), position=10, max_bytes=20)
    assert data == files.read(path)[10:30]
    for beyond in (size, 2**63 - 1):
        assert log.snapshot_chunk(OffsetAndEpoch(5, 2), position=beyond, max_bytes=20) == (b"", size)


def test_snapshots_are_of_whole_committed_batches():
    log = open_log(disk())
    log.append(new_batch(value_of(0), value_of(1)), epoch=1, now_ms=0)
    log.update_high_watermark(2)
    with pytest.raises(AssertionError, match="is within a batch"):
        log.create_snapshot(1)
    write(log, "e1:1")
    with pytest.raises(AssertionError):
        log.create_snapshot(3)


def test_an_own_snapshot_that_is_too_old_is_deleted():
    source, log = open_log(disk()), open_log(disk())
    for each in (source, log):
        write(each, "e1:3")
    write(source, "e2:3")
    log.update_high_watermark(2)
    writer = log.create_snapshot(2)
    download = fetch_snapshot(source, log, take_snapshot(source, 6))
    download.freeze()
    log.add_snapshot(download.snapshot)
    assert log.truncate_to_latest_snapshot()
    writer.write(image_at(2), kraft_version=0, voters=None, now_ms=0)
    log.snapshot_written(writer)
    assert log.earliest_snapshot == log.latest_snapshot == OffsetAndEpoch(6, 2)


def test_big_snapshots_come_in_batches():
    files = disk()
    log = open_log(files, MetadataLogSettings())
    image = image_at(1)
    image.replay_all(
        r.ConfigRecord(resource_type=2, resource_name=f"t{n}", name="k", value="v" * 3000)
        for n in range(4000)
    )
    write(log, "e1:1")
    log.update_high_watermark(1)
    writer = log.create_snapshot(1)
    writer.write(image, kraft_version=0, voters=None, now_ms=0)
    chunks = list(log.snapshot_records(writer.snapshot))
    assert [len(chunk) for chunk in chunks] == [1024, 1024, 1024, 930]
    again = MetadataImage()
    for chunk in chunks:
        again.replay_all(chunk)
    assert again == image


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_download_is_refused_and_nothing_of_it_stays(seed):
    source, files = open_log(disk()), disk()
    write(source, "e1:3")
    target = open_log(files)
    random = Random(seed)
    snapshot = take_snapshot(source, 3)
    data, _ = source.snapshot_chunk(snapshot, position=0, max_bytes=10_000)
    # The bytes before a batch's CRC are lengths and places: not every wrong one can be detected.
    at = random.choice([random.randrange(21, 120), random.randrange(len(data) - 30, len(data))])
    worse = bytearray(data)
    worse[at] ^= 1 << random.randrange(8)
    for bad in (bytes(worse), data[: random.randrange(len(data))], data + data, b""):
        download = target.begin_snapshot(snapshot)
        download.append(bad)
        with pytest.raises(KafkaError):
            download.freeze()
        download.delete()
        assert target.latest_snapshot is None
        assert not [
            name for name in files.list(target.directory) if "checkpoint" in name and "epoch" not in name
        ]


def test_a_damaged_snapshot_is_refused_by_name_and_with_a_remedy():
    files = disk()
    log = open_log(files)
    write(log, "e1:3")
    snapshot = take_snapshot(log, 3)
    name = "00000000000000000003-0000000001.checkpoint"
    files._file(log.directory / name).data[-20] ^= 1
    with pytest.raises(InvalidMetadata, match=f"{name} is damaged.*removed from the quorum"):
        list(log.snapshot_records(snapshot))
    files.tear(log.directory / name, 150)
    with pytest.raises(InvalidMetadata, match=f"{name} is damaged: it has no footer"):
        list(log.snapshot_records(snapshot))
    files.tear(log.directory / name, 20)
    with pytest.raises(InvalidMetadata, match=name):
        list(log.quorum_messages())


@pytest.mark.logs("leader-epoch-checkpoint disagrees with the batches")
def test_a_log_whose_snapshot_is_missing_does_not_open():
    files = disk()
    log = open_log(files)
    write(log, "e1:60")
    for at in (20, 40, 60):
        take_snapshot(log, at)
    assert log.clean(10**6)
    log.close()
    for snapshot in list(log._store.ids):
        files.unlink(log._store.path(snapshot))
    with pytest.raises(InvalidMetadata, match="no snapshot holds what was before"):
        open_log(files, is_clean=True)


# -- cleaning --------------------------------------------------------------------------------------------


def test_old_snapshots_go_with_the_log_before_the_next_one():
    files = disk()
    log = open_log(files)
    write(log, "e1:100")
    for at in (20, 50, 90):
        take_snapshot(log, at)
    assert log.size_bytes > 4000
    assert log.clean(1000)
    assert log.log_start_offset == log.earliest_snapshot.offset == 90
    assert log.latest_snapshot == OffsetAndEpoch(90, 1)  # the last one stays, however large
    assert log.size_bytes < 2000
    names = files.list(log.directory)
    assert f"{20:020d}-{1:010d}.checkpoint.deleted" in names
    assert log.removals_due(1000) is None
    job = log.removals_due(1000 + DELETE_DELAY_MS)
    job.run()
    assert not [name for name in files.list(log.directory) if name.endswith(".deleted")]
    assert log.removals_due(10**9) is None
    assert not log.clean(10**9)
    again = open_log(files)
    assert (again.log_start_offset, again.earliest_snapshot) == (90, OffsetAndEpoch(90, 1))


def test_snapshots_go_by_the_age_of_their_last_record():
    settings = MetadataLogSettings(max_retention_bytes=None, max_retention_ms=1000)
    log = open_log(disk(), settings)
    write(log, "e1:100")  # record n is of time n
    for at in (20, 50, 90):
        take_snapshot(log, at)
    assert not log.clean(1019)
    assert log.clean(1020)
    assert [each.offset for each in log._store.ids] == [50, 90]
    assert log.log_start_offset == 50


def test_nothing_goes_beyond_what_is_known_to_be_committed():
    files = disk()
    log = open_log(files)
    write(log, "e1:100")
    take_snapshot(log, 50)
    log.close()
    log = open_log(files)
    assert log.high_watermark == 50  # what a snapshot holds was committed
    assert not log.clean(10**9)


def test_when_a_snapshot_is_due():
    trigger = SnapshotTrigger(
        MetadataLogSettings(max_record_bytes_between_snapshots=100, max_snapshot_interval_ms=1000), now_ms=0
    )
    assert trigger.committed(60, 10) is None
    assert "100 bytes" in trigger.committed(40, 20)
    trigger.reset(20)
    assert trigger.committed(99, 1019) is None
    assert "1 s old" in trigger.committed(0, 1020)
    trigger = SnapshotTrigger(MetadataLogSettings(max_snapshot_interval_ms=0), now_ms=0)
    assert trigger.committed(20 * 2**20 - 1, 10**12) is None
    assert trigger.committed(1, 10**12)
