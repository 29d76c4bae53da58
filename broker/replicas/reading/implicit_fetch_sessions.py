"""Implicit fetch sessions: a session for a consumer that names all of its partitions in every Fetch; few differ.

librdkafka, and every client that is built on it, uses no fetch sessions (KIP-227): it sends a full Fetch of 1,000
partitions twenty times a second, in another order each time, with ten new offsets. The broker keeps an implicit
session for its connection, without id and epoch, so that the cost is again that of the partitions that have changed;
the other rows are recognised by their bytes, and answered as before.

    the bytes of a row  are those of a row of the last request --> it is read again if its partition has changed since
                        are others -----------------------------> it is added, or goes on at another offset: it is read
    a row of the session is not in the request -----------------> it is dropped
    a row is in the request twice, or there are too many -------> the session ends: full fetches from now on

An idle poll of one partition takes 30 % less of the broker's processor time between its frame and its
response, one of ten half as much (Dispatcher on a broker in a folder, both paths in turn).

The session lasts as long as the connection's requests begin alike (`ottla.broker.api.dispatch.RequestHead`). Each
response is the same as without it (test_fast_fetch), and partitions are read in the order of the request,
which is the client's way to be fair. Only a log start offset that retention has moved is in a row, as in
those of other sessions, once the partition is notified of it.

Source: none in Kafka 4.3.1, which reads all partitions of such a Fetch.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast
from uuid import UUID

from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.replicas.reading.fetch_contexts import FetchContext, Row, Rows
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.fetch_sessions import (
    NO_SESSION,
    FetchedPartition,
    FetchSession,
    RequestRow,
    ResponseRow,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import FastRow

#: Most partitions of one connection: its requests are parsed and answered in one turn of the event loop.
MAX_ROWS: Final = 4_000
#: A longer request has more rows, unless it is an unusual one: a row has 33 bytes, and its topic 18.
MAX_REQUEST_BYTES: Final = 64 * MAX_ROWS

_new_tuple = tuple.__new__


class ImplicitPartition(FetchedPartition):
    """A partition of the session: its row in the last request, and the last row that was sent, without records."""

    __slots__ = ("answer", "data")

    def __init__(self, key: PartitionKey, request: RequestRow) -> None:
        super().__init__(key, request)
        self.data = b""
        #: The last row that was sent. None before the first one, and after a row with an error or aborted
        #: transactions: then the partition is read again.
        self.answer: FastRow | None = None

    def record_sent(self, row: ResponseRow) -> None:
        """Record the answer, without its records.

        The session's offsets stay unknown, so that each row that is read is compared with the answer.
        """
        if type(row) is not FastRow:
            self.answer = None
        elif row.records:
            self.answer = _new_tuple(FastRow, (*row[:-1], b""))
        else:
            self.answer = row


class ImplicitFetchContext(FetchContext):
    """A full fetch of which only some partitions are read."""

    __slots__ = ("_order", "_session")

    def __init__(self, session: FetchSession, order: Sequence[ImplicitPartition]) -> None:
        """`order`: all partitions of the session, as the request has them."""
        self.requested = session.partitions
        self.session = self._session = session
        self._order = order

    @property
    def to_read(self) -> Collection[FetchedPartition]:  # type: ignore[override]
        """The rows that may have new data, in the order of the request."""
        dirty = self._session.dirty
        return [row for row in self._order if row in dirty] if dirty else ()

    @property
    def is_outdated(self) -> bool:
        """Whether the connection is closed."""
        return self._session.is_closed

    def must_send(self, fetched: FetchedPartition, row: ResponseRow) -> bool:
        """Whether the row differs from the last one that was sent, which is sent again otherwise."""
        return bool(cast("ImplicitPartition", fetched).answer != row)

    def mark_clean(self, fetched: FetchedPartition) -> None:
        """Record that the partition has no new data until it changes."""
        self._session.dirty.pop(fetched, None)

    def update_session(self, rows: Rows[Row], *, now_ms: Callable[[], int]) -> tuple[ErrorCode, int]:
        """Record the rows sent, and add those that were not read, or have not changed."""
        if not self._session.is_closed:
            new = dict(rows)
            for fetched, row in rows:
                fetched.record_sent(row)
            rows[:] = [(each, new.get(each) or cast("Any", each.answer)) for each in self._order]
        return ErrorCode.none, NO_SESSION


class ImplicitFetchSession:
    """The implicit fetch session of one connection whose consumer names all of its partitions in every Fetch."""

    __slots__ = ("_cache", "_host", "_known", "_session", "has_ended")

    def __init__(self) -> None:
        self._host = ""
        #: None until the second request.
        self._session: FetchSession | None = None
        self._cache: FetchSessionCache | None = None
        #: Its rows by the bytes of the last request, of each topic.
        self._known: dict[UUID, dict[bytes, ImplicitPartition]] = {}
        #: Requests are handled as full fetches without a session.
        self.has_ended = False

    def context(
        self,
        topics: Sequence[tuple[UUID, Sequence[bytes]]],
        cache: FetchSessionCache,
        *,
        host: str,
        is_read_committed: bool,
        now_ms: int,
    ) -> ImplicitFetchContext | None:
        """Return the context of the next request; None: the session has ended.

        `cache` bounds the rows of all connections, and those of `host`.
        """
        session = self._session
        if session is None:
            self._cache, self._host = cache, host
            self._session = session = FetchSession(
                session_id=NO_SESSION,
                is_privileged=False,
                uses_topic_ids=True,
                is_read_committed=is_read_committed,
                partitions={},
                now_ms=now_ms,
            )
        order: list[ImplicitPartition] = []
        before = len(session.partitions)
        for topic_id, rows in topics:
            if not rows:
                continue
            known = self._known.setdefault(topic_id, {})
            order += [known.get(data) or self._changed(session, topic_id, data, known) for data in rows]
        distinct = dict.fromkeys(order)
        if len(distinct) < len(session.partitions):
            self._drop(session, [row for row in session.partitions.values() if row not in distinct])
        if more := len(session.partitions) - before:
            cache.count_implicit_partitions(self._host, more)
        is_too_large = len(order) > MAX_ROWS or (
            more > 0 and cache.has_too_many_implicit_partitions(self._host)
        )
        if len(distinct) < len(order) or is_too_large:
            self.close()
            return None
        self._begin(session, order)
        return ImplicitFetchContext(session, order)

    def _changed(
        self, session: FetchSession, topic_id: UUID, data: bytes, known: dict[bytes, ImplicitPartition]
    ) -> ImplicitPartition:
        """The row of these bytes, which is new or goes on at another offset."""
        request = codec.decode_row(data)
        key = (topic_id, request.partition)
        row = cast("ImplicitPartition | None", session.partitions.get(key))
        if row is None:
            session.partitions[key] = row = ImplicitPartition(key, request)
            row.session = session
        else:
            del known[row.data]
            row.request = request
        row.data = data
        known[data] = row
        session.dirty[row] = None
        return row

    def _drop(self, session: FetchSession, dropped: Collection[FetchedPartition]) -> None:
        for row in cast("Collection[ImplicitPartition]", dropped):
            topic_id = cast("UUID", row.key[0])
            known = self._known[topic_id]
            del known[row.data]
            if not known:
                del self._known[topic_id]
            del session.partitions[row.key]
            session.dirty.pop(row, None)
            row.leave_session()

    def _begin(self, session: FetchSession, order: Sequence[ImplicitPartition]) -> None:
        """Reset the partitions of the rows to be read; count the others in their topics' fetch requests."""
        dirty = session.dirty
        for row in order:
            if row in dirty:
                # An unknown topic id is reported as such also after the topic was known.
                row.partition = row.topic_name = None
            else:
                assert row.partition is not None
                row.partition.stats.total_fetch_requests += 1

    def close(self) -> None:
        """End the session, which watches no partition any more."""
        self.has_ended = True
        if self._session is not None:
            assert self._cache is not None
            self._cache.count_implicit_partitions(self._host, -len(self._session.partitions))
            self._session.close()
            self._session = None
            self._known = {}
