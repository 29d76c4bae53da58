"""All listeners and connections of one node."""

import asyncio
import logging
from functools import partial
from math import ceil

from broker.network.connection import Connection, Dispatch
from broker.network.limits import ConnectionLimits
from broker.network.receive_buffer import BufferPool
from broker.network.settings import NetworkSettings
from broker.runtime import Listening, Runtime, SocketOptions

log = logging.getLogger(__name__)

#: An idle connection is closed this part of `connections.max.idle.ms` late at most. One sweep over
#: all connections now and then costs less than a timer for each, moved at every request.
SWEEPS_PER_IDLE_TIME = 8

#: The longest time between two sweeps: unused receive buffers are given back by them, too.
MAX_SWEEP_INTERVAL_S = 10.0
MIN_SWEEP_INTERVAL_S = 0.01

#: Closed connections that are logged one by one between two sweeps, and the length of their reasons.
NOTES_PER_SWEEP = 20
NOTE_LENGTH = 300


class NetworkServer:
    """Accepts connections at any number of listeners and hands their frames to `dispatch`.

    `settings` may be replaced while it runs: limits hold for connections accepted from then on, the
    frame size and the idle time of a listener's next connections, socket options of later listeners.
    """

    def __init__(self, runtime: Runtime, dispatch: Dispatch, settings: NetworkSettings | None = None) -> None:
        self.runtime = runtime
        self.dispatch = dispatch
        self.settings = settings or NetworkSettings()
        self.limits = ConnectionLimits()
        self.pool = BufferPool()
        #: Counts sweeps: the connections' clock, read without asking the loop for the time.
        self.sweep_count = 0
        # In order of arrival: a set's order would depend on addresses.
        self.connections: dict[Connection, None] = {}
        self._listenings: list[Listening] = []
        self._notes = 0
        self._is_stopping = False
        self._all_closed: asyncio.Future[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def listen(self, listener_name: str, host: str | None, port: int) -> Listening:
        """Accept at `host`:`port` in the name of a listener. OSError if it cannot be bound."""
        assert not self._is_stopping
        settings = self.settings
        options = SocketOptions(
            backlog=settings.backlog,
            send_buffer_bytes=settings.send_buffer_bytes,
            receive_buffer_bytes=settings.receive_buffer_bytes,
        )
        listening = await self.runtime.listen(host, port, partial(Connection, self, listener_name), options)
        self._listenings.append(listening)
        if self._sweep_timer is None:
            self._schedule_sweep()
        return listening

    def admit(self, connection: Connection) -> bool:
        """Whether an accepted connection may stay; it is counted if so, and `forget` is due."""
        if self._is_stopping:
            return False
        refusal = self.limits.refusal(connection.client_host, self.settings)
        if refusal is not None:
            self.note(connection, refusal)
            return False
        self.limits.add(connection.client_host)
        self.connections[connection] = None
        return True

    def note(self, connection: Connection, reason: str) -> None:
        """Write down why a connection is closed: a few times per sweep, or a peer could fill the disk.

        `reason` may hold what the peer sent.
        """
        self._notes += 1
        if self._notes <= NOTES_PER_SWEEP:
            printable = reason.encode("unicode_escape").decode()[:NOTE_LENGTH]
            log.info("%r: %s; closed", connection, printable)

    def forget(self, connection: Connection) -> None:
        """A connection is gone (or was never admitted)."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.limits.remove(connection.client_host)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """Accept nothing more, answer the requests in progress, close.

        Requests that were not begun are not answered: their clients ask another broker. After
        `grace_s` seconds the connections that are still there are cut off.
        """
        self._is_stopping = True
        for listening in self._listenings:
            listening.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if not self.connections:
            return
        self._all_closed = self.runtime.loop.create_future()
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(grace_s):
                await self._all_closed
        except TimeoutError:
            if not self.connections:  # the last one went at the same moment
                return
            log.info("%d connections cut off after %s s", len(self.connections), grace_s)
            self._all_closed = self.runtime.loop.create_future()
            for connection in list(self.connections):
                connection.abort()
            await self._all_closed

    def _sweep_interval_s(self) -> float:
        idle_ms = self.settings.max_idle_ms
        if idle_ms is None:
            return MAX_SWEEP_INTERVAL_S
        return min(MAX_SWEEP_INTERVAL_S, max(MIN_SWEEP_INTERVAL_S, idle_ms / 1000 / SWEEPS_PER_IDLE_TIME))

    def _schedule_sweep(self) -> None:
        self._sweep_timer = self.runtime.call_later(self._sweep_interval_s(), self._sweep)

    def _sweep(self) -> None:
        """Close idle connections, take unused buffers back. Cost: 0.2 µs a connection."""
        idle_since = -1
        if self.settings.max_idle_ms is not None:
            # Who was last active between sweeps n and n + 1 counts as active until n + 1, so that
            # nobody is closed too early; one sweep's time too late is possible.
            intervals = ceil(self.settings.max_idle_ms / 1000 / self._sweep_interval_s())
            idle_since = self.sweep_count + 1 - intervals
        for connection in list(self.connections):
            connection.tidy(idle_since)
        self.sweep_count += 1
        if self._notes > NOTES_PER_SWEEP:
            log.info("%d more connections were closed like the last ones", self._notes - NOTES_PER_SWEEP)
        self._notes = 0
        self._schedule_sweep()
