"""Chunk cache: batches read from the remote tier, kept until the consumers that wait for them have fetched them.

One cache serves three purposes: a read that outlives the wait of its Fetch answers the next one; chunks that were read
ahead are in memory when they are needed; consumers of the same records share them.

Bound: `limit_bytes`, including the room that is reserved for chunks that are being read ahead. Chunks that were read to
their end are removed first, then the least recently used. A chunk that was not used for `TTL_MS` is removed, too.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from operator import attrgetter
from typing import Final
from uuid import UUID

from ottla.remote.reading.chunk import Chunk
from ottla.remote.segment_metadata import TopicIdPartition

#: A consumer that has not come back after this time is gone.
TTL_MS: Final = 60_000

_start_offset = attrgetter("start_offset")


class _Kept:
    __slots__ = ("chunk", "is_read_to_end", "partition", "used_ms")

    def __init__(self, chunk: Chunk, partition: TopicIdPartition, used_ms: float) -> None:
        self.chunk = chunk
        self.partition = partition
        self.used_ms = used_ms
        self.is_read_to_end = False


class ChunkCache:
    """A bounded cache of chunks, by segment and offset. Belongs to the event loop."""

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._reserved_bytes = 0
        #: The size of the chunks that were read to their end.
        self._finished_bytes = 0
        #: Chunks in the order of their removal: those that were read to their end, then the others by last use.
        self._kept: OrderedDict[Chunk, _Kept] = OrderedDict()
        #: The chunks of each segment, by start offset; few.
        self._by_segment: dict[UUID, list[Chunk]] = {}
        self._by_partition: dict[TopicIdPartition, dict[Chunk, None]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, segment_id: UUID, offset: int) -> Chunk | None:
        """Return a chunk that answers a read at `offset`; None: there is none. Cost: a binary search."""
        chunks = self._by_segment.get(segment_id)
        if chunks is None:
            return None
        at = bisect_right(chunks, offset, key=_start_offset) - 1
        return chunks[at] if at >= 0 and chunks[at].holds(offset) else None

    def add(self, partition: TopicIdPartition, chunk: Chunk, *, now_ms: float) -> None:
        """Keep a chunk; it replaces one that begins at the same offset."""
        chunks = self._by_segment.setdefault(chunk.segment_id, [])
        at = bisect_right(chunks, chunk.start_offset, key=_start_offset) - 1
        if at >= 0 and chunks[at].start_offset == chunk.start_offset:
            self._remove(chunks[at])
            chunks = self._by_segment.setdefault(chunk.segment_id, [])
        insort(chunks, chunk, key=_start_offset)
        self._kept[chunk] = _Kept(chunk, partition, now_ms)
        self._by_partition.setdefault(partition, {})[chunk] = None
        self.size_bytes += chunk.size_bytes
        self._make_room(besides=chunk)

    def reserve(self, size_bytes: int) -> bool:
        """Reserve room for a chunk of this size, until `release`.

        False, without effect, if a chunk that may still be wanted would have to be removed.
        """
        wanted_bytes = self.size_bytes - self._finished_bytes + self._reserved_bytes
        if wanted_bytes + size_bytes > self.limit_bytes:
            return False
        self._reserved_bytes += size_bytes
        self._make_room()
        return True

    def release(self, size_bytes: int) -> None:
        """Release reserved room: the chunk has been read, and is added next, or could not be read."""
        self._reserved_bytes -= size_bytes
        assert self._reserved_bytes >= 0, self._reserved_bytes

    def touch(self, chunk: Chunk, *, is_read_to_end: bool, now_ms: float) -> None:
        """Record that the chunk has answered a read. One that was read to its end is the next one to be removed."""
        kept = self._kept.get(chunk)
        if kept is not None:
            kept.used_ms = now_ms
            if is_read_to_end and not kept.is_read_to_end:
                kept.is_read_to_end = True
                self._finished_bytes += chunk.size_bytes
            self._kept.move_to_end(chunk, last=not kept.is_read_to_end)

    def expire(self, *, now_ms: float) -> None:
        """Remove the chunks that were not used for `TTL_MS`."""
        for chunk in [each.chunk for each in self._kept.values() if now_ms - each.used_ms >= TTL_MS]:
            self._remove(chunk)

    def remove_partition(self, partition: TopicIdPartition) -> None:
        """Remove the partition's chunks: its log may have changed."""
        for chunk in list(self._by_partition.get(partition, ())):
            self._remove(chunk)

    def _make_room(self, *, besides: Chunk | None = None) -> None:
        while self.size_bytes + self._reserved_bytes > self.limit_bytes and self._kept:
            oldest = next(iter(self._kept))
            if oldest is besides:
                if len(self._kept) == 1:
                    return
                self._kept.move_to_end(oldest)
                continue
            self._remove(oldest)

    def _remove(self, chunk: Chunk) -> None:
        kept = self._kept.pop(chunk)
        self.size_bytes -= chunk.size_bytes
        if kept.is_read_to_end:
            self._finished_bytes -= chunk.size_bytes
        chunks = self._by_segment[chunk.segment_id]
        chunks.remove(chunk)
        if not chunks:
            del self._by_segment[chunk.segment_id]
        of_partition = self._by_partition[kept.partition]
        del of_partition[chunk]
        if not of_partition:
            del self._by_partition[kept.partition]
        assert self.size_bytes >= 0, self.size_bytes
