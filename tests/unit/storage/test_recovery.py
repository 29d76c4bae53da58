"""Reopening after a crash never raises, never serves a bad batch, keeps what was flushed, and settles at
once."""

import shutil
from dataclasses import replace
from random import Random

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import batches, crc_is_valid
from ottla.storage import recovery
from ottla.storage.log import AppendOrigin
from tests.unit.storage.storage_support import NOW_MS, batch, marker, offsets_in, open_log

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def write_log(directory, *, flushed_to=None):
    """20 batches of two records, epochs 0 and 1, a producer with an aborted transaction; ends without closing."""
    log = open_log(directory, config=CONFIG)
    for number in range(20):
        log.append_as_leader(
            batch(
                2,
                value=b"v" * 60,
                producer_id=5,
                producer_epoch=0,
                base_sequence=number * 2,
                is_transactional=True,
                timestamp=NOW_MS + number,
            ),
            leader_epoch=number // 12,
            now_ms=NOW_MS,
        )
        if flushed_to == log.log_end_offset:
            log.flush()
    abort = marker(producer_id=5, commit=False)
    log.append_as_leader(abort, leader_epoch=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    return log


def contents(log):
    """All whole batches that the log serves; each is sound."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.reader.read(offset, max_bytes=10_000, min_one_message=True)
        for header, data in batches(memoryview(read.records)):
            assert crc_is_valid(data)
            assert header.base_offset >= (found[-1][0].next_offset if found else 0)
            found.append((header, bytes(data)))
        offset = found[-1][0].next_offset
    return found


def state(log):
    """Everything that must not change by a second recovery."""
    log.update_high_watermark(
        log.log_end_offset
    )  # what is in the log is replicated: no transaction waits for that
    return (
        contents(log),
        log.log_start_offset,
        log.log_end_offset,
        log.leader_epochs.entries,
        [segment.base_offset for segment in log.segments],
        log.producers.first_unstable_offset,
        {number: (it.epoch, it.last_sequence) for number, it in log.producers.producers.items()},
        log.reader.aborted_transactions(0, 100),
    )


def recover(directory, **options):
    """The log after an unclean stop; a second recovery must find nothing to do."""
    options = {"is_clean": False, "config": CONFIG, **options}
    log = open_log(directory, **options)
    first = state(log)
    log.close_files()
    again = open_log(directory, **options)
    assert state(again) == first
    again.close_files()
    return open_log(directory, **options)


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("crashed") / "orders-0"
    log = write_log(directory)
    expected = state(log)
    for segment in log.segments:
        segment.close_files()
    return directory, expected


@pytest.fixture
def directory(crashed, tmp_path):
    return shutil.copytree(crashed[0], tmp_path / "orders-0")


def test_a_killed_process_loses_nothing(crashed, directory):
    assert state(recover(directory)) == crashed[1]


def test_recovered_files_are_those_of_a_closed_log(directory, tmp_path):
    log = write_log(tmp_path / "closed")
    log.close()
    recover(directory).close()
    expected = files_of(tmp_path / "closed")
    assert files_of(directory) == expected


@pytest.mark.logs("are not valid batches, truncated")
def test_torn_at_every_byte(crashed, directory):
    """The end of the last segment is missing, from one byte to two batches and more."""
    batches_before = crashed[1][0]
    active = max(directory.glob("*.log"))
    data = active.read_bytes()
    base = int(active.stem)
    whole = [item for item in batches_before if item[0].base_offset >= base]
    ends = [sum(len(it[1]) for it in whole[: n + 1]) for n in range(len(whole))]
    for size in range(len(data) - len(whole[-1][1]) - 70, len(data)):
        active.write_bytes(data[:size])
        log = open_log(directory, config=CONFIG, is_clean=False)
        kept = sum(end <= size for end in ends)
        assert [it[0].base_offset for it in contents(log)] == [
            it[0].base_offset for it in batches_before if it[0].base_offset < base
        ] + [it[0].base_offset for it in whole[:kept]]
        log.close_files()


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xff" * 61, bytes(range(256)), b"\0" * 7])
@pytest.mark.logs("are not valid batches, truncated")
def test_garbage_behind_the_end(crashed, directory, garbage):
    active = max(directory.glob("*.log"))
    active.write_bytes(active.read_bytes() + garbage)
    assert state(recover(directory)) == crashed[1]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.logs(
    "are not valid batches, truncated",
    "the epochs are read from the log again",
    "the log ends before it",
)
def test_bit_flips(crashed, directory, seed):
    """The bit may be in any file. Flushed records are kept as far as the log file itself is whole."""
    random = Random(seed)
    paths = sorted(directory.iterdir())
    path = random.choice([path for path in paths if path.stat().st_size])
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data))
    data[at] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    log = recover(directory)
    found, before = contents(log), crashed[1][0]
    if path.suffix == ".log":
        assert (
            found == before[: len(found)]
        )  # a damaged leader epoch, which no CRC covers, too, is not served
        damaged = max(item[0].base_offset for item in before if item[0].base_offset <= int(path.stem))
        assert len(found) >= sum(item[0].base_offset < damaged for item in before)
    else:
        assert found == before
        assert state(log) == crashed[1]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(
    "ending", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", ".txnindex"]
)
@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "garbage"])
@pytest.mark.logs(
    "rebuilding the transaction index",
    "an older one is read",
    "rebuilding the offset and time index",
    "leader-epoch-checkpoint disagrees with the batches",
    "the epochs are read from the log again",
)
def test_files_beside_the_log(directory, tmp_path, is_clean, ending, damage):
    """Clean or not: everything but the log itself can be rebuilt from it."""
    if is_clean:
        log = open_log(directory, config=CONFIG, is_clean=False)
        log.close()
    log = open_log(directory, config=CONFIG, is_clean=is_clean)
    expected = state(log)
    log.close() if is_clean else log.close_files()
    if ending == ".txnindex" and is_clean and damage in ("missing", "empty"):
        return  # one without entries has no file: that it is missing cannot be seen
    for path in directory.glob("*" + ending):
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "odd": path.read_bytes() + b"x", "garbage": b"\x7f" * 68}[damage])
    again = open_log(directory, config=CONFIG, is_clean=is_clean)
    assert state(again) == expected
    for offset in range(40):
        assert again.reader.read(offset, max_bytes=10_000).base_offset == offset // 2 * 2
        assert again.reader.offset_for_timestamp(NOW_MS + offset // 2).offset == max(offset // 2 * 2 - 1, 0)


def test_only_what_is_behind_the_recovery_point_is_checked(tmp_path, monkeypatch):
    log = write_log(tmp_path / "l", flushed_to=30)
    recovery_point = log.recovery_point
    active = log.segments.floor(recovery_point).base_offset
    log.close_files()
    checked = []
    original = recovery.valid_batches
    monkeypatch.setattr(
        recovery,
        "valid_batches",
        lambda segment, epoch: checked.append(segment.base_offset) or original(segment, epoch),
    )
    again = open_log(tmp_path / "l", config=CONFIG, is_clean=False, recovery_point=recovery_point)
    assert checked
    assert min(checked) == active
    assert again.log_end_offset == 41
    assert again.recovery_point == recovery_point


@pytest.mark.logs("are not valid batches, truncated", "the log ends before it")
def test_a_bad_batch_takes_all_later_segments_with_it(crashed, directory):
    second = sorted(directory.glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    log = recover(directory)
    kept = [item for item in crashed[1][0] if item[0].base_offset < log.log_end_offset]
    assert contents(log) == kept
    assert log.segments.active.base_offset == int(second.stem)
    log.append_as_leader(batch(), leader_epoch=2, now_ms=NOW_MS)
    assert offsets_in(log)[-1] == kept[-1][0].next_offset


def with_a_gap(directory):
    """The second segment has lost its last batch, and nothing else; where the gap begins and ends."""
    _, second, third = sorted(directory.glob("*.log"))[:3]
    found = list(batches(memoryview(second.read_bytes())))
    second.write_bytes(second.read_bytes()[: -len(found[-1][1])])
    return found[-1][0].base_offset, int(third.stem)


@pytest.mark.logs("begins after a gap")
def test_a_gap_is_remembered_until_it_is_truncated_away(crashed, directory):
    start, end = with_a_gap(directory)
    log = recover(directory)
    whole = crashed[1][0]
    assert contents(log) == [item for item in whole if not start <= item[0].base_offset < end]
    assert log.first_gap_offset == start
    assert (
        log.update_high_watermark(log.log_end_offset) == start
    )  # a reader of what is committed would pass over it
    log.truncate_to(end + 2, now_ms=NOW_MS)
    assert log.first_gap_offset == start
    log.truncate_to(start, now_ms=NOW_MS)
    assert log.first_gap_offset is None
    for header, data in whole:
        if header.base_offset >= start:
            log.append_as_follower(
                memoryview(bytearray(data)), leader_epoch=header.partition_leader_epoch, now_ms=NOW_MS
            )
    assert contents(log) == whole
    log.close_files()
    assert recover(directory).first_gap_offset is None


@pytest.mark.logs("begins after a gap")
def test_a_compacted_log_may_have_gaps(directory):
    with_a_gap(directory)
    log = recover(directory, config=replace(CONFIG, cleanup_policy=("compact",)))
    assert log.first_gap_offset is None


@pytest.mark.parametrize(("is_clean", "recovery_point"), [(True, 0), (False, 41)])
@pytest.mark.logs("a corrupt index is rebuilt", "rebuilding the offset and time index")
def test_what_was_flushed_may_have_gaps(directory, is_clean, recovery_point):
    """Compaction leaves gaps between offsets."""
    with_a_gap(directory)
    options = {"is_clean": is_clean, "recovery_point": recovery_point, "config": CONFIG}
    assert open_log(directory, **options).first_gap_offset is None


@pytest.mark.parametrize("past_the_gap", [False, True])
@pytest.mark.logs("begins after a gap")
def test_what_is_before_the_log_start_is_not_missed(directory, past_the_gap):
    start, end = with_a_gap(directory)
    at = end if past_the_gap else start + 1
    log = open_log(directory, is_clean=False, log_start_offset=at, config=CONFIG)
    assert log.first_gap_offset == (None if past_the_gap else at)


@pytest.mark.logs("ends before its log start offset")
def test_a_log_that_ends_before_its_log_start_offset_is_emptied(directory):
    log = recover(directory, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    log.append_as_leader(batch(), leader_epoch=2, now_ms=NOW_MS)
    assert offsets_in(log) == [100]


@pytest.mark.logs("its segment does not exist")
def test_left_over_files(crashed, directory):
    for name in ("00000000000000000000.log.deleted", "00000000000000000000.index.cleaned", "00000000000000000500.index",
                 "00000000000000000000.log.tmp", "00000000000000000003.snapshot"):  # fmt: skip
        (directory / name).write_bytes(b"x")
    names = set(files_of(crashed[0]))
    log = recover(directory)
    assert state(log) == crashed[1]
    assert set(files_of(directory)) - names <= {"00000000000000000041.snapshot"}


@pytest.mark.logs("")  # whatever the damage is taken for
@pytest.mark.parametrize("segment", [0, 1, -1])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("bit", [0, 1, 3, 20, 63])
def test_a_flipped_base_offset(directory, segment, number, bit):
    """No CRC covers it: what follows from it must not be taken for a bug of ours, which would end the start."""
    open_log(directory, config=CONFIG, is_clean=False).close()
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()  # so that all headers are replayed
    path = sorted(directory.glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    sizes = [header.size_bytes for header, _ in batches(memoryview(data))]
    at = sum(sizes[: number % len(sizes)])
    flipped = int.from_bytes(data[at : at + 8]) ^ (1 << bit)
    data[at : at + 8] = flipped.to_bytes(8)
    path.write_bytes(data)
    log = open_log(directory, config=CONFIG)
    log.append_as_leader(batch(), leader_epoch=2, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.append_as_leader(batch(), leader_epoch=2, now_ms=NOW_MS)
    log.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_negative_offsets_in_checkpoints(crashed, directory, is_clean):
    """Such a file has no checksum."""
    open_log(directory, config=CONFIG, is_clean=False).close()
    log = open_log(directory, config=CONFIG, is_clean=is_clean, recovery_point=-1, log_start_offset=-5)
    assert state(log) == crashed[1]


@pytest.mark.logs("")  # its indexes are rebuilt
def test_a_second_name_of_a_segment(crashed, directory):
    shutil.copy(directory / "00000000000000000000.log", directory / "0.log")
    assert state(recover(directory)) == crashed[1]


def test_empty_directory(tmp_path):
    log = recover(tmp_path / "l", recovery_point=7)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 0, 0)


@pytest.mark.logs("are not valid batches, truncated")
def test_epochs_ahead_of_a_torn_log_go(directory):
    log = open_log(directory, config=CONFIG, is_clean=False)
    log.assign_epoch(9, start_offset=41)
    log.close_files()
    active = max(directory.glob("*.log"))
    active.write_bytes(active.read_bytes()[:-1])
    assert [entry.epoch for entry in recover(directory).leader_epochs.entries] == [0, 1]


def test_an_epoch_without_records_is_removed(directory):
    log = open_log(directory, config=CONFIG, is_clean=False)
    log.assign_epoch(9, start_offset=41)
    log.close()
    # As Kafka: the log ends where that leader began, so that nothing speaks for it.
    assert [entry.epoch for entry in open_log(directory, config=CONFIG).leader_epochs.entries] == [0, 1]
