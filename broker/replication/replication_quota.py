"""Replication quotas: bound the rate of replication, so that a reassignment leaves bandwidth to clients (KIP-73).

    {leader,follower}.replication.throttled.rate  bytes per second, of a broker
    leader.replication.throttled.replicas         the throttled replicas: * or partition:broker, the leading broker
    follower.replication.throttled.replicas       the same, with the following broker

While its rate is exceeded, a follower leaves throttled partitions out of its fetches, and a leader sends no records of
throttled partitions. A throttled member of the ISR would leave it: so the leader never throttles members, and a
follower does not throttle a partition of which it has everything that is committed.

Source: KIP-73; ReplicationQuotaManager of Kafka 4.3.1, with the same windows.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from protocol.types import TopicPartition

_ALL: Final = "*"


class ReplicationQuota:
    """A rate over the last windows, and its bound. Times are in ms of one clock."""

    def __init__(self, *, rate: Callable[[], int], window_count: int = 11, window_ms: int = 1_000) -> None:
        """`rate` returns the configured bound in bytes per second."""
        self._rate = rate
        self._window_count = window_count
        self._window_ms = window_ms
        #: (number of the window, bytes in it), the oldest first; at most `window_count`.
        self._windows: deque[list[int]] = deque()
        self._began_ms: int | None = None

    def record(self, size_bytes: int, *, now_ms: int) -> None:
        """Count `size_bytes` as replicated now."""
        if self._began_ms is None:
            self._began_ms = now_ms
        number = now_ms // self._window_ms
        if not self._windows or self._windows[-1][0] < number:
            self._windows.append([number, 0])
        self._windows[-1][1] += size_bytes
        self._forget(number)

    def is_exceeded(self, *, now_ms: int) -> bool:
        """Whether the rate over the windows is above its bound."""
        if self._began_ms is None:
            return False
        self._forget(now_ms // self._window_ms)
        elapsed_ms = min(now_ms - self._began_ms, self._window_count * self._window_ms)
        # At least one whole window: a single response does not make a rate.
        elapsed_s = max(elapsed_ms, self._window_ms) / 1000
        return sum(size for _, size in self._windows) / elapsed_s > self._rate()

    def _forget(self, number: int) -> None:
        while self._windows and self._windows[0][0] <= number - self._window_count:
            self._windows.popleft()


def is_throttled(throttled_replicas: Sequence[str], partition: TopicPartition, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas contains this one.

    >>> is_throttled(["0:1", "0:2"], TopicPartition("t", 0), 2), is_throttled(["*"], TopicPartition("t", 7), 2)
    (True, True)
    >>> is_throttled(["0:1"], TopicPartition("t", 1), 1)
    False
    """
    return _ALL in throttled_replicas or f"{partition.partition}:{broker_id}" in throttled_replicas
