"""RequestHeader, ResponseHeader, and the length before each frame.

A frame is four bytes of length and that many bytes: a header, then the body. The header is read before the
sender is authenticated, so only what is used is kept: the tagged fields of header v2, of which Kafka 4.3
defines none, are counted, bounded and skipped. CVE-2026-111115 is twenty million of them, kept as objects
before authentication.
Source: RequestHeader and ResponseHeader of Kafka 4.3.1; KIP-482.
"""

from struct import Struct
from typing import Final, NamedTuple

from ottla.protocol.api_keys import is_flexible, response_header_version
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.reader_helpers import LENIENT
from ottla.protocol.varint import read_uvarint

#: Tagged fields in a request header. Kafka's clients send none.
MAX_HEADER_TAGS: Final = 32

_FIXED = Struct(">hhih")  # api key, api version, correlation id, length of the client id
_LENGTH = Struct(">i")
_RESPONSE_V1 = Struct(">ix")  # correlation id, no tagged fields
_FRAMED_V0 = Struct(">ii")
_FRAMED_V1 = Struct(">iix")


class RequestHeader(NamedTuple):
    """The header before every request's body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header of a frame (without its length) and where the body begins; raises MalformedMessage.

    An unknown API key or version is not an error here: only the first four fields are read then, and the
    caller sends an error response or closes the connection.
    """
    size = len(frame)
    if size < _FIXED.size:
        raise MalformedMessage(f"a frame of {size} bytes")
    api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame)
    position = _FIXED.size
    client_id = None
    # The client id keeps its two-byte length in header v2: ApiVersions of any version must be readable.
    if length >= 0:
        end = position + length
        if end > size:
            raise MalformedMessage(f"a client id of {length} bytes in a frame of {size}")
        client_id = str(frame[position:end], "utf-8", LENIENT)
        position = end
    if is_flexible(api_key, api_version):
        position = _skip_tags(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = read_uvarint(frame, position)
    if count > MAX_HEADER_TAGS:
        raise MalformedMessage(f"{count} tagged fields in a request header")
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        length, position = read_uvarint(frame, position)
        position += length
        if position > len(frame):
            raise MalformedMessage(f"tagged field {tag} of a request header is out of bounds")
    return position


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request to another node, without the frame's length."""
    name = b"" if client_id is None else client_id.encode()
    head = _FIXED.pack(api_key, version, correlation_id, -1 if client_id is None else len(name)) + name
    return head + b"\0" if is_flexible(api_key, version) else head


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header of a response, without the frame's length."""
    if response_header_version(api_key, version):
        return _RESPONSE_V1.pack(correlation_id)
    return _LENGTH.pack(correlation_id)


def decode_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """Return (correlation id, position of the body) of a response from another node; raises MalformedMessage."""
    if len(frame) < _LENGTH.size:
        raise MalformedMessage(f"a frame of {len(frame)} bytes")
    (correlation_id,) = _LENGTH.unpack_from(frame)
    if not response_header_version(api_key, version):
        return correlation_id, _LENGTH.size
    if len(frame) > _LENGTH.size and not frame[_LENGTH.size]:
        return correlation_id, _RESPONSE_V1.size  # no tagged fields: always, so far
    return correlation_id, _skip_tags(frame, _LENGTH.size)


def framed(*parts: bytes | bytearray | memoryview) -> bytes:
    """Return one frame: the length of the parts, then the parts."""
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def frame_head(api_key: int, version: int, correlation_id: int, body_size_bytes: int) -> bytes:
    """Return the length and header of a response whose body has `body_size_bytes` bytes."""
    if response_header_version(api_key, version):
        return _FRAMED_V1.pack(_RESPONSE_V1.size + body_size_bytes, correlation_id)
    return _FRAMED_V0.pack(_LENGTH.size + body_size_bytes, correlation_id)
