"""Compaction: the newest record of each key stays, where it was; nothing is lost whenever it is interrupted."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import CorruptMessage
from ottla.protocol.records.batch import crc_is_valid, crc_of
from ottla.protocol.records.builder import assemble, build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record, records
from ottla.protocol.varint import encode_varint
from ottla.storage import cleaner
from ottla.storage.files import Files
from ottla.storage.log import AppendOrigin
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=1,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)


def write(log, pairs, *, codec=Compression.NONE, **fields):
    rows = [
        Record(at, NOW_MS, key.encode(), None if value is None else value.encode())
        for at, (key, value) in enumerate(pairs)
    ]
    return log.append_as_leader(
        bytearray(build_batch(rows, compression=codec, **fields)), leader_epoch=0, now_ms=NOW_MS
    )


def begin(log, *, cleaned_to=None, now_ms=NOW_MS, high_watermark=None, **options):
    """A cleaning, and what it will say: up to where the log is clean, or why it is not."""
    outcomes = []
    log.update_high_watermark(log.log_end_offset if high_watermark is None else high_watermark)
    job = cleaner.cleaning_job(
        cleaner.measure(log, cleaned_to=cleaned_to, now_ms=now_ms),
        now_ms=now_ms,
        on_done=lambda log, end: outcomes.append(end),
        on_failure=lambda log, error: outcomes.append(error),
        **options,
    )
    return job, outcomes


def clean(log, **options):
    """Clean once; what it says."""
    job, outcomes = begin(log, **options)
    job.complete()
    return outcomes[0]


def contents(log, *, since=0):
    """offset -> (key, value) of all records; every batch is sound and in its place."""
    found, end = {}, 0
    for header, data in log.reader.records_since(since):
        assert crc_is_valid(data)
        assert header.base_offset >= end
        end = header.next_offset
        if not header.is_control:
            found |= {it.offset: (it.key.decode(), it.value and it.value.decode()) for it in records(data)}
    return found


def test_the_newest_of_each_key_stays(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    for number in range(30):
        write(log, [(f"k{number % 3}", f"v{number}"), ("same", f"s{number}")])
    base = log.segments.active.base_offset
    before = contents(log)
    assert clean(log) == base
    after = contents(log)
    for offset, (key, value) in after.items():
        assert before[offset] == (key, value)
        is_newest = not any(it[0] == key and offset < at < base for at, it in before.items())
        assert offset >= base or is_newest
    newest = {key: value for _, (key, value) in sorted(before.items())}
    assert {key: value for _, (key, value) in sorted(after.items())} == newest
    segments = len(log.segments)
    clean(log)  # segments are put together by the sizes they have before
    assert len(log.segments) < segments
    assert contents(log) == after
    for offset in range(log.log_end_offset):
        found = log.reader.read(offset, max_bytes=1, min_one_message=True).base_offset
        assert found >= 0
    state = list(log.reader.records_since(0))
    log.close()
    again = open_log(log.directory, config=CONFIG, is_clean=False)
    assert [(header, bytes(data)) for header, data in again.reader.records_since(0)] == [
        (header, bytes(data)) for header, data in state
    ]


# KIP-534
def test_tombstones_stay_for_a_while(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    write(log, [("a", "1"), ("b", "1")])
    write(log, [("a", None)])
    log.roll(NOW_MS)
    end = clean(log)
    assert contents(log) == {1: ("b", "1"), 2: ("a", None)}
    horizons = [header.delete_horizon_ms for header, _ in log.reader.records_since(0)]
    assert horizons == [None, NOW_MS + 1000]
    clean(log, cleaned_to=end, now_ms=NOW_MS + 999)
    assert contents(log)[2] == ("a", None)
    clean(log, cleaned_to=end, now_ms=NOW_MS + 1000)
    assert contents(log) == {1: ("b", "1")}
    assert log.log_end_offset == 3
    log.close()
    assert open_log(log.directory, config=CONFIG).log_end_offset == 3


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])
def test_codec_and_producer_are_kept(tmp_path, codec):
    log = open_log(tmp_path / "l", config=CONFIG)
    fields = {"producer_id": 5, "producer_epoch": 1}
    write(log, [("a", "1"), ("b", "1")], codec=codec, base_sequence=0, **fields)
    write(log, [("a", "2")], codec=codec, base_sequence=2, **fields)
    log.roll(NOW_MS)
    clean(log)
    header, data = next(iter(log.reader.records_since(0)))
    assert header.compression is codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 0)
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 1, 1)
    assert [it.offset for it in records(data)] == [1]


def test_a_producers_last_batch_stays_as_a_header(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    write(log, [("a", "1")], producer_id=5, producer_epoch=0, base_sequence=0)
    write(log, [("a", "2")], producer_id=6, producer_epoch=0, base_sequence=0)
    write(log, [("a", "3")])
    log.roll(NOW_MS)
    clean(log)
    headers = [header for header, _ in log.reader.records_since(0)]
    assert [(it.producer_id, it.records_count) for it in headers] == [(5, 0), (6, 0), (-1, 1)]
    log.close()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    again = open_log(log.directory, config=CONFIG, is_clean=False)
    assert {number: it.last_sequence for number, it in again.producers.producers.items()} == {5: 0, 6: 0}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_producers_last_batch_is_one_that_cannot_be_cut_off(tmp_path, is_restarted):
    """An uncommitted batch may be truncated; if an older one was removed for its sake, the producer would be
    out of sequence."""
    log = open_log(tmp_path / "l", config=CONFIG)
    for sequence in range(2):
        write(log, [("a", "1")], producer_id=5, producer_epoch=0, base_sequence=sequence)
    write(log, [("a", "2")])
    log.roll(NOW_MS)
    write(log, [("b", "1")], producer_id=5, producer_epoch=0, base_sequence=2)
    if is_restarted:  # a snapshot has a producer's last batch only
        log.close()
        log = open_log(log.directory, config=CONFIG)
    clean(log, high_watermark=3)
    log.truncate_to(3, now_ms=NOW_MS)
    log.close()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    again = open_log(log.directory, config=CONFIG, is_clean=False)
    assert again.producers.producers[5].last_sequence == 1


def test_transactions(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    transactional = {"producer_epoch": 0, "is_transactional": True}

    def end(producer_id, *, commit):
        log.append_as_leader(
            marker(producer_id=producer_id, commit=commit),
            leader_epoch=0,
            now_ms=NOW_MS,
            origin=AppendOrigin.COORDINATOR,
        )

    write(log, [("a", "committed")], producer_id=1, base_sequence=0, **transactional)  # 0
    write(log, [("a", "aborted"), ("b", "aborted")], producer_id=2, base_sequence=0, **transactional)  # 1, 2
    end(1, commit=True)  # 3
    end(2, commit=False)  # 4
    write(log, [("c", "open")], producer_id=1, base_sequence=1, **transactional)  # 5
    log.roll(NOW_MS)
    write(log, [("d", "1")])
    log.update_high_watermark(log.log_end_offset)
    assert (
        cleaner.measure(log, cleaned_to=None, now_ms=NOW_MS).end_offset == 0
    )  # not beyond the last stable offset
    end(1, commit=True)
    clean(log)
    assert contents(log) == {0: ("a", "committed"), 5: ("c", "open"), 7 - 1: ("d", "1")}
    assert [header.base_offset for header, _ in log.reader.records_since(0)][:3] == [0, 1, 3]
    assert [it.first_offset for it in log.reader.aborted_transactions(0, 9)] == [1]


def test_min_and_max_lag_and_ratio(tmp_path):
    config = LogConfig(
        segment_bytes=600,
        cleanup_policy=("compact",),
        min_compaction_lag_ms=1000,
        max_compaction_lag_ms=5000,
        min_cleanable_dirty_ratio=0.5,
    )
    log = open_log(tmp_path / "l", config=config)
    write(log, [("a", "1" * 300)])
    log.roll(NOW_MS)
    write(log, [("a", "2" * 100)])
    log.roll(NOW_MS)
    log.update_high_watermark(2)
    assert cleaner.measure(log, cleaned_to=1, now_ms=NOW_MS + 999).dirty_bytes == 0
    measured = cleaner.measure(log, cleaned_to=1, now_ms=NOW_MS + 1000)
    assert measured.end_offset == 2
    assert measured.dirty_ratio < 0.5
    assert not measured.is_due
    assert cleaner.measure(log, cleaned_to=None, now_ms=NOW_MS + 1000).is_due
    assert cleaner.measure(log, cleaned_to=1, now_ms=NOW_MS + 5001).is_due
    assert (
        cleaner.measure(log, cleaned_to=99, now_ms=NOW_MS + 1000).first_dirty_offset == 0
    )  # a checkpoint beyond the end


def test_segments_are_joined_as_far_as_log_and_indexes_have_room(tmp_path):
    """Every batch but a first one has an index entry here: five of them fill the smaller index."""
    narrow = replace(CONFIG, segment_bytes=300)
    for index_bytes, segments in ((10**6, 2), (40, 4)):
        config = replace(narrow, segment_index_bytes=index_bytes)
        log = open_log(tmp_path / str(index_bytes), config=config)
        for number in range(20):
            write(log, [(f"k{number}", "v" * 10)])
        log.update_config(replace(config, segment_bytes=100_000))
        before = contents(log)
        clean(log)
        assert contents(log) == before
        assert len(log.segments) == segments
        for segment in log.segments.closed:
            assert segment.path_of(".index").stat().st_size <= index_bytes


def test_a_full_map_cleans_a_part(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    for number in range(20):
        write(log, [(f"k{number % 10}", f"v{number}")])
    log.roll(NOW_MS)
    before = contents(log)
    end = clean(log, dedupe_buffer_bytes=4 * 160)
    assert end == 4
    newest = {key: value for _, (key, value) in sorted(before.items())}
    assert {key: value for _, (key, value) in sorted(contents(log).items())} == newest
    while end < 20:
        end = clean(log, cleaned_to=end, dedupe_buffer_bytes=4 * 160)
    assert sorted(contents(log).values()) == sorted(newest.items())


def test_a_batch_with_more_keys_than_the_map_holds(tmp_path):
    """Each cleaning gets further, even within a batch: else the cleaner would begin again at once, without end."""
    log = open_log(tmp_path / "l", config=CONFIG)
    for _ in range(20):
        write(log, [(f"k{number}", "v") for number in range(5)])
    base = log.segments.active.base_offset
    cleaned_to, rounds = 0, 0
    while cleaned_to < base:
        end = clean(log, cleaned_to=cleaned_to, dedupe_buffer_bytes=2 * cleaner.BYTES_A_KEY)
        assert end > cleaned_to
        cleaned_to, rounds = end, rounds + 1
    assert rounds >= base // 5
    assert {key for key, _ in contents(log).values()} == {f"k{number}" for number in range(5)}


def test_a_damaged_batch_is_not_written_over(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    for number in range(9):
        write(log, [("a", f"{number}" * 50)])
    path = log.segments.first.path_of(".log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    segments = list(log.segments)
    assert isinstance(clean(log), CorruptMessage)
    assert list(log.segments) == segments
    assert not list(log.directory.glob("*.cleaned"))


@pytest.mark.parametrize("offset", [-1, 1, 2**20, 2**40])
def test_a_batch_with_a_damaged_base_offset_shadows_no_newer_record(tmp_path, offset):
    """No checksum covers the base offset: by a larger one, the newer records of the key would be removed."""
    log = open_log(tmp_path / "l", config=CONFIG)
    for number in range(29):
        write(log, [("a", f"{number}" * 50)])
    assert len(log.segments) > 2
    path = log.segments.first.path_of(".log")
    data = bytearray(path.read_bytes())
    size = struct.unpack_from(">I", data, 8)[0] + 12
    struct.pack_into(">q", data, size, 1 + offset)
    path.write_bytes(data)
    segments = list(log.segments)
    assert isinstance(clean(log), CorruptMessage)
    assert list(log.segments) == segments


def test_a_batch_with_offsets_in_disorder_is_left_alone(tmp_path):
    """It came when the topic was not compacted, and was not checked."""
    log = open_log(tmp_path / "l", config=replace(CONFIG, cleanup_policy=("delete",)))
    rows = [Record(at, NOW_MS, key, b"v") for at, key in enumerate((b"a", b"b", b"c"))]
    data = bytearray(build_batch(rows))
    size = (len(data) - 61) // 3
    first, second, third = (bytes(data[61 + at * size :][:size]) for at in range(3))
    data[61:] = third + second + first
    struct.pack_into(">I", data, 17, crc_of(data))
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    for number in range(9):
        write(log, [("c", f"{number}" * 50)])
    log.update_config(CONFIG)
    segments = list(log.segments)
    assert isinstance(clean(log), CorruptMessage)
    assert list(log.segments) == segments


def test_a_batch_with_offsets_beyond_its_header_is_compacted(tmp_path):
    """The record offsets of a producer's uncompressed batch are not checked, here as in Kafka."""
    log = open_log(tmp_path / "l", config=CONFIG)
    rows = [Record(0, NOW_MS, b"a", b"v"), Record(5, NOW_MS, b"b", b"v")]
    data = bytearray(build_batch(rows))
    struct.pack_into(">i", data, 23, 1)  # last offset delta
    struct.pack_into(">I", data, 17, crc_of(data))
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    for number in range(9):
        write(log, [("a", f"{number}" * 50)])
    segments = list(log.segments)
    assert not isinstance(clean(log), Exception)
    assert list(log.segments) != segments


@pytest.mark.parametrize("claimed", [-1, 1, 5, 1_000_000])
def test_an_offset_that_contradicts_its_header_does_not_outlive_a_newer_record(tmp_path, claimed):
    """A producer's record claims an offset before or behind those of its batch: newer ones of its key stay."""
    log = open_log(tmp_path / "l", config=CONFIG)
    write(log, [("b", "oldest")])
    record = b"\x00\x00" + encode_varint(claimed) + encode_varint(1) + b"b" + encode_varint(1) + b"v\x00"
    data = assemble(
        encode_varint(len(record)) + record,
        base_offset=0,
        leader_epoch=0,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=1,
    )
    log.append_as_leader(bytearray(data), leader_epoch=0, now_ms=NOW_MS)
    write(log, [("b", "newest")])
    for number in range(9):
        write(log, [("c", f"{number}" * 50)])
    clean(log)
    clean(log)
    found = [it.value for _, data in log.reader.records_since(0) for it in records(data) if it.key == b"b"]
    assert found[-1] == b"newest"


@pytest.mark.logs("below the high watermark")
def test_a_truncation_meanwhile_takes_precedence(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    for number in range(20):
        write(log, [("a", f"{number}" * 20)])
    job, outcomes = begin(log)
    job.run()
    log.truncate_to(3, now_ms=NOW_MS)
    job.finish()
    assert not outcomes
    assert sorted(contents(log)) == [0, 1, 2]
    assert not list(log.directory.glob("*.cleaned"))


def test_files_that_retention_removes_under_it_are_no_failure_of_the_disk(tmp_path):
    """It may take longer than file.delete.delay.ms."""
    log = open_log(
        tmp_path / "l", config=replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=None)
    )
    for number in range(20):
        write(log, [("a", f"{number}" * 20)])
    job, outcomes = begin(log)
    log.maybe_increment_log_start_offset(10)
    assert log.apply_retention(NOW_MS)
    for deleted in log.files.deleted_files:
        deleted.remove()
    job.complete()
    assert not outcomes
    assert clean(log) == log.segments.active.base_offset


def test_what_retention_leaves_of_a_group_is_not_clean(tmp_path):
    """Otherwise the tombstone would go in its time, and the value that it deletes would be back. It is
    cleaned next."""
    log = open_log(
        tmp_path / "l", config=replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=None)
    )
    for pairs in ([("x", "1")], [("k", "old")], [("y", "1" * 400)], [("k", None)]):
        write(log, pairs)
        log.roll(NOW_MS)
    job, outcomes = begin(log)
    job.run()
    log.maybe_increment_log_start_offset(1)
    assert log.apply_retention(NOW_MS) == 1
    part = job.finish()
    assert not outcomes
    assert not list(log.directory.glob("*.cleaned"))
    assert [header.delete_horizon_ms for header, _ in log.reader.records_since(1)] == [None] * 3
    part.complete()
    (end,) = outcomes
    assert contents(log, since=1) == {2: ("y", "1" * 400), 3: ("k", None)}
    clean(log, cleaned_to=end, now_ms=NOW_MS + 1000)
    assert contents(log, since=1) == {2: ("y", "1" * 400)}


def test_a_topic_that_is_not_compacted_any_more_keeps_what_it_has(tmp_path):
    log = open_log(tmp_path / "l", config=CONFIG)
    for number in range(20):
        write(log, [("a", f"{number}" * 20)])
    job, outcomes = begin(log)
    job.run()
    log.update_config(replace(CONFIG, cleanup_policy=("delete",)))
    job.finish()
    assert not outcomes
    assert sorted(contents(log)) == list(range(20))
    assert not list(log.directory.glob("*.cleaned"))


def test_a_disk_that_fails_when_a_segment_is_not_wanted_any_more(tmp_path):
    """Like all failures of a disk, it is reported by a callback, and not raised to the caller of the job."""

    class Failing(Files):
        def unlink(self, path):
            if path.suffix == ".cleaned" and path.exists():
                raise failure
            super().unlink(path)

    failure = OSError(5, "EIO")
    log = open_log(tmp_path / "l", config=CONFIG, files=Failing())
    for number in range(20):
        write(log, [("a", f"{number}" * 20)])
    job, outcomes = begin(log)
    job.run()
    log.update_config(replace(CONFIG, cleanup_policy=("delete",)))
    assert job.finish() is None
    assert outcomes == [failure]


def several_groups(tmp_path, *, files=None, **config):
    log = open_log(tmp_path / "l", config=replace(CONFIG, **config), files=files)
    for number in range(30):
        write(log, [(f"k{number % 7}", f"{number}" * 40)])
    return log


def test_a_cleaning_needs_room_for_one_segment(tmp_path):
    """Each is in place before the next is made; when it is stopped it leaves them, and the cleaning starts again."""
    log = several_groups(tmp_path)
    part, outcomes = begin(log)
    parts = 0
    while part is not None:
        part.run()
        assert len(list(log.directory.glob("*.log.cleaned"))) <= 1
        part = part.finish()
        assert not list(log.directory.glob("*.cleaned"))
        parts += 1
    assert parts > 3
    assert outcomes == [log.segments.active.base_offset]


def test_each_segment_is_in_place_for_good_before_the_next_one(tmp_path):
    """All of them are in place before the log counts as clean: else a power cut might keep a later one only."""

    class Recording(Files):
        def rename(self, source, target):
            super().rename(source, target)
            if source.name.endswith(".log.swap"):
                done.append("swap")

        def fsync_dir(self, path):
            super().fsync_dir(path)
            if done and done[-1] == "swap":
                done.append("flush")

    done = []
    log = several_groups(tmp_path, files=Recording())
    log.flush()
    part, outcomes = begin(log)
    while part is not None:
        part.run()
        assert not done or done[-1] == "flush"
        part = part.finish()
    assert outcomes
    assert done == ["swap", "flush"] * (len(done) // 2)
    assert len(done) > 4


def test_a_cleaning_that_is_stopped_keeps_what_is_in_place(tmp_path):
    log = several_groups(tmp_path)
    before, is_stopping = contents(log), False

    def throttle(size_bytes):
        if is_stopping:
            raise cleaner.CleaningStopped

    part, outcomes = begin(log, throttle=throttle)
    part.run()
    part = part.finish()
    is_stopping = True
    part.complete()
    assert not outcomes
    assert not list(log.directory.glob("*.cleaned"))
    after = contents(log)
    assert after.items() < before.items()
    is_stopping = False
    assert clean(log) == log.segments.active.base_offset
    assert dict(sorted(contents(log).values())) == dict(value for _, value in sorted(before.items()))


@pytest.mark.parametrize(
    "log_start",
    [
        1,  # not a whole segment
        2,  # what was put in place goes again
        10,  # and what was yet to be cleaned
    ],
)
@pytest.mark.parametrize("when", ["before the thread", "after the thread"])
def test_retention_between_two_segments_of_a_cleaning(tmp_path, log_start, when):
    log = several_groups(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=None)
    before = contents(log)
    part, outcomes = begin(log)
    part.run()
    part = part.finish()
    if when == "after the thread":
        part.run()
    log.maybe_increment_log_start_offset(log_start)
    log.apply_retention(NOW_MS)
    if when == "after the thread":
        part = part.finish()
    part.complete()
    assert outcomes == [log.segments.active.base_offset]
    assert not list(log.directory.glob("*.cleaned"))
    assert dict(contents(log).values()) == dict(value for at, value in before.items() if at >= log_start)


@pytest.mark.parametrize("are_files_gone", [False, True])
def test_a_cleaning_comes_to_its_end_beside_steady_retention(tmp_path, are_files_gone):
    """In a large log with a slow throttle, a segment goes for each batch that is read, some of them under it."""
    log = several_groups(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=None)
    lost, is_steady = 0, False

    def throttle(size_bytes):
        nonlocal lost
        if is_steady and len(log.segments) > 5:
            log.maybe_increment_log_start_offset(log.segments.end_of(log.segments.first))
            lost += log.apply_retention(NOW_MS)
            for deleted in log.files.deleted_files if are_files_gone else ():
                deleted.remove()

    part, outcomes = begin(log, throttle=throttle)
    part.run()
    part, is_steady = part.finish(), True
    part.complete()
    assert lost > 3
    assert outcomes == [log.segments.active.base_offset]
    assert not list(log.directory.glob("*.cleaned"))
    after = contents(log)
    assert clean(log) == outcomes[0]
    assert contents(log) == after


@pytest.mark.parametrize("retained_from", [1, 2])
def test_retention_takes_the_marker_of_a_transaction_that_the_cleaning_has_seen(tmp_path, retained_from):
    """Records that the producer has committed since do not belong to that transaction."""
    log = open_log(
        tmp_path / "l", config=replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=None)
    )
    mine = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}

    def end(*, commit):
        log.roll(NOW_MS)
        data = marker(producer_id=5, commit=commit)
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        log.roll(NOW_MS)

    write(log, [("a", "1" * 480)], base_sequence=0, **mine)
    end(commit=False)
    write(log, [("b", "2" * 480)], base_sequence=1, **mine)
    end(commit=True)
    part, outcomes = begin(log)
    part.run()
    part = part.finish()
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2, 3, 4]
    log.maybe_increment_log_start_offset(retained_from)
    assert log.apply_retention(NOW_MS) == retained_from
    part.complete()
    assert outcomes == [4]
    assert contents(log, since=retained_from)[2] == ("b", "2" * 480)


class Crash(Exception):
    pass


class CrashingFiles(Files):
    """Ends the process, as it were, before the n-th change of a name."""

    left = 10**9

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def unlink(self, path):
        self._count()
        super().unlink(path)

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise Crash


@pytest.mark.parametrize("step", range(40))
def test_crash_at_every_step_of_the_swap(tmp_path, step):
    files = CrashingFiles()
    log = open_log(tmp_path / "l", config=CONFIG, files=files)
    for number in range(12):
        write(log, [(f"k{number % 4}", f"v{number}" * 10)])
    before = contents(log)
    newest = {key: value for _, (key, value) in sorted(before.items())}
    log.flush()
    log.update_high_watermark(12)
    job = cleaner.cleaning_job(
        cleaner.measure(log, cleaned_to=None, now_ms=NOW_MS), now_ms=NOW_MS, on_done=lambda *it: None
    )
    files.left = step
    try:
        job.complete()
        for deleted in log.files.deleted_files:
            deleted.remove()
    except Crash:
        pass
    log.close_files()
    again = open_log(log.directory, config=CONFIG, is_clean=False, recovery_point=log.recovery_point)
    after = contents(again)
    assert again.log_end_offset == 12
    assert {key: value for _, (key, value) in sorted(after.items())} == newest
    assert after.items() <= before.items()
    assert not [
        path for path in Path(log.directory).iterdir() if path.suffix in (".swap", ".cleaned", ".deleted")
    ]


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcde"), st.sampled_from(["1", "22", None])), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=30,
    ),
    cleanings=st.lists(st.integers(0, 29), max_size=3),
)
def test_readers_see_the_same_last_values(tmp_path_factory, batches, cleanings):
    log = open_log(tmp_path_factory.mktemp("clean") / "l", config=CONFIG)
    end = None
    expected: dict[str, str | None] = {}
    for number, pairs in enumerate(batches):
        write(log, pairs)
        expected |= dict(pairs)
        if number in cleanings:
            end = clean(log, cleaned_to=end, now_ms=NOW_MS + number * 500)
    clean(log, cleaned_to=end, now_ms=NOW_MS + 100_000)
    seen: dict[str, str | None] = {}
    for _, (key, value) in sorted(contents(log).items()):
        seen[key] = value
    assert {key: value for key, value in seen.items() if value is not None} == {
        key: value for key, value in expected.items() if value is not None
    }
    assert log.log_end_offset == sum(map(len, batches))


def test_batches_without_keys_go(tmp_path):
    log = open_log(tmp_path / "l", config=LogConfig(segment_bytes=600, cleanup_policy=("delete",)))
    log.append_as_leader(batch(2), leader_epoch=0, now_ms=NOW_MS)
    keyless = build_batch([Record(0, NOW_MS, None, b"v")])
    log.append_as_leader(bytearray(keyless), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.update_config(CONFIG)
    clean(log)
    assert sorted(contents(log)) == [1]
