"""A client of the tests: raw bytes in, parsed responses out; on the simulation's network or on real sockets."""

import asyncio
from email.parser import BytesParser
from typing import NamedTuple, cast


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient(asyncio.Protocol):
    """Collects what arrives; `lost` is done when the connection ends."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.data = bytearray()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self.arrived = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrived.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)
        self.arrived.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def response(self, *, is_head: bool = False) -> Response | None:
        """The next response; None if the connection ends before it. That of a stream of events has no body."""
        while True:
            head, end, rest = bytes(self.data).partition(b"\r\n\r\n")
            if end:
                line, _, fields = head.partition(b"\r\n")
                headers = dict(BytesParser().parsebytes(fields))
                length = 0 if is_head else int(headers.get("Content-Length", 0))
                if len(rest) >= length:
                    del self.data[: len(head) + 4 + length]
                    return Response(int(line.split()[1]), headers, rest[:length])
            if not await self._more():
                return None

    async def event(self) -> bytes | None:
        """The next event of a stream, without comments; None if the connection ends before it."""
        while True:
            event, end, rest = bytes(self.data).partition(b"\n\n")
            if end:
                self.data[:] = rest
                if not event.startswith(b":"):
                    return event
            elif not await self._more():
                return None

    async def get(
        self, path: str, *headers: str, method: str = "GET", host: str = "127.0.0.1"
    ) -> Response | None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        self.send("\r\n".join(lines).encode())
        return await self.response(is_head=method == "HEAD")

    async def _more(self) -> bool:
        if self.lost.done():
            return False
        self.arrived.clear()
        await self.arrived.wait()
        return True
