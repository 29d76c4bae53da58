"""Fetch session cache: a bounded number of fetch sessions, and the eviction of one for a new one (KIP-227).

Source: Kafka's FetchSessionCacheShard. One cache instead of Kafka's eight shards: those exist to share a lock.
"""

from bisect import bisect_left, insort
from collections.abc import Generator
from random import Random
from typing import NamedTuple

from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.replicas.reading.fetch_sessions import (
    PARTITIONS_OF_STEP,
    FetchedPartition,
    FetchSession,
)
from ottla.runtime.turns import LoopTurns

#: Most partitions in all implicit sessions (`implicit_fetch_sessions.py`); each takes some 800 bytes. One host has
#: at most as many of them as are left for others: half of them if it is the only one.
MAX_IMPLICIT_PARTITIONS = 50_000

#: A session that was not used within this time is evicted first; a consumer's new session evicts no other one that
#: was created within it.
EVICTION_MS = 120_000


class EvictableKey(NamedTuple):
    """The order of eviction: the smallest one first (Kafka's EvictableKey)."""

    is_privileged: bool
    size: int
    #: 0 for a session that does not exist yet.
    session_id: int = 0


class FetchSessionCache:
    """A bounded number of fetch sessions, and the eviction of one for a new one.

    A session that has not been used for EVICTION_MS is evicted first. Otherwise the one with the smallest
    `EvictableKey` is, if the new one's is not smaller: for a consumer among all sessions older than EVICTION_MS; for a
    follower among these and all consumers' sessions.
    """

    def __init__(
        self,
        *,
        slots: int,
        random: Random,
        turns: LoopTurns | None = None,
        eviction_ms: int = EVICTION_MS,
    ) -> None:
        """Sessions of very many partitions are closed, and freed, in `turns`; None: at once."""
        self._turns = turns
        self._slots = slots
        self._random = random
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, FetchSession] = {}
        #: The same sessions, the least recently used first (`touch` moves one to the end).
        self._by_use: dict[int, FetchSession] = {}
        self._evictable_by_all: list[EvictableKey] = []
        self._evictable_by_privileged: list[EvictableKey] = []
        self.partition_count = 0
        self.evictions_count = 0
        #: Partitions in implicit sessions, which have no slot here, no id and no epoch; and those of each host.
        self.implicit_partitions = 0
        self._implicit_partitions_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def count_implicit_partitions(self, host: str, more: int) -> None:
        """Add `more` partitions to the count of those in the implicit sessions of this host's connections."""
        self.implicit_partitions += more
        if rows := self._implicit_partitions_of.pop(host, 0) + more:
            self._implicit_partitions_of[host] = rows
        assert 0 <= rows <= self.implicit_partitions, (host, rows, self.implicit_partitions)

    def has_too_many_implicit_partitions(self, host: str) -> bool:
        """Whether one of the implicit sessions of this host's connections has to end."""
        return self._implicit_partitions_of.get(host, 0) > MAX_IMPLICIT_PARTITIONS - self.implicit_partitions

    def has_slot(self, *, is_privileged: bool, partition_count: int, now_ms: int) -> bool:
        """Whether `open` would open a session of so many partitions."""
        return (
            len(self._sessions) < self._slots
            or self._session_to_evict(EvictableKey(is_privileged, partition_count), now_ms) is not None
        )

    def get(self, session_id: int) -> FetchSession | None:
        """The session of this id, or None."""
        return self._sessions.get(session_id)

    def open(
        self,
        *,
        is_privileged: bool,
        uses_topic_ids: bool,
        is_read_committed: bool,
        partitions: dict[PartitionKey, FetchedPartition],
        now_ms: int,
    ) -> FetchSession | None:
        """A new session, or None if there is no slot for it. The caller begins to read its partitions."""
        if len(self._sessions) >= self._slots:
            victim = self._session_to_evict(EvictableKey(is_privileged, len(partitions)), now_ms)
            if victim is None:
                return None
            self.remove(victim)
            self.evictions_count += 1
        session = FetchSession(
            session_id=self._new_id(),
            is_privileged=is_privileged,
            uses_topic_ids=uses_topic_ids,
            is_read_committed=is_read_committed,
            partitions=partitions,
            now_ms=now_ms,
        )
        self._sessions[session.session_id] = session
        assert len(self._sessions) <= self._slots, (len(self._sessions), self._slots)
        self.touch(session, now_ms)
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Record the use of a session, whose size may have changed."""
        assert self._sessions.get(session.session_id) is session, session.session_id
        self._by_use.pop(session.session_id, None)
        self._by_use[session.session_id] = session
        session.last_used_ms = now_ms
        is_old = now_ms - session.created_ms > self._eviction_ms
        by_privileged = is_old or not session.is_privileged
        size = len(session.partitions)
        if (
            size != session.cached_size
            or is_old != session.is_evictable_by_all
            or by_privileged != session.is_evictable_by_privileged
        ):
            self._remove_from_evictable(session)
            self.partition_count += size - session.cached_size
            session.cached_size = size
            session.is_evictable_by_all, session.is_evictable_by_privileged = is_old, by_privileged
            if is_old:
                insort(self._evictable_by_all, _evictable_key(session))
            if by_privileged:
                insort(self._evictable_by_privileged, _evictable_key(session))

    def remove(self, session: FetchSession) -> None:
        """Close a session; nothing happens if it is closed already."""
        if self._sessions.pop(session.session_id, None) is not None:
            del self._by_use[session.session_id]
            self._remove_from_evictable(session)
            self.partition_count -= session.cached_size
            if self._turns is None or len(session.partitions) <= PARTITIONS_OF_STEP:
                session.close()
            else:
                self._turns.run(_closing(session, self._turns))

    def _remove_from_evictable(self, session: FetchSession) -> None:
        key = _evictable_key(session)
        if session.is_evictable_by_all:
            del self._evictable_by_all[bisect_left(self._evictable_by_all, key)]
        if session.is_evictable_by_privileged:
            del self._evictable_by_privileged[bisect_left(self._evictable_by_privileged, key)]

    def _session_to_evict(self, newcomer: EvictableKey, now_ms: int) -> FetchSession | None:
        """The session that a new one with this key would evict."""
        longest_unused = next(iter(self._by_use.values()), None)
        if longest_unused is None or now_ms - longest_unused.last_used_ms > self._eviction_ms:
            return longest_unused
        ranked = self._evictable_by_privileged if newcomer.is_privileged else self._evictable_by_all
        return self._sessions[ranked[0].session_id] if ranked and newcomer >= ranked[0] else None

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id


def _closing(session: FetchSession, turns: LoopTurns) -> Generator[None, None, None]:
    yield from session.close_in_steps()
    # A fetch that waits in the session keeps the partitions that it reads.
    turns.free([*session.take_containers()])


def _evictable_key(session: FetchSession) -> EvictableKey:
    return EvictableKey(session.is_privileged, session.cached_size, session.session_id)
