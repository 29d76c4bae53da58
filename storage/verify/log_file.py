"""Reads a `.log` (or `.checkpoint`) file from its beginning up to the first byte that is not a whole batch."""

from collections.abc import Iterator
from pathlib import Path

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, read_header
from ottla.storage.files import Files

#: Bytes of one read.
CHUNK_BYTES = 1024 * 1024


class LogFile:
    """The batches by their length fields; the caller checks the CRCs.

    After `batches` has ended, `end_position` is the first byte after the last whole batch. It is the file's
    size, or `stopped` is the reason why there is no batch at that position.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self.size_bytes = files.size_of(path) or 0
        self.end_position = 0
        self.stopped: str | None = None
        #: Whether only zeros follow: space that was preallocated (`log.preallocate`).
        self.is_preallocated = False

    def batches(self) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """(header, position, bytes) of each batch, in order. Raises OSError, but nothing for corrupt bytes."""
        fd = self._files.open(self.path)
        try:
            yield from self._batches(fd)
            if self.stopped is not None:
                self.is_preallocated = self._has_only_zeros(fd)
        finally:
            self._files.close(fd)

    def _batches(self, fd: int) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        position, size = 0, self.size_bytes
        chunk, chunk_start = memoryview(b""), 0
        while position < size:
            at = position - chunk_start
            if at + HEADER_SIZE_BYTES > len(chunk):
                chunk = memoryview(self._files.pread(fd, CHUNK_BYTES, position))
                chunk_start, at = position, 0
            try:
                header = read_header(chunk, at)
            except (CorruptMessage, UnsupportedForMessageFormat) as error:
                # The position in the message is relative to the chunk; the finding has the one in the file.
                self.stopped = (error.message or "not a record batch").partition(" at byte ")[0]
                return
            if position + header.size_bytes > size:
                self.stopped = f"Incomplete batch: {size - position} of {header.size_bytes} bytes"
                return
            if at + header.size_bytes > len(chunk):
                chunk = memoryview(self._files.pread(fd, max(CHUNK_BYTES, header.size_bytes), position))
                chunk_start, at = position, 0
                if len(chunk) < header.size_bytes:
                    self.stopped = "The file was shortened while it was read"
                    return
            yield header, position, chunk[at : at + header.size_bytes]
            position += header.size_bytes
            self.end_position = position

    def _has_only_zeros(self, fd: int) -> bool:
        position = self.end_position
        while data := self._files.pread(fd, CHUNK_BYTES, position):
            if data.strip(b"\0"):
                return False
            position += len(data)
        return True
