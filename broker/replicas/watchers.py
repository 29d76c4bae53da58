"""Watchers of a partition: the rows of fetch sessions, which are notified of each change (`broker.reads.fetch_sessions`).

Declared here, so that partitions do not depend on what reads them.
"""

from collections.abc import MutableMapping
from typing import Any, Protocol

from broker.replication.leader_state import FetchClock


class WatchingSession(FetchClock, Protocol):
    """The fetch session of a watcher, and the watch key of its delayed Fetch."""

    def __hash__(self) -> int:
        """By identity."""

    @property
    def dirty(self) -> MutableMapping[Any, None]:
        """The watchers whose partitions have changed since they were last read to the end."""

    @property
    def overtaken(self) -> MutableMapping[Any, None]:
        """A follower's watchers whose partitions another request of the follower has named meanwhile."""


class Watcher(Protocol):
    """A row of a fetch session."""

    @property
    def session(self) -> WatchingSession | None:
        """None once the session is closed, or has forgotten the partition."""
