"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what has changed.

Life of a session:

    full fetch (epoch 0), room in the cache -> open, expects epoch 1
    fetch with the epoch it expects         -> expects the next one (after 2**31 - 1 comes 1)
    fetch with epoch 0 or -1 and its id     -> closed (0: the same request may open a new one)
    its last partition is forgotten         -> closed
    another one has priority for its slot   -> evicted (`fetch_session_cache.py`): its client receives
                                               FETCH_SESSION_ID_NOT_FOUND

Kafka iterates over all partitions of a session for every fetch. Here a session keeps the set of its
*dirty* partitions, those that may have new data. A partition that was found to have none is removed
from the set, and every change of the partition adds it again (`broker/replicas/waiting/watchers.py`). So the cost of an
incremental fetch is O(changed partitions), not O(partitions of the session).

Source: KIP-227; Kafka's FetchSession and CachedPartition.
"""

from collections.abc import Generator, Iterable
from typing import Any, Final, Protocol

from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.high_watermark_delay import HighWatermarkDelay
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.steps import Step, at_once

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1

#: Partitions that leave a closed session in one step: 100 us.
PARTITIONS_OF_STEP: Final = 500


class RequestRow(Protocol):
    """One partition's row of the Fetch request: a `FetchPartition`, or a `ottla.protocol.hot.fetch.FetchRow`."""

    @property
    def fetch_offset(self) -> int:
        """The first offset that is wanted."""

    @property
    def current_leader_epoch(self) -> int:
        """The leader epoch that the sender knows; -1: none."""

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of a follower's last record; -1: none."""

    @property
    def log_start_offset(self) -> int:
        """A follower's log start offset."""

    @property
    def partition_max_bytes(self) -> int:
        """The most bytes, unless the first batch is larger."""

    @property
    def high_watermark(self) -> int:
        """A follower's high watermark; `NOT_REPORTED` in older versions."""

    @property
    def local_log(self) -> LocalLogState | None:
        """A follower's report of its local log."""


class ResponseRow(Protocol):
    """One partition's row of the Fetch response."""

    @property
    def error_code(self) -> int:
        """The partition's error code; 0: no error."""

    @property
    def high_watermark(self) -> int:
        """The leader's high watermark."""

    @property
    def log_start_offset(self) -> int:
        """The leader's log start offset."""

    @property
    def preferred_read_replica(self) -> int:
        """The id of the broker from which to fetch instead; -1: this one."""

    @property
    def records(self) -> bytes | memoryview | None:
        """The batches, if any."""

    @property
    def diverging_epoch(self) -> "Divergence":
        """The epoch in which the follower's log diverges from the leader's, if it does."""


class Divergence(Protocol):
    """The leader's largest epoch <= the follower's last fetched epoch; -1 if the logs do not diverge."""

    epoch: int


class FetchedPartition:
    """One partition of a Fetch: the request's row, and in a session also the last offsets sent."""

    __slots__ = (
        "high_watermark", "key", "log_start_offset", "partition", "request", "session", "topic_name", "watched"
    )  # fmt: skip

    def __init__(self, key: PartitionKey, request: RequestRow) -> None:
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

    def is_changed(self, row: ResponseRow) -> bool:
        """Whether an incremental response must include this row (Kafka's CachedPartition.maybeUpdateResponseData)."""
        return bool(
            row.records
            or row.high_watermark != self.high_watermark
            or row.log_start_offset != self.log_start_offset
            or row.error_code
            or row.preferred_read_replica >= 0
            or row.diverging_epoch.epoch >= 0
        )

    def record_sent(self, row: ResponseRow) -> None:
        """Record the offsets of the row that is sent."""
        # After an error the next row counts as changed, so that the client learns that the error is over. After a
        # divergence too: the follower truncates its log, and adopts no offset of that row.
        is_not_adopted = row.error_code or row.diverging_epoch.epoch >= 0
        self.high_watermark = None if is_not_adopted else row.high_watermark
        self.log_start_offset = row.log_start_offset


class FetchSession:
    """Fetch session: the partitions that one client fetches. The session epoch orders its requests."""

    __slots__ = (
        "cached_size", "created_ms", "dirty", "epoch", "high_watermark_delay", "is_closed", "is_evictable_by_all",
        "is_evictable_by_privileged", "is_privileged", "is_read_committed", "last_used_ms", "overtaken", "partitions",
        "session_id", "uses_topic_ids",
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
        #: Each of them is added to `dirty` as soon as the session is opened (`begin_reading`).
        self.partitions = partitions
        #: Invariant: a partition outside `dirty` has no new data, and watches its partition. In the order of
        #: reading: a partition whose records were sent goes to the end, so that none is starved.
        self.dirty: dict[FetchedPartition, None] = {}
        #: A follower's partitions that another of its requests has named meanwhile, a late one of an earlier
        #: connection: the rows kept in this session are read again, and recorded, with its next request.
        self.overtaken: dict[FetchedPartition, None] = {}
        #: Of a follower's session.
        self.high_watermark_delay = HighWatermarkDelay()
        #: A request that is being read in turns records no progress any more.
        self.is_closed = False
        #: The epoch of the next request.
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        # The cache's own fields, as of the last `touch`.
        self.cached_size = 0
        self.is_evictable_by_all = False
        self.is_evictable_by_privileged = False

    def begin_reading(self, fetched: FetchedPartition) -> None:
        """Read this partition of the session with its next request."""
        fetched.session = self
        self.dirty[fetched] = None

    def update(
        self,
        requested: Iterable[tuple[PartitionKey, RequestRow]],
        forgotten: Iterable[PartitionKey],
        *,
        is_read_committed: bool,
    ) -> None:
        """Add or change the partitions that a request names, then drop those that it forgets."""
        self.dirty.update(self.overtaken)
        self.overtaken.clear()
        for key, row in requested:
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = known = FetchedPartition(key, row)
            else:
                known.request = row
            self.begin_reading(known)
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
        """Watch no partition any more, not even if a delayed fetch of the session reads one again."""
        at_once(self.close_in_steps())

    def close_in_steps(self) -> Generator[None, None, None]:
        """Close a session of very many partitions: no request finds it any more, and some leave it in each step."""
        self.is_closed = True
        step = Step(PARTITIONS_OF_STEP)
        for fetched in self.partitions.values():
            fetched.leave_session()
            if step.is_full():
                yield

    def take_containers(self) -> list[dict[Any, Any]]:
        """Return the containers of a closed session, which has none any more, so that they are freed in steps."""
        taken: list[dict[Any, Any]] = [self.partitions, self.dirty, self.overtaken]
        self.partitions, self.dirty, self.overtaken = {}, {}, {}
        return taken


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; 1 after the largest one, never the initial epoch (Kafka's FetchMetadata.nextEpoch)."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == MAX_EPOCH else epoch + 1
