"""A client of a few lines that speaks Kafka's protocol over asyncio streams, real or simulated."""

import asyncio
from typing import Any, Self

from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.framing import decode_response_header, encode_request_header, framed


class WireClient:
    """One connection; requests and their answers, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation_id = 0

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port))

    async def request(self, api_key: int, version: int, message: Any) -> Any:
        """Send a message and decode the answer."""
        correlation_id = await self.send(api_key, version, message)
        frame = await self.receive()
        answered, body_at = decode_response_header(api_key, version, memoryview(frame))
        assert answered == correlation_id
        return decode_response(api_key, version, frame[body_at:])

    async def send(self, api_key: int, version: int, message: Any) -> int:
        """Send a message without waiting for the answer; its correlation id."""
        self._correlation_id += 1
        header = encode_request_header(api_key, version, self._correlation_id, "wire-client")
        self._writer.write(framed(header, encode_request(api_key, version, message)))
        await self._writer.drain()
        return self._correlation_id

    async def receive(self) -> bytes:
        """The next frame, without its length."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(size)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
