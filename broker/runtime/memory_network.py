"""A network in memory: named hosts, listeners, connections with latency, and the faults of a network.

Bytes of one direction of a connection arrive in order, each piece after a latency drawn from the
seeded source; pieces of different connections overtake each other freely. `cut` holds back what
travels between two hosts, in both directions or in one (as TCP does: it is sent again until it
arrives), `crash` ends every connection of a host at once, `unplug` does so without a word to its peers.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import TypeVar

from broker.runtime import ProtocolFactory
from broker.runtime.memory_transport import MemoryTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)

#: What a host that names no address of its own connects from.
LOOPBACK = "127.0.0.1"
#: Connections that wait at a listener that names no backlog.
DEFAULT_BACKLOG = 50

_ALIASES = {"localhost": LOOPBACK, "": LOOPBACK, "0.0.0.0": LOOPBACK, "::": LOOPBACK}  # noqa: S104


def _default_latency(random: Random) -> float:
    """Seconds that a piece travels: 50 to 500 µs, a local network."""
    return random.uniform(50e-6, 500e-6)


class MemoryListening:
    """A listening address; see `broker.runtime.Listening`."""

    def __init__(
        self,
        network: "MemoryNetwork",
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        backlog: int,
        admits: Callable[[], bool],
    ) -> None:
        self._network = network
        self.host = host
        self.port = port
        self._factory = factory
        self._backlog = backlog
        self._admits = admits
        #: Connections that their clients have opened, and that are not accepted.
        self._waiting: deque[MemoryTransport] = deque()
        #: That of the process that listens: it serves the connections (`virtual_process`).
        self.context = copy_context()

    @property
    def is_full(self) -> bool:
        """Whether no further connection can be opened: one is held, the others are in the backlog."""
        return len(self._waiting) > self._backlog

    def arrived(self, transport: MemoryTransport) -> None:
        """A client has opened a connection; this is the listener's end of it."""
        self._waiting.append(transport)
        if len(self._waiting) == 1:
            self.resume()

    def resume(self) -> None:
        """Accept what waits, as far as it is admitted."""
        while self._waiting:
            is_admitted: bool = self.context.copy().run(self._admits)
            if not is_admitted:
                return
            transport = self._waiting.popleft()
            transport.set_protocol(self.context.copy().run(self._factory))
            transport.begin()

    def close(self) -> None:
        """Refuse connections from now on, and reset those that wait."""
        self._network.listeners.pop((self.host, self.port), None)
        while self._waiting:
            self._waiting.popleft().abort()

    async def wait_closed(self) -> None:
        """Nothing to wait for; asyncio's servers have it."""


class MemoryNetwork:
    """All hosts' listeners and connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, random: Random, record: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.random = random
        self.record = record
        self.latency_s: Callable[[Random], float] = _default_latency
        #: Bytes of one direction that are travelling or not yet read: then the sender's buffer fills.
        self.window_bytes = 256 * 1024
        #: If set, a read returns a random number of bytes up to this, however many have arrived.
        self.max_read_bytes: int | None = None
        self.listeners: dict[tuple[str, int], MemoryListening] = {}
        # In order of creation, as dict keys: a fault must hit them in the same order every time.
        self.transports: dict[MemoryTransport, None] = {}
        #: Seconds that a piece travels longer, by (from, to).
        self.delays_s: dict[tuple[str, str], float] = {}
        #: (from, to): nothing arrives.
        self._cut: set[tuple[str, str]] = set()
        #: Hosts without power.
        self._unplugged: set[str] = set()
        self._next_port = 40_000

    def listen(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        backlog: int = DEFAULT_BACKLOG,
        admits: Callable[[], bool] = lambda: True,
    ) -> MemoryListening:
        """Listen at `port` of `host`; port 0 takes a free one. OSError (EADDRINUSE) if it is taken."""
        host = _ALIASES.get(host, host)
        if port == 0:
            port = self._free_port()
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        listening = MemoryListening(self, host, port, factory, backlog=backlog, admits=admits)
        self.listeners[host, port] = listening
        return listening

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], *, source: str = LOOPBACK
    ) -> tuple[MemoryTransport, P]:
        """Connect `source` to `host`:`port`.

        ConnectionRefusedError if nobody listens; while the two are cut off it waits for ever, so
        callers need a timeout, as on a real network.
        """
        host = _ALIASES.get(host, host)
        await asyncio.sleep(self.latency_s(self.random))
        listening = self.listeners.get((host, port))
        while (
            self.is_cut(source, host)
            or self.is_cut(host, source)
            or (listening is not None and listening.is_full)
        ):
            # As the first packet of a connection is sent again every second.
            await asyncio.sleep(1)
            listening = self.listeners.get((host, port))
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {host}:{port}")
        here, there = (source, self._free_port()), (host, port)
        self.record(f"connect {here[0]}:{here[1]} > {host}:{port}")
        protocol = factory()
        client = MemoryTransport(self, protocol, own_address=here, peer_address=there, context=copy_context())
        # Its protocol is made when it is accepted.
        server = MemoryTransport(
            self,
            asyncio.BaseProtocol(),
            own_address=there,
            peer_address=here,
            context=listening.context.copy(),
        )
        client.peer, server.peer = server, client
        self.transports[server] = self.transports[client] = None
        listening.arrived(server)
        client.begin()
        # connection_made is called by the loop, as asyncio does; the caller goes on after it.
        await asyncio.sleep(0)
        return client, protocol

    def cut(self, host: str, other: str) -> None:
        """Hold back everything between the two hosts, until `heal`."""
        self.record(f"cut {host} | {other}")
        self._cut |= {(host, other), (other, host)}

    def cut_one_way(self, source: str, target: str) -> None:
        """Hold back what `source` sends to `target`, until `heal`; what `target` sends arrives."""
        self.record(f"cut {source} > {target}")
        self._cut.add((source, target))

    def heal(self, host: str, other: str) -> None:
        """Let what was held back arrive."""
        self.record(f"heal {host} | {other}")
        self._cut -= {(host, other), (other, host)}
        self._deliver()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one host to the other."""
        if self._unplugged and (source in self._unplugged or target in self._unplugged):
            return True
        return bool(self._cut) and (source, target) in self._cut

    def crash(self, host: str) -> None:
        """End all listeners and connections of `host`; peers see a reset. Its protocols hear nothing."""
        self.record(f"crash {host}")
        self._vanish(host, is_silent=False)

    def unplug(self, host: str) -> None:
        """The power fails: as `crash`, but peers see nothing, and the host is out of reach until `plug_in`."""
        self.record(f"unplug {host}")
        self._unplugged.add(host)
        self._vanish(host, is_silent=True)

    def plug_in(self, host: str) -> None:
        """It is back, and knows nothing of its connections: what is sent to them is answered with a reset."""
        self.record(f"plug in {host}")
        self._unplugged.discard(host)
        self._deliver()

    def _vanish(self, host: str, *, is_silent: bool) -> None:
        for key in [key for key in self.listeners if key[0] == host]:
            del self.listeners[key]
        for transport in list(self.transports):
            if transport.own_address[0] == host:
                transport.vanish(is_silent=is_silent)

    def _deliver(self) -> None:
        for transport in list(self.transports):
            transport.receive_due()
            transport.peer.receive_due()  # which may be one that has vanished: it answers with a reset

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port
