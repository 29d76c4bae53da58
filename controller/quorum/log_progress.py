"""Log progress: how many records this replica of the metadata log appends and fetches, and how long a commit takes.

    the log has grown   as the leader: records appended     as a follower or observer: records fetched
    committed           the time since the leader appended the batch, for each of its records

Source: KafkaRaftMetrics (append-records-rate, fetch-records-rate, commit-latency-avg, commit-latency-max) of Kafka
4.3.1.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.controller.raft.roles import Leader, Role
from ottla.runtime.windows import WindowedMax, WindowedSum

#: The batches whose commits are timed at once; those beyond are not, so that a leader without a majority keeps nothing.
MAX_TIMED: Final = 1_000


class LogProgress:
    """The rates of one replica, and the times of its commits while it leads."""

    def __init__(self, monotonic: Callable[[], float], end_offset: int) -> None:
        """`end_offset` is that of the log at the start."""
        self._monotonic = monotonic
        self._end_offset = end_offset
        #: Records, for rates.
        self.appended = WindowedSum(monotonic)
        self.fetched = WindowedSum(monotonic)
        #: Milliseconds for each record of a batch, from its append to its commit.
        self.commit_ms = WindowedSum(monotonic)
        self.commit_max_ms = WindowedMax(monotonic)
        #: (end offset, number of records, time of the append) of batches that are not committed; at most MAX_TIMED.
        self._uncommitted: deque[tuple[int, int, float]] = deque()

    def observe(self, role: Role, end_offset: int) -> None:
        """Observe the end of the log after an append or an event."""
        is_leader = isinstance(role, Leader)
        if self._uncommitted and not is_leader:
            self._uncommitted.clear()
        count, self._end_offset = end_offset - self._end_offset, end_offset
        if count <= 0:  # nothing, or a truncation
            return
        (self.appended if is_leader else self.fetched).record(count)
        if is_leader and len(self._uncommitted) < MAX_TIMED:
            self._uncommitted.append((end_offset, count, self._monotonic()))

    def committed(self, high_watermark: int) -> None:
        """Observe the high watermark."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            _, count, appended_s = uncommitted.popleft()
            took_ms = (self._monotonic() - appended_s) * 1000 / count
            self.commit_ms.record(took_ms)
            self.commit_max_ms.record(took_ms)
