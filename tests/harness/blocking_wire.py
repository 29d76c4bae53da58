"""Requests that no client library would send, over a plain blocking socket."""

import socket
import struct
from typing import Any, Self

from ottla.bench.components.processes import PATIENCE_S
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.framing import decode_response_header, encode_request_header, framed


class BlockingWire:
    """One connection to 127.0.0.1; requests and their responses, one after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def call(self, api_key: int, version: int, message: Any) -> Any:
        """Send a message and decode the response."""
        self.send(api_key, version, message)
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        answered, body_at = decode_response_header(api_key, version, memoryview(frame))
        assert answered == self._correlation_id
        return decode_response(api_key, version, frame[body_at:])

    def send(self, api_key: int, version: int, message: Any) -> None:
        """Send a message, and do not read the response."""
        self._correlation_id += 1
        header = encode_request_header(api_key, version, self._correlation_id, "blocking-wire")
        self._socket.sendall(framed(header, encode_request(api_key, version, message)))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "closed by the server"
            data += more
        return bytes(data)
