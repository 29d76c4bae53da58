"""MemoryNetwork: a network in memory, with named hosts, listeners, connections with latency, and network faults.

Bytes of one direction of a connection arrive in order, each piece after a latency drawn from the
seeded source; pieces of different connections may overtake each other. `cut` delays all bytes between
two hosts until `heal`, in both directions or in one (as TCP retransmits until delivery), `crash` resets
every connection of a host, `unplug` ends them without a reset to its peers.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from random import Random
from typing import TypeVar

from ottla.runtime import ProtocolFactory
from ottla.runtime.memory_transport import MemoryTransport
from ottla.runtime.network_conditions import NetworkConditions

P = TypeVar("P", bound=asyncio.BaseProtocol)

#: The source address of a host that specifies none.
LOOPBACK = "127.0.0.1"
#: Default backlog of a listener.
DEFAULT_BACKLOG = 50

#: The hosts of a socket that accepts connections to all addresses of its machine.
WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 (names, not sockets)
_ALIASES = {"localhost": LOOPBACK, **dict.fromkeys(WILDCARDS, LOOPBACK)}


class MemoryListening:
    """A listening address of the in-memory network; a `Listening`."""

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
        #: Connections that clients have opened and that are not accepted yet; at most one more than the backlog.
        self._waiting: deque[MemoryTransport] = deque()
        #: The context of the listening process, which serves the connections (`virtual_loop`).
        self.context = copy_context()

    @property
    def is_full(self) -> bool:
        """Whether no further connection can be opened: one is held, and the backlog is full."""
        return len(self._waiting) > self._backlog

    def arrived(self, transport: MemoryTransport) -> None:
        """A client has opened a connection; `transport` is the listener's end."""
        self._waiting.append(transport)
        if len(self._waiting) == 1:
            self.resume()

    def resume(self) -> None:
        """Accept waiting connections while they are admitted."""
        while self._waiting:
            is_admitted: bool = self.context.copy().run(self._admits)
            if not is_admitted:
                return
            transport = self._waiting.popleft()
            transport.set_protocol(self.context.copy().run(self._factory))
            transport.begin()

    def close(self) -> None:
        """Refuse further connections, and reset the waiting ones."""
        self._network.listeners.pop((self.host, self.port), None)
        while self._waiting:
            self._waiting.popleft().abort()

    async def wait_closed(self) -> None:
        """Returns at once; part of the interface of asyncio's servers."""


class MemoryNetwork:
    """A network in memory: the listeners and connections of all hosts, and faults between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, random: Random, record: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self.conditions = NetworkConditions(random, record)
        self.listeners: dict[tuple[str, int], MemoryListening] = {}
        # In order of creation, as dict keys: a fault must affect them in a reproducible order.
        self._transports: dict[MemoryTransport, None] = {}
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
        """Listen at `port` of `host`; port 0 chooses a free one. Raises OSError (EADDRINUSE) if it is in use."""
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

        Raises ConnectionRefusedError without a listener. While the hosts are cut off from each other it waits
        indefinitely, so callers need a timeout, as on a real network.
        """
        host = _ALIASES.get(host, host)
        await asyncio.sleep(self.conditions.draw_latency_s())
        listening = self.listeners.get((host, port))
        while (
            self.conditions.is_cut(source, host)
            or self.conditions.is_cut(host, source)
            or (listening is not None and listening.is_full)
        ):
            # As the first packet of a connection is retransmitted every second.
            await asyncio.sleep(1)
            listening = self.listeners.get((host, port))
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no listener at {host}:{port}")
        here, there = (source, self._free_port()), (host, port)
        self.conditions.record(f"connect {here[0]}:{here[1]} > {host}:{port}")
        protocol = factory()
        create = partial(MemoryTransport, self._loop, conditions=self.conditions, on_end=self._forget)
        client = create(protocol, own_address=here, peer_address=there, context=copy_context())
        # Its protocol is created when the connection is accepted.
        server = create(
            asyncio.BaseProtocol(), own_address=there, peer_address=here, context=listening.context.copy()
        )
        client.peer, server.peer = server, client
        self._transports[server] = self._transports[client] = None
        listening.arrived(server)
        client.begin()
        # connection_made is called by the loop, as in asyncio; the caller continues after it.
        await asyncio.sleep(0)
        return client, protocol

    def cut(self, host: str, other: str) -> None:
        """Delay all bytes between the two hosts until `heal`."""
        self.conditions.record(f"cut {host} | {other}")
        self.conditions.cuts |= {(host, other), (other, host)}

    def cut_one_way(self, source: str, target: str) -> None:
        """Delay all bytes from `source` to `target` until `heal`; those from `target` arrive."""
        self.conditions.record(f"cut {source} > {target}")
        self.conditions.cuts.add((source, target))

    def heal(self, host: str, other: str) -> None:
        """End the cut between two hosts, and deliver the delayed bytes."""
        self.conditions.record(f"heal {host} | {other}")
        self.conditions.cuts -= {(host, other), (other, host)}
        self._deliver()

    def crash(self, host: str) -> None:
        """End all listeners and connections of `host`; peers see a reset. Its own protocols are not called."""
        self.conditions.record(f"crash {host}")
        self._vanish(host, is_silent=False)

    def unplug(self, host: str) -> None:
        """A power failure: as `crash`, but peers see no reset, and the host is unreachable until `plug_in`."""
        self.conditions.record(f"unplug {host}")
        self.conditions.unplugged.add(host)
        self._vanish(host, is_silent=True)

    def plug_in(self, host: str) -> None:
        """The host is reachable again, without its connections: bytes sent to them are answered with a reset."""
        self.conditions.record(f"plug in {host}")
        self.conditions.unplugged.discard(host)
        self._deliver()

    def _forget(self, transport: MemoryTransport) -> None:
        self._transports.pop(transport, None)

    def _vanish(self, host: str, *, is_silent: bool) -> None:
        for key in [key for key in self.listeners if key[0] == host]:
            del self.listeners[key]
        for transport in list(self._transports):
            if transport.own_address[0] == host:
                transport.vanish(is_silent=is_silent)

    def _deliver(self) -> None:
        for transport in list(self._transports):
            transport.receive_due()
            transport.peer.receive_due()  # the peer may have vanished: it answers with a reset

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port
