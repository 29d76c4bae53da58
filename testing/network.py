"""The network of one node in a test: connected, or isolated from clients and from all other nodes.

    isolate   its connections break; those that it or others begin are refused
    heal      connections are opened as usual

The runtime of the node asks it, so that it concerns everything that the node does in the network.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar, cast

from ottla.runtime import Listening, ProtocolFactory, SocketOptions
from ottla.runtime.movable_clock import MovableRuntime
from ottla.runtime.workers import Worker

P = TypeVar("P", bound=asyncio.BaseProtocol)

#: uvloop closes a transport in one of the next turns of the loop.
_CLOSE_S: Final = 0.002


class Network:
    """Whether a node is isolated; over all lives of the node. Changed in any thread."""

    def __init__(self) -> None:
        self.is_isolated = False


class Clock:
    """The lead of the clock of a broker or cluster over the system's, in all lives of its nodes."""

    def __init__(self) -> None:
        self.ahead_s = 0.0


class NodeRuntime(MovableRuntime):
    """The runtime of one life of a node: its clock can be moved, and its network follows `Network`.

    It has no worker processes: what they do for other nodes, threads do here, so that faults concern it, and a node
    starts and ends at once.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self._is_killed = False
        #: The connections that the node has opened; closed ones are dropped when the next one is opened.
        self._outgoing: list[asyncio.Transport] = []
        #: Breaks the connections that the node has accepted.
        self.break_accepted: Callable[[], None] = lambda: None

    def worker(self, module: str, setup: object) -> Worker | None:
        """Return None: the caller does the work itself, in a thread."""
        return None

    async def listen(
        self,
        host: str | None,
        port: int,
        factory: ProtocolFactory,
        options: SocketOptions | None = None,
        *,
        admits: Callable[[], bool] = lambda: True,
    ) -> Listening:
        """Accept connections; those that arrive while the node is isolated are closed at once."""
        return await super().listen(
            host,
            port,
            lambda: _Refused() if self._is_cut_off else factory(),
            options,
            admits=lambda: self._is_cut_off or admits(),
        )

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], options: SocketOptions | None = None
    ) -> tuple[asyncio.Transport, P]:
        """Open a connection. Raises OSError if the port is closed, or this node is isolated."""
        self._check()
        transport, protocol = await super().connect(host, port, factory, options)
        self._outgoing = [each for each in self._outgoing if not each.is_closing()]
        self._outgoing.append(transport)
        if self._is_cut_off:
            transport.abort()
        self._check()
        return transport, protocol

    def kill(self) -> None:
        """Report no failure of a background task any more, and open no connection: the process ends. [any thread]"""
        self._is_killed = self._tasks.is_silent = True

    def break_outgoing(self) -> None:
        """Break the connections that the node has opened. [the node's loop]"""
        for transport in self._outgoing:
            transport.abort()

    async def close(self) -> None:
        """Close the runtime, with connections that were opened while the node was killed.

        Where warnings are errors, closing uvloop's loop does not complete while a transport is open.
        """
        self._is_killed = True
        await super().close()
        self.break_outgoing()
        self.break_accepted()
        await asyncio.sleep(_CLOSE_S)

    def _check(self) -> None:
        if self._is_cut_off:
            raise ConnectionRefusedError("This node is isolated, or was killed, by a test.")

    @property
    def _is_cut_off(self) -> bool:
        return self._network.is_isolated or self._is_killed


class _Refused(asyncio.Protocol):
    """The protocol of a connection that is refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's transports are no subclasses
