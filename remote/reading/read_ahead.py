"""Read-ahead: which consumers read sequentially, and how many bytes are read at once for them.

A consumer is known by the offset at which it will go on. The first time that it does, the batches behind are
read before it requests them; each chunk is twice as large as the one before, up to MAX_CHUNK_BYTES or a fair
share of the memory for chunks. The request's own limit is the size of the first chunk: a consumer that jumps
about causes no larger reads.

A request to a store costs 1 ms of CPU on both sides, a quarter of what 4 MiB cost: so chunks are large, but only while
the store delivers them quickly, as none of a chunk can be consumed before all of it is there.

Pure: the caller decides when a chunk is read, and reads it.
"""

from collections import OrderedDict
from typing import Final

from ottla.remote.segment_metadata import TopicIdPartition

#: Smaller requests to a store cost as much time.
MIN_CHUNK_BYTES: Final = 256 * 1024
#: The most from a store that takes longer than QUICK_MS for more, and for a chunk that a consumer waits for.
USUAL_CHUNK_BYTES: Final = 4 * 1024 * 1024
MAX_CHUNK_BYTES: Final = 16 * 1024 * 1024
QUICK_MS: Final = 250
#: The most consumers that are remembered, and the time for which each is.
MAX_STREAMS: Final = 1_000
STREAM_TTL_MS: Final = 30_000


class Stream:
    """The state of one sequential reader."""

    __slots__ = ("ahead_of", "chunk_bytes", "is_sequential", "used_ms")

    def __init__(self, chunk_bytes: int) -> None:
        #: The size of the reader's last chunk.
        self.chunk_bytes = chunk_bytes
        #: The offset behind which the next chunk has been read ahead, or is local.
        self.ahead_of: int | None = None
        #: Whether it has gone on once at the offset where it was expected.
        self.is_sequential = False
        self.used_ms = 0.0


class ReadAhead:
    """Recognises sequential readers by their offsets, and chooses the sizes of their chunks. Bound: MAX_STREAMS."""

    def __init__(self, *, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        #: Readers by the offset at which each is expected, the least recent first. Bound: MAX_STREAMS.
        self._streams: OrderedDict[tuple[TopicIdPartition, int], Stream] = OrderedDict()
        #: The number of bytes that the store delivers within QUICK_MS, as far as it is known.
        self._quick_bytes = USUAL_CHUNK_BYTES

    def __len__(self) -> int:
        return len(self._streams)

    def first_chunk_bytes(self, partition: TopicIdPartition, offset: int, *, max_bytes: int) -> int:
        """Return how many bytes to read for a request at `offset`, of which nothing is in memory."""
        stream = self._streams.get((partition, offset))
        wanted = max_bytes if stream is None else max(max_bytes, stream.chunk_bytes)
        return max(MIN_CHUNK_BYTES, min(wanted, USUAL_CHUNK_BYTES, self._share()))

    def advance(
        self, partition: TopicIdPartition, *, offset: int, end_offset: int, size_bytes: int, now_ms: float
    ) -> Stream:
        """Record that a consumer was given `size_bytes`, the offsets [offset, end_offset); return its stream."""
        stream = self._streams.pop((partition, offset), None)
        if stream is None:
            stream = Stream(max(MIN_CHUNK_BYTES, size_bytes))
        else:
            stream.is_sequential = True
        stream.used_ms = now_ms
        self._streams[partition, end_offset] = stream
        self._streams.move_to_end((partition, end_offset))
        if len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return stream

    def next_chunk_bytes(self, stream: Stream) -> int:
        """Return how many bytes to read ahead for a stream now; the caller sets `chunk_bytes` if it does so."""
        wanted = min(2 * stream.chunk_bytes, self._share())
        # In powers of two, as the blocks of ChunkMemory are.
        return max(MIN_CHUNK_BYTES, 1 << (wanted.bit_length() - 1))

    def on_read(self, size_bytes: int, *, took_ms: float) -> None:
        """Adapt the size of chunks to the time that a chunk of `size_bytes` took."""
        if took_ms > QUICK_MS:
            self._quick_bytes = USUAL_CHUNK_BYTES
        elif 2 * size_bytes > self._quick_bytes:
            self._quick_bytes = min(2 * self._quick_bytes, MAX_CHUNK_BYTES)

    def expire(self, *, now_ms: float) -> None:
        """Forget readers that have not gone on for STREAM_TTL_MS."""
        while self._streams:
            oldest = next(iter(self._streams))
            if now_ms - self._streams[oldest].used_ms < STREAM_TTL_MS:
                return
            del self._streams[oldest]

    def _share(self) -> int:
        # Two chunks each: the one that is being consumed, and the next one.
        return min(self._quick_bytes, self._memory_bytes // (2 * max(1, len(self._streams))))
