"""Network server: all listeners and connections of a broker or controller.

An acceptor decides when the connections of one listener are accepted:

    ready --a connection arrives, above a creation rate--> delayed --the delay is over--> ready
    ready --a connection arrives, no slot is free--> waiting, behind other listeners --a connection closes--> ready
    ready --a connection arrives, otherwise--> accepted

At most one connection is held; those behind it stay in the listener's backlog (`Listening.resume`).

Source: kafka.network.SocketServer, kafka.network.Acceptor and ConnectionQuotas.waitForConnectionSlot of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from ottla.broker.network.connection import Connection, Dispatch, Reply
from ottla.broker.network.limits import ConnectionLimits
from ottla.broker.network.receive_buffer import BufferPool
from ottla.broker.network.request_memory import RequestMemory
from ottla.broker.network.settings import NO_LIMIT, NetworkSettings
from ottla.runtime import Listening, Runtime, SocketOptions
from ottla.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

#: An idle connection is closed late by at most `connections.max.idle.ms` divided by this. A periodic sweep over
#: all connections costs less than a timer for each, moved at every request.
SWEEPS_PER_IDLE_TIME = 8

#: The longest time between two sweeps, which also release unused receive buffers.
MAX_SWEEP_INTERVAL_S = 10.0
MIN_SWEEP_INTERVAL_S = 0.01

#: The longest time between two sweeps if connections are limited: the precision of the least recently used
#: one.
LIMITED_SWEEP_INTERVAL_S = 1.0

#: Each new connection advances `activity_clock` by this.
CLOCK_TICK_S = 1e-6

#: Maximum number of closed connections that are logged between two sweeps, and maximum length of a reason.
NOTES_PER_SWEEP = 20
NOTE_LENGTH = 300


#: The minimum interval between two log lines about a full listener.
_LOG_INTERVAL_S: Final = 10.0


class Acceptor:
    """Decides when the connections of one listener are accepted, by the limits on their number and rate."""

    #: Set when the socket is open.
    listening: Listening

    def __init__(
        self, name: str, *, runtime: Runtime, limits: ConnectionLimits, waiting: "dict[Acceptor, None]"
    ) -> None:
        """Create the acceptor of one listener; `waiting` are the node's acceptors that wait for a slot, in order."""
        self._name = name
        self._runtime = runtime
        self._limits = limits
        self._waiting = waiting
        #: When the creation rates permit the held connection; None: no connection is held.
        self._due_at: float | None = None
        self._log = RateLimitedLog(log, monotonic=runtime.monotonic, interval_s=_LOG_INTERVAL_S)
        limits.add_listener(name)

    def admits(self) -> bool:
        """Whether the connection that has arrived may be accepted; called again by `Listening.resume`."""
        now = self._runtime.monotonic()
        if self._due_at is None:
            delay_ms = self._limits.delay_ms(self._name, now_ms=round(now * 1000))
            self._due_at = now + delay_ms / 1000
            if delay_ms:
                self._runtime.call_later(delay_ms / 1000, self._resume)
        if now < self._due_at:
            return False
        if (reason := self._limits.wait_reason(self._name)) is not None:
            self._waiting.setdefault(self)
            self._log.write(
                logging.WARNING,
                "listener %s: new connections wait until others are closed: there are %s",
                self._name,
                reason,
            )
            return False
        self._due_at = None
        self._waiting.pop(self, None)
        return True

    def _resume(self) -> None:
        """Continue to accept connections when the delay is over. A timer may be early by the clock's
        resolution.
        """
        self._due_at = self._runtime.monotonic()
        self.listening.resume()


class NetworkServer:
    """Accepts connections at any number of listeners and passes their frames to `dispatch`.

    `settings` may be replaced while it runs. Limits apply at once: beyond `max.connections` the least recently used
    connections are closed. The frame size applies to new connections, socket options to listeners opened later.
    """

    def __init__(self, runtime: Runtime, dispatch: Dispatch, settings: NetworkSettings | None = None) -> None:
        self.runtime = runtime
        self.dispatch = dispatch
        self._settings = settings or NetworkSettings()
        #: Called when the kernel could not read the memory of a reply, a page of a mapped file
        #: (`ottla.storage.lending`).
        self.on_unreadable: Callable[[], None] = lambda: None
        self.limits = ConnectionLimits(self._settings)
        self.turns = runtime.turns
        self.pool = BufferPool()
        self.memory = RequestMemory(self._settings, on_queue=self._on_queue_changed)
        #: When the next sweep is due, used as the connections' clock: cheaper to read than the loop's time.
        self.activity_clock = self._swept_clock = runtime.monotonic()
        # In order of arrival: a set's order would depend on addresses.
        self.connections: dict[Connection, None] = {}
        self._acceptors: list[Acceptor] = []
        self._waiting: dict[Acceptor, None] = {}
        #: The tasks of requests, also of those whose connection is lost: at most one for each connection.
        self._tasks: dict[asyncio.Task[Reply], None] = {}
        self._notes = 0
        self._is_stopping = False
        self._all_closed: asyncio.Future[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def settings(self) -> NetworkSettings:
        """The network settings in effect."""
        return self._settings

    @settings.setter
    def settings(self, settings: NetworkSettings) -> None:
        overrides = settings.max_connections_per_ip_overrides
        is_to_resolve = bool(overrides) and overrides != self._settings.max_connections_per_ip_overrides
        self._settings = settings
        self.limits.change(settings)
        if is_to_resolve:
            self.runtime.create_task(self._resolve_overrides(), name="resolve-connection-overrides")
        self.memory.change(settings)
        self._close_excess()
        self._resume_waiting()

    async def listen(self, listener_name: str, host: str | None, port: int) -> Listening:
        """Accept connections of a listener at `host`:`port`. Raises OSError if it cannot be bound."""
        assert not self._is_stopping
        settings = self._settings
        await self._resolve_overrides()
        options = SocketOptions(
            backlog=settings.backlog,
            send_buffer_bytes=settings.send_buffer_bytes,
            receive_buffer_bytes=settings.receive_buffer_bytes,
        )
        acceptor = Acceptor(listener_name, runtime=self.runtime, limits=self.limits, waiting=self._waiting)
        acceptor.listening = listening = await self.runtime.listen(
            host, port, partial(self._accepted, listener_name), options, admits=acceptor.admits
        )
        self._acceptors.append(acceptor)
        if self._sweep_timer is None:
            self._schedule_sweep()
        return listening

    async def _resolve_overrides(self) -> None:
        """Resolve host names in max.connections.per.ip.overrides to their current addresses.

        A host that cannot be resolved has the general limit; Kafka does not start with it, or refuses the change.
        """
        overrides = self._settings.max_connections_per_ip_overrides
        resolved: dict[str, int] = {}
        for host, limit in overrides.items():
            try:
                rows = await self.runtime.loop.getaddrinfo(host, None)
            except (OSError, UnicodeError) as error:
                log.warning(
                    "max.connections.per.ip.overrides: %s cannot be resolved (%s): "
                    "max.connections.per.ip applies to it",
                    host,
                    error,
                )
                continue
            resolved |= {str(row[4][0]): limit for row in rows}
        if overrides == self._settings.max_connections_per_ip_overrides:
            self.limits.overrides = resolved

    def _accepted(self, listener_name: str) -> Connection:
        self.limits.add(listener_name)
        # So that the order of use and arrival is known also between two sweeps.
        self.activity_clock += CLOCK_TICK_S
        return Connection(self, listener_name)

    def admit(self, connection: Connection) -> bool:
        """Whether an accepted connection may stay open, by the limit of its address."""
        if self._is_stopping:
            return False
        refusal = self.limits.refusal(connection.client_host)
        if refusal is not None:
            self.log_closing(connection, refusal)
            return False
        self.limits.add_host(connection.client_host)
        self.connections[connection] = None
        self._close_excess()
        return True

    def log_closing(self, connection: Connection, reason: str) -> None:
        """Log why a connection is closed: a bounded number of times per sweep, since a peer could fill the disk.

        `reason` may contain bytes of the peer.
        """
        self._notes += 1
        if self._notes <= NOTES_PER_SWEEP:
            printable = reason.encode("unicode_escape").decode()[:NOTE_LENGTH]
            log.info("%r: %s; closed", connection, printable)

    def forget(self, connection: Connection) -> None:
        """Forget a connection, admitted or not, that is closed."""
        self.limits.remove(connection.listener_name)
        if self._waiting:
            self.runtime.loop.call_soon(self._resume_waiting)
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.limits.remove_host(connection.client_host)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """Accept no further connection, respond to the requests in progress, and close.

        Requests that were not dispatched get no response: their clients retry at another broker. After
        `grace_s` seconds the remaining connections are aborted, and tasks of requests, also of connections
        that were lost before, are cancelled: what they would change is closed next.
        """
        end = self.runtime.monotonic() + grace_s
        self._is_stopping = True
        for acceptor in self._acceptors:
            acceptor.listening.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self.connections:
            await self._close_all(grace_s)
        await self._end_tasks(end - self.runtime.monotonic())

    async def _end_tasks(self, grace_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_s))
        if left := list(self._tasks):
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    async def _close_all(self, grace_s: float) -> None:
        self._all_closed = self.runtime.loop.create_future()
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(grace_s):
                await self._all_closed
        except TimeoutError:
            if not self.connections:  # the last one closed at the same moment
                return
            log.info(
                "%d connections were open %s s after the stop began; aborted", len(self.connections), grace_s
            )
            self._all_closed = self.runtime.loop.create_future()
            for connection in list(self.connections):
                connection.abort()
            await self._all_closed

    def begin(self, work: Coroutine[Any, Any, Reply]) -> "asyncio.Task[Reply]":
        """Begin the task of a request, which runs to its end even if its connection is lost."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _on_queue_changed(self) -> None:
        for connection in self.connections:
            connection.on_queue_changed()

    def _resume_waiting(self) -> None:
        """Accept waiting connections in order, after a connection was closed, or the limits have changed."""
        for acceptor in list(self._waiting):
            acceptor.listening.resume()

    def _close_excess(self) -> None:
        """Close the least recently used connections of unprotected listeners, down to `max.connections`.

        First those that are closing anyway, last those with a parked request (Kafka does not distinguish
        these). Cost: some 0.5 µs for each connection.
        """
        if (excess := self.limits.excess) and not self._is_stopping:
            candidates = [one for one in self.connections if not self.limits.is_protected(one.listener_name)]
            for connection in nsmallest(excess, candidates, key=Connection.closing_order):
                if not connection.is_closed:
                    self.log_closing(
                        connection, f"max.connections={self._settings.max_connections} exceeded, least used"
                    )
                connection.abort()

    def _sweep_interval_s(self) -> float:
        is_limited = self._settings.max_connections < NO_LIMIT
        interval_s = LIMITED_SWEEP_INTERVAL_S if is_limited else MAX_SWEEP_INTERVAL_S
        idle_ms = self._settings.max_idle_ms
        if idle_ms is None:
            return interval_s
        return min(interval_s, max(MIN_SWEEP_INTERVAL_S, idle_ms / 1000 / SWEEPS_PER_IDLE_TIME))

    def _schedule_sweep(self) -> None:
        interval_s = self._sweep_interval_s()
        # A connection that is used before the next sweep counts as used at that sweep: it is closed at most one
        # interval too late, and never too early.
        self.activity_clock = self._swept_clock = self.runtime.monotonic() + interval_s
        self._sweep_timer = self.runtime.call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        """Close idle connections, release unused buffers. Cost: 0.2 µs for each connection."""
        used_since = self._swept_clock
        self._schedule_sweep()  # first: a sweep that fails must not be the last one
        idle_ms = self._settings.max_idle_ms
        # Half a millisecond for the resolution of the clock: intervals are fractions of the idle time.
        idle_since = float("-inf") if idle_ms is None else self.runtime.monotonic() - idle_ms / 1000 + 0.0005
        for connection in list(self.connections):
            connection.sweep(idle_since, used_since=used_since)
        if self._notes > NOTES_PER_SWEEP:
            log.info("%d more connections were closed because of errors", self._notes - NOTES_PER_SWEEP)
        self._notes = 0
