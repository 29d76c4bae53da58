"""HTTP server: the listeners of `metrics.listeners`, and their connections, on the node's own loop.

At most `MAX_CONNECTIONS` are open: a further one takes the place of the one that has been idle longest, so
that peers which connect and ask for nothing do not keep a scraper out. If none is idle, the new one is
closed.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from ottla.broker.metrics.http_connection import HttpConnection, Respond
from ottla.runtime import Listening, Runtime, SocketOptions

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 32
#: The time limit for the responses that are owed when the server stops.
STOP_S: Final = 1.0


class HttpServer:
    """The HTTP server of a node's metrics: its listeners, and at most `MAX_CONNECTIONS` connections."""

    def __init__(self, runtime: Runtime, respond: Respond) -> None:
        self.runtime = runtime
        self.respond = respond
        self._listenings: list[Listening] = []
        #: The open connections in the order of their opening; at most MAX_CONNECTIONS.
        self._connections: dict[HttpConnection, None] = {}
        self._all_closed: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int) -> Listening:
        """Accept connections at `host`:`port`. Raises OSError if it cannot be bound."""
        listening = await self.runtime.listen(
            host, port, lambda: HttpConnection(self), SocketOptions(backlog=MAX_CONNECTIONS)
        )
        self._listenings.append(listening)
        return listening

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def opened(self, connection: HttpConnection) -> None:
        """Register an open connection; if there are too many, the one that has been idle longest is closed."""
        if len(self._connections) >= MAX_CONNECTIONS:
            idle = [each for each in self._connections if each.is_idle]
            excess = min(idle, key=lambda each: each.waiting_since, default=connection)
            self._connections.pop(excess, None)
            excess.abort()
            if excess is connection:
                return
        self._connections[connection] = None

    def closed(self, connection: HttpConnection) -> None:
        """Forget a closed connection."""
        self._connections.pop(connection, None)
        if self._all_closed is not None and not self._connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def stop(self) -> None:
        """Close the listeners, finish the responses that are owed within `STOP_S`, and close all connections."""
        for listening in self._listenings:
            listening.close()
        for connection in list(self._connections):
            connection.finish()
        if not self._connections:
            return
        self._all_closed = self.runtime.loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._all_closed
        if self._connections:
            self._all_closed = self.runtime.loop.create_future()
            for connection in list(self._connections):
                connection.abort()
            await self._all_closed
