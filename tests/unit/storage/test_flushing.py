"""Flush jobs, and what the event loop does to the log while they run."""

import pytest

from ottla.config.log_config import LogConfig
from ottla.storage.files import Files
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=1, flush_ms=1000)


#: In the middle of a flush.
FIRST_LOG = f"before {0:020d}.log"


class InterruptedFiles(Files):
    """Lets something else happen before or after a file is flushed, and notes what is."""

    def __init__(self):
        self.flushed = set()
        #: By moment, as "before 00000000000000000000.log".
        self.meanwhile = {}

    def at(self, moment):
        self.meanwhile.pop(moment, lambda: None)()

    def fsync_path(self, path):
        self.at(f"before {path.name}")
        super().fsync_path(path)
        if path.exists():
            self.flushed.add(path.name)
        self.at(f"after {path.name}")


def append(log, *, leader_epoch=0, **fields):
    log.append_as_leader(batch(**fields), leader_epoch=leader_epoch, now_ms=NOW_MS)


def complete(job, files, happen, *, when):
    """The job, with something that happens before its thread runs, beside the flush of a file, or afterwards."""
    files.meanwhile[when] = happen
    files.at("before")
    job.run()
    files.at("after")
    assert not files.meanwhile
    job.finish()


@pytest.mark.parametrize("when", ["before", FIRST_LOG, "after"])
def test_a_roll_beside_a_flush(tmp_path, when):
    """The indexes of the segment that was active then are flushed before the recovery point passes its end."""
    files = InterruptedFiles()
    log = open_log(tmp_path / "l", config=CONFIG, files=files)
    for _ in range(5):
        append(log)
    job = log.flusher.job(log.flusher.due_end(NOW_MS + 2000), now_ms=NOW_MS + 2000)

    def roll():
        append(log, value=b"v" * 400)
        assert [segment.base_offset for segment in log.segments] == [0, 5]

    complete(job, files, roll, when=when)
    assert log.recovery_point == 0
    log.flusher.job(log.flusher.due_end(NOW_MS + 2001), now_ms=NOW_MS + 2001).complete()
    assert (log.recovery_point, log.flusher.due_end(NOW_MS + 2001)) == (5, None)
    assert {f"{0:020d}{extension}" for extension in (".log", ".index", ".timeindex")} <= files.flushed


@pytest.mark.parametrize(
    "when",
    ["before", "before leader-epoch-checkpoint", FIRST_LOG, "before a-0.00-future", "after d", "after"],
)
def test_the_directory_gets_another_name_beside_a_flush(tmp_path, when):
    """It finds no files any more: they are flushed later, where they are then."""
    files, parent = InterruptedFiles(), tmp_path / "d"
    log = open_log(parent / "a-0.00-future", config=CONFIG, files=files)
    for _ in range(20):
        append(log)
    bases = [segment.base_offset for segment in log.segments]
    job = log.flusher.job(log.flusher.due_end(NOW_MS), now_ms=NOW_MS)

    def rename():
        log.rename_directory(parent / "a-0")
        files.flushed.clear()

    complete(job, files, rename, when=when)
    assert log.recovery_point == 0
    log.flusher.job(log.flusher.due_end(NOW_MS), now_ms=NOW_MS).complete()
    assert (log.recovery_point, log.flusher.due_end(NOW_MS)) == (bases[-1], None)
    expected = {f"{base:020d}.log" for base in bases[:-1]} | {"leader-epoch-checkpoint", "a-0", "d"}
    assert expected <= files.flushed


@pytest.mark.parametrize(
    ("when", "leader_epoch"), [(FIRST_LOG, 0), ("before l", 0), ("before leader-epoch-checkpoint", 1)]
)
def test_a_flush_beside_another_one(tmp_path, when, leader_epoch):
    """The cleaner's, for one. What that has yet to flush does not count as flushed."""
    files = InterruptedFiles()
    log = open_log(tmp_path / "l", config=CONFIG, files=files)
    append(log)
    log.flush()
    for _ in range(20):
        append(log, leader_epoch=leader_epoch)
    bases = [segment.base_offset for segment in log.segments]
    files.flushed.clear()

    def flush():
        log.flusher.job(log.flusher.due_end(NOW_MS), now_ms=NOW_MS).complete()
        assert log.recovery_point == bases[-1]
        names = {f"{base:020d}{extension}" for base in bases[:-1] for extension in (".log", ".index")}
        assert names | {"l"} <= files.flushed
        assert leader_epoch == 0 or "leader-epoch-checkpoint" in files.flushed

    files.meanwhile[when] = flush
    log.flusher.flush_files(bases[-1])
    assert not files.meanwhile


def test_a_truncation_to_the_first_byte_beside_two_flushes(tmp_path):
    """No offset is left to flush; the shortened file still is."""
    files = InterruptedFiles()
    log = open_log(tmp_path / "l", config=CONFIG, files=files)
    append(log)
    log.flush()
    log.truncate_to(0, now_ms=NOW_MS)
    files.flushed.clear()

    def flush():
        log.flush()
        assert f"{0:020d}.log" in files.flushed

    files.meanwhile[FIRST_LOG] = flush
    log.flush()
    assert not files.meanwhile
