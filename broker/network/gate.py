"""Gate: holds requests that arrive before the node is ready.

A node opens its sockets early, because its registration contains their addresses; requests from then on wait
here, one for each connection, until the gate opens or the client disconnects.
"""

import asyncio

from ottla.broker.network.connection import Connection, Dispatch, Reply
from ottla.runtime import Runtime


class Gate:
    """A `Dispatch` that holds requests until `open`."""

    def __init__(self, runtime: Runtime) -> None:
        self._dispatch: asyncio.Future[Dispatch] = runtime.loop.create_future()

    def open(self, dispatch: Dispatch) -> None:
        """Pass all waiting and all further requests to `dispatch`."""
        self._dispatch.set_result(dispatch)

    @property
    def is_closed(self) -> bool:
        """Whether requests are held."""
        return not self._dispatch.done()

    def __call__(self, frame: memoryview, connection: Connection) -> Reply:
        """Dispatch the frame, or hold a copy of it until the gate is open."""
        if self._dispatch.done():
            connection.dispatch = dispatch = self._dispatch.result()
            return dispatch(frame, connection)
        return self._later(bytearray(frame), connection)

    async def _later(self, frame: bytearray, connection: Connection) -> Reply:
        dispatch = await asyncio.shield(self._dispatch)
        if connection.is_closed:
            return None
        return dispatch(memoryview(frame), connection)  # the connection waits for it, if it is not known yet
