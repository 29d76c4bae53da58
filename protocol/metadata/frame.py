"""The frame around each metadata record: which type and version the bytes are in.

    frame version, 1 (unsigned varint) | record type (unsigned varint) | version (unsigned varint) | body

It is the value of a record in `__cluster_metadata` (whose key is null). The body has no length of its own:
bytes behind it mean that the record is not what it claims to be.
Source: AbstractApiMessageSerde and MetadataRecordSerde of Kafka.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from protocol.codec import encoder, prefix_decoder
from protocol.errors import MalformedMessage
from protocol.metadata.image import InvalidMetadata
from protocol.metadata.records import RECORD_CLASSES, MetadataRecord
from protocol.varint import encode_uvarint, read_uvarint

FRAME_VERSION: Final = 1


class UnknownMetadataRecord(InvalidMetadata):
    """A record of a type or version that this build does not know: written by newer software."""


def encode_record(record: MetadataRecord, version: int) -> bytes:
    """Frame and body of a record in one of its versions."""
    head, encode = _encoder(record.__api_key__, version)
    return b"".join((head, encode(record)))


def decode_record(value: bytes | memoryview) -> MetadataRecord:
    """The record of a frame. Raises UnknownMetadataRecord, and InvalidMetadata if the bytes make no sense."""
    view = memoryview(value)
    try:
        frame_version, position = read_uvarint(view, 0)
        api_key, position = read_uvarint(view, position)
        version, position = read_uvarint(view, position)
    except (MalformedMessage, IndexError):
        raise InvalidMetadata(f"a metadata record of {len(value)} bytes has no complete frame") from None
    if frame_version != FRAME_VERSION:
        raise UnknownMetadataRecord(f"metadata record with frame version {frame_version}")
    read = _reader(api_key, version)
    if read is None:
        raise UnknownMetadataRecord(
            f"metadata record of type {api_key}, version {version}: this software does not know it"
        )
    try:
        record, end = read(view, position)
    except MalformedMessage as error:
        raise InvalidMetadata(f"metadata record of type {api_key}, version {version}: {error}") from error
    if end != len(view):
        raise InvalidMetadata(
            f"metadata record of type {api_key}, version {version} has {len(view) - end} bytes too many"
        )
    return record


@cache
def _encoder(api_key: int, version: int) -> tuple[bytes, Callable[[MetadataRecord], bytes | bytearray]]:
    head = encode_uvarint(FRAME_VERSION) + encode_uvarint(api_key) + encode_uvarint(version)
    return head, encoder(RECORD_CLASSES[api_key], version)


@cache
def _reader(api_key: int, version: int) -> Callable[[memoryview, int], tuple[MetadataRecord, int]] | None:
    cls = RECORD_CLASSES.get(api_key)
    if cls is None or version not in cls.__versions__:
        return None
    return prefix_decoder(cls, version)
