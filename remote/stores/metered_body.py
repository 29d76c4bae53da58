"""MeteredBody: a part of a file as the body of a request; each piece is reported before it is sent.

`LogSegmentData.on_bytes` receives the reports.

A client of a store may read a body several times: for its checksum, for its signature, and to send it. Only
the last one takes bandwidth, so only that is reported: `begin_sending` is called before it.
"""

from collections.abc import Callable
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import BinaryIO, Final

from ottla.remote.errors import RemoteStorageError

#: The largest piece that is reported at once: 1 MiB is 10 ms of 100 MB/s, and 17 reports for a part of a segment.
PIECE_BYTES: Final = 1024 * 1024


class MeteredBody(RawIOBase):
    """The bytes [start, start + size_bytes) of `source`; a file that ends before is an error."""

    def __init__(
        self, source: BinaryIO, *, start: int = 0, size_bytes: int, on_bytes: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._source = source
        self._start = start
        self._size_bytes = size_bytes
        self._on_bytes = on_bytes
        self._position = 0
        #: The file's position after the last read; None: unknown, as other code may have read the file
        #: before. Clients send 16 KiB at a time: a seek before each read would take a third of its time.
        self._source_position: int | None = None
        #: The number of bytes that were reported, of which some are not read yet; None before sending.
        self._reported_bytes: int | None = None
        #: The exception of the last failed read: clients wrap it in an error of theirs.
        self.failure: BaseException | None = None

    def begin_sending(self) -> None:
        """Report the bytes of all reads from now on: they are sent."""
        self._reported_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; empty at the end. Waits, and raises, as `on_bytes` does."""
        left = self._size_bytes - self._position
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        try:
            self._report(self._position + wanted)
            if self._source_position != self._start + self._position:
                self._source.seek(self._start + self._position)
            data = self._source.read(wanted)
            self._source_position = self._start + self._position + len(data)
            if len(data) < wanted:
                raise RemoteStorageError(
                    f"the file ended {left - len(data)} bytes early: it changed during its copy"
                )
        except BaseException as error:
            self.failure = error
            raise
        self._position += len(data)
        return data

    def _report(self, end: int) -> None:
        while self._reported_bytes is not None and self._reported_bytes < end:
            piece = min(PIECE_BYTES, self._size_bytes - self._reported_bytes)
            self._on_bytes(piece)
            self._reported_bytes += piece

    def seekable(self) -> bool:
        """Return True: the body can be read again from any position."""
        return True

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Set the position of the next read, and return it."""
        base = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position
