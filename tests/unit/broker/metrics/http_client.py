"""A client of the tests: raw bytes in, parsed responses out; on the simulation's network or on real sockets."""

import asyncio
from email.parser import BytesParser
from typing import NamedTuple


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient(asyncio.Protocol):
    """Collects what arrives; `lost` is done when the connection ends."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.data = bytearray()
        self.lost = loop.create_future()
        self.arrived = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        self.arrived.set()

    def connection_lost(self, error):
        self.lost.set_result(error)
        self.arrived.set()

    def send(self, data):
        self.transport.write(data)

    async def response(self, *, is_head=False):
        """The next response; None if the connection ends before it."""
        while True:
            head, end, rest = bytes(self.data).partition(b"\r\n\r\n")
            if end:
                line, _, fields = head.partition(b"\r\n")
                headers = dict(BytesParser().parsebytes(fields))
                length = 0 if is_head else int(headers["Content-Length"])
                if len(rest) >= length:
                    del self.data[: len(head) + 4 + length]
                    return Response(int(line.split()[1]), headers, rest[:length])
            if self.lost.done():
                return None
            self.arrived.clear()
            await self.arrived.wait()

    async def get(self, path, *headers, method="GET"):
        lines = [f"{method} {path} HTTP/1.1", "Host: h", *headers, "", ""]
        self.send("\r\n".join(lines).encode())
        return await self.response(is_head=method == "HEAD")
