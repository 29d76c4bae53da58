"""Segments whose offsets reach too far from their base (KAFKA-6264) are split when the log is opened."""

import shutil
from pathlib import Path

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import patch
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.index import MAX_RELATIVE_OFFSET
from ottla.storage.recovery import valid_batches
from ottla.storage.verify import verify
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

STEP = 2**31
CONFIG = LogConfig(index_interval_bytes=1)
#: Base offsets of batches of two records: the middle ones too far from 0, the last ones from STEP, too.
OFFSETS = [0, 7, STEP - 2, STEP, STEP + 100, 2 * STEP - 4, 2 * STEP + 1, 2 * STEP + 9]
PIECES = [0, STEP, 2 * STEP + 1]


def write_overflowed(directory: Path, offsets=OFFSETS, *, base=0, epoch=0) -> bytes:
    """A log of one segment, as brokers before 1.1 could leave it; its bytes."""
    directory.mkdir(parents=True)
    data = bytearray()
    for number, offset in enumerate(offsets):
        data += batch(2, value=b"v" * 60, timestamp=NOW_MS + 10 * number)
        patch(data, base_offset=offset, leader_epoch=epoch, position=len(data) - len(data) // (number + 1))
    (directory / f"{base:020d}.log").write_bytes(data)
    return bytes(data)


def bytes_of(log) -> bytes:
    return b"".join(segment.path_of(".log").read_bytes() for segment in log.segments)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.logs(
    "a corrupt index is rebuilt",
    "begins after a gap",
    "the indexes end before offset",
    "rebuilding the offset and time index",
    "leader-epoch-checkpoint disagrees with the batches",
)
def test_split(tmp_path, is_clean, is_active):
    """The batches as they were, in as many segments as they need; found by what it ends with, or what comes next."""
    data = write_overflowed(tmp_path / "x-0")
    bases, end = list(PIECES), OFFSETS[-1] + 2
    if not is_active:
        bases.append(end)
        (tmp_path / "x-0" / f"{end:020d}.log").touch()
    for extension in (".index", ".timeindex"):  # rebuilt: these are garbage
        (tmp_path / "x-0" / f"{0:020d}{extension}").write_bytes(b"\xff" * 24)
    log = open_log(tmp_path / "x-0", config=CONFIG, is_clean=is_clean)
    assert [segment.base_offset for segment in log.segments] == bases
    assert bytes_of(log) == data
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    for segment in log.segments:
        assert all(
            it.header.last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET for it in segment.log.headers()
        )
        assert len(list(valid_batches(segment))) == len(list(segment.log.headers()))
    for number, offset in enumerate(OFFSETS):
        assert log.reader.read(offset + 1, max_bytes=1, min_one_message=True).base_offset == offset
        assert log.reader.offset_for_timestamp(NOW_MS + 10 * number).offset == offset
    assert log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS).first_offset == end
    log.close()
    assert not [path for path in log.directory.iterdir() if path.suffix in (".swap", ".cleaned")]
    assert [str(it) for it in verify(log.directory, Files(), is_compacted=True) if it.is_error] == []
    again = open_log(log.directory, config=CONFIG, is_clean=is_clean)
    assert [segment.base_offset for segment in again.segments] == bases


@pytest.mark.logs("begins after a gap")
def test_nothing_near_the_base(tmp_path):
    """Compaction has emptied it: the piece at the base, which takes the source's place, stays empty."""
    data = write_overflowed(tmp_path / "x-0", [STEP + 5, STEP + 7, 2 * STEP + 1], base=3)
    log = open_log(tmp_path / "x-0", config=CONFIG, is_clean=False)
    assert [segment.base_offset for segment in log.segments] == [3, STEP + 5]
    assert bytes_of(log) == data
    assert log.reader.read(3, max_bytes=10**6).base_offset == STEP + 5


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.logs(
    "begins after a gap",
    "the indexes end before offset",
    "rebuilding the offset and time index",
    "leader-epoch-checkpoint disagrees with the batches",
)
def test_a_segment_between_two_that_are_split_is_kept(tmp_path, is_clean):
    """Each is replaced before the next one is read: together their pieces would replace all from first to last."""
    directory = tmp_path / "x-0"
    far = 4 * STEP
    data = write_overflowed(directory, [0, 7, STEP, STEP + 9])
    between = batch(2)
    patch(between, base_offset=STEP + 11, leader_epoch=0)
    (directory / f"{STEP + 11:020d}.log").write_bytes(between)
    data += between + write_overflowed(tmp_path / "y-0", [far, far + 2, far + STEP, far + STEP + 9], base=far)
    (tmp_path / "y-0" / f"{far:020d}.log").rename(directory / f"{far:020d}.log")
    log = open_log(directory, config=CONFIG, is_clean=is_clean)
    assert bytes_of(log) == data
    assert [segment.base_offset for segment in log.segments] == [0, STEP, STEP + 11, far, far + STEP]


@pytest.mark.logs("are not valid batches, truncated")
def test_a_single_offset_is_no_overflow(tmp_path):
    """Base offsets are not covered by a checksum: a batch that nothing follows, or that others go back from,
    is damage.
    """
    for name, offsets in {"end": [0, 2, STEP + 4], "middle": [0, 2, STEP + 4, 6]}.items():
        write_overflowed(tmp_path / name, offsets)
        log = open_log(tmp_path / name, config=CONFIG, is_clean=False)
        assert (len(log.segments), log.log_end_offset) == (1, 4)


def test_aborted_transactions_go_to_their_segments(tmp_path):
    log = open_log(tmp_path / "x-0", config=CONFIG)
    for number in range(2):
        fields = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        log.append_as_leader(batch(2, **fields), leader_epoch=0, now_ms=NOW_MS)
        if number == 0:
            end = marker(producer_id=0, commit=False, timestamp=NOW_MS)
            log.append_as_leader(end, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    follower = [bytearray(data) for _, data in log.reader.records_since(0)]
    aborted = log.segments.active.indexes.transactions.entries
    assert len(aborted) == 1
    log.close()
    data = bytearray(b"".join(follower))
    for at, offset in enumerate((STEP, STEP + 4)):
        data += batch(2, timestamp=NOW_MS + at)
        size = len(batch(2, timestamp=NOW_MS + at))
        patch(data, base_offset=offset, leader_epoch=0, position=len(data) - size)
    (log.directory / f"{0:020d}.log").write_bytes(data)
    again = open_log(log.directory, config=CONFIG)
    assert [segment.base_offset for segment in again.segments] == [0, STEP]
    again.update_high_watermark(again.log_end_offset)
    assert again.reader.aborted_transactions(0, 5) == list(aborted)
    assert again.last_stable_offset == 3, "the other one's transaction is open"


class Stop(Exception):
    pass


class StoppingFiles(Files):
    """Ends the process, as it were, before the n-th change of a name or flush."""

    left = 10**9

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def unlink(self, path):
        self._count()
        super().unlink(path)

    def fsync_dir(self, path):
        self._count()
        super().fsync_dir(path)

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise Stop


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.logs(
    "begins after a gap",
    "the indexes end before offset",
    "rebuilding the offset and time index",
    "leader-epoch-checkpoint disagrees with the batches",
)
def test_crash_at_every_step(tmp_path, is_clean):
    """Whatever a crash leaves, the next opening has all batches, in segments without overflow."""
    data = write_overflowed(tmp_path / "source")
    for step in range(200):
        directory = shutil.copytree(tmp_path / "source", tmp_path / str(step))
        files = StoppingFiles()
        files.left = step
        try:
            open_log(directory, config=CONFIG, files=files, is_clean=is_clean).close_files()
        except Stop:
            pass
        else:
            break
        log = open_log(directory, config=CONFIG, is_clean=False)
        assert [segment.base_offset for segment in log.segments] == PIECES, step
        assert bytes_of(log) == data, step
        log.close()
        left = [path.name for path in directory.iterdir() if path.suffix in (".swap", ".cleaned")]
        assert not left, step
    assert 15 < step < 199


@pytest.mark.logs(
    "begins after a gap",
    "the indexes end before offset",
    "rebuilding the offset and time index",
    "leader-epoch-checkpoint disagrees with the batches",
)
def test_a_full_disk_leaves_the_source(tmp_path, monkeypatch):
    data = write_overflowed(tmp_path / "x-0")

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "rename", full)
        with pytest.raises(OSError, match="No space"):
            open_log(tmp_path / "x-0", config=CONFIG)
    assert (tmp_path / "x-0" / f"{0:020d}.log").read_bytes() == data
    assert bytes_of(open_log(tmp_path / "x-0", config=CONFIG, is_clean=False)) == data
