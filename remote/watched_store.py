"""WatchedStore: a storage manager whose reads fail when their bytes come too slowly.

A store's own time-out is for silence. A body that trickles never reaches it: a connection through a bad
network, at some bytes a second, would occupy a reading thread for hours, also long after the network is good
again. A read that has failed is repeated, by another connection.
"""

from collections.abc import Callable
from typing import Final

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import (
    IndexType,
    RemoteStorageManager,
    RemoteStream,
    StorageManagerInFront,
    filling,
)

#: A read must get at least so many bytes, or all that are left, in each window of so many seconds: 35 kB/s.
MIN_BYTES: Final = 1024 * 1024
WINDOW_S: Final = 30.0
#: The largest read of a stream that may wait for all of it: the time is checked once for each read.
_PIECE_BYTES: Final = 64 * 1024


class WatchedStore(StorageManagerInFront):
    """A storage manager in front of a store, whose reads fail when their bytes come too slowly."""

    def __init__(self, store: RemoteStorageManager, *, monotonic: Callable[[], float]) -> None:
        """`store` is configured, and closed by `close`."""
        super().__init__(store)
        self._monotonic = monotonic

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """Return a watched stream of the segment's bytes [start_position, end_position), or to its end."""
        found = self.store.fetch_log_segment(
            metadata, start_position=start_position, end_position=end_position
        )
        return _WatchedStream(found, str(metadata.segment_id), self._monotonic)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Return a watched stream of one index of the segment."""
        found = self.store.fetch_index(metadata, index_type)
        return _WatchedStream(found, f"{metadata.segment_id}: {index_type.value}", self._monotonic)


class _WatchedStream:
    def __init__(self, stream: RemoteStream, name: str, monotonic: Callable[[], float]) -> None:
        self._stream = stream
        self._fill = filling(stream, piece_bytes=_PIECE_BYTES)
        self._name = name
        self._monotonic = monotonic
        #: The start of the present window, and the bytes in it.
        self._begin_s = monotonic()
        self._bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, 64 KiB at most; empty at the end only.

        Raises RetriableRemoteStorageError for a store that is too slow.
        """
        data = self._stream.read(_PIECE_BYTES if size < 0 else min(size, _PIECE_BYTES))
        self._count(len(data))
        return data

    def readinto1(self, buffer: memoryview, /) -> int:
        """Read into the buffer; return the number of bytes, 0 at the end only.

        Raises RetriableRemoteStorageError for a store that is too slow.
        """
        size = self._fill(buffer)
        self._count(size)
        return size

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= MIN_BYTES:
            self._begin_s, self._bytes = self._monotonic(), 0
        elif size and self._monotonic() - self._begin_s > WINDOW_S:
            raise RetriableRemoteStorageError(
                f"{self._name}: only {self._bytes} bytes have come within {WINDOW_S:g} s"
            )

    def close(self) -> None:
        """Close the stream of the store."""
        self._stream.close()
