"""Local log reports: which local logs of the ISR a leader has to report to the controller (draft KIP-1303).

No I/O, no clock.

    a member's local log changes --> due --begin--> in flight --granted--> answered, until the metadata log shows it
                                      ^                 |------failed----> due
                                      |                 '------refused---> none is due until `retry`
                                      '-- the metadata log shows another value than the leader knows

What the metadata log has is what is reported: nothing else is remembered, so that a report is never lost,
whichever leader or controller is new. The exception are values that the controller has answered without
error. A controller of a version without the field answers so, too, and the metadata log never shows the
value: it is not reported again in this leader epoch.

The start offset and the oldest timestamp change with retention, and each change counts. The size changes with every
append: it counts only if it crosses the bound of `leader.election.eligible.local.log.bytes`.
"""

from collections.abc import Mapping

from ottla.protocol.local_log import LocalLog


def is_unreported(local_log: LocalLog, reported: LocalLog | None, *, eligible_bytes: int | None) -> bool:
    """Whether elections could distinguish the two values; `eligible_bytes`: the bound of the size, None without one."""
    if reported is None:
        return True
    if (local_log.start_offset, local_log.oldest_timestamp_ms) != (
        reported.start_offset,
        reported.oldest_timestamp_ms,
    ):
        return True
    return eligible_bytes is not None and (
        (local_log.size_bytes >= eligible_bytes) != (reported.size_bytes >= eligible_bytes)
    )


class LocalLogReports:
    """The local logs of one partition's ISR that its leader has to report to the controller, in one leader epoch.

    Invariant: at most one report is in flight.
    """

    __slots__ = ("_answered", "_is_refused", "in_flight", "reported")

    def __init__(self, reported: Mapping[int, LocalLog]) -> None:
        #: By replica: what the metadata log has.
        self.reported = reported
        #: The values of a request without response.
        self.in_flight: Mapping[int, LocalLog] | None = None
        #: Values that were answered without error, and that the metadata log has not shown yet.
        self._answered: dict[int, LocalLog] = {}
        self._is_refused = False

    def on_image(self, reported: Mapping[int, LocalLog]) -> None:
        """Adopt the partition's new state in the metadata log."""
        self.reported = reported
        for replica in [each for each, value in self._answered.items() if reported.get(each) == value]:
            del self._answered[replica]
        self._is_refused = False

    def is_due(self, known: Mapping[int, LocalLog], *, eligible_bytes: int | None) -> bool:
        """Whether `known`, the local logs of members of the ISR, has to be reported now."""
        if self.in_flight is not None or self._is_refused:
            return False
        return any(
            is_unreported(value, self.reported.get(replica), eligible_bytes=eligible_bytes)
            and (
                (answered := self._answered.get(replica)) is None
                or is_unreported(value, answered, eligible_bytes=eligible_bytes)
            )
            for replica, value in known.items()
        )

    # -- a report ------------------------------------------------------------------------------------

    def begin(self, values: Mapping[int, LocalLog]) -> None:
        """Record that a request with these values is sent."""
        assert self.in_flight is None, (self.in_flight, values)
        self.in_flight = values

    def on_granted(self) -> None:
        """Record that the controller has accepted the report."""
        assert self.in_flight is not None
        reported = self.reported
        self._answered.update(
            {replica: value for replica, value in self.in_flight.items() if reported.get(replica) != value}
        )
        self.in_flight = None

    def on_failed(self) -> None:
        """End the report without a response: no controller has answered, and it is due as before."""
        self.in_flight = None

    def on_refused(self) -> None:
        """The controller has another state of the partition, or refuses it for now: the metadata log will show why."""
        self.in_flight = None
        self._is_refused = True

    def retry(self) -> None:
        """Make refused reports due again, though the metadata log has no change of the partition."""
        self._is_refused = False

    def on_preference(self) -> None:
        """Forget the answered values: the topic's leader preference has changed, here and soon at the controller.

        The controller may have ignored them.
        """
        self._answered.clear()
        self._is_refused = False
