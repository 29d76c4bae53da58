"""Messages as a trace has them: their fields by the names of Kafka's schema, and the bytes of the frame."""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal
from uuid import UUID

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_request, encode_response
from ottla.protocol.framing import encode_request_header, encode_response_header, framed
from ottla.stories.trace import MAX_FRAME_BYTES, Message


def api_name(key: int) -> str:
    """Return an API's name as in Kafka's documentation.

    >>> api_name(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    'OffsetForLeaderEpoch'
    """
    return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))


def plain(value: Any) -> Any:
    """Return a message, or a value of its fields, as JSON has it: bytes in hexadecimal, at most so many."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value[:MAX_FRAME_BYTES]).hex()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return value


def message(
    body: Any,
    *,
    sender: str,
    receiver: str,
    kind: Literal["request", "response"],
    key: int,
    version: int,
    line: str,
    correlation_id: int = 1,
    lost: bool = False,
    delayed: bool = False,
) -> Message:
    """Return a message of a trace; `line` is how the story prints it."""
    if kind == "request":
        head = encode_request_header(key, version, correlation_id, sender)
        encoded = encode_request(key, version, body)
    else:
        head = encode_response_header(key, version, correlation_id)
        encoded = encode_response(key, version, body)
    frame = framed(head, encoded)
    return Message(
        sender=sender,
        receiver=receiver,
        kind=kind,
        api=api_name(key),
        version=version,
        line=line,
        lost=lost,
        delayed=delayed,
        fields=plain(body),
        frame=frame[:MAX_FRAME_BYTES].hex(),
        frame_bytes=len(frame),
    )
