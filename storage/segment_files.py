"""The files of one segment: opened when they are needed, renamed and removed together.

A log file is truncated in place, unless a slice beyond its new end is still lent (`storage/lending.py`): then the bytes
that stay are copied into a new file. The copy can be made before, in a thread (`copy_beginning`).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from storage import file_names
from storage.files import Files
from storage.index import Index, OffsetIndex, TimeIndex, TimestampOffset
from storage.lending import Lender
from storage.transaction_index import TransactionIndex

#: Numbers in the names of copies that replace log files.
_COPY_NUMBERS: Final = count()

_I = TypeVar("_I", bound=Index)


class SegmentSettings(NamedTuple):
    """The part of its topic's configuration that a segment uses."""

    index_interval_bytes: int
    max_index_bytes: int
    #: The initial size of the file (`preallocate`), None to let it grow.
    preallocated_bytes: int | None = None


class Copy(NamedTuple):
    """The first `size` bytes of a log file in another file."""

    size: int
    fd: int
    #: In the segment's directory.
    name: str


class SegmentFiles:
    """The files of a segment; base class of storage.segment.Segment."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        settings: SegmentSettings,
        files: Files,
        size: int,
        created_ms: int,
        is_new: bool,
        suffix: str = "",
        roll_jitter_ms: int = 0,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.settings = settings
        self.size = size
        #: Creation time, for rolling by time before the segment has a timestamp.
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        #: Whether the segment gets no more batches.
        self.is_closed = not is_new
        self._files = files
        self._fd: int | None = None
        self._lender = Lender(files)
        #: A copy of the log file's beginning, flushed, that may take the file's place.
        self._copy: Copy | None = None
        self._replaced_fds: list[int] = []
        self._bytes_since_index_entry = 0
        #: Base offset -> position of the newest batches, oldest first.
        self._recent: dict[int, int] = {}
        #: Next offset -> next position, after large batches that were just read.
        self._expected: dict[int, int] = {}
        self._appended_from = size
        #: Odd while the segment is being truncated: a thread that reads meanwhile must not take its result for damage.
        self._cut_count = 0
        self._first_timestamp: int | None = None
        #: The largest timestamp and the last offset of the batch that has it; None: not read from the time index yet.
        self._largest: TimestampOffset | None = TimestampOffset(-1, base_offset) if is_new else None
        self._offset_index = self._index(OffsetIndex, file_names.OFFSET_INDEX, is_new)
        self._time_index = self._index(TimeIndex, file_names.TIME_INDEX, is_new)
        self.transactions = TransactionIndex(
            self.path_of(file_names.TRANSACTION_INDEX), base_offset=base_offset, files=files, is_new=is_new
        )

    def _index(self, kind: type[_I], extension: str, is_new: bool) -> _I:
        return kind(
            self.path_of(extension),
            base_offset=self.base_offset,
            max_bytes=self.settings.max_index_bytes,
            files=self._files,
            is_new=is_new,
        )

    def path_of(self, extension: str) -> Path:
        """The current path of the file with this extension."""
        return self.directory / file_names.of_offset(self.base_offset, extension, self.suffix)

    @property
    def has_read_largest(self) -> bool:
        """Whether the largest timestamp is in memory; otherwise the first use reads both indexes and the log."""
        return self._largest is not None

    @property
    def fd(self) -> int:
        """The log file, opened at the first use: an idle segment holds no descriptor."""
        if self._fd is None:
            # Not created if missing: a thread may still read from a segment that has been removed.
            self._fd = self._files.open(self.path_of(file_names.LOG), write=True)
        return self._fd

    @contextmanager
    def _file(self) -> Iterator[int]:
        """The log file for one use: retention reads thousands of idle segments, which keep no descriptors for it."""
        if self._fd is not None:
            yield self._fd
            return
        fd = self._files.open(self.path_of(file_names.LOG))
        try:
            yield fd
        finally:
            self._files.close(fd)

    @property
    def offset_index(self) -> OffsetIndex:
        """Loaded at the first use. Raises CorruptIndex."""
        self._offset_index.load()
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """Loaded at the first use. Raises CorruptIndex."""
        self._time_index.load()
        return self._time_index

    def close_files(self) -> None:
        """Close the descriptors and release the mapping, without writing."""
        self._lender.forget()
        self._offset_index.close()
        self._time_index.close()
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None
        self.drop_copy()
        for fd in self.take_replaced_fds():
            self._files.close(fd)

    def flush(self, *, with_indexes: bool = True) -> None:
        """Wait until the written part of the segment is on the disk. [any thread]

        Opens descriptors of its own: the event loop may rename or close the files meanwhile. The indexes of
        the active segment need not be flushed: recovery rebuilds them.
        """
        for extension in file_names.SEGMENT_EXTENSIONS if with_indexes else (file_names.LOG,):
            self._files.fsync_path(self.path_of(extension))

    @property
    def may_have_unflushed_indexes(self) -> bool:
        """Whether the index files on the disk may differ from those that closing the segment would leave."""
        is_known = self._offset_index.is_as_found and self._time_index.is_as_found
        return self.size > self._appended_from or not is_known or self.transactions.is_changed

    @property
    def has_changed_indexes(self) -> bool:
        """Whether an index file has changes that may not be on the disk."""
        return self._offset_index.is_changed or self._time_index.is_changed or self.transactions.is_changed

    def index_sizes(self) -> tuple[int, int]:
        """Bytes of the offset and time index files, 0 for a missing one; exact for a closed segment. [any thread]"""
        offsets, times = (
            self._files.size_of(self.path_of(extension))
            for extension in (file_names.OFFSET_INDEX, file_names.TIME_INDEX)
        )
        return offsets or 0, times or 0

    def release_mapping(self) -> None:
        """Release the mapping, which exists until its last lent slice is released. The next large read maps again."""
        self._lender.forget()

    def change_suffix(self, suffix: str) -> None:
        """Rename all files, the log file first; a missing index file is ignored."""
        new = {
            extension: self.directory / file_names.of_offset(self.base_offset, extension, suffix)
            for extension in file_names.SEGMENT_EXTENSIONS
        }
        for extension in file_names.SEGMENT_EXTENSIONS:
            old = self.path_of(extension)
            try:
                self._files.rename(old, new[extension])
            except FileNotFoundError:
                if extension == file_names.LOG:
                    raise
        self.suffix = suffix
        self._set_paths()

    def move_to(self, directory: Path) -> None:
        """The log's directory has been renamed."""
        self.directory = directory
        self._set_paths()

    def _set_paths(self) -> None:
        self._offset_index.path = self.path_of(file_names.OFFSET_INDEX)
        self._time_index.path = self.path_of(file_names.TIME_INDEX)
        self.transactions.path = self.path_of(file_names.TRANSACTION_INDEX)

    def delete_files(self) -> None:
        """Delete the files. [any thread, once no reader can find the segment]"""
        self.close_files()
        for extension in file_names.SEGMENT_EXTENSIONS:
            self._files.unlink(self.path_of(extension))

    def modified_ms(self) -> int:
        """Modification time of the log file, for the retention of a segment without timestamps."""
        return self._files.modified_ms(self.path_of(file_names.LOG))

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the modification time to that of the sources of this compacted segment."""
        for extension in (file_names.LOG, file_names.OFFSET_INDEX, file_names.TIME_INDEX):
            self._files.set_modified_ms(self.path_of(extension), modified_ms)

    def open_existing(self) -> None:
        """Open log and indexes for reading only. Raises FileNotFoundError."""
        self._fd = self._files.open(self.path_of(file_names.LOG))
        self._offset_index.open_existing()
        self._time_index.open_existing()

    def prepare_reading(self) -> None:
        """Open the log file, so that a thread that reads it does not have to."""
        self.fd  # noqa: B018 (the property opens the file)

    def must_copy(self, size: int) -> bool:
        """Whether truncating to `size` needs `copy_beginning`, as a slice beyond it is lent."""
        return not self._lender.may_shorten(size) and (self._copy is None or self._copy.size != size)

    def copy_beginning(self, size: int) -> Copy:
        """A copy of the first `size` bytes, on the disk, for `keep_copy`. [any thread; the log file is open]

        Cost: reads and writes `size` bytes, and waits for the disk.
        """
        # Another thread may still be copying for an older leader epoch: each copy has its own file.
        path = self.path_of(f"{file_names.LOG}.{next(_COPY_NUMBERS)}.tmp")
        fd = self._files.open(path, write=True, create=True)  # recovery removes one that a crash leaves
        try:
            self._files.truncate(fd, 0)
            self._files.copy_prefix(self.fd, fd, size)
            self._files.fsync(fd)  # it will replace flushed data
        except BaseException:
            self._files.close(fd)
            with suppress(OSError):
                self._files.unlink(path)  # a full disk needs the space
            raise
        return Copy(size, fd, path.name)

    def keep_copy(self, copy: Copy) -> None:
        """Keep a copy to replace the file with; dropped if the file is truncated to another size before."""
        self.drop_copy()
        self._copy = copy

    def drop_copy(self) -> None:
        """Delete the kept copy, if any."""
        if self._copy is not None:
            self._files.close(self._copy.fd)
            self._files.unlink(self.directory / self._copy.name)
            self._copy = None

    def take_replaced_fds(self) -> list[int]:
        """Descriptors of log files that copies have replaced; the caller closes them when no thread reads from them."""
        fds, self._replaced_fds = self._replaced_fds, []
        return fds

    def _shorten(self, size: int) -> None:
        """Truncate the file to `size`, without removing lent pages (see lending.py)."""
        if self._lender.may_shorten(size):
            self._files.truncate(self.fd, size)
        else:
            if self.must_copy(size):
                self.keep_copy(self.copy_beginning(size))
            self._replace_by_copy()
        self.drop_copy()
        self.size = size
        self._expected.clear()
        self._appended_from = min(self._appended_from, size)

    def _replace_by_copy(self) -> None:
        copy, self._copy = self._copy, None
        assert copy is not None, self
        self._files.rename(self.directory / copy.name, self.path_of(file_names.LOG))
        self._replaced_fds.append(self.fd)
        self._fd = copy.fd
        self._lender = Lender(self._files)

    def __str__(self) -> str:
        return str(self.path_of(file_names.LOG))
