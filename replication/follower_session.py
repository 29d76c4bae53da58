"""The follower's end of an incremental fetch session (KIP-227): each request has only the rows that have changed.

    no session --full request (epoch 0)--> the leader has opened one --each request names the next epoch--> ...
               ^                                   |
               '-- closed, refused, no response ---'

Source: KIP-227; FetchSessionHandler of Kafka's clients.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

NO_SESSION = 0
_FULL = 0
_LAST_EPOCH = 2**31 - 1


class SessionRequest(NamedTuple, Generic[K, R]):
    """The session part of a Fetch request: id, epoch, the rows to send and those to forget."""

    session_id: int
    epoch: int
    rows: Mapping[K, R]
    forgotten: list[K]


class FollowerSession(Generic[K, R]):
    """The follower's side of a fetch session with one leader. `rows` are the session's rows at the leader, by key."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = _FULL
        self.rows: dict[K, R] = {}

    def request(
        self, changes: Mapping[K, R | None], everything: Callable[[], dict[K, R]]
    ) -> SessionRequest[K, R]:
        """The next request; in `changes` None stands for a partition that is not fetched any more.

        `everything` is called for the rows of a full request, while there is no session.
        """
        if self._epoch == _FULL:
            self.rows = everything()
            return SessionRequest(self._session_id, _FULL, self.rows, [])
        rows, sent, forgotten = self.rows, {}, []
        for key, row in changes.items():
            if row is not None:
                if rows.get(key) != row:
                    sent[key] = row
            elif rows.pop(key, None) is not None:
                forgotten.append(key)
        rows.update(sent)
        return SessionRequest(self._session_id, self._epoch, sent, forgotten)

    def on_answer(self, session_id: int) -> None:
        """Record the response. NO_SESSION: the leader has opened no session, or has closed one that became
        empty.
        """
        assert 0 <= self._epoch <= _LAST_EPOCH, self._epoch
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, _FULL
        elif self._epoch == _FULL:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def on_refusal(self, *, is_gone: bool) -> None:
        """Send a full request next, since the last one failed as a whole.

        It names the old session, which the leader then closes, unless that session `is_gone`.
        """
        if is_gone:
            self._session_id = NO_SESSION
        self._epoch = _FULL
