"""CopyBatches: the batches of copies, one after the other, each verified (`ottla.remote.reading.chunk`).

An index is fetched only if a read begins, or ends, within a copy; it lies in a temporary folder meanwhile.
A read that fails is repeated twice: stores answer 503 for a moment, and a task of Spark in a local master is
not repeated.
"""

from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self, TypeVar

from ottla.protocol.records.batch import BatchHeader, batches
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.reading.chunk import Chunk, CorruptCopy
from ottla.remote.reading.copy_reader import Continuation, CopyReader
from ottla.remote.reading.index_cache_files import IndexFiles
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, RemoteStorageManager
from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex
from ottla.storage.transaction_index import AbortedTransaction

_LOG: Final = getLogger(__name__)

#: The most bytes of one request, and by how much a request is longer than the estimate of the bytes it needs.
_REQUEST_BYTES: Final = 8 * 1024 * 1024
_EXTRA_BYTES: Final = 64 * 1024
_PAUSES_S: Final = (0.2, 1.0)
_ANY_SIZE: Final = 2**62

T = TypeVar("T")


class CopyBatches:
    """Reads the batches of copies from the store, verified; a context manager that removes its temporary folder.

    Not thread-safe.
    """

    def __init__(self, store: RemoteStorageManager, *, sleep: Callable[[float], None]) -> None:
        """`sleep` waits for so many seconds before a read is repeated."""
        self._sleep = sleep
        self._folder = TemporaryDirectory(prefix="ottla-tier-")
        self._indexes = IndexFiles(Path(self._folder.name) / "indexes", files=Files(), store=store)
        self._copy_reader = CopyReader(store, self._indexes)
        self._indexes.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def of(
        self,
        copy: RemoteLogSegmentMetadata,
        *,
        start_offset: int,
        end_offset: int,
        min_timestamp_ms: int | None = None,
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches with offsets in [start_offset, end_offset), which is within the copy.

        With `min_timestamp_ms` not those at the beginning whose records are all older, by the time index.
        Raises RemoteStorageError.
        """
        path = None
        if start_offset > copy.start_offset:
            path = self._index(copy, IndexType.OFFSET)
        offset = start_offset
        if min_timestamp_ms is not None and (late := self._first_late(copy, min_timestamp_ms)) > offset:
            path, offset = path or self._index(copy, IndexType.OFFSET), late
        continuation: Continuation | None = None
        while offset < end_offset:
            chunk = self._chunk(
                copy,
                path,
                offset=offset,
                continuation=continuation,
                max_bytes=_estimated_bytes(copy, offset, end_offset),
            )
            if chunk is None:
                return
            found = chunk.read(offset, max_bytes=_ANY_SIZE, max_offset=_ANY_SIZE, min_one_message=True)
            for header, batch in batches(found.records):
                if header.base_offset >= end_offset:
                    return
                yield header, batch
            offset = chunk.end_offset
            continuation = Continuation(offset, chunk.end_position)

    def _chunk(
        self,
        copy: RemoteLogSegmentMetadata,
        index: Path | None,
        *,
        offset: int,
        continuation: Continuation | None,
        max_bytes: int,
    ) -> Chunk | None:
        """Return batches from the one that holds `offset` on; None: there are none."""

        def read(path: Path | None) -> Chunk | None:
            return self._repeated(
                lambda: self._copy_reader.read(
                    copy,
                    path,
                    offset=offset,
                    end_offset=copy.end_offset,
                    continuation=continuation,
                    max_bytes=max_bytes,
                )
            )

        if index is not None:
            try:
                return read(index)
            except (CorruptIndex, CorruptCopy) as error:
                _LOG.warning("%s is read without its index: %s", copy.segment_id, error)
        return read(None)

    def first_offset_at(
        self, copy: RemoteLogSegmentMetadata, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> int | None:
        """Return the first offset in [start_offset, end_offset) whose record is not older than the time;
        None: none is.
        """
        path, times = self._index(copy, IndexType.OFFSET), self._index(copy, IndexType.TIMESTAMP)
        found = self._repeated(
            lambda: self._copy_reader.find_timestamp(
                copy,
                path,
                times,
                timestamp_ms,
                start_offset=start_offset,
                end_offset=end_offset,
                is_cancelled=lambda: False,
            )
        )
        return None if found is None else found.offset

    def aborted_transactions(self, copy: RemoteLogSegmentMetadata) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are in the copy."""
        path = self._index(copy, IndexType.TRANSACTION)
        return self._repeated(lambda: self._indexes.transaction_index(copy, path).entries)

    def _first_late(self, copy: RemoteLogSegmentMetadata, timestamp_ms: int) -> int:
        """Return an offset before which all records of the copy are older than the time, by its time index."""
        path = self._index(copy, IndexType.TIMESTAMP)
        times = self._indexes.time_index(copy, path)
        try:
            found = times.lookup(timestamp_ms - 1)
        finally:
            times.close()
        return copy.start_offset if found.timestamp < 0 else found.offset + 1

    def _repeated(self, read: Callable[[], T]) -> T:
        for pause_s in _PAUSES_S:
            try:
                return read()
            except RetriableRemoteStorageError:
                self._sleep(pause_s)
        return read()

    def _index(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> Path:
        return self._repeated(lambda: self._indexes.fetch(copy, index_type).path)


def _estimated_bytes(copy: RemoteLogSegmentMetadata, start_offset: int, end_offset: int) -> int:
    share = (end_offset - start_offset) / (copy.end_offset - copy.start_offset)
    return min(round(copy.segment_size_bytes * share) + _EXTRA_BYTES, _REQUEST_BYTES)
