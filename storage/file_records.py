"""The log file of one segment: batches are appended to its end, read, and truncated.

The file is opened at the first use, so that an idle segment holds no descriptor. An append is one system call. It is
truncated in place, unless a slice beyond its new end is still lent (`storage/lending.py`): then the bytes that stay are
copied into a new file (`storage/file_copy.py`).

Nothing here flushes, except such a copy. I/O errors are raised as `OSError`.

Source: FileRecords of Kafka 4.3.1.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from typing import NamedTuple

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, read_header
from ottla.storage import file_names
from ottla.storage.file_copy import FileCopy
from ottla.storage.files import Buffer
from ottla.storage.lending import Lender
from ottla.storage.segment_files import SegmentFiles

#: At least this many of the newest batches are found without an index look-up.
RECENT_BATCHES = 64
#: Bytes of one read of a search for a header: an index interval and the header after it.
SCAN_BYTES = 8192

_LOG = getLogger(__name__)


class BatchPosition(NamedTuple):
    """A batch and where it begins in the segment's file."""

    header: BatchHeader
    position: int


class FileRecords:
    """The log file of one segment: batches are appended to its end, read, and truncated.

    Invariant: `size` is the end of the last whole batch, and every position in `recent` is before it, except that of a
    batch whose append is not complete. Bytes of the file after `size` are ignored.
    """

    __slots__ = (
        "_copy", "_fd", "_files", "_lender", "_replaced_fds", "_system", "appended_from", "is_closed", "recent", "size"
    )  # fmt: skip

    def __init__(self, files: SegmentFiles, *, size_bytes: int, is_closed: bool) -> None:
        assert size_bytes >= 0, (str(files), size_bytes)
        self._files = files
        self._system = files.system
        self.size = size_bytes
        #: Whether no more batches are appended to the segment.
        self.is_closed = is_closed
        #: Bytes from this position on were appended by this process: they are in the page cache, and may not be
        #: on the disk.
        self.appended_from = size_bytes
        #: Base offset -> position of the newest batches, oldest first.
        self.recent: dict[int, int] = {}
        self._fd: int | None = None
        self._lender = Lender(self._system)
        #: A copy of the beginning, flushed, that may replace the file.
        self._copy: FileCopy | None = None
        self._replaced_fds: list[int] = []

    def __str__(self) -> str:
        return str(self._files)

    # -- the descriptor ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is open."""
        return self._fd is not None

    @property
    def fd(self) -> int:
        """The descriptor, opened at the first use. Raises OutOfDescriptors."""
        if self._fd is None:
            if self._files.may_use_reserve:
                return self._any_fd()
            # Not created if missing: a thread may still read from a segment that has been removed.
            self._fd = self._system.open_to_keep(self._files.path_of(file_names.LOG))
        return self._fd

    def _any_fd(self) -> int:
        """The descriptor, opened from the reserve if no other one is free: for an operation that has begun."""
        if self._fd is None:
            self._fd = self._system.open(self._files.path_of(file_names.LOG), write=True)
        return self._fd

    @contextmanager
    def for_one_use(self) -> Iterator[int]:
        """The descriptor for one use: retention reads thousands of idle segments, which keep none for it."""
        if self._fd is not None:
            yield self._fd
            return
        fd = self._system.open(self._files.path_of(file_names.LOG))
        try:
            yield fd
        finally:
            self._system.close(fd)

    def create(self) -> None:
        """Open the file of a new segment, which is created if there is none."""
        self._fd = self._system.open(self._files.path_of(file_names.LOG), write=True, create=True)

    def set_file_size(self, size_bytes: int) -> None:
        """Remove old bytes from the file of a new segment (0), or preallocate it."""
        assert not self.size, (str(self), self.size)
        assert size_bytes >= 0, (str(self), size_bytes)
        self._system.truncate(self.fd, size_bytes)

    def open_existing(self) -> None:
        """Open the file for reading only. Raises FileNotFoundError."""
        self._fd = self._system.open(self._files.path_of(file_names.LOG))

    def prepare_reading(self) -> None:
        """Open the file, so that a thread that reads it does not have to."""
        self._any_fd()

    def close_to_appends(self) -> None:
        """No more batches are appended: truncate a preallocated file to its content."""
        if self._fd is not None and self._system.size(self._fd) != self.size:
            self.truncate_to(self.size)
        self.recent.clear()
        self.is_closed = True

    def close(self) -> None:
        """Close the descriptors and release the mapping, without writing."""
        self._lender.release()
        if self._fd is not None:
            self._system.close(self._fd)
            self._fd = None
        self.drop_copy()
        for fd in self.take_replaced_fds():
            self._system.close(fd)

    def release_mapping(self) -> None:
        """Release the mapping, which exists until its last lent slice is released. The next large read maps again."""
        self._lender.release()

    # -- batches -----------------------------------------------------------------------------------

    def append(self, headers: Sequence[BatchHeader], buffers: Sequence[Buffer], size_bytes: int) -> int:
        """Write batches to the end of the file with one system call; returns the position of the first one."""
        first_offset = headers[0].base_offset
        position = self.append_buffers(buffers, first_offset=first_offset, size_bytes=size_bytes)
        if len(headers) > 1:
            at = position
            for header in headers:
                self.recent[header.base_offset] = at
                at += header.batch_length + LOG_OVERHEAD_BYTES
            if len(self.recent) > 2 * RECENT_BATCHES:
                self._bound_recent(first_offset, position)
        return position

    def append_buffers(self, buffers: Sequence[Buffer], *, first_offset: int, size_bytes: int) -> int:
        """Write whole batches to the end of the file; returns the position of the first one.

        Only the first batch is found without an index look-up, unlike after `append`.
        """
        fd, position, recent = self._fd, self.size, self.recent
        if fd is None:
            fd = self.fd
        if len(buffers) == 1:
            self._system.pwrite(fd, buffers[0], position)
        else:
            self._system.writev(fd, buffers, position)
        recent[first_offset] = position  # before the size: see `end_before`
        self.size = position + size_bytes
        if len(recent) > 2 * RECENT_BATCHES:
            self._bound_recent(first_offset, position)
        return position

    def _bound_recent(self, first_offset: int, position: int) -> None:
        # With the first new batch, however many follow it: a thread may look for its offset, see `end_before`.
        newest = list(self.recent.items())[-RECENT_BATCHES:]
        self.recent = dict([(first_offset, position), *newest])

    def end_before(self, log_end: int, size: int) -> int:
        """The end position of the batches before `log_end`; `size` is the segment's size, read before `log_end`.

        Only a batch of a concurrent append can begin at `log_end` and be included in `size`: then the end is its
        position.
        """
        return self.recent.get(log_end, size)

    def header_at(self, position: int, *, may_block: bool = True) -> BatchHeader:
        """The header of the batch that begins at `position`. Raises CorruptMessage, UnsupportedForMessageFormat."""
        return read_header(self._system.pread(self.fd, HEADER_SIZE_BYTES, position, may_block=may_block))

    def headers(
        self, position: int = 0, *, end: int | None = None, fd: int | None = None, may_block: bool = True
    ) -> Iterator[BatchPosition]:
        """The headers of the batches from `position` on; `fd` is the log file's, if the segment must not keep it open.

        Raises CorruptMessage or UnsupportedForMessageFormat at a position without a valid header.
        """
        assert position >= 0, (str(self), position)
        end = self.size if end is None else end
        chunk, chunk_start = b"", position
        while position < end:
            at = position - chunk_start
            if at + HEADER_SIZE_BYTES > len(chunk):
                size = min(SCAN_BYTES, end - position)
                chunk = self._system.pread(self.fd if fd is None else fd, size, position, may_block=may_block)
                chunk_start, at = position, 0
            header = read_header(chunk, at)
            if position + header.size_bytes > end:
                raise CorruptMessage(
                    f"{self}: the batch at position {position} ends after the file's end {end}"
                )
            yield BatchPosition(header, position)
            position += header.size_bytes

    def valid_headers(self, position: int = 0) -> Iterator[BatchPosition]:
        """The headers of the batches from `position` on, up to the first position without a valid header.

        That position is logged as an ERROR; `headers` raises there.
        """
        try:
            yield from self.headers(position)
        except (CorruptMessage, UnsupportedForMessageFormat) as error:
            _LOG.error("%s is damaged, and only the batches before the damage are read: %s", self, error)

    # -- bytes -------------------------------------------------------------------------------------

    def pread(self, position: int, size_bytes: int) -> bytes:
        """The bytes at `position`; fewer at the file's end."""
        return self._system.pread(self._fd if self._fd is not None else self.fd, size_bytes, position)

    def pread_by(self, fd: int, position: int, size_bytes: int) -> bytes:
        """The bytes at `position`, read by a descriptor of `for_one_use`; fewer at the file's end."""
        return self._system.pread(fd, size_bytes, position)

    def read_bytes(self, position: int, *, size_bytes: int) -> memoryview:
        """The bytes at `position`, up to the segment's end."""
        return memoryview(
            self._system.pread(self.fd, max(min(size_bytes, self.size - position), 0), position)
        )

    def is_cached(self, position: int, *, size_bytes: int) -> bool:
        """Whether reading these bytes would probably not wait for the disk."""
        return self._system.is_cached(self.fd, size_bytes, position)

    def lend(self, position: int, *, size_bytes: int) -> memoryview | None:
        """A slice of the mapped file, for a socket only (`ottla.storage.lending`).

        None if the caller should read a copy.
        """
        return self._lender.lend(self.fd, position=position, size_bytes=size_bytes, file_size_bytes=self.size)

    # -- truncation --------------------------------------------------------------------------------

    def truncate_to(self, size_bytes: int) -> None:
        """Truncate the file to `size_bytes`, without removing lent pages."""
        assert 0 <= size_bytes <= self.size, (str(self), size_bytes, self.size)
        self.recent = {base: at for base, at in self.recent.items() if at < size_bytes}
        if self._lender.may_truncate_to(size_bytes):
            self._system.truncate(self._any_fd(), size_bytes)
        else:
            if self.must_copy(size_bytes):
                self.keep_copy(self.copy_beginning(size_bytes))
            self._replace_by_copy(size_bytes)
        self.drop_copy()
        self.size = size_bytes
        self.appended_from = min(self.appended_from, size_bytes)

    def must_copy(self, size_bytes: int) -> bool:
        """Whether truncating to `size_bytes` needs `copy_beginning`, as a slice beyond it is lent."""
        return not self._lender.may_truncate_to(size_bytes) and (
            self._copy is None or self._copy.size != size_bytes
        )

    def copy_beginning(self, size_bytes: int) -> FileCopy:
        """A copy of the first `size_bytes`, on the disk, for `keep_copy`. [any thread; the file is open]"""
        return FileCopy.make(self._files, self._any_fd(), size_bytes=size_bytes)

    def keep_copy(self, copy: FileCopy) -> None:
        """Keep a copy to replace the file with; dropped if the file is truncated to another size before."""
        self.drop_copy()
        self._copy = copy

    def drop_copy(self) -> None:
        """Delete the kept copy, if any."""
        if self._copy is not None:
            self._copy.delete(self._files)
            self._copy = None

    def take_replaced_fds(self) -> list[int]:
        """Descriptors of files that copies have replaced; the caller closes them when no thread reads from them."""
        fds, self._replaced_fds = self._replaced_fds, []
        return fds

    def _replace_by_copy(self, size_bytes: int) -> None:
        copy, self._copy = self._copy, None
        assert copy is not None, str(self)
        assert copy.size == size_bytes, (str(self), copy, size_bytes)
        self._system.rename(self._files.directory / copy.name, self._files.path_of(file_names.LOG))
        self._replaced_fds.append(self._any_fd())
        self._fd = copy.fd
        self._lender = Lender(self._system)
