"""The content of checkpoint files while jobs to write them wait for their turn."""

import pytest

from ottla.storage.segment import Segment
from tests.unit.storage.log_manager_support import TOPIC_ID, A, append, open_manager
from tests.unit.storage.storage_support import NOW_MS


def write_again(jobs):
    """Run the jobs again, however often and late: a job itself runs once."""
    for job in jobs:
        job._run()


@pytest.mark.parametrize("jobs_run", ["before", "afterwards"])
@pytest.mark.logs("below the high watermark")
def test_checkpoints_go_back_before_a_truncation_changes_files(tmp_path, monkeypatch, jobs_run):
    """An earlier job does not undo it: after a power cut new batches would be believed unseen."""
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 20)
    log.flush()
    log.update_high_watermark(20)
    log.maybe_increment_log_start_offset(5)
    jobs = [job for job in manager.maintain(NOW_MS + 60_000) if "checkpoint" in job.name]
    if jobs_run == "before":
        write_again(jobs)
    seen = []
    monkeypatch.setattr(Segment, "truncate_to", lambda segment, offset, **_: seen.append(checkpoints()))

    def checkpoints():
        files = [tmp_path / f"{name}-offset-checkpoint" for name in ("recovery-point", "log-start")]
        return [path.read_text().split()[2:] if path.exists() else [] for path in files]

    base = str(log.segments.floor(17).base_offset)
    log.truncate_to(18, now_ms=NOW_MS)
    log.truncate_to(17, now_ms=NOW_MS)
    append(log, 20)
    write_again(jobs)
    assert seen == [[["a", "0", base], ["a", "0", "5"]]] * 2
    assert checkpoints() == seen[1]
    log.truncate_fully_and_start_at(3, now_ms=NOW_MS)
    write_again(jobs)
    assert checkpoints() == [["a", "0", "0"], ["a", "0", "3"]]


def test_what_is_clean_before_a_prepared_truncation_stays_clean(tmp_path):
    """It does not have the cleaner read the log from its start again."""
    manager = open_manager(tmp_path)
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 20)
    log.flush()
    base = log.segments.active.base_offset
    manager.cleaned_offsets[A] = base
    while (job := log.truncation.next_job(19, now_ms=NOW_MS)) is not None:
        job.complete()
    log.truncate_to(19, now_ms=NOW_MS)
    log.truncation.discard()
    assert 0 < base == manager.cleaned_offsets[A]
    assert log.log_end_offset == 19
