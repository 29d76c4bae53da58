"""A network between nodes that can be cut, slowed and reset: one TCP proxy in front of each node,
in a thread of its own.

    with Network() as network:
        port = network.serve(2, target_port=node_port)   # what others know node 2 by
        network.isolate(2, (1, 3), into=False)           # not delivered: what 2 sends to 1 and 3; connections stay
        network.heal(2)

    node 1 --(client id "broker-1-fetcher-0")--> proxy of 2 --> node 2
           <-------------- gate 2 -> 1 ---------       <-------

The node that has opened a connection is read from the client id of its first request, which between nodes
ends with the sender's id. Bytes that are not delivered are not lost: they arrive when the cut is healed, as
TCP would send them again.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Self, TypeVar

_CHUNK_BYTES = 64 * 1024
_SENDER = re.compile(rb"-(\d+)(?:-fetcher-\d+)?$")
#: Size, API key, version, correlation id, length of the client id; then the client id.
_CLIENT_ID_AT = 14

T = TypeVar("T")


def sender_of(first_request: bytes) -> int | None:
    """The id of the node that has sent this request; None if it is not a node's."""
    length = int.from_bytes(first_request[_CLIENT_ID_AT - 2 : _CLIENT_ID_AT])
    found = _SENDER.search(first_request[_CLIENT_ID_AT : _CLIENT_ID_AT + length])
    return None if found is None else int(found[1])


class _Connection:
    """One connection to a proxy, and its other half to the node."""

    def __init__(self, opened: asyncio.StreamWriter) -> None:
        self.sender: int | None = None
        self.writers = [opened]

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Network:
    """The proxies between nodes, and their faults. Its methods may be called from any thread but its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._servers: list[asyncio.Server] = []
        #: By the node that was connected to.
        self._connections: dict[int, set[_Connection]] = {}
        #: By the node that is cut off: (from, to).
        self._cuts: dict[int, set[tuple[int, int]]] = {}
        self._delays_s: dict[int, float] = {}
        self._healed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        #: First requests of connections whose sender is unknown: these cannot be cut.
        self.strangers: list[bytes] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- what tests do to it -----------------------------------------------------------------------

    def serve(self, node_id: int, *, target_port: int, port: int = 0) -> int:
        """Listen at `port` of 127.0.0.1 (0: a free one) for the node, which itself listens at `target_port`;
        return the port.
        """
        return self._run(self._serve(node_id, port, target_port))

    def isolate(self, node_id: int, others: Iterable[int], *, into: bool = True, out_of: bool = True) -> None:
        """Cut a node off from others, or only what goes into it or out of it."""
        pairs = {(other, node_id) for other in others if into and other != node_id}
        pairs |= {(node_id, other) for other in others if out_of and other != node_id}
        self._change(lambda: self._cuts.__setitem__(node_id, pairs))

    def heal(self, *node_ids: int) -> None:
        """Undo what was done to these nodes: everything arrives again, and at once."""

        def heal() -> None:
            for node_id in node_ids:
                self._cuts.pop(node_id, None)
                self._delays_s.pop(node_id, None)
            self._healed.set()
            self._healed = asyncio.Event()

        self._change(heal)

    def delay(self, node_id: int, seconds: float) -> None:
        """Every piece of data for the node, and from it over those connections, takes so much longer."""
        self._change(lambda: self._delays_s.__setitem__(node_id, seconds))

    def reset(self, node_id: int) -> None:
        """Break all connections to the node, and those that it has opened to others."""

        def break_all() -> None:
            for target, connections in self._connections.items():
                for connection in list(connections):
                    if node_id in (target, connection.sender):
                        connection.abort()

        self._change(break_all)

    # -- in its own thread -------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _change(self, change: Callable[[], None]) -> None:
        async def in_the_loop() -> None:
            change()

        self._run(in_the_loop())

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, node_id: int, port: int, target_port: int) -> int:
        self._connections[node_id] = set()

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._relay(node_id, target_port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(on_connection, "127.0.0.1", port, limit=_CHUNK_BYTES)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _relay(
        self, node_id: int, target_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = _Connection(writer)
        self._connections[node_id].add(connection)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readexactly(_CLIENT_ID_AT)
                head += await reader.readexactly(max(0, int.from_bytes(head[-2:], signed=True)))
                connection.sender = sender = sender_of(head)
                if sender is None:
                    self.strangers.append(head)
                await self._gate(sender, node_id)
                there = await asyncio.open_connection("127.0.0.1", target_port, limit=_CHUNK_BYTES)
                connection.writers.append(there[1])
                there[1].write(head)
                pumps = [
                    asyncio.ensure_future(self._pump(reader, there[1], sender, node_id, slowed_by=node_id)),
                    asyncio.ensure_future(self._pump(there[0], writer, node_id, sender, slowed_by=node_id)),
                ]
                try:
                    # No connection stays half open: when one side ends, both do.
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._connections[node_id].discard(connection)
            connection.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sender: int | None,
        receiver: int | None,
        *,
        slowed_by: int,
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if delay_s := self._delays_s.get(slowed_by):
                await asyncio.sleep(delay_s)
            await self._gate(sender, receiver)
            writer.write(data)
            await writer.drain()

    async def _gate(self, sender: int | None, receiver: int | None) -> None:
        while any((sender, receiver) in pairs for pairs in self._cuts.values()):
            await self._healed.wait()
