"""Response buffer: the memory into which the large responses of one caller are received, one after the other.

    free --lease: a large response begins to arrive--> leased --release, no view of it is left--> free
                                                       leased --release, but a view is left-----> freed with that view
    free --`IDLE_RELEASES` responses in a row are small, or drop--> freed

Without it each response of a follower gets a new bytearray, which is filled with zeros, page by page, before
the records are received into it. The caller passes the buffer with its requests
(`OutgoingConnection.request`) and owns it: when it has processed a response, it calls `release`, and must not
use the response any more.

The buffer is leased again only if no view of it exists, neither the response nor a slice of it: Python
refuses to resize a bytearray of which a view exists, and `release` tries that. So a caller that fails, is
cancelled while the response still arrives, or keeps records by mistake never sees the bytes of another
response; it only loses the buffer.

Source: none in Kafka, which allocates each response.
"""

from typing import Final

#: A new buffer has a multiple of this size, so that one of a slightly larger response is not needed each time.
UNIT_BYTES: Final = 256 * 1024
#: A larger buffer is not kept for the next response.
MAX_FREE_BYTES: Final = 16 * 1024 * 1024
#: After this many small responses in a row the free buffer is dropped: an idle follower gets one each 500 ms.
IDLE_RELEASES: Final = 16


class ResponseBuffer:
    """The memory into which the large responses of one caller are received, one after the other.

    Invariant: no view of the free buffer exists; there is at most one free buffer.
    """

    __slots__ = ("_free", "_leased", "_unused_count")

    def __init__(self) -> None:
        self._free: bytearray | None = None
        #: The buffer that was leased last, since the last release.
        self._leased: bytearray | None = None
        #: How many releases in a row had nothing to release.
        self._unused_count = 0

    @property
    def free_bytes(self) -> int:
        """The size of the buffer that is kept for the next response."""
        return 0 if self._free is None else len(self._free)

    def lease(self, size_bytes: int, *, allocated_bytes: int) -> memoryview:
        """Lease memory for a response of this size: all of it if the free buffer is large enough.

        Otherwise a new buffer of `allocated_bytes`, which may be less: a peer that only announces a large response
        makes this node allocate no more.
        """
        buffer, self._free = self._free, None
        if buffer is None or len(buffer) < size_bytes:
            size_bytes = min(size_bytes, allocated_bytes)
            buffer = bytearray(-(-size_bytes // UNIT_BYTES) * UNIT_BYTES)
        self._leased = buffer
        return memoryview(buffer)[:size_bytes]

    def release(self) -> None:
        """Take the buffer back: the caller has processed its response, whether or not that had a buffer."""
        buffer, self._leased = self._leased, None
        if buffer is None:
            self._unused_count += 1
            if self._unused_count >= IDLE_RELEASES:
                self._free = None
            return
        self._unused_count = 0
        if len(buffer) <= MAX_FREE_BYTES and not _has_views(buffer):
            self._free = buffer

    def drop(self) -> None:
        """Drop the free buffer: no response is expected for a while."""
        self._free = self._leased = None


def _has_views(buffer: bytearray) -> bool:
    """Whether a memoryview of the buffer, or of a part of it, exists: then its size cannot change."""
    try:
        buffer.append(buffer.pop())  # in place: nothing is copied or allocated
    except BufferError:
        return True
    return False
