"""Watched views: a snapshot that is made again and again while a page shows it, and sent when it has changed.

    nothing --the first stream of a view and its parameters--> made every second --the last stream ends--> nothing

All streams of the same view share one snapshot, so that the cost does not grow with the people who look. A stream
whose peer has not read the last event gets no further one until it has, and then the latest: it holds one event.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ottla.broker.http.server import HttpConnection, HttpStream
from ottla.runtime import Runtime

logger = logging.getLogger(__name__)

#: After so long without a change a comment is sent: a peer that is gone is noticed, and the page knows of the node.
_BEAT_S: Final = 5.0
_BEAT: Final = b": beat\n\n"
_FAILED: Final = b'{"error":"The view could not be made; the log of the node has the reason."}'

#: Makes a snapshot: (whether it is a problem instead, the snapshot as JSON in one line).
Make = Callable[[], Awaitable[tuple[bool, bytes]]]


class WatchedViews:
    """All views that are watched now, by their address."""

    def __init__(self, runtime: Runtime, *, on_unwatched: Callable[[], None]) -> None:
        """`on_unwatched` is called when no view is watched any more."""
        self._runtime = runtime
        self._on_unwatched = on_unwatched
        self._views: dict[str, _WatchedView] = {}
        #: The tasks of these views, and those that are cancelled and have not ended yet.
        self._tasks: set[asyncio.Task[None]] = set()

    def stream(
        self, address: str, make: Make, *, interval_s: float, headers: Mapping[str, str]
    ) -> HttpStream:
        """A stream of the view at this address."""

        def opened(connection: HttpConnection) -> None:
            view = self._views.get(address)
            if view is None:
                view = self._views[address] = _WatchedView(make, interval_s)
                view.task = self._runtime.create_task(view.run(self._runtime), name=f"page-{address[:80]}")
                self._tasks.add(view.task)
                view.task.add_done_callback(self._tasks.discard)
            view.add(connection)

        def closed(connection: HttpConnection) -> None:
            view = self._views.get(address)
            if view is not None and not view.remove(connection):
                del self._views[address]
                assert view.task is not None
                view.task.cancel()
                if not self._views:
                    self._on_unwatched()

        return HttpStream(opened=opened, closed=closed, headers=headers)

    async def stop(self) -> None:
        """Cancel the views that are still made, and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def count(self) -> int:
        """The number of watched views."""
        return len(self._views)


class _WatchedView:
    """One view, and the streams that show it."""

    def __init__(self, make: Make, interval_s: float) -> None:
        self.task: asyncio.Task[None] | None = None
        self._make = make
        self._interval_s = interval_s
        #: The last event that was sent to each stream; at most `MAX_STREAMS` streams.
        self._sent: dict[HttpConnection, bytes] = {}
        self._event = b""

    def add(self, connection: HttpConnection) -> None:
        """Show the view in one more stream, which gets the last snapshot at once."""
        self._sent[connection] = b""
        if self._event:
            self._send(connection)

    def remove(self, connection: HttpConnection) -> bool:
        """End a stream; returns whether there are others."""
        self._sent.pop(connection, None)
        return bool(self._sent)

    async def run(self, runtime: Runtime) -> None:
        """Make snapshots until the task is cancelled."""
        beat_at = runtime.monotonic() + _BEAT_S
        while True:
            try:
                is_problem, snapshot = await self._make()
            except Exception:
                logger.exception("a view of the page could not be made")
                is_problem, snapshot = True, _FAILED
            kind = b"event: problem\n" if is_problem else b""
            self._event = b"%sdata: %s\n\n" % (kind, snapshot)
            for connection in list(self._sent):
                self._send(connection)
            if runtime.monotonic() >= beat_at:
                beat_at = runtime.monotonic() + _BEAT_S
                for connection in list(self._sent):
                    if connection.can_send:
                        connection.send(_BEAT)
            await asyncio.sleep(self._interval_s)

    def _send(self, connection: HttpConnection) -> None:
        if connection.can_send and self._sent[connection] != self._event:
            self._sent[connection] = self._event
            connection.send(self._event)
