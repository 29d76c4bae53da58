"""Election times: how long the quorum was without a leader, as a replica that stands for election sees it.

    prospective, candidate --> leader, follower    one election: its time is counted
    prospective, candidate --> anything else       it goes on: another replica may stand meanwhile

Source: KafkaRaftMetrics (election-latency-avg, election-latency-max) of Kafka 4.3.1.
"""

from collections.abc import Callable

from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Role
from ottla.runtime.windows import WindowedMax


class ElectionTimes:
    """The times of the elections in which this replica has stood."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: When this replica began to stand; None while it does not.
        self._began_s: float | None = None
        self.count = 0
        self.total_ms = 0.0
        #: The longest of the last ones, in ms.
        self.max_ms = WindowedMax(monotonic)

    def observe(self, role: Role) -> None:
        """Observe the role of the replica after an event."""
        if isinstance(role, Prospective | Candidate):
            if self._began_s is None:
                self._began_s = self._monotonic()
        elif self._began_s is not None and isinstance(role, Leader | Follower):
            took_ms = (self._monotonic() - self._began_s) * 1000
            self._began_s = None
            self.count += 1
            self.total_ms += took_ms
            self.max_ms.record(took_ms)
