"""Flush jobs, and what the event loop does to the log while they run."""

import pytest

from storage.files import Files
from storage.flushing import flush_due, flush_job
from storage.log_config import LogConfig
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=1, flush_ms=1000)


class InterruptedFiles(Files):
    """Lets something else happen before a log file is flushed, and notes what is."""

    def __init__(self):
        self.flushed = set()
        self.meanwhile = None

    def fsync_path(self, path):
        if path.suffix == ".log" and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().fsync_path(path)
        if path.exists():
            self.flushed.add(path.name)


def append(log, **fields):
    log.append_as_leader(batch(**fields), leader_epoch=0, now_ms=NOW_MS)


def complete(job, files, happen, *, when):
    """The job, with something that happens before its thread runs, during its first flush, or after the last one."""
    if when == "before":
        happen()
    elif when == "during":
        files.meanwhile = happen
    job.run()
    if when == "after":
        happen()
    job.finish()


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_roll_beside_a_flush(tmp_path, when):
    """The indexes of the segment that was active then are flushed before the recovery point passes its end."""
    files = InterruptedFiles()
    log = open_log(tmp_path / "l", config=CONFIG, files=files)
    for _ in range(5):
        append(log)
    job = flush_job(log, flush_due(log, NOW_MS + 2000), NOW_MS + 2000)

    def roll():
        append(log, value=b"v" * 400)
        assert [segment.base_offset for segment in log.segments] == [0, 5]

    complete(job, files, roll, when=when)
    assert log.recovery_point == 0
    flush_job(log, flush_due(log, NOW_MS + 2001), NOW_MS + 2001).complete()
    assert (log.recovery_point, flush_due(log, NOW_MS + 2001)) == (5, None)
    assert {f"{0:020d}{extension}" for extension in (".log", ".index", ".timeindex")} <= files.flushed


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_the_directory_gets_another_name_beside_a_flush(tmp_path, when):
    """It finds no files any more: they are flushed later, where they are then."""
    files = InterruptedFiles()
    log = open_log(tmp_path / "a-0.00-future", config=CONFIG, files=files)
    for _ in range(20):
        append(log)
    bases = [segment.base_offset for segment in log.segments]
    job = flush_job(log, flush_due(log, NOW_MS), NOW_MS)

    def rename():
        log.rename_directory(tmp_path / "a-0")

    complete(job, files, rename, when=when)
    assert log.recovery_point == 0
    flush_job(log, flush_due(log, NOW_MS), NOW_MS).complete()
    assert (log.recovery_point, flush_due(log, NOW_MS)) == (bases[-1], None)
    assert {f"{base:020d}.log" for base in bases[:-1]} | {"a-0", tmp_path.name} <= files.flushed
