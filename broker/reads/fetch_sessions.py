"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what has changed.

Life of a session:

    full fetch (epoch 0), room in the cache -> open, expects epoch 1
    fetch with the epoch it expects         -> expects the next one (after 2**31 - 1 comes 1)
    fetch with epoch 0 or -1 and its id     -> closed (0: the same request may open a new one)
    its last partition is forgotten         -> closed
    another one has priority for its slot   -> evicted: its client receives FETCH_SESSION_ID_NOT_FOUND

Kafka iterates over all partitions of a session for every fetch. Here a session keeps the set of its
*dirty* partitions, those that may have new data. A partition that was found to have none is removed
from the set, and every change of the partition adds it again (`Partition.notify`). So the cost of an
incremental fetch is O(changed partitions), not O(partitions of the session).

Source: KIP-227; Kafka's FetchSession, FetchSessionCacheShard and FetchContext. One cache instead of
Kafka's eight shards: those exist to share a lock.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from broker.replicas.hosted_partitions import PartitionKey
from broker.replicas.partition import Partition

if TYPE_CHECKING:
    from random import Random

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
#: A session that was not used within this time is evicted first; a consumer's new session evicts no other one that
#: was created within it.
EVICTION_MS = 120_000


class FetchRow(Protocol):
    """One partition's row of the Fetch request."""

    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    high_watermark: int


class AnswerRow(Protocol):
    """One partition's row of the Fetch response."""

    error_code: int
    high_watermark: int
    log_start_offset: int
    preferred_read_replica: int

    @property
    def records(self) -> bytes | memoryview | None:
        """The batches, if any."""

    @property
    def diverging_epoch(self) -> "Divergence":
        """Where the follower's log diverges from ours, if it does."""


class Divergence(Protocol):
    """The leader's largest epoch <= the follower's last fetched epoch; -1 if the logs do not diverge."""

    epoch: int


class FetchedPartition:
    """One partition of a Fetch: the request's row, and in a session also the last offsets sent."""

    __slots__ = (
        "appended_bytes", "high_watermark", "key", "log_start_offset", "partition", "read_bytes", "request",
        "session", "topic_name", "watched",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, request: FetchRow) -> None:
        self.key = key
        self.request = request
        self.session: FetchSession | None = None
        #: The partition that was read last; None if it is not hosted here.
        self.partition: Partition | None = None
        self.watched: Partition | None = None
        #: The name of the topic id; None until it is looked up. Kept when the topic is deleted.
        self.topic_name: str | None = None
        # As in the last row sent; None makes the next row count as changed.
        self.high_watermark: int | None = None
        self.log_start_offset: int | None = None
        # The partition's byte count at the last read, and the size of that read: together they give the
        # number of bytes available now without a read.
        self.appended_bytes = 0
        self.read_bytes = 0

    def watch(self, partition: Partition | None) -> None:
        """Watch `partition` for changes (None: no partition) instead of the one watched so far."""
        if self.watched is not partition:
            if self.watched is not None:
                self.watched.watchers.remove(self)
            self.watched = partition
            if partition is not None:
                is_follower = self.session is not None and self.session.is_privileged
                partition.watchers.add(self, is_follower=is_follower)

    def leave_session(self) -> None:
        """The session is closed, or has forgotten this partition: it watches no partition any more."""
        self.session = None
        self.watch(None)

    def is_changed(self, answer: AnswerRow) -> bool:
        """Whether an incremental response must include this row (Kafka's CachedPartition.maybeUpdateResponseData)."""
        return bool(
            answer.records
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.error_code
            or answer.preferred_read_replica >= 0
            or answer.diverging_epoch.epoch >= 0
        )

    def record_sent(self, answer: AnswerRow) -> None:
        """Record the offsets of the row that is sent."""
        # After an error the next row counts as changed, so that the client learns that the error is over. After a
        # divergence too: the follower truncates its log, and adopts no offset of that row.
        is_passed_over = answer.error_code or answer.diverging_epoch.epoch >= 0
        self.high_watermark = None if is_passed_over else answer.high_watermark
        self.log_start_offset = answer.log_start_offset


class FetchSession:
    """Fetch session: the partitions that one client fetches. The session epoch orders its requests."""

    __slots__ = (
        "cached_size", "created_ms", "dirty", "epoch", "is_evictable_by_all", "is_evictable_by_privileged",
        "is_privileged", "is_read_committed", "last_used_ms", "overtaken", "partitions", "session_id",
        "uses_topic_ids",
    )  # fmt: skip

    def __init__(
        self,
        *,
        session_id: int,
        is_privileged: bool,
        uses_topic_ids: bool,
        is_read_committed: bool,
        partitions: dict[PartitionKey, FetchedPartition],
        now_ms: int,
    ) -> None:
        self.session_id = session_id
        #: Followers' sessions are privileged: a consumer's new session evicts one only after EVICTION_MS without use.
        self.is_privileged = is_privileged
        self.uses_topic_ids = uses_topic_ids
        self.is_read_committed = is_read_committed
        self.partitions = partitions
        for fetched in partitions.values():
            fetched.session = self
        #: Invariant: a partition outside `dirty` has no new data, and watches its partition. In the order of
        #: reading: a partition whose records were sent goes to the end, so that none is starved.
        self.dirty = dict.fromkeys(partitions.values())
        #: A follower's partitions that another of its requests has named meanwhile, a late one of an earlier
        #: connection: the rows kept in this session are read again, and recorded, with its next request.
        self.overtaken: dict[FetchedPartition, None] = {}
        #: The epoch of the next request.
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        # The cache's own notes, as of the last `touch`.
        self.cached_size = 0
        self.is_evictable_by_all = False
        self.is_evictable_by_privileged = False

    def update(
        self,
        asked: Mapping[PartitionKey, FetchedPartition],
        forgotten: Iterable[PartitionKey],
        *,
        is_read_committed: bool,
    ) -> None:
        """Add or change the partitions that a request names, then drop those that it forgets."""
        self.dirty.update(self.overtaken)
        self.overtaken.clear()
        for key, fresh in asked.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = known = fresh
                fresh.session = self
            else:
                known.request = fresh.request
            self.dirty[known] = None
        for key in forgotten:
            dropped = self.partitions.pop(key, None)
            if dropped is not None:
                self.dirty.pop(dropped, None)
                dropped.leave_session()
        if is_read_committed != self.is_read_committed:
            # The other isolation level has another readable end, so any partition may have new data.
            self.is_read_committed = is_read_committed
            self.dirty.update(dict.fromkeys(self.partitions.values()))

    def close(self) -> None:
        """Watch no partition any more, not even if a fetch that is parked in the session reads one again."""
        for fetched in self.partitions.values():
            fetched.leave_session()


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; 1 after the largest one, never the initial epoch (Kafka's FetchMetadata.nextEpoch)."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == MAX_EPOCH else epoch + 1


#: (is_privileged, partition count, session id): the smallest one is evicted first (Kafka's EvictableKey).
_Worth = tuple[bool, int, int]


class FetchSessionCache:
    """A bounded number of fetch sessions, and the eviction of one for a new one.

    A session that has not been used for EVICTION_MS is evicted first. Otherwise the one with the smallest `_Worth`
    is, if the new one's is not smaller: for a consumer among all sessions older than EVICTION_MS; for a
    follower among these and all consumers' sessions.
    """

    def __init__(self, *, slots: int, random: "Random", eviction_ms: int = EVICTION_MS) -> None:
        self._slots = slots
        self._random = random
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, FetchSession] = {}
        #: The same sessions, the least recently used first (`touch` moves one to the end).
        self._by_use: dict[int, FetchSession] = {}
        self._evictable_by_all: list[_Worth] = []
        self._evictable_by_privileged: list[_Worth] = []
        self.partition_count = 0
        self.evictions_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def has_slot(self, *, is_privileged: bool, size: int, now_ms: int) -> bool:
        """Whether `open` would open a session of `size` partitions."""
        return (
            len(self._sessions) < self._slots or self._victim_of((is_privileged, size, 0), now_ms) is not None
        )

    def get(self, session_id: int) -> FetchSession | None:
        """The session of this id, or None."""
        return self._sessions.get(session_id)

    def open(
        self,
        *,
        is_privileged: bool,
        size: int,
        uses_topic_ids: bool,
        is_read_committed: bool,
        partitions: Callable[[], dict[PartitionKey, FetchedPartition]],
        now_ms: int,
    ) -> FetchSession | None:
        """A new session, or None if there is no slot for it. `partitions` is called only if there is."""
        if len(self._sessions) >= self._slots:
            victim = self._victim_of((is_privileged, size, 0), now_ms)
            if victim is None:
                return None
            self.remove(victim)
            self.evictions_count += 1
        session = FetchSession(
            session_id=self._new_id(),
            is_privileged=is_privileged,
            uses_topic_ids=uses_topic_ids,
            is_read_committed=is_read_committed,
            partitions=partitions(),
            now_ms=now_ms,
        )
        self._sessions[session.session_id] = session
        self.touch(session, now_ms)
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """The session was used, and its size may have changed."""
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
            self._unrank(session)
            self.partition_count += size - session.cached_size
            session.cached_size = size
            session.is_evictable_by_all, session.is_evictable_by_privileged = is_old, by_privileged
            if is_old:
                insort(self._evictable_by_all, _worth(session))
            if by_privileged:
                insort(self._evictable_by_privileged, _worth(session))

    def remove(self, session: FetchSession) -> None:
        """Close a session; nothing happens if it is closed already."""
        if self._sessions.pop(session.session_id, None) is not None:
            del self._by_use[session.session_id]
            self._unrank(session)
            self.partition_count -= session.cached_size
            session.close()

    def _unrank(self, session: FetchSession) -> None:
        worth = _worth(session)
        if session.is_evictable_by_all:
            del self._evictable_by_all[bisect_left(self._evictable_by_all, worth)]
        if session.is_evictable_by_privileged:
            del self._evictable_by_privileged[bisect_left(self._evictable_by_privileged, worth)]

    def _victim_of(self, newcomer: _Worth, now_ms: int) -> FetchSession | None:
        """The session that a new one of this worth would evict."""
        longest_unused = next(iter(self._by_use.values()), None)
        if longest_unused is None or now_ms - longest_unused.last_used_ms > self._eviction_ms:
            return longest_unused
        ranked = self._evictable_by_privileged if newcomer[0] else self._evictable_by_all
        return self._sessions[ranked[0][2]] if ranked and newcomer >= ranked[0] else None

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id


def _worth(session: FetchSession) -> _Worth:
    return session.is_privileged, session.cached_size, session.session_id
