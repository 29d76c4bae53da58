"""The lock of decisions: one is made at a time. Heartbeats go before all other requests that wait.

A decision with many records takes several turns of the event loop, and on a busy loop seconds; behind a few of them a
heartbeat would arrive in time and be handled too late, so that its broker is fenced. Heartbeats are few (one
broker sends its next one after the response) and short, except for one that changes what its broker may lead:
other requests do not wait for long behind them.
"""

import asyncio
from collections import deque


class DecisionLock:
    """A lock with two classes of waiters; each class in its order of arrival."""

    def __init__(self) -> None:
        #: Also from the time that a waiter is chosen until it runs: a request that arrives meanwhile waits.
        self._is_held = False
        #: At most one for each heartbeat that waits, or has been cancelled meanwhile.
        self._first: deque[asyncio.Future[None]] = deque()
        #: At most one for each other request or periodic task.
        self._others: deque[asyncio.Future[None]] = deque()

    async def acquire(self, *, goes_first: bool = False) -> None:
        """Wait until nothing else is decided; `goes_first`: before those that wait without it."""
        if not self._is_held:
            self._is_held = True
            return
        chosen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._first if goes_first else self._others).append(chosen)
        try:
            await chosen
        except asyncio.CancelledError:
            if not chosen.cancelled():  # cancelled after it was chosen, before it ran
                self.release()
            raise

    def release(self) -> None:
        """Release the lock after a decision was made or dropped, and begin the next decision."""
        for waiters in (self._first, self._others):
            while waiters:
                chosen = waiters.popleft()
                if not chosen.done():
                    chosen.set_result(None)
                    return
        self._is_held = False
