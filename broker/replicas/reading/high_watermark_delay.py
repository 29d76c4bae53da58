"""High watermark delay: whether a follower's new high watermark waits for records that it can be sent with.

A follower fetches again after each response, so a high watermark that is sent alone costs leader and follower
a Fetch more, which is half of all their Fetches where one record is written at a time. Where records follow
it closely, they bring it along.

    sent at once  --the next records follow within EXPECTED_WITHIN_S--> waits
    waits         --later, or not within MAX_DELAY_S------------------> sent at once

One for each fetch session, whose partitions share its responses. It goes by the last time: how long after a new high
watermark, sent or waiting, records followed. The time between two appends is no measure of that: a producer
that sends its next record when it has its response follows the high watermark at once, however long each
record takes.

A wait without effect shows that they do not: the records come in bursts, or they follow only because a
consumer of the follower has seen the high watermark. Then more of them in a row have to follow soon until one
waits again, or each second one would wait without effect.

So consumers of a follower (KIP-392) see a record at most MAX_DELAY_S later, and mostly less than EXPECTED_WITHIN_S.

Source: none in Kafka 4.3.1, where a high watermark always waits for records, or for replica.fetch.wait.max.ms.
"""

from typing import Final

#: With a record each millisecond, replicated within a few hundred microseconds, the next one is expected;
#: with fewer, not.
EXPECTED_WITHIN_S: Final = 0.000_75

#: A timer of uvloop counts whole milliseconds, so that this one may take nearly three.
MAX_DELAY_S: Final = 0.002

#: Each wait without effect doubles the number of times that records have to follow soon before the next wait,
#: up to this.
MAX_NEEDED_COUNT: Final = 32


class HighWatermarkDelay:
    """Decides whether new high watermarks of one follower's fetch session wait for the next records.

    Times are in seconds, on a monotonic clock.
    """

    __slots__ = ("_needed_count", "_new_at", "_soon_count", "are_records_expected")

    def __init__(self) -> None:
        self.are_records_expected = False
        #: When the last high watermark was new; None once records have followed, or it was sent alone after a delay.
        self._new_at: float | None = None
        #: How many times in a row records have followed soon, and how many times are needed to expect the next ones.
        self._soon_count = 0
        self._needed_count = 1

    def on_new_high_watermark(self, now: float) -> bool:
        """Return whether a high watermark that is new to the follower, without records, waits for some."""
        self._new_at = now
        return self.are_records_expected

    def on_records(self, now: float) -> None:
        """Record that the follower is sent records, and how soon they followed the last high watermark."""
        if self._new_at is None:
            return
        is_soon = now - self._new_at <= EXPECTED_WITHIN_S
        if is_soon and self.are_records_expected:
            self._needed_count = 1
        self._soon_count = self._soon_count + 1 if is_soon else 0
        self.are_records_expected = self._soon_count >= self._needed_count
        self._new_at = None

    def on_delay_over(self) -> None:
        """Record that a high watermark has waited for MAX_DELAY_S without effect, and is sent alone."""
        self.are_records_expected = False
        self._soon_count = 0
        self._needed_count = min(2 * self._needed_count, MAX_NEEDED_COUNT)
        self._new_at = None
