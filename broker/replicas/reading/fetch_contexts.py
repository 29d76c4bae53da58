"""Fetch context (KIP-227): a Fetch request resolved with its session into partitions to read and rows to send.

| session id | epoch | meaning                                                                  |
|------------|-------|--------------------------------------------------------------------------|
| any        | 0     | a full fetch; closes that session, and requests a new one                |
| any        | -1    | a full fetch; closes that session; the only one in versions before 7     |
| its id     | its n | an incremental fetch: the session's partitions, with the request's rows  |

Source: KIP-227; Kafka's FetchManager and FetchContext.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Final, TypeVar

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
from ottla.protocol.steps import Step, at_once
from ottla.runtime.garbage import collect_young

#: Rows of one step of a request with very many: some 200 us.
_ROWS_OF_STEP: Final = 500

Row = TypeVar("Row", bound=ResponseRow)
Rows = list[tuple[FetchedPartition, Row]]


class FetchContext:
    """A full fetch outside any session (Kafka's SessionlessFetchContext)."""

    __slots__ = ("requested", "session", "to_read")

    #: The session under which this fetch waits; None: it waits under each of its partitions.
    session: FetchSession | None
    #: The partitions to read, in this order. A view of mutable state: copy it before changing the session.
    to_read: Collection[FetchedPartition]

    def __init__(self, requested: dict[PartitionKey, FetchedPartition]) -> None:
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

    def update_session_in_steps(
        self, rows: Rows[Row], *, now_ms: Callable[[], int]
    ) -> Generator[None, None, tuple[ErrorCode, int]]:
        """Record very many rows as `update_session` does, some in each step."""
        yield from ()
        return self.update_session(rows, now_ms=now_ms)


class FullFetchContext(FetchContext):
    """A full fetch that requests a session."""

    __slots__ = ("_cache", "_is_follower", "_is_read_committed", "_now_ms", "_uses_topic_ids")

    def __init__(
        self,
        requested: dict[PartitionKey, FetchedPartition],
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
            is_privileged=self._is_follower, partition_count=len(self.requested), now_ms=self._now_ms
        )

    def update_session(self, rows: Rows[Row], *, now_ms: Callable[[], int]) -> tuple[ErrorCode, int]:
        """Open the session, with these rows as the last ones sent."""
        return at_once(self.update_session_in_steps(rows, now_ms=now_ms))

    def update_session_in_steps(
        self, rows: Rows[Row], *, now_ms: Callable[[], int]
    ) -> Generator[None, None, tuple[ErrorCode, int]]:
        """Open the session, and record its rows in steps: no other request knows the session yet."""
        # Of a full fetch all rows are sent.
        assert len(rows) == len(self.requested), (len(rows), len(self.requested))
        session = self._cache.open(
            is_privileged=self._is_follower,
            uses_topic_ids=self._uses_topic_ids,
            is_read_committed=self._is_read_committed,
            partitions=self.requested,
            now_ms=now_ms(),
        )
        if session is None:
            return ErrorCode.none, NO_SESSION
        step = Step(_ROWS_OF_STEP)
        try:
            for fetched, row in rows:
                fetched.record_sent(row)
                session.begin_reading(fetched)
                if step.is_full():
                    if len(session.dirty) == _ROWS_OF_STEP:
                        collect_young()  # `dirty` may become as large as the request, without any other new object
                    yield
                    if session.is_closed:
                        break  # evicted: its client receives FETCH_SESSION_ID_NOT_FOUND
        except GeneratorExit:
            self._cache.remove(session)  # the client is gone, and has not received the session's id
            raise
        return ErrorCode.none, session.session_id


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
        """Remove the row from the session's dirty partitions until the partition changes."""
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

    def update_session_in_steps(
        self, rows: Rows[Row], *, now_ms: Callable[[], int]
    ) -> Generator[None, None, tuple[ErrorCode, int]]:
        """Record the rows in steps; after a later request between two of them the response is an error."""
        for at in range(0, len(rows), _ROWS_OF_STEP):
            some = rows[at : at + _ROWS_OF_STEP]
            error, session_id = self.update_session(some, now_ms=now_ms)
            if error:
                rows.clear()
                return error, session_id
            yield
        error, session_id = self.update_session([], now_ms=now_ms)
        if error:
            rows.clear()
        return error, session_id


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
    partitions: dict[PartitionKey, FetchedPartition] | None = None,
) -> FetchContext:
    """Find or close the session that a request names, and apply the request's changes to it (FetchManager.newContext).

    `partitions`: those of a full fetch, where very many were made in steps (`partitions_in_steps`).
    Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch or FetchSessionTopicIdError, which become the
    response's top-level error code, with session id 0 and no rows.
    """
    session = cache.get(session_id)
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session is not None:
            cache.remove(session)
        if epoch == FINAL_EPOCH:
            return FetchContext(_partitions(requested) if partitions is None else partitions)
        return FullFetchContext(
            _partitions(requested) if partitions is None else partitions,
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


def partitions_in_steps(
    requested: Iterable[tuple[PartitionKey, RequestRow]],
) -> Generator[None, None, dict[PartitionKey, FetchedPartition]]:
    """The partitions of a full fetch of very many, some in each step."""
    found: dict[PartitionKey, FetchedPartition] = {}
    step = Step(_ROWS_OF_STEP)
    for key, row in requested:
        found[key] = FetchedPartition(key, row)
        if step.is_full():
            yield
    return found


def update_in_steps(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    requested: Sequence[tuple[PartitionKey, RequestRow]],
    forgotten: Sequence[PartitionKey],
    *,
    is_read_committed: bool,
    uses_topic_ids: bool,
) -> Generator[None, None, bool]:
    """Apply very many rows to the session that a request names, some in each step; then `new_context` checks it.

    Returns whether they are applied: False where `new_context` refuses the request, or is to apply them itself.
    """
    session = cache.get(session_id)
    if session is None or session.epoch != epoch or session.uses_topic_ids != uses_topic_ids:
        return False
    named = (requested[at : at + _ROWS_OF_STEP] for at in range(0, len(requested), _ROWS_OF_STEP))
    dropped = (forgotten[at : at + _ROWS_OF_STEP] for at in range(0, len(forgotten), _ROWS_OF_STEP))
    for rows, keys in (*((rows, ()) for rows in named), *(((), keys) for keys in dropped)):
        if session.is_closed or session.epoch != epoch:
            return False
        session.update(rows, keys, is_read_committed=is_read_committed)
        yield
    return True


def _partitions(
    requested: Iterable[tuple[PartitionKey, RequestRow]],
) -> dict[PartitionKey, FetchedPartition]:
    """The partitions of a full fetch."""
    return {key: FetchedPartition(key, row) for key, row in requested}
