"""Fetch context (KIP-227): a Fetch request resolved with its session into partitions to read and rows to send.

| session id | epoch | meaning                                                                  |
|------------|-------|--------------------------------------------------------------------------|
| any        | 0     | a full fetch; closes that session, and requests a new one                |
| any        | -1    | a full fetch; closes that session; the only one in versions before 7     |
| its id     | its n | an incremental fetch: the session's partitions, with the request's rows  |

Source: KIP-227; Kafka's FetchManager and FetchContext.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchedPartition,
    FetchSession,
    RequestRow,
    ResponseRow,
    next_epoch,
)
from ottla.protocol.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

Row = TypeVar("Row", bound=ResponseRow)
Rows = list[tuple[FetchedPartition, Row]]


class FetchContext:
    """A full fetch outside any session (Kafka's SessionlessFetchContext)."""

    __slots__ = ("requested", "session", "to_read")

    #: The session under which this fetch waits; None: it waits under each of its partitions.
    session: FetchSession | None
    #: The partitions to read, in this order. A view of mutable state: copy it before changing the session.
    to_read: Collection[FetchedPartition]

    def __init__(self, requested: Mapping[PartitionKey, FetchedPartition]) -> None:
        self.requested = requested
        self.session = None
        self.to_read = requested.values()

    @property
    def opens_session(self) -> bool:
        """Whether a response sent now opens a session."""
        return False

    @property
    def is_outdated(self) -> bool:
        """Whether the session was used by a later request meanwhile, or closed: nothing more is read for this one."""
        return False

    def must_send(self, fetched: FetchedPartition, row: ResponseRow) -> bool:
        """Whether the response includes this row."""
        return True

    def mark_clean(self, fetched: FetchedPartition) -> None:
        """Record that the partition has no new data until it changes."""

    def update_session(self, rows: Rows[Row], *, now_ms: Callable[[], int]) -> tuple[ErrorCode, int]:
        """Record the rows that are sent; returns the response's error code and session id."""
        return ErrorCode.none, NO_SESSION


class FullFetchContext(FetchContext):
    """A full fetch that requests a session."""

    __slots__ = ("_cache", "_is_follower", "_is_read_committed", "_now_ms", "_uses_topic_ids")

    def __init__(
        self,
        requested: Mapping[PartitionKey, FetchedPartition],
        cache: FetchSessionCache,
        *,
        is_follower: bool,
        uses_topic_ids: bool,
        is_read_committed: bool,
        now_ms: int,
    ) -> None:
        super().__init__(requested)
        self._cache = cache
        self._is_follower = is_follower
        self._uses_topic_ids = uses_topic_ids
        self._is_read_committed = is_read_committed
        self._now_ms = now_ms

    @property
    def opens_session(self) -> bool:
        """True unless the cache has no slot for the session."""
        return self._cache.has_slot(
            is_privileged=self._is_follower, size=len(self.requested), now_ms=self._now_ms
        )

    def update_session(self, rows: Rows[Row], *, now_ms: Callable[[], int]) -> tuple[ErrorCode, int]:
        """Open the session, with these rows as the last ones sent."""

        def partitions() -> dict[PartitionKey, FetchedPartition]:
            for fetched, row in rows:
                fetched.record_sent(row)
            return {fetched.key: fetched for fetched, _ in rows}

        session = self._cache.open(
            is_privileged=self._is_follower,
            size=len(rows),
            uses_topic_ids=self._uses_topic_ids,
            is_read_committed=self._is_read_committed,
            partitions=partitions,
            now_ms=now_ms(),
        )
        return ErrorCode.none, session.session_id if session else NO_SESSION


class IncrementalFetchContext(FetchContext):
    """A Fetch within a fetch session: it reads only the session's dirty partitions (KIP-227)."""

    __slots__ = ("_expected_epoch", "_session")

    def __init__(self, session: FetchSession) -> None:
        # Not by `super().__init__`: 0.1 us of a Fetch.
        self.requested = session.partitions
        self.session = self._session = session
        self.to_read = session.dirty  # those that may have new data
        self._expected_epoch = session.epoch

    @property
    def is_outdated(self) -> bool:
        """Whether a later request has used the session, or the session is closed.

        After a later request the response is INVALID_FETCH_SESSION_EPOCH; after a close it has the rows read before.
        """
        return self._session.is_closed or self._session.epoch != self._expected_epoch

    def must_send(self, fetched: FetchedPartition, row: ResponseRow) -> bool:
        """Whether the row differs from the last one that was sent."""
        return fetched.is_changed(row)

    def mark_clean(self, fetched: FetchedPartition) -> None:
        """Remove it from the dirty partitions until its partition changes."""
        self._session.dirty.pop(fetched, None)

    def update_session(self, rows: Rows[Row], *, now_ms: Callable[[], int]) -> tuple[ErrorCode, int]:
        """Record the rows sent; INVALID_FETCH_SESSION_EPOCH if a later request was processed before this response."""
        session = self._session
        if session.epoch != self._expected_epoch:
            rows.clear()
            return ErrorCode.invalid_fetch_session_epoch, session.session_id
        for fetched, row in rows:
            fetched.record_sent(row)
            if row.records and fetched in session.dirty:
                del session.dirty[fetched]
                session.dirty[fetched] = None
        return ErrorCode.none, session.session_id


def new_context(
    cache: FetchSessionCache,
    *,
    session_id: int,
    epoch: int,
    requested: Iterable[tuple[PartitionKey, RequestRow]],
    forgotten: Iterable[PartitionKey],
    is_follower: bool,
    uses_topic_ids: bool,
    is_read_committed: bool,
    now_ms: int,
) -> FetchContext:
    """Find or close the session that a request names, and apply the request's changes to it (FetchManager.newContext).

    Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch or FetchSessionTopicIdError, which become the
    response's top-level error code, with session id 0 and no rows.
    """
    session = cache.get(session_id)
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session is not None:
            cache.remove(session)
        if epoch == FINAL_EPOCH:
            return FetchContext(_partitions(requested))
        return FullFetchContext(
            _partitions(requested),
            cache,
            is_follower=is_follower,
            uses_topic_ids=uses_topic_ids,
            is_read_committed=is_read_committed,
            now_ms=now_ms,
        )
    if session is None:
        raise FetchSessionIdNotFound
    if session.epoch != epoch:
        raise InvalidFetchSessionEpoch
    if session.uses_topic_ids != uses_topic_ids:
        raise FetchSessionTopicIdError
    session.update(requested, forgotten, is_read_committed=is_read_committed)
    if not session.partitions:
        cache.remove(session)
        return FetchContext(_partitions(requested))
    cache.touch(session, now_ms)
    session.epoch = next_epoch(session.epoch)
    return IncrementalFetchContext(session)


def _partitions(
    requested: Iterable[tuple[PartitionKey, RequestRow]],
) -> dict[PartitionKey, FetchedPartition]:
    """The partitions of a full fetch."""
    return {key: FetchedPartition(key, row) for key, row in requested}
