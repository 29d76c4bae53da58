"""`remote_log_snapshot`: a partition's metadata cache on the disk, in the folder of its log (KIP-405, "flat-file store").

    version (int16) | topic id (16 bytes) | metadata partition (int32) | next metadata offset (int64)
    number of epochs (int32), each: leader epoch (int32), end offset of what was copied of it (int64)
    number of copies (int32), each: size (int32), value as in `__remote_log_metadata`, of record type 3
    CRC-32C of all of it (uint32)

All numbers are big-endian. With it a start reads the topic from `next metadata offset` on instead of from 0; without it, or
if it is damaged or of another topic, from 0. So it may be lost, and is not flushed.

Kafka 4.3.1 has the record type, but writes no snapshots.
"""

from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from struct import Struct
from typing import Any, Final
from uuid import UUID

from crc32c import crc32c

from protocol.errors import MalformedMessage
from protocol.remote.record_codec import UnknownRemoteLogMetadata, decode, encode
from protocol.remote.records import RemoteLogSegmentMetadataSnapshotRecord
from remote.errors import RemoteStorageError
from remote.metadata_cache import RemoteLogMetadataCache
from remote.segment_metadata import TopicIdPartition
from remote.topic_metadata.records import from_snapshot_record, to_snapshot_record
from storage.files import Files

FILE_NAME: Final = "remote_log_snapshot"
_VERSION: Final = 1
_HEADER: Final = Struct(">h16siq")
_COUNT: Final = Struct(">i")
_EPOCH: Final = Struct(">iq")
_CRC: Final = Struct(">I")


class CorruptSnapshot(ValueError):
    """The file is damaged, or not of this partition: the metadata is read from the topic."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Snapshot:
    """A cache, and where the topic continues."""

    cache: RemoteLogMetadataCache
    metadata_partition: int
    #: The offset of the first record that the cache does not have.
    next_offset: int


def to_bytes(partition: TopicIdPartition, snapshot: Snapshot) -> bytes:
    """The file. Cost: 15 us for each copy."""
    header = _HEADER.pack(
        _VERSION, partition.topic_id.bytes, snapshot.metadata_partition, snapshot.next_offset
    )
    ends = snapshot.cache.epoch_ends
    values = [encode(to_snapshot_record(copy)) for copy in snapshot.cache.segments()]
    parts = [header, _COUNT.pack(len(ends)), *(_EPOCH.pack(*each) for each in sorted(ends.items()))]
    parts.append(_COUNT.pack(len(values)))
    for value in values:
        parts += (_COUNT.pack(len(value)), value)
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def from_bytes(partition: TopicIdPartition, data: bytes) -> Snapshot:
    """The snapshot of `partition`. Raises CorruptSnapshot."""
    body = memoryview(data)[: -_CRC.size]
    if len(data) < _CRC.size or crc32c(body) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise CorruptSnapshot("wrong CRC")
    reader = _Reader(body)
    version, topic_id, metadata_partition, next_offset = reader.unpack(_HEADER)
    if version != _VERSION:
        raise CorruptSnapshot(f"{version=}")
    if (found := UUID(bytes=topic_id)) != partition.topic_id:
        raise CorruptSnapshot(f"of topic id {found}")
    cache = RemoteLogMetadataCache(partition)
    try:
        ends: dict[int, int] = dict(map(reader.unpack, repeat(_EPOCH, reader.count())))
        for _ in range(reader.count()):
            record = decode(reader.bytes(reader.count()))
            if not isinstance(record, RemoteLogSegmentMetadataSnapshotRecord):
                raise CorruptSnapshot(f"a {type(record).__name__}")
            cache.restore(from_snapshot_record(partition, record))
    except (MalformedMessage, UnknownRemoteLogMetadata, RemoteStorageError, ValueError) as error:
        raise CorruptSnapshot(str(error)) from error
    cache.restore_epoch_ends(ends)
    return Snapshot(cache=cache, metadata_partition=metadata_partition, next_offset=next_offset)


def write(directory: Path, partition: TopicIdPartition, snapshot: Snapshot, files: Files) -> None:
    """Replace the file. Raises OSError. [any thread]"""
    files.write_atomically(directory / FILE_NAME, to_bytes(partition, snapshot), durable=False)


def read(directory: Path, partition: TopicIdPartition, files: Files) -> Snapshot | None:
    """The snapshot; None without a file. Raises CorruptSnapshot and OSError. [any thread]"""
    try:
        return from_bytes(partition, files.read(directory / FILE_NAME))
    except FileNotFoundError:
        return None


class _Reader:
    """Reads forward; what lies beyond the end is CorruptSnapshot."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        return layout.unpack(self.bytes(layout.size))

    def count(self) -> int:
        (number,) = self.unpack(_COUNT)
        assert isinstance(number, int)
        if number < 0:
            raise CorruptSnapshot(f"a count of {number}")
        return number

    def bytes(self, size: int) -> memoryview:
        end = self._at + size
        if not self._at <= end <= len(self._data):
            raise CorruptSnapshot(f"{size} bytes at {self._at} of {len(self._data)}")
        piece = self._data[self._at : end]
        self._at = end
        return piece
