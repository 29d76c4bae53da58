"""A follower's log: what it takes over from its leader, and what it refuses. Also where tiering begins."""

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import CorruptMessage, OffsetOutOfRange
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record
from ottla.storage import appending
from ottla.storage.appending import AppendInfo
from ottla.storage.files import Files
from ottla.storage.log import UnexpectedAppendOffset
from tests.unit.storage.storage_support import NOW_MS, offsets_in, open_log


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "l")


def fetched(*batches):
    """(base offset, records, epoch) as they come from a leader."""
    return b"".join(
        build_batch(
            [Record(base + at, NOW_MS, b"k", b"v" * 50) for at in range(count)],
            base_offset=base,
            leader_epoch=epoch,
        )
        for base, count, epoch in batches
    )


def append(log, *batches, leader_epoch):
    return log.append_as_follower(fetched(*batches), leader_epoch=leader_epoch, now_ms=NOW_MS)


def test_offsets_and_epochs_are_the_leaders(log):
    append(log, (0, 3, 1), (3, 1, 1), (9, 2, 4), leader_epoch=5)
    assert offsets_in(log) == [0, 3, 9]  # the leader has compacted what is missing
    assert log.log_end_offset == 11
    assert log.leader_epochs.entries == ((1, 0), (4, 9))
    assert [log.end_offset_for_epoch(epoch) for epoch in range(6)] == [
        (0, 0),
        (1, 9),
        (1, 9),
        (1, 9),
        (4, 11),
        None,
    ]
    assert log.high_watermark == 0  # the leader says it, with the next answer
    assert log.update_high_watermark(20) == 11


def test_the_result_of_an_append(log):
    append(log, (0, 3, 1), leader_epoch=5)
    assert append(log, (3, 1, 1), (9, 2, 4), (11, 1, 6), leader_epoch=5) == AppendInfo(
        first_offset=3,
        last_offset=10,
        max_timestamp=NOW_MS,
        log_append_time_ms=None,
        log_start_offset=0,
        is_duplicate=False,
        size_bytes=len(fetched((3, 1, 1), (9, 2, 4))),
        records_count=3,
    )
    nothing = append(log, (11, 1, 6), leader_epoch=5)
    assert (nothing.first_offset, nothing.last_offset, nothing.size_bytes) == (11, 10, 0)


def test_batches_are_summed_once_and_written_at_once(tmp_path, monkeypatch):
    """They are from any producers and epochs: a response is read once, and written by one system call."""
    written, summed = [], []

    class Recorded(Files):
        def pwrite(self, fd, data, position):
            written.append((len(data), position))
            super().pwrite(fd, data, position)

    log = open_log(tmp_path / "l", config=LogConfig(), files=Recorded())
    data = fetched(*((10 * number, 10, number // 30) for number in range(100)))
    data += build_batch(
        [Record(1000, NOW_MS, b"k", b"v")],
        base_offset=1000, leader_epoch=3, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True,
    ) + build_batch(
        [Record(1001, NOW_MS, b"k", b"v")],
        base_offset=1001, leader_epoch=3, producer_id=6, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    crc_of = appending.crc_of
    monkeypatch.setattr(appending, "crc_of", lambda batch: summed.append(len(batch)) or crc_of(batch))
    log.append_as_follower(data, leader_epoch=3, now_ms=NOW_MS)
    assert (sum(summed), len(summed)) == (len(data), 102)
    assert [(size, at) for size, at in written if size > 10_000] == [(len(data), 0)]
    assert log.leader_epochs.entries == ((0, 0), (1, 300), (2, 600), (3, 900))
    assert set(log.producers.producers) == {5, 6}
    assert log.offsets.first_unstable_offset == 1000


@pytest.mark.parametrize(("batches", "error"), [
    ([(3, 2, 1)], UnexpectedAppendOffset),  # had already
    ([(4, 3, 1)], UnexpectedAppendOffset),  # overlaps
    ([(5, 2, 1), (6, 1, 1)], CorruptMessage),  # overlaps within the answer
    ([(7, 1, 1), (5, 1, 1)], CorruptMessage),  # goes back
    ([(5, 1, 1), (5 + 2**31, 1, 1)], CorruptMessage),  # no segment has both
])  # fmt: skip
def test_offsets_that_cannot_follow(log, batches, error):
    append(log, (0, 5, 1), leader_epoch=1)
    with pytest.raises(error):
        append(log, *batches, leader_epoch=1)
    assert offsets_in(log) == [0]
    assert log.leader_epochs.entries == ((1, 0),)
    append(log, (5, 1, 1), leader_epoch=1)


@pytest.mark.parametrize("at", [17, 40, 90, -1])
def test_a_bad_crc_anywhere_in_an_answer_writes_nothing(log, at):
    data = bytearray(fetched((0, 1, 2)) + fetched((1, 1, 3)))
    second = len(data) // 2
    data[second + at if at >= 0 else at] ^= 4
    with pytest.raises(CorruptMessage):
        log.append_as_follower(data, leader_epoch=3, now_ms=NOW_MS)
    assert log.log_end_offset == 0
    assert log.leader_epochs.entries == ()


def test_divergence_is_cut_off_at_the_leaders_end_of_the_epoch(log):
    """KIP-101: the follower's own last epoch, where it ends at the leader's, and on from there."""
    append(log, (0, 2, 0), (2, 2, 1), (4, 2, 1), leader_epoch=1)
    # At the leader epoch 1 ended at 4: the batch there was never committed.
    assert log.truncate_to(4, now_ms=NOW_MS)
    assert log.log_end_offset == 4
    append(log, (4, 3, 2), leader_epoch=2)
    assert log.leader_epochs.entries == ((0, 0), (1, 2), (2, 4))
    assert offsets_in(log) == [0, 2, 4]


def test_the_leaders_log_start(log):
    for base in range(20):
        append(log, (base, 1, base // 10), leader_epoch=1)
    log.update_high_watermark(15)
    assert log.maybe_increment_log_start_offset(12, reason="the leader's")
    assert not log.maybe_increment_log_start_offset(12)
    assert not log.maybe_increment_log_start_offset(3)  # an answer that was overtaken
    assert log.leader_epochs.entries == ((1, 12),)
    assert log.end_offset_for_epoch(0) == (0, 12)
    assert offsets_in(log)[0] == 12
    assert log.apply_retention(NOW_MS) > 0
    assert log.segments.first.base_offset <= 12
    with pytest.raises(OffsetOutOfRange):
        log.maybe_increment_log_start_offset(16)


def test_it_begins_again_where_the_leader_begins(log):
    """It was away for so long that the leader has deleted all that it could have gone on with."""
    append(log, (0, 5, 0), leader_epoch=0)
    log.truncate_fully_and_start_at(100, now_ms=NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (100, 100, 100)
    assert log.leader_epochs.entries == ()
    append(log, (100, 2, 7), leader_epoch=7)
    again = open_log(log.directory, is_clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (100, 102)
    assert again.leader_epochs.entries == ((7, 100),)


def test_it_begins_behind_what_is_tiered(log):
    """KIP-405: the log start is the leader's, its own segments begin where the leader's local ones do."""
    log.truncate_fully_and_start_at(100, now_ms=NOW_MS, log_start_offset=40)
    assert (log.log_start_offset, log.segments.first.base_offset, log.log_end_offset) == (40, 100, 100)
    append(log, (100, 1, 3), leader_epoch=3)
    assert log.log_end_offset == 101
