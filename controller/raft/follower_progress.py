"""Follower progress as the leader knows it: how far each replica has stored the log, its last Fetch, check quorum.

A follower's Fetch at offset n reports that everything before n is durable there. Records that a majority of the voters
has stored are committed once a record of the leader's own epoch is among them: a majority may have an older record,
and a leader without it may still replace it (the Raft paper's figure 8). The leader itself counts as one voter,
by what it has flushed; a leader that has been removed from the voter set does not count, and leads until that change
is committed.
Source: LeaderState, LeaderState.ReplicaState of Kafka 4.3.1; KIP-595, KAFKA-15489 (check quorum), KIP-853.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ottla.controller.raft.types import ReplicaKey
from ottla.controller.raft.voters import VoterSet
from ottla.replication.replica_rules import caught_up_ms

#: An observer that has not fetched for so long is removed.
OBSERVER_SESSION_TIMEOUT_MS: Final = 300_000
#: A replica that has fetched within this time, and was caught up once, may become a voter.
CAUGHT_UP_WITHIN_MS: Final = 3_600_000


@dataclass(slots=True)
class Progress:
    """One replica's progress. Offsets and times are None before its first Fetch in this epoch."""

    key: ReplicaKey
    #: Everything before it is durable there.
    end_offset: int | None = None
    last_fetch_ms: int | None = None
    #: The last time at which it had everything in the leader's log.
    last_caught_up_ms: int | None = None
    #: Where the leader's log ended at the last Fetch.
    leader_end_offset: int | None = None

    def update(self, end_offset: int, *, leader_end_offset: int, now_ms: int) -> None:
        """Record a Fetch of the replica at `end_offset`; its log up to there is a prefix of the leader's."""
        assert 0 <= end_offset <= leader_end_offset, (self.key, end_offset, leader_end_offset)
        reached_ms = caught_up_ms(
            end_offset,
            leader_end_offset=leader_end_offset,
            now_ms=now_ms,
            previous_leader_end_offset=self.leader_end_offset,
            previous_fetch_ms=self.last_fetch_ms,
        )
        if reached_ms is not None:
            self.last_caught_up_ms = max(self.last_caught_up_ms or 0, reached_ms)
        self.leader_end_offset = leader_end_offset
        self.last_fetch_ms = max(self.last_fetch_ms or 0, now_ms)
        self.end_offset = end_offset


def majority_offset(end_offsets: Iterable[int | None]) -> int | None:
    """The largest offset that a majority of the voters has reached; None if too many are unknown.

    >>> majority_offset([10, 7, None]), majority_offset([10, None, None]), majority_offset([10, 7, 5, 3])
    (7, None, 5)
    """
    descending = sorted((-1 if each is None else each for each in end_offsets), reverse=True)
    reached = descending[len(descending) // 2]
    return None if reached == -1 else reached


class Followers:
    """The progress of all voters and observers in one epoch of this leader."""

    def __init__(self, voters: VoterSet, me: ReplicaKey) -> None:
        self._local_key = me
        self.voters: dict[int, Progress] = {voter.key.id: Progress(voter.key) for voter in voters}
        self.observers: dict[ReplicaKey, Progress] = {}
        #: Voters that have fetched since the last time that a majority had.
        self._fetched_voters: set[int] = set()

    def set_voters(self, voters: VoterSet) -> None:
        """Replace the voter set; each replica keeps its progress as it becomes a voter or an observer."""
        former, self.voters = self.voters, {}
        for voter in voters:
            progress = self._find(voter.key, former) or Progress(voter.key)
            if former.get(voter.key.id) is progress:
                del former[voter.key.id]
            self.observers.pop(voter.key, None)
            progress.key = voter.key
            self.voters[voter.key.id] = progress
        for progress in former.values():
            self.observers.setdefault(progress.key, progress)
        self._fetched_voters &= self.voters.keys()

    def _find(self, key: ReplicaKey, voters: dict[int, Progress]) -> Progress | None:
        known = voters.get(key.id)
        return known if known is not None and known.key.matches(key) else self.observers.get(key)

    def find(self, key: ReplicaKey) -> Progress | None:
        """The progress of a replica, voter or not; None if it is unknown."""
        return self._find(key, self.voters)

    def update_local_state(self, end_offset: int) -> None:
        """Record the offset up to which the leader itself has flushed its log."""
        mine = self.find(self._local_key)
        assert mine is not None, self.voters
        mine.end_offset = max(mine.end_offset or 0, end_offset)

    def update_replica_state(
        self, key: ReplicaKey, end_offset: int, *, leader_end_offset: int, now_ms: int
    ) -> bool:
        """Record a replica's Fetch at `end_offset`; the result is that of `record_contact`."""
        progress = self.find(key)
        if progress is None:
            progress = self.observers[key] = Progress(key)
        progress.update(end_offset, leader_end_offset=leader_end_offset, now_ms=now_ms)
        return self.record_contact(key)

    def record_contact(self, key: ReplicaKey) -> bool:
        """Record contact; True once a majority of the voters has been in contact since the last reset.

        The leader counts as in contact, unless it is not a voter any more.
        """
        voter = self.voters.get(key.id)
        if voter is not None and voter.key.matches(key):
            self._fetched_voters.add(key.id)
        others = len(self.voters) // 2 + 1 - (self._local_key.id in self.voters)
        if len(self._fetched_voters) < others:
            return False
        self._fetched_voters.clear()
        return True

    @property
    def is_only_voter(self) -> bool:
        """Whether the leader is the only voter: check quorum needs no contact then."""
        return list(self.voters) == [self._local_key.id]

    def high_watermark_candidate(self) -> int | None:
        """The offset up to which a majority of the voters has stored the log.

        The caller checks that it reaches into the leader's own epoch.
        """
        return majority_offset(progress.end_offset for progress in self.voters.values())

    def voters_not_fetching(self, *, since_ms: int) -> list[ReplicaKey]:
        """Voters other than the leader that have not fetched after `since_ms`."""
        return [
            progress.key
            for id, progress in self.voters.items()
            if id != self._local_key.id
            and (progress.last_fetch_ms is None or progress.last_fetch_ms <= since_ms)
        ]

    def preferred_successors(self) -> list[ReplicaKey]:
        """The other voters, those with the longest logs first."""
        others = [progress for id, progress in self.voters.items() if id != self._local_key.id]
        others.sort(
            key=lambda each: (-1 if each.end_offset is None else each.end_offset, -each.key.id), reverse=True
        )
        return [progress.key for progress in others]

    def is_caught_up(self, key: ReplicaKey, *, now_ms: int) -> bool:
        """Whether an observer keeps up well enough to become a voter (KIP-853); otherwise commits would wait for it.

        For a partition's ISR the rule is stricter (`ottla.replication.leader_state`, replica.lag.time.max.ms): its
        high watermark waits for each member, here for a majority only.
        """
        progress = self.observers.get(key)
        return (
            progress is not None
            and progress.last_caught_up_ms is not None
            and progress.last_fetch_ms is not None
            and progress.last_fetch_ms > now_ms - CAUGHT_UP_WITHIN_MS
        )

    def clear_inactive_observers(self, *, now_ms: int) -> None:
        """Remove observers that have not fetched for OBSERVER_SESSION_TIMEOUT_MS."""
        for key, progress in list(self.observers.items()):
            last_ms = progress.last_fetch_ms or 0
            if key != self._local_key and now_ms - last_ms >= OBSERVER_SESSION_TIMEOUT_MS:
                del self.observers[key]
