"""MetadataRecordSerde: the frame around each metadata record, with its type and version.

    frame version, 1 (unsigned varint) | record type (unsigned varint) | version (unsigned varint) | body

It is the value of a record in `__cluster_metadata` (whose key is null). The body has no length of its own:
bytes after it mean that the record is invalid.
Source: AbstractApiMessageSerde and MetadataRecordSerde of Kafka.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from ottla.metadata.image import InvalidMetadata
from ottla.metadata.records import RECORD_CLASSES, MetadataRecord
from ottla.protocol.codec import encoder, prefix_decoder
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.varint import encode_uvarint, read_uvarint

FRAME_VERSION: Final = 1
#: Size of a frame head whose three numbers take a byte each, as those of all known types and versions do.
_HEAD_BYTES: Final = 3

_Reader = Callable[[bytes, int], tuple[MetadataRecord, int]]
#: By the bytes of the frame head: the reader of the body, and where the body begins.
_readers: Final[dict[bytes, tuple[_Reader, int]]] = {}


class UnknownMetadataRecord(InvalidMetadata):
    """A record of a type or version that this build does not know: written by newer software."""


def encode_record(record: MetadataRecord, version: int) -> bytes:
    """Encode a record in one of its versions: its frame, then its body."""
    head, encode = _encoder(record.__api_key__, version)
    return b"".join((head, encode(record)))


def decode_record(value: bytes) -> MetadataRecord:
    """The record of a frame. Raises UnknownMetadataRecord, and InvalidMetadata if the bytes are malformed."""
    # One look-up for frame and reader: a controller decodes hundreds of thousands of records at its start.
    read, position = _readers.get(value[:_HEAD_BYTES]) or _reader_of_frame(value)
    try:
        record, end = read(value, position)
    except MalformedMessage as error:
        raise InvalidMetadata(f"{_described(value)}: {error}") from error
    if end != len(value):
        raise InvalidMetadata(f"{_described(value)} has {len(value) - end} bytes too many")
    return record


def _described(value: bytes) -> str:
    _, api_key, version, _ = _frame_of(value)
    return f"metadata record of type {api_key}, version {version}"


def _reader_of_frame(value: bytes) -> tuple[_Reader, int]:
    frame_version, api_key, version, position = _frame_of(value)
    if frame_version != FRAME_VERSION:
        raise UnknownMetadataRecord(
            f"metadata record with frame version {frame_version}: newer software wrote it, so run a release that "
            "knows it"
        )
    cls = RECORD_CLASSES.get(api_key)
    if cls is None or version not in cls.__versions__:
        raise UnknownMetadataRecord(
            f"{_described(value)}: this software does not know it, and to pass over it would be a guess; newer "
            "software wrote it, so run a release that knows it"
        )
    found = prefix_decoder(cls, version), position
    if position == _HEAD_BYTES:
        _readers[value[:position]] = found
    return found


def _frame_of(value: bytes) -> tuple[int, int, int, int]:
    """Return a record's frame version, type and version, and the position of its body."""
    try:
        frame_version, position = read_uvarint(value, 0)
        api_key, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except MalformedMessage:
        raise InvalidMetadata(f"a metadata record of {len(value)} bytes has no complete frame") from None
    return frame_version, api_key, version, position


@cache
def _encoder(api_key: int, version: int) -> tuple[bytes, Callable[[MetadataRecord], bytes | bytearray]]:
    head = encode_uvarint(FRAME_VERSION) + encode_uvarint(api_key) + encode_uvarint(version)
    return head, encoder(RECORD_CLASSES[api_key], version)
