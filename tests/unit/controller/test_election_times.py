"""Election times: from the first candidacy until a leader is known, however many rounds it takes."""

from ottla.controller.quorum.election_times import ElectionTimes
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached


def role(kind):
    """A role whose kind alone matters."""
    return object.__new__(kind)


def test_the_time_of_an_election():
    now_s = 10.0
    times = ElectionTimes(lambda: now_s)
    for at_s, kind in [
        (10.0, Follower), (11.0, Prospective), (11.2, Candidate), (11.5, Unattached), (12.0, Candidate),
        (12.25, Leader), (13.0, Resigned), (13.5, Follower), (14.0, Prospective), (14.5, Follower),
    ]:  # fmt: skip
        now_s = at_s
        times.observe(role(kind))
    assert (times.count, round(times.total_ms)) == (2, 1750)
    assert round(times.max_ms.read()) == 1250
