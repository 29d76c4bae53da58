"""Watchers of one partition: rows of fetch sessions, and requests in the purgatory, that a change of it may complete.

    appended, not committed yet  -> followers' rows, purgatory
    committed, truncated, moved log start, another role -> all rows, purgatory

A row is marked in its session (`dirty`), so that the session's next Fetch reads the partition again (KIP-227).
Source: none in Kafka, whose fetch sessions iterate over all their partitions.
"""

from collections.abc import Callable, Hashable
from typing import Any, Protocol


class WatchingSession(Hashable, Protocol):
    """A fetch session (`ottla.broker.replicas.reading.fetch_sessions`)."""

    @property
    def dirty(self) -> dict[Any, None]:
        """The session's rows whose partitions have changed."""

    @property
    def overtaken(self) -> dict[Any, None]:
        """The session's rows that another session of the same follower has named meanwhile."""


class Watcher(Hashable, Protocol):
    """A partition's row in a fetch session."""

    @property
    def session(self) -> WatchingSession | None:
        """The fetch session of the row; None for a row outside of a session."""


class Watchers:
    """The fetch session rows and the purgatory key that one partition's changes mark and signal.

    Followers' rows are also marked for records that consumers must not see yet.
    """

    __slots__ = ("_key", "_signal", "consumers", "followers")

    def __init__(self, key: Hashable, *, signal: Callable[[Hashable], None]) -> None:
        """`signal` completes what waits for its argument in the purgatory: `key`, or a fetch session."""
        self._key = key
        self._signal = signal
        self.consumers: dict[Watcher, None] = {}
        self.followers: dict[Watcher, None] = {}

    def add(self, watcher: Watcher, *, is_follower: bool) -> None:
        """Begin to notify the session of this row."""
        (self.followers if is_follower else self.consumers)[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Stop notifying the session of this row."""
        self.consumers.pop(watcher, None)
        self.followers.pop(watcher, None)

    def notify(self) -> None:
        """Offsets that consumers see, the role, or the existence of the partition has changed."""
        # Producers first: a follower's Fetch that yields to them must come after the next requests that they have sent.
        self._signal(self._key)
        if self.consumers:
            self._mark(self.consumers)
        if self.followers:
            self._mark(self.followers)

    def notify_followers(self) -> None:
        """Records were appended, which consumers must not see yet."""
        if self.followers:
            self._mark(self.followers)
        self._signal(self._key)

    def check_delayed(self) -> None:
        """Check the requests in the purgatory after a change that no row shows, such as one of the low
        watermark.
        """
        self._signal(self._key)

    def record_overtaken(self, session: object) -> None:
        """A follower's fetch session has changed from `session`: what that one's row says is read again.

        The previous session may still be the current one: a late request of an earlier connection changes it, too.
        """
        for watcher in self.followers:
            if watcher.session is not None and watcher.session is session:
                watcher.session.overtaken[watcher] = None

    def _mark(self, watchers: dict[Watcher, None]) -> None:
        signal = self._signal
        for watcher in watchers:
            session = watcher.session
            if session is not None:
                session.dirty[watcher] = None
                signal(session)
