"""The local logs that a leader has to report (draft KIP-1303): none twice, none never, one report at a time."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.protocol.local_log import LocalLog
from ottla.replication.local_log_reports import LocalLogReports, is_unreported

_BOUND = 100


@pytest.mark.parametrize(("known", "reported", "eligible_bytes", "expected"), [
    # start, size, oldest   start, size, oldest
    ((5, 10, 1),            None,                None,   True),    # unknown to the controller
    ((5, 10, 1),            (5, 10, 1),          None,   False),
    ((6, 10, 1),            (5, 10, 1),          None,   True),    # retention
    ((5, 10, 2),            (5, 10, 1),          None,   True),
    ((5, 10, None),         (5, 10, 1),          None,   True),    # nothing is left
    ((5, 99, 1),            (5, 10, 1),          None,   False),   # grows with each append
    ((5, 99, 1),            (5, 10, 1),          100,    False),
    ((5, 100, 1),           (5, 10, 1),          100,    True),    # crosses the bound, upwards
    ((5, 99, 1),            (5, 100, 1),         100,    True),    # and downwards
    ((5, 500, 1),           (5, 100, 1),         100,    False),
])  # fmt: skip
def test_which_changes_count(known, reported, eligible_bytes, expected):
    found = is_unreported(
        LocalLog(*known), None if reported is None else LocalLog(*reported), eligible_bytes=eligible_bytes
    )
    assert found is expected


class Reporting(RuleBasedStateMachine):
    """A leader, and a controller that knows the field or not; requests and images arrive late."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, LocalLog] = {}
        self.committed: dict[int, LocalLog] = {}
        #: What images have still to show, oldest first.
        self.images: list[dict[int, LocalLog]] = []
        self.reports = LocalLogReports({})
        #: Values of answered requests of this leader epoch to a controller without the field, by replica.
        self.ignored: list[tuple[int, LocalLog]] = []

    def is_due(self) -> bool:
        return self.reports.is_due(self.known, eligible_bytes=_BOUND)

    def unreported(self, reported) -> list[int]:
        return [
            replica
            for replica, value in self.known.items()
            if is_unreported(value, reported.get(replica), eligible_bytes=_BOUND)
        ]

    @rule(
        replica=st.integers(1, 3),
        start=st.integers(0, 3),
        size=st.sampled_from((0, 99, 100, 500)),
        oldest=st.none() | st.integers(0, 2),
    )
    def change(self, replica, start, size, oldest):
        self.known[replica] = LocalLog(start, size, oldest)

    @precondition(lambda self: self.is_due())
    @rule()
    def send(self):
        assert self.reports.in_flight is None
        assert self.unreported(self.reports.reported), "nothing has changed"
        assert any((replica, self.known[replica]) not in self.ignored for replica in self.known)
        self.reports.begin(dict(self.known))

    @precondition(lambda self: self.reports.in_flight is not None)
    @rule(is_image_first=st.booleans())
    def grant(self, is_image_first):
        self.committed = self.committed | self.reports.in_flight
        self.images.append(self.committed)
        if is_image_first:
            self.show_all()
        self.reports.on_granted()

    @precondition(lambda self: self.reports.in_flight is not None)
    @rule()
    def ignore(self):
        """A controller of a version without the field answers as if all was well."""
        self.ignored += [*self.reports.in_flight.items()]
        self.reports.on_granted()

    @precondition(lambda self: self.reports.in_flight is not None)
    @rule()
    def fail(self):
        self.reports.on_failed()

    @precondition(lambda self: self.reports.in_flight is not None)
    @rule()
    def refuse(self):
        self.reports.on_refused()
        assert not self.is_due()

    @precondition(lambda self: self.images)
    @rule()
    def show_one(self):
        self.reports.on_image(self.images.pop(0))

    def show_all(self):
        while self.images:
            self.show_one()

    @rule()
    def begin_epoch(self):
        """Another leader, which knows no more than the metadata log."""
        self.show_all()
        self.reports = LocalLogReports(self.committed)
        self.ignored = []

    @invariant()
    def every_change_is_reported_at_last(self):
        """A good controller and one request after the other: then the metadata log has what the leader knows."""
        reports = LocalLogReports(self.reports.reported)
        reports._answered = dict(self.reports._answered)
        answered = dict(reports._answered)
        committed = self.committed
        for image in [*self.images, committed]:
            reports.on_image(image)
        if reports.is_due(self.known, eligible_bytes=_BOUND):
            reports.begin(dict(self.known))
            committed = committed | self.known
            reports.on_granted()
            reports.on_image(committed)
        assert not reports.is_due(self.known, eligible_bytes=_BOUND)
        # All but what a controller has ignored.
        assert all(
            not is_unreported(self.known[replica], answered.get(replica), eligible_bytes=_BOUND)
            for replica in self.unreported(committed)
        )


TestReporting = Reporting.TestCase


def test_a_value_that_a_controller_ignores_is_sent_once_in_a_leader_epoch():
    known, reports = {1: LocalLog(5, 0, None), 2: LocalLog(7, 0, None)}, LocalLogReports({})
    reports.begin(known)
    reports.on_granted()
    reports.on_image({})  # of an ISR change
    reports.retry()
    assert not reports.is_due(known, eligible_bytes=None)
    known = known | {2: LocalLog(8, 0, None)}
    assert reports.is_due(known, eligible_bytes=None)
    # The controller may ignore it since the topic's preference is off there, until it learns of the change, too.
    reports.on_preference()
    assert reports.is_due({1: known[1]}, eligible_bytes=None)


def test_a_value_that_comes_back_is_reported_again():
    first, second, reports = {1: LocalLog(5, 0, None)}, {1: LocalLog(7, 0, None)}, LocalLogReports({})
    for values in (first, second, first):
        assert reports.is_due(values, eligible_bytes=None)
        reports.begin(values)
        reports.on_granted()
        assert not reports.is_due(values, eligible_bytes=None)
        reports.on_image(values)
        assert not reports.is_due(values, eligible_bytes=None)


def test_a_refused_report_waits_for_the_metadata_log_or_the_next_check():
    known, reports = {1: LocalLog(5, 0, None)}, LocalLogReports({})
    for resume in (lambda: reports.on_image({}), reports.retry):
        reports.begin(known)
        reports.on_refused()
        assert not reports.is_due(known, eligible_bytes=None)
        resume()
        assert reports.is_due(known, eligible_bytes=None)
