"""A log that must not lose what it has flushed: damage is refused, a torn tail is cut."""

from pathlib import Path
from random import Random

import pytest

from storage.flushed_mark import FILE_NAME, FlushedMark
from storage.log_config import LogConfig
from storage.recovery import FlushedDataLost
from tests.harness.faulty_files import FaultyFiles, Loss
from tests.unit.storage.storage_support import NOW_MS, batch, offsets_in, open_log

DIRECTORY = Path("/data/l")
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=500, index_interval_bytes=1)


class Keeper:
    """A log with its mark, as the metadata log's owner has them."""

    def __init__(self, files):
        self.files = files
        self.mark = FlushedMark(DIRECTORY, files)
        self.log = open_log(
            DIRECTORY,
            files=files,
            config=CONFIG,
            is_clean=False,
            must_keep_to=self.mark.read(),
            on_unflushed=lambda: self.mark.go_back(self.log.recovery_point),
        )

    def append(self, count):
        for _ in range(count):
            self.log.append_as_leader(batch(value=b"v" * 50), leader_epoch=0, now_ms=NOW_MS)

    def flush(self):
        self.log.flush()
        self.mark.advance(self.log.recovery_point)


@pytest.fixture
def files():
    files = FaultyFiles(random=Random(1))
    files.make_dir(DIRECTORY.parent)
    files.fsync_dir(Path("/"))
    return files


def damaged(files, *, offset, at):
    """One byte of the batch at `offset` is another one; `at` counts from the batch's beginning."""
    keeper = Keeper(files.after_crash(Random(1), Loss.NOTHING))
    segment = keeper.log.segments.floor(offset)
    position = segment.find(offset).position
    fd = keeper.files.open(segment.path_of(".log"), write=True)
    byte = keeper.files.pread(fd, 1, position + at)[0]
    keeper.files.pwrite(fd, bytes([byte ^ 1]), position + at)
    keeper.log.close_files()
    return keeper.files.after_crash(Random(1), Loss.NOTHING)


@pytest.mark.parametrize("offset", [0, 5, 13, 19])
@pytest.mark.parametrize("at", [70, 6], ids=["a record", "the base offset"])
def test_damage_in_what_was_flushed_is_refused(files, offset, at):
    keeper = Keeper(files)
    keeper.append(20)
    keeper.flush()
    keeper.append(3)
    files = damaged(files, offset=offset, at=at)
    before = {path: data for path, data in files.contents().items() if path.suffix == ".log"}
    for _ in range(2):
        with pytest.raises(FlushedDataLost):
            Keeper(files)
    assert {path: data for path, data in files.contents().items() if path.suffix == ".log"} == before


@pytest.mark.parametrize("offset", [20, 21, 22])
def test_a_bad_batch_behind_it_ends_the_log(files, offset):
    keeper = Keeper(files)
    keeper.append(20)
    keeper.flush()
    keeper.append(3)
    keeper = Keeper(damaged(files, offset=offset, at=70))
    assert keeper.log.log_end_offset == offset


def test_a_missing_segment_is_refused(files):
    keeper = Keeper(files)
    keeper.append(20)
    keeper.flush()
    segments = list(keeper.log.segments)
    assert len(segments) == 3
    for victim in (segments[1], segments[-1]):
        image = files.after_crash(Random(1), Loss.NOTHING)
        image.unlink(victim.path_of(".log"))
        with pytest.raises(FlushedDataLost):
            Keeper(image)


def test_what_was_removed_before_the_log_start_may_come_back(files):
    """A snapshot stands for it; of its segments the first is there again, the second not."""
    keeper = Keeper(files)
    keeper.append(20)
    keeper.flush()
    first, second, third = keeper.log.segments
    files = files.after_crash(Random(1), Loss.NOTHING)
    files.unlink(second.path_of(".log"))
    log = open_log(
        DIRECTORY,
        files=files,
        config=CONFIG,
        is_clean=False,
        must_keep_to=20,
        log_start_offset=third.base_offset,
    )
    assert (first.base_offset, log.log_start_offset, log.log_end_offset) == (0, third.base_offset, 20)


@pytest.mark.parametrize("loss", list(Loss))
def test_power_cuts_are_not_taken_for_damage(files, loss):
    """Whatever order the disk writes in: the mark never says more than is on it, also after truncations."""
    random = Random(loss.value)
    for _ in range(30):
        keeper = Keeper(files)
        flushed = keeper.log.log_end_offset
        keeper.flush()
        for _ in range(random.randint(1, 5)):
            keeper.append(random.randint(1, 9))
            if random.random() < 0.6:
                keeper.flush()
                flushed = keeper.log.log_end_offset
            if random.random() < 0.3:
                flushed = min(flushed, random.randint(0, keeper.log.log_end_offset))
                keeper.log.truncate_to(flushed, now_ms=NOW_MS)
        files = files.after_crash(random, loss)
        log = Keeper(files).log
        assert log.log_end_offset >= flushed
        assert offsets_in(log)[:flushed] == list(range(flushed))


@pytest.mark.parametrize("content", [b"", b"\0" * 12, b"12345678", b"x" * 40])
def test_a_file_that_is_no_mark(files, content):
    files.make_dir(DIRECTORY)
    files.write_atomically(DIRECTORY / FILE_NAME, content)
    assert FlushedMark(DIRECTORY, files).read() == 0
