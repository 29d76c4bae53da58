"""Message codecs: messages to bytes and back, by API key and version or by class. The interface for all callers.

Reading raises MalformedMessage and nothing else, whatever the bytes; writing raises ValueError for a
message that cannot be written, which is a bug of ours. Readers and writers are compiled on first use, in one
to a few milliseconds each.
Source: the generated `read` and `write` of Kafka's message classes.

>>> from ottla.protocol.messages.heartbeat import HeartbeatRequest
>>> data = encode_request(12, 4, HeartbeatRequest(group_id="g", generation_id=7, member_id="m"))
>>> decode_request(12, 4, data).generation_id
7
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.function_source import once
from ottla.protocol.messages import request_class, response_class
from ottla.protocol.reader import reader_of, stepwise_reader_of
from ottla.protocol.reader_helpers import MAX_ELEMENTS, MAX_RESPONSE_ELEMENTS
from ottla.protocol.schema import Message, Request, Response
from ottla.protocol.writer import scatter_writer_of, stepwise_writer_of, writer_of

_M = TypeVar("_M", bound=Message)
Bytes = bytes | bytearray | memoryview

#: The errors of a compiled reader, besides MalformedMessage, for bytes that end too early or are not UTF-8.
_UNREADABLE: Final = (IndexError, struct.error, UnicodeDecodeError)
#: The errors of a compiled writer for a value that does not fit its field.
_UNWRITABLE: Final = (AttributeError, TypeError, OverflowError, UnicodeEncodeError, struct.error)


def decoder(cls: type[_M], version: int) -> Callable[[Bytes], _M]:
    """Return the decoder of a message class in one version; LookupError if there is no such version."""
    return _decoder(cls, version)


def prefix_decoder(cls: type[_M], version: int) -> Callable[[bytes | memoryview, int], tuple[_M, int]]:
    """Return a decoder of a message at a position: (message, position after it).

    LookupError if there is no such version. For callers that check that nothing follows the message. Small
    messages are read faster from bytes than from a memoryview; a message with records needs a memoryview, of
    which slices are no copies.
    """
    return _prefix_decoder(cls, version)


def stepwise_decoder(cls: type[_M], version: int) -> Callable[[Bytes, list[Any]], Generator[None, None, _M]]:
    """Return a decoder that reads a message of any number of elements in short steps.

    The bytes must not change between two steps. The elements of each step are also appended to the list, as one
    part: so they can be freed in steps, too.
    """
    return _stepwise_decoder(cls, version)


def encoder(cls: type[_M], version: int) -> Callable[[_M], bytes]:
    """Return the encoder of a message class in one version; LookupError if there is no such version."""
    return _encoder(cls, version)


def scatter_encoder(cls: type[_M], version: int) -> Callable[[_M, bytes], list[bytes | memoryview]]:
    """Return an encoder of a message with records into buffers: the given head, then the message.

    The buffers are written one after the other (`writev`); records are not copied.
    """
    return _scatter_encoder(cls, version)


def stepwise_encoder(cls: type[_M], version: int) -> Callable[[_M, list[Any]], Generator[None, None, bytes]]:
    """Return an encoder of a message of any number of rows in short steps, with the bytes of `encoder` as its result.

    The message must not change between two steps. Its elements are appended to the list as by `stepwise_decoder`.
    """
    return _stepwise_encoder(cls, version)


@once
def _decoder(cls: type[Any], version: int) -> Callable[[Bytes], Any]:
    read, budget = reader_of(cls, version), _budget(cls)

    def decode(data: Bytes) -> Any:  # noqa: ANN401 an object of `cls`
        try:
            return read(memoryview(data), 0, budget)[0]
        except _UNREADABLE as error:
            raise _malformed(cls, version, error) from None

    return decode


@once
def _stepwise_decoder(
    cls: type[Any], version: int
) -> Callable[[Bytes, list[Any]], Generator[None, None, Any]]:
    read, budget = stepwise_reader_of(cls, version), _budget(cls)

    def decode(data: Bytes, parts: list[Any]) -> Generator[None, None, Any]:  # an object of `cls`
        try:
            message, _ = yield from read(memoryview(data), 0, budget, parts)
        except _UNREADABLE as error:
            raise _malformed(cls, version, error) from None
        return message

    return decode


@once
def _prefix_decoder(cls: type[Any], version: int) -> Callable[[bytes | memoryview, int], tuple[Any, int]]:
    read, budget = reader_of(cls, version), _budget(cls)

    def decode(data: bytes | memoryview, position: int) -> tuple[Any, int]:
        try:
            return read(data, position, budget)
        except _UNREADABLE as error:
            raise _malformed(cls, version, error) from None

    return decode


def _budget(cls: type[Any]) -> int:
    return MAX_RESPONSE_ELEMENTS if issubclass(cls, Response) else MAX_ELEMENTS


def _malformed(cls: type[Any], version: int, error: Exception) -> MalformedMessage:
    if isinstance(error, UnicodeDecodeError):
        return MalformedMessage(f"{cls.__name__} v{version} has a string that is not UTF-8: {error}")
    return MalformedMessage(f"the bytes end within {cls.__name__} v{version}")


@once
def _encoder(cls: type[Any], version: int) -> Callable[[Any], bytes]:
    write = writer_of(cls, version)

    def encode(message: object) -> bytes:
        out = bytearray()
        try:
            write(message, out)
        except _UNWRITABLE as error:
            raise ValueError(f"{cls.__name__} v{version} cannot be written: {error}") from error
        return bytes(out)

    return encode


@once
def _stepwise_encoder(
    cls: type[Any], version: int
) -> Callable[[Any, list[Any]], Generator[None, None, bytes]]:
    write = stepwise_writer_of(cls, version)

    def encode(message: object, parts: list[Any]) -> Generator[None, None, bytes]:
        out = bytearray()
        try:
            yield from write(message, out, parts)
        except _UNWRITABLE as error:
            raise ValueError(f"{cls.__name__} v{version} cannot be written: {error}") from error
        return bytes(out)

    return encode


@once
def _scatter_encoder(cls: type[Any], version: int) -> Callable[[Any, bytes], list[bytes | memoryview]]:
    write = scatter_writer_of(cls, version)

    def encode(message: object, head: bytes) -> list[bytes | memoryview]:
        buffers: list[bytes | memoryview] = []
        try:
            write(message, bytearray(head), buffers)
        except _UNWRITABLE as error:
            raise ValueError(f"{cls.__name__} v{version} cannot be written: {error}") from error
        return buffers

    return encode


def decode_struct(cls: type[_M], version: int, data: Bytes) -> _M:
    """Read a message of `cls`. Records in it are slices of `data`; bytes after it are ignored, as in Kafka."""
    return decoder(cls, version)(data)


def encode_struct(cls: type[_M], version: int, message: _M) -> bytes:
    """Write a message of `cls`; fields that the version lacks are omitted."""
    return encoder(cls, version)(message)


def decode_request(api_key: int, version: int, body: Bytes) -> Request:
    """Decode the request in a frame's body."""
    return decoder(request_class(api_key), version)(body)


def decode_request_in_steps(
    api_key: int, version: int, body: Bytes, parts: list[Any]
) -> Generator[None, None, Request]:
    """Decode the request in a frame's body in short steps (`stepwise_decoder`)."""
    return stepwise_decoder(request_class(api_key), version)(body, parts)


def encode_request(api_key: int, version: int, request: Request) -> bytes:
    """Encode the body of a request to another node."""
    return encoder(request_class(api_key), version)(request)


def encode_request_in_steps(
    api_key: int, version: int, request: Request, parts: list[Any]
) -> Generator[None, None, bytes]:
    """Encode the body of a request to another node in short steps (`stepwise_encoder`)."""
    return stepwise_encoder(request_class(api_key), version)(request, parts)


def decode_response(api_key: int, version: int, body: Bytes) -> Response:
    """Decode the response in a frame's body, from another node."""
    return decoder(response_class(api_key), version)(body)


def decode_response_in_steps(
    api_key: int, version: int, body: Bytes, parts: list[Any]
) -> Generator[None, None, Response]:
    """Decode the response in a frame's body, from another node, in short steps (`stepwise_decoder`)."""
    return stepwise_decoder(response_class(api_key), version)(body, parts)


def encode_response(api_key: int, version: int, response: Response) -> bytes:
    """Encode the body of a response, without its header."""
    return encoder(response_class(api_key), version)(response)


def encode_response_in_steps(
    api_key: int, version: int, response: Response, parts: list[Any]
) -> Generator[None, None, bytes]:
    """Encode the body of a response in short steps (`stepwise_encoder`)."""
    return stepwise_encoder(response_class(api_key), version)(response, parts)
