"""RemoteLogMetadataSerde: values of `__remote_log_metadata` <-> bytes; the keys are null.

    frame version, 1 (unsigned varint) | record type (unsigned varint) | version (unsigned varint) | body

The same frame as around metadata records (`ottla.metadata.frame`), with types of its own.
Source: RemoteLogMetadataSerde and AbstractApiMessageSerde of Kafka 4.3.1.
"""

from typing import Final

from ottla.protocol.codec import encode_struct, prefix_decoder
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.remote.records import RECORD_CLASSES, RemoteLogMetadataRecord
from ottla.protocol.varint import encode_uvarint, read_uvarint

FRAME_VERSION: Final = 1


class UnknownRemoteLogMetadata(Exception):
    """A record of a type or version that this build does not know: written by newer software."""


def encode(record: RemoteLogMetadataRecord, *, version: int = 0) -> bytes:
    """Encode a record of `__remote_log_metadata`: its frame, then its body."""
    head = b"".join(map(encode_uvarint, (FRAME_VERSION, record.__api_key__, version)))
    return head + encode_struct(type(record), version, record)


def decode(value: bytes | memoryview | None) -> RemoteLogMetadataRecord:
    """The record of a frame. Raises UnknownRemoteLogMetadata, and MalformedMessage for invalid bytes."""
    if value is None:
        raise MalformedMessage("a record of __remote_log_metadata has no value")
    view = memoryview(value)
    try:
        frame_version, position = read_uvarint(view, 0)
        api_key, position = read_uvarint(view, position)
        version, position = read_uvarint(view, position)
    except IndexError:
        raise MalformedMessage(f"{len(view)} bytes are no complete frame") from None
    cls = RECORD_CLASSES.get(api_key)
    if frame_version != FRAME_VERSION or cls is None or version not in cls.__versions__:
        raise UnknownRemoteLogMetadata(f"{frame_version=}, type {api_key}, {version=}")
    record, end = prefix_decoder(cls, version)(view, position)
    if end != len(view):
        raise MalformedMessage(f"{cls.__name__} has {len(view) - end} bytes too many")
    return record
