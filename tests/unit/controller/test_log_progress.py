"""Rates and times of commits of the metadata log, by the roles and ends of the log that a replica has seen."""

from ottla.controller.quorum.log_progress import MAX_TIMED, LogProgress
from ottla.controller.raft.roles import Leader, Unattached


def role(kind):
    return kind.__new__(kind)


def test_records_are_appended_by_a_leader_and_fetched_by_others():
    now_s = 0.0
    progress = LogProgress(lambda: now_s, 10)
    progress.observe(role(Unattached), 40)
    progress.observe(role(Unattached), 20)  # truncated: no record is fetched, and none is taken back
    progress.observe(role(Leader), 80)
    assert (progress.fetched.rate(), progress.appended.rate()) == (1, 2)
    now_s = 30.0
    assert (progress.fetched.rate(), progress.appended.rate()) == (1, 2)
    now_s = 60.0
    assert (progress.fetched.rate(), progress.appended.rate()) == (0, 0)


def test_a_commit_takes_its_time_from_the_append_for_each_record():
    now_s = 0.0
    progress = LogProgress(lambda: now_s, 0)
    progress.observe(role(Leader), 10)
    now_s = 0.1
    progress.observe(role(Leader), 11)
    now_s = 0.2
    progress.committed(10)
    assert round(progress.commit_ms.mean()) == 20
    now_s = 0.3
    progress.committed(11)
    assert (round(progress.commit_ms.mean()), round(progress.commit_max_ms.read())) == (110, 200)


def test_batches_that_are_never_committed_are_bounded_and_forgotten_with_the_leadership():
    progress = LogProgress(lambda: 0.0, 0)
    for end_offset in range(1, MAX_TIMED + 10):
        progress.observe(role(Leader), end_offset)
    assert len(progress._uncommitted) == MAX_TIMED
    progress.observe(role(Unattached), 5)
    progress.committed(2_000)
    assert progress.commit_ms.mean() == 0
