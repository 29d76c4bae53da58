"""Acceptor of a listening socket: connections are accepted when its owner admits them.

    listening --a connection arrives, admitted--> its protocol is created
    listening --a connection arrives, not admitted--> paused: it is held, later ones wait in the backlog
    listening --no descriptor is free, but for files--> paused for `RETRY_S`
    paused    --resume(), admitted--> listening

The servers of asyncio and uvloop cannot leave connections in the backlog: they accept every connection.
Source: kafka.network.Acceptor of Kafka 4.3.1, which also holds one connection of its listener while it waits.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

logger = logging.getLogger(__name__)

#: The open connections of this process, which shares its descriptors: a transport has its socket until it is closed.
_connections: Final[WeakSet[socket.socket]] = WeakSet()

#: Maximum number of connections that are accepted in one turn of the loop: each takes 0.2 ms until it is open, and
#: requests of other connections wait meanwhile.
ACCEPTS_PER_TURN: Final = 8
#: The pause after accept() has failed for lack of descriptors or memory; meanwhile the loop can close connections.
RETRY_S: Final = 1.0
#: Descriptors that connections leave to files: a quarter of the limit, and at most so many.
FILES_DESCRIPTORS: Final = 4096
#: Descriptors that they leave free where files have more than that: as many as files leave to those of one use.
FREE_DESCRIPTORS: Final = 64
#: The interval between two log lines about connections that cannot be accepted.
LOG_INTERVAL_S: Final = 60.0


class SocketListening:
    """A listening socket that accepts connections when its owner admits them; a `Listening`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bound: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        backlog: int,
        admits: Callable[[], bool],
    ) -> None:
        """`bound` is a non-blocking socket with an address; it is closed by `close`."""
        self._loop = loop
        self._socket = bound
        self._factory = factory
        self._admits = admits
        #: The connection that is accepted and not admitted yet.
        self._held: socket.socket | None = None
        self._is_reading = False
        self._is_closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._logged_at: float | None = None
        self._opening: set[asyncio.Task[None]] = set()
        address = bound.getsockname()
        self.host: str = address[0]
        self.port: int = address[1]
        bound.listen(backlog)
        self._read()

    def resume(self) -> None:
        """Call `admits` again for the connection that it has refused; if it is admitted, continue to accept."""
        if self._is_closed:
            return
        held = self._held
        if held is not None:
            if not self._admits():
                return
            self._held = None
            self._open(held)
        self._read()

    def close(self) -> None:
        """Stop accepting. Accepted connections stay open, those in the backlog are reset."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        if self._held is not None:
            self._held.close()
        self._socket.close()

    async def wait_closed(self) -> None:
        """Wait until each accepted connection is attached to its protocol."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _read(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._accept)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def _accept(self) -> None:
        """Accept the connections that have arrived, while they are admitted."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._retry_later(str(error))
                return
            if not _may_keep(accepted):
                accepted.close()  # the client connects again
                self._retry_later("the remaining descriptors are for files")
                return
            accepted.setblocking(False)
            if not self._admits():
                self._held = accepted
                self._pause()
                return
            self._open(accepted)

    def _retry_later(self, reason: str) -> None:
        now = self._loop.time()
        if self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            logger.error("no connection can be accepted at %s:%d now: %s", self.host, self.port, reason)
        self._pause()
        self._retry = self._loop.call_later(RETRY_S, self.resume)

    def _open(self, accepted: socket.socket) -> None:
        opening = self._loop.create_task(self._hand_over(accepted, self._factory()))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _hand_over(self, accepted: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
        except OSError as error:
            accepted.close()
            protocol.connection_lost(error)


def _may_keep(accepted: socket.socket) -> bool:
    """Whether enough descriptors are left for files beside this connection, which counts until it is closed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and (
        len(_connections) >= limit - min(FILES_DESCRIPTORS, limit // 4)
        # The lowest free number: all before it are in use.
        or accepted.fileno() >= limit - min(FREE_DESCRIPTORS, limit // 8)
    ):
        return False
    _connections.add(accepted)
    return True
