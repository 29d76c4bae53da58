"""Idle connections in a Spark task: each asks for ApiVersions, waits, and is asked again at the end of the phase."""

import contextlib
import selectors
import socket
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ottla.bench.generators.assignment import ConnectionsPlan
from ottla.bench.generators.rows import Row
from ottla.bench.generators.running import Orders, now_us
from ottla.bench.generators.tally import Tally

_TIMEOUT_S: Final = 30
#: The number of connections that are being opened at the same time.
_AT_ONCE: Final = 100


class ConnectionsClient:
    """The idle connections of one task.

    Its records are connections; their latency is from connecting until ApiVersions is answered.
    """

    def __init__(self, plan: ConnectionsPlan) -> None:
        self._plan = plan
        self.tally = Tally(plan.name, plan.role, None)
        self._sockets: list[socket.socket] = []

    def open(self, stack: contextlib.ExitStack) -> None:
        """Prepare to close the connections. Opening them is a part of the phase, so none is opened yet."""
        stack.callback(self._close)

    def run(self, orders: Orders, start_us: int) -> None:
        """Open all connections, wait for the end of the phase, and send a request on each of them again."""
        self.tally.start_us = start_us
        addresses = self._plan.addresses
        for first in range(0, len(addresses), _AT_ONCE):
            if orders.is_stopped:
                return
            self._open_some(addresses[first : first + _AT_ONCE])
        orders.over.wait()
        if not orders.is_stopped:
            self._ask_again()

    def finish(self) -> None:
        """Do nothing: connections have no figures that are known only a while later."""

    def _open_some(self, addresses: Sequence[tuple[str, int]]) -> None:
        began: dict[socket.socket, int] = {}
        for address in addresses:
            started_us = now_us()
            try:
                opened = socket.create_connection(address, _TIMEOUT_S)
            except OSError as error:
                self._note_failure(f"cannot connect to {address[0]}:{address[1]}: {error}", 1)
                continue
            began[opened] = started_us
        answered = self._ask(list(began))
        for connection, at_us in answered.items():
            self.tally.note(
                now_us=at_us, records=1, payload_bytes=0, latencies_us=np.array([at_us - began[connection]])
            )
        self._sockets.extend(answered)
        self._note_failure("a new connection does not answer", len(began) - len(answered))

    def _ask_again(self) -> None:
        answered = self._ask(self._sockets)
        self._note_failure("an idle connection was lost", len(self._sockets) - len(answered))
        self._sockets = list(answered)

    def _ask(self, connections: list[socket.socket]) -> dict[socket.socket, int]:
        """Send ApiVersions on these connections; return those that answered, with the time of the answer."""
        answered: dict[socket.socket, int] = {}
        with selectors.DefaultSelector() as selector:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(self._plan.request)
                selector.register(connection, selectors.EVENT_READ)
            deadline_us = now_us() + _TIMEOUT_S * 1_000_000
            while selector.get_map() and now_us() < deadline_us:
                for key, _ in selector.select(1):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    selector.unregister(ready)
                    if _is_answered(ready):
                        answered[ready] = now_us()
        for connection in connections:
            if connection not in answered:
                connection.close()
        return answered

    def _note_failure(self, text: str, count: int) -> None:
        if count:
            self.tally.note_errors(now_us=now_us(), text=text, count=count)

    def _close(self) -> None:
        for connection in self._sockets:
            connection.close()

    def rows(self) -> Iterator[Row]:
        """Yield the rows after `run`, also if it failed."""
        return self.tally.rows()


def _is_answered(connection: socket.socket) -> bool:
    """Take one whole frame, and return whether it came; the answer itself is of no interest."""
    try:
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            return size > 0 and len(stream.read(size)) == size
    except OSError:
        return False
