"""The files of one segment: opened when they are needed, renamed and removed together.

A log file is shortened in place, unless a slice of what goes is still lent (`storage/lending.py`): then what stays is
copied into a new file. The copy can be made before, in a thread (`copy_beginning`).
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

#: Names of copies that take the place of log files.
_COPY_NUMBERS: Final = count()

_I = TypeVar("_I", bound=Index)


class SegmentSettings(NamedTuple):
    """What a segment needs of its topic's configuration."""

    index_interval_bytes: int
    max_index_bytes: int
    #: The file's size from the beginning (`preallocate`), None to let it grow.
    preallocated_bytes: int | None = None


class Copy(NamedTuple):
    """The first `size` bytes of a log file in another file."""

    size: int
    fd: int
    #: In the segment's directory.
    name: str


class SegmentFiles:
    """The file half of a segment; see storage.segment.Segment."""

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
        #: When it became a segment, for rolling by time before it has a timestamp.
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        #: Whether it gets no more batches.
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
        #: Offset -> position of what lies behind a batch that was just read.
        self._expected: dict[int, int] = {}
        self._appended_from = size
        #: Odd while the segment is being truncated: what a thread has seen meanwhile is no sign of damage.
        self._cut_count = 0
        self._first_timestamp: int | None = None
        #: The largest timestamp and the last offset of the batch that has it; None: ask the time index.
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
        """Where the file with this extension is now."""
        return self.directory / file_names.of_offset(self.base_offset, extension, self.suffix)

    @property
    def fd(self) -> int:
        """The log file, opened at the first use: an idle segment holds no descriptor."""
        if self._fd is None:
            # Not made where it is missing: a thread may read late from a segment that has been removed.
            self._fd = self._files.open(self.path_of(file_names.LOG), write=True)
        return self._fd

    @contextmanager
    def _file(self) -> Iterator[int]:
        """The log file for a moment: retention asks thousands of idle segments, which hold no descriptors for it."""
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
        """Give descriptors and mapping back without writing anything."""
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
        """Wait until the segment is on the disk, as far as it is written. [any thread]

        By descriptors of its own: the event loop may rename or close the files meanwhile. The indexes of
        the active segment need not be flushed: recovery makes them anew.
        """
        for extension in file_names.SEGMENT_EXTENSIONS if with_indexes else (file_names.LOG,):
            self._files.fsync_path(self.path_of(extension))

    @property
    def may_have_unflushed_indexes(self) -> bool:
        """Whether the index files on the disk may not be what they will be when the segment is closed."""
        is_known = self._offset_index.is_as_found and self._time_index.is_as_found
        return self.size > self._appended_from or not is_known or self.transactions.is_changed

    @property
    def has_changed_indexes(self) -> bool:
        """Whether an index file may not be on the disk as it is."""
        return self._offset_index.is_changed or self._time_index.is_changed or self.transactions.is_changed

    def index_sizes(self) -> tuple[int, int]:
        """Bytes of the files of offset and time index, 0 for a missing one; of a closed segment, what is in them. [any thread]"""
        offsets, times = (
            self._files.size_of(self.path_of(extension))
            for extension in (file_names.OFFSET_INDEX, file_names.TIME_INDEX)
        )
        return offsets or 0, times or 0

    def release_mapping(self) -> None:
        """Give the mapping back, as soon as nothing lent from it is left; the next large read makes a new one."""
        self._lender.forget()

    def change_suffix(self, suffix: str) -> None:
        """Rename all files; the log file last when it becomes a segment's, so that a `.swap` crash is seen."""
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
        """Remove the files. [any thread, once no reader can find the segment]"""
        self.close_files()
        for extension in file_names.SEGMENT_EXTENSIONS:
            self._files.unlink(self.path_of(extension))

    def modified_ms(self) -> int:
        """When the file last changed: the age of a segment without timestamps."""
        return self._files.modified_ms(self.path_of(file_names.LOG))

    def set_modified_ms(self, modified_ms: int) -> None:
        """Keep the age of what was compacted into this segment."""
        for extension in (file_names.LOG, file_names.OFFSET_INDEX, file_names.TIME_INDEX):
            self._files.set_modified_ms(self.path_of(extension), modified_ms)

    def open_existing(self) -> None:
        """Open log and indexes for reading only. Raises FileNotFoundError."""
        self._fd = self._files.open(self.path_of(file_names.LOG))
        self._offset_index.open_existing()
        self._time_index.open_existing()

    def prepare_reading(self) -> None:
        """Open the log file, so that a thread that reads it does not have to."""
        self.fd  # noqa: B018 (opened by being looked at)

    def must_copy(self, size: int) -> bool:
        """Whether the file cannot be made to end at `size` without `copy_beginning`: a slice of what would go is lent."""
        return not self._lender.may_shorten(size) and (self._copy is None or self._copy.size != size)

    def copy_beginning(self, size: int) -> Copy:
        """A copy of the first `size` bytes, on the disk, for `keep_copy`. [any thread; the log file is open]

        Cost: reads and writes `size` bytes, and waits for the disk.
        """
        # Another one may be copying beside this one, for a leader epoch that is over: each has its own file.
        path = self.path_of(f"{file_names.LOG}.{next(_COPY_NUMBERS)}.tmp")
        fd = self._files.open(path, write=True, create=True)  # recovery removes one that a crash leaves
        try:
            self._files.truncate(fd, 0)
            self._files.copy_prefix(self.fd, fd, size)
            self._files.fsync(fd)  # it replaces flushed data
        except BaseException:
            self._files.close(fd)
            with suppress(OSError):
                self._files.unlink(path)  # a full disk needs the place
            raise
        return Copy(size, fd, path.name)

    def keep_copy(self, copy: Copy) -> None:
        """It may take the file's place, unless the file is shortened before to another size."""
        self.drop_copy()
        self._copy = copy

    def drop_copy(self) -> None:
        """The copy that was kept, if any, is of no use."""
        if self._copy is not None:
            self._files.close(self._copy.fd)
            self._files.unlink(self.directory / self._copy.name)
            self._copy = None

    def take_replaced_fds(self) -> list[int]:
        """Descriptors of log files that were replaced by copies: to be closed when no thread reads from them any more."""
        fds, self._replaced_fds = self._replaced_fds, []
        return fds

    def _shorten(self, size: int) -> None:
        """Make the file end there, without taking lent pages from their readers (see lending.py)."""
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
