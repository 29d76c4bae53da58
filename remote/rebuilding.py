"""Metadata of copies, rebuilt from the store after `__remote_log_metadata` lost them (`ottla tier rebuild-metadata`).

    name of the objects            id, start offset, partition
    .index                         the position of the last batches, so that only these are read
    .log from there on             the end offset, of the last batch, whose CRC is checked
    .timeindex, and these batches  the largest timestamp
    .leader_epoch_checkpoint       the leader epochs of [start, end)

Only complete copies are used, and of several with the same offsets and epochs only one.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from struct import Struct
from typing import Final

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, crc_is_valid, read_header
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.copied_state import MAX_INDEX_BYTES
from ottla.remote.errors import RemoteResourceNotFound
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.object_storage import ObjectStore
from ottla.remote.stores.stored_segments import StoredSegment, name_of
from ottla.storage import leader_epoch_cache
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache

#: (relative offset, position) and (timestamp, relative offset), as `storage/index.py` has them.
_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
#: A larger batch is treated as damage.
_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class NotRebuilt(Exception):
    """The copy cannot be used; the message has the reason."""


@dataclass(slots=True, frozen=True, kw_only=True)
class _Tail:
    """The end offset and the largest timestamp of a segment, by its last batches."""

    end_offset: int
    max_timestamp_ms: int


def metadata_of(
    segment: StoredSegment, store: ObjectStore, *, broker_id: int, now_ms: int
) -> RemoteLogSegmentMetadata:
    """Return the metadata of a complete copy, in state COPY_SEGMENT_STARTED. Reads four objects.

    Raises NotRebuilt; RemoteStorageError if the store cannot be read.
    """
    if segment.missing:
        raise NotRebuilt(f"it lacks {', '.join(map(name_of, segment.missing))}")
    try:
        return _metadata_of(segment, store, broker_id=broker_id, now_ms=now_ms)
    except RemoteResourceNotFound as error:
        raise NotRebuilt(f"an object was deleted after it was listed: {error}") from error


def _metadata_of(
    segment: StoredSegment, store: ObjectStore, *, broker_id: int, now_ms: int
) -> RemoteLogSegmentMetadata:
    tail = _read_tail(segment, store)
    start, end = segment.start_offset, tail.end_offset
    epochs = _epochs(_read(segment, store, IndexType.LEADER_EPOCH), start, end)
    transactions = segment.objects.get(IndexType.TRANSACTION)
    return RemoteLogSegmentMetadata(
        segment_id=segment.segment_id,
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=tail.max_timestamp_ms,
        broker_id=broker_id,
        event_timestamp_ms=now_ms,
        segment_size_bytes=segment.objects[None].size_bytes,
        leader_epochs=epochs,
        is_transaction_index_empty=transactions is None or transactions.size_bytes == 0,
    )


def finished(copy: RemoteLogSegmentMetadata, *, now_ms: int) -> RemoteLogSegmentMetadataUpdate:
    """Return the record that ends a copy: COPY_SEGMENT_FINISHED."""
    return RemoteLogSegmentMetadataUpdate(
        segment_id=copy.segment_id,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id=copy.broker_id,
        event_timestamp_ms=now_ms,
        custom_metadata=copy.custom_metadata,
    )


def without_duplicates(
    found: Iterable[RemoteLogSegmentMetadata], known: Iterable[RemoteLogSegmentMetadata]
) -> tuple[list[RemoteLogSegmentMetadata], list[RemoteLogSegmentMetadata]]:
    """Return (copies to rebuild, copies to leave out): the offsets and epochs of the latter are in another copy.

    Two leaders have copied the same segment, and the first one died before it wrote COPY_SEGMENT_FINISHED. Of
    copies with the same start the longest is kept.
    """
    kept, left_out = [], []
    covering = list(known)
    for copy in sorted(found, key=lambda each: (each.start_offset, -each.end_offset, each.segment_id.id)):
        if any(_covers(other, copy) for other in covering):
            left_out.append(copy)
        else:
            kept.append(copy)
            covering.append(copy)
    return kept, left_out


def is_lost_finish(
    copy: RemoteLogSegmentMetadata,
    segment: StoredSegment | None,
    *,
    local_log_start_offset: int,
    others: Iterable[RemoteLogSegmentMetadata],
) -> bool:
    """Whether a copy that was started has certainly finished, and the record of that is lost.

    All its objects are there, its records are neither in the local log, which a leader only shortens after a
    finished copy, nor in another copy.
    """
    return (
        copy.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        and segment is not None
        and not segment.missing
        and segment.objects[None].size_bytes == copy.segment_size_bytes
        and copy.end_offset <= local_log_start_offset
        and not any(_covers(other, copy) for other in others)
    )


def _covers(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return (
        one.partition == other.partition
        and one.start_offset <= other.start_offset
        and one.end_offset >= other.end_offset
        and all(_has(one, epoch, *other_range) for epoch, other_range in _ranges(other))
    )


def _has(copy: RemoteLogSegmentMetadata, epoch: int, start_offset: int, end_offset: int) -> bool:
    found = copy.epoch_range(epoch)
    return found is not None and found[0] <= start_offset and found[1] >= end_offset


def _ranges(copy: RemoteLogSegmentMetadata) -> Iterator[tuple[int, tuple[int, int]]]:
    for entry in copy.leader_epochs:
        found = copy.epoch_range(entry.epoch)
        if found is not None and found[0] < found[1]:
            yield entry.epoch, found


def _epochs(data: bytes, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    try:
        cache = LeaderEpochCache(leader_epoch_cache.decode(data))
    except (CorruptCheckpoint, AssertionError) as error:
        raise NotRebuilt(f"its leader epochs are damaged: {error}") from error
    found = tuple(cache.entries_in_range(start_offset=start_offset, end_offset=end_offset))
    if not found:
        raise NotRebuilt(f"its leader epochs have none of [{start_offset}, {end_offset})")
    return found


def _read_tail(segment: StoredSegment, store: ObjectStore) -> _Tail:
    """Return the end of the segment, read from the last position in the offset index on."""
    index, times = (
        _read(segment, store, IndexType.OFFSET),
        _read(segment, store, IndexType.TIMESTAMP),
    )
    position = _last(_OFFSET_ENTRY, index)[1] if len(index) >= _OFFSET_ENTRY.size else 0
    newest = _last(_TIME_ENTRY, times)[0] if len(times) >= _TIME_ENTRY.size else -1
    end_offset = None
    for header in _batches(segment, store, position):
        if header.base_offset < segment.start_offset or (end_offset or 0) > header.base_offset:
            raise NotRebuilt(f"its log has a batch at offset {header.base_offset} behind {end_offset}")
        end_offset = header.next_offset
        newest = max(newest, header.max_timestamp)
    if end_offset is None:
        raise NotRebuilt("its log has no batches")
    return _Tail(end_offset=end_offset, max_timestamp_ms=newest)


def _batches(segment: StoredSegment, store: ObjectStore, position: int) -> Iterator[BatchHeader]:
    """Yield the headers of the batches from a position on, each with a valid CRC. Memory: one batch."""
    log = segment.objects[None]
    if not 0 <= position <= log.size_bytes:
        raise NotRebuilt(f"its index is damaged: it ends with position {position} of {log.size_bytes}")
    with closing(store.get(log.key, start=position, end=log.size_bytes)) as stream:
        while position < log.size_bytes:
            data = _exactly(stream.read, min(HEADER_SIZE_BYTES, log.size_bytes - position))
            try:
                header = read_header(data)
            except KafkaError as error:
                raise NotRebuilt(f"its log is damaged at position {position}: {error}") from error
            if header.size_bytes > min(log.size_bytes - position, _MAX_BATCH_BYTES):
                raise NotRebuilt(f"its log ends within a batch at position {position}")
            batch = data + _exactly(stream.read, header.size_bytes - len(data))
            if not crc_is_valid(batch):
                raise NotRebuilt(f"its log is damaged at position {position}: the CRC of a batch is wrong")
            yield header
            position += header.size_bytes


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    pieces = []
    while size and (piece := read(min(size, _READ_BYTES))):
        pieces.append(piece)
        size -= len(piece)
    if size:
        raise NotRebuilt(f"an object ends {size} bytes too early")
    return b"".join(pieces)


def _read(segment: StoredSegment, store: ObjectStore, index_type: IndexType) -> bytes:
    found = segment.objects[index_type]
    if found.size_bytes > MAX_INDEX_BYTES:
        raise NotRebuilt(
            f"its {index_type.value} has {found.size_bytes} bytes, {MAX_INDEX_BYTES} are possible"
        )
    with closing(store.get(found.key)) as stream:
        return _exactly(stream.read, found.size_bytes)


def _last(entry: Struct, data: bytes) -> tuple[int, ...]:
    """Return the last whole entry that is not zeros, which a preallocated file ends with."""
    for end in range(len(data) // entry.size * entry.size, 0, -entry.size):
        found: tuple[int, ...] = entry.unpack_from(data, end - entry.size)
        if any(found) or end == entry.size:
            return found
    return (0, 0)
