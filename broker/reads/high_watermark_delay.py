"""High watermark delay: whether a follower's new high watermark waits for records that it can be sent with.

A follower fetches again after each response, so a high watermark that is sent alone costs leader and follower a Fetch more,
which is half of all their Fetches where one record is written at a time. Where records follow it closely, they bring it along.

    sent at once  --the next records follow within EXPECTED_WITHIN_S--> waits
    waits         --later, or not within MAX_DELAY_S------------------> sent at once

One for each fetch session, whose partitions share its responses. It goes by the last time: how long after a new high
watermark, sent or waiting, records followed. The time between two appends is no measure of that: a producer that sends its
next record when it has its response follows the high watermark at once, however long each record takes.

So consumers of a follower (KIP-392) see a record at most MAX_DELAY_S later, and mostly less than EXPECTED_WITHIN_S.

Source: none in Kafka 4.3.1, where a high watermark always waits for records, or for replica.fetch.wait.max.ms.
"""

from typing import Final

#: With a record each millisecond, replicated within a few hundred microseconds, the next one is expected; with fewer, not.
EXPECTED_WITHIN_S: Final = 0.000_75

#: A timer of uvloop counts whole milliseconds, so that this one may take nearly three.
MAX_DELAY_S: Final = 0.002


class HighWatermarkDelay:
    """See the module. Of one follower's fetch session; times are in seconds, on a monotonic clock."""

    __slots__ = ("_new_at", "are_records_expected")

    def __init__(self) -> None:
        self.are_records_expected = False
        #: When the last high watermark was new; None once records have followed.
        self._new_at: float | None = None

    def on_new_high_watermark(self, now: float) -> bool:
        """A high watermark is new to the follower, and there are no records: whether it waits for some."""
        self._new_at = now
        return self.are_records_expected

    def on_records(self, now: float) -> None:
        """Records are sent."""
        if self._new_at is not None:
            self.are_records_expected = now - self._new_at <= EXPECTED_WITHIN_S
            self._new_at = None

    def on_delay_over(self) -> None:
        """The high watermark has waited for MAX_DELAY_S, and is sent alone."""
        self.are_records_expected = False
