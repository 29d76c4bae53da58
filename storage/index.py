"""The offset index and the time index of one segment: sparse, sorted, fixed-size entries.

`.index`: (last offset of a batch, relative to the segment's base; file position of that batch), 4 + 4 bytes.
`.timeindex`: (largest timestamp so far; relative last offset of the batch that has it), 8 + 4 bytes.

The file never has anything but entries; it may lack the newest ones. Kafka maps an active segment's index at its full
size (`segment.index.bytes`, zeros after the entries) and truncates it when the segment is closed. Here the file has no
such zeros: before the first entry is written, Kafka's dump tool would report them as a wrong entry.

Entries are written to the file when they leave the warm section (the newest 8 KiB, kept in memory; Kafka's
term for the same entries) or when the segment is closed: until then recovery would rebuild them anyway. Nearly
all look-ups are for the end of the log and need no I/O; older ones read one entry of the file for each step of
the binary search. A memory mapping would cost address space for every idle segment, and a full disk would end
the process by SIGBUS instead of raising.

Nothing here is checksummed. `CorruptIndex` is raised for impossible content; the segment verifies a position
against the batch at that position, and rebuilds the index when they disagree.

Source: AbstractIndex, OffsetIndex, TimeIndex of Kafka.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from ottla.storage.files import Files

#: Bytes of the newest entries that are kept in memory, at least (up to twice as many before they are written).
WARM_BYTES = 8192

MAX_RELATIVE_OFFSET = 2**31 - 1

_NO_ENTRY = (-1, -1)


class CorruptIndex(Exception):
    """The file contradicts itself or its log; it is rebuilt from the log."""


class OffsetPosition(NamedTuple):
    """A batch: its last offset (as indexed) and where it begins in the file."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A record or batch by time. `offset` is the batch's last one in the index, the record's own in look-up results."""

    timestamp: int
    offset: int
    leader_epoch: int | None = None


class Index:
    """The common part of both indexes: entries of two integers, the first one growing."""

    ENTRY: Struct
    #: Number of entries that are always kept free.
    RESERVED_ENTRIES = 0

    def __init__(self, path: Path, *, base_offset: int, max_bytes: int, files: Files, is_new: bool) -> None:
        """Create the index without opening its file: a closed segment's index is opened by its first look-up."""
        assert base_offset >= 0, (str(path), base_offset)
        self.path = path
        self.base_offset = base_offset
        #: With this number of entries the segment must be rolled before the next append.
        self.full_count = max_bytes // self.ENTRY.size - self.RESERVED_ENTRIES
        self._files = files
        self._fd: int | None = None
        #: The newest entries: the number of the first one of them, and their bytes. A thread may read them while the
        #: event loop appends: so new entries are added at the end, and any other change replaces the whole tuple.
        self._warm = (0, bytearray())
        #: Number of entries in the file.
        self._written_count = 0
        self.count = 0
        #: The newest entry as stored; (-1, -1) without one.
        self._last = _NO_ENTRY
        self._is_loaded = is_new
        #: Whether the file holds exactly the entries.
        self._is_cut = False
        #: Whether the file has been written since it was opened.
        self.is_changed = is_new

    # -- opening and closing -----------------------------------------------------------------------

    def load(self, *, may_block: bool = True) -> None:
        """Read the end of the file; called before the first use. Raises CorruptIndex; WouldBlock unless `may_block`.

        The file is assumed to have no bytes after the entries: its size gives their number.
        """
        if self._is_loaded:
            return
        size = self._files.size_of(self.path)
        if size is None:
            raise CorruptIndex(f"{self.path} is missing")
        if size % self.ENTRY.size:
            raise CorruptIndex(f"{self.path} has {size} bytes, not a multiple of {self.ENTRY.size}")
        self.count = self._written_count = size // self.ENTRY.size
        if self.count:
            self._warm_up(may_block=may_block)
            warm_start, warm = self._warm
            if warm_start * self.ENTRY.size + len(warm) != size:
                raise CorruptIndex(f"{self.path} is shorter than its size")
            first, last = self._entry(0, may_block=may_block), self._entry(self.count - 1)
            if last < first or last[0] < 0 or last[1] < 0:
                raise CorruptIndex(f"{self.path} ends with {last} and begins with {first}")
            self._last = last
        self._is_loaded = self._is_cut = True

    def _warm_up(self, *, may_block: bool = True) -> None:
        """Read the newest entries of the file into memory."""
        size = self.ENTRY.size
        start = max(self.count - WARM_BYTES // size, 0)
        with self._file() as fd:
            data = self._files.pread(fd, (self.count - start) * size, start * size, may_block=may_block)
            self._warm = (start, bytearray(data))

    def open_existing(self) -> None:
        """Open the file for reading. Raises FileNotFoundError; all other methods create a missing file."""
        self._fd = self._files.open(self.path)

    def _opened(self) -> int:
        """The descriptor for look-ups of older entries, which stays open."""
        if self._fd is None:
            self._fd = self._files.open(self.path, write=True, create=True)
        return self._fd

    @contextmanager
    def _file(self) -> Iterator[int]:
        """A descriptor for rare uses, closed afterwards: thousands of partitions that are only written to hold none."""
        fd = self._fd
        if fd is not None:
            yield fd
            return
        fd = self._files.open(self.path, write=True, create=True)
        try:
            yield fd
        finally:
            self._files.close(fd)

    def make(self) -> None:
        """Create the file of a new segment, if it does not exist."""
        with self._file():
            self._is_cut = True

    def reset(self) -> None:
        """Remove all entries, before the index is rebuilt."""
        self.count = self._written_count = 0
        self._warm = (0, bytearray())
        self._last = _NO_ENTRY
        with self._file() as fd:
            self._files.truncate(fd, 0)
        self.is_changed = True
        self._is_loaded = self._is_cut = True

    def write(self) -> None:
        """Write the entries that the file lacks."""
        if self._written_count < self.count:
            size = self.ENTRY.size
            start, warm = self._warm
            with self._file() as fd:
                self._files.pwrite(
                    fd, warm[(self._written_count - start) * size :], self._written_count * size
                )
            self._written_count = self.count

    def trim(self) -> None:
        """Write the missing entries and truncate the file to its entries, when the segment is closed to appends."""
        if not self._is_loaded or self._is_cut:
            return
        self.write()
        with self._file() as fd:
            self._files.truncate(fd, self.count * self.ENTRY.size)
        self.is_changed = True
        self._is_cut = True

    def close(self) -> None:
        """Close the descriptor. Does not write: see `trim`."""
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

    # -- entries -----------------------------------------------------------------------------------

    def _add(self, first: int, second: int) -> None:
        """Add an entry. Invariant: the first field grows strictly, and the warm section has the newest entries.

        Raises CorruptIndex, for a rebuild, if a thread has loaded the index beside an append: the batch is in the log
        already, and its offset must not be assigned again.
        """
        start, warm = self._warm
        if first <= self._last[0] or start * self.ENTRY.size + len(warm) != self.count * self.ENTRY.size:
            raise CorruptIndex(f"{self.path}: the newest entries are not those in memory")
        self._is_cut = False
        warm += self.ENTRY.pack(first, second)
        self._last = (first, second)
        self.count += 1
        if len(warm) >= 2 * WARM_BYTES:
            self.write()
            dropped = WARM_BYTES // self.ENTRY.size
            self._warm = (start + dropped, warm[dropped * self.ENTRY.size :])

    def _entry(self, number: int, *, may_block: bool = True) -> tuple[int, int]:
        """The two integers of an entry, as the file stores them."""
        size = self.ENTRY.size
        start, warm = self._warm
        if number >= start:
            try:
                first, second = self.ENTRY.unpack_from(warm, (number - start) * size)
            except struct_error as error:  # a concurrent truncation, seen by a thread
                raise CorruptIndex(f"{self.path} ends before entry {number}") from error
        else:
            data = self._files.pread(self._opened(), size, number * size, may_block=may_block)
            if len(data) != size:
                raise CorruptIndex(f"{self.path} ends before entry {number}")
            first, second = self.ENTRY.unpack(data)
        return first, second

    def _count_up_to(self, target: int, *, field: int = 0, may_block: bool = True) -> int:
        """Count the entries whose `field` is <= `target`: by binary search, in the warm section if that is enough."""
        low, high = 0, self.count
        start, _ = self._warm  # read once: it may be replaced while a thread searches
        if low < start < high:
            if self._entry(start)[field] <= target:
                low = start + 1
            else:
                high = start
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle, may_block=may_block)[field] <= target:
                low = middle + 1
            else:
                high = middle
        return low

    def _truncate_to_count(self, count: int) -> None:
        if count >= self.count:
            return
        assert count >= 0, (str(self.path), count)
        self.count = count
        self._written_count = min(self._written_count, count)
        with self._file() as fd:
            self._files.truncate(fd, self._written_count * self.ENTRY.size)
        self.is_changed = True
        self._is_cut = self._written_count == count
        start, warm = self._warm
        if count < start:
            self._warm_up()
        else:
            self._warm = (start, warm[: (count - start) * self.ENTRY.size])
        self._last = self._entry(count - 1) if count else _NO_ENTRY


class OffsetIndex(Index):
    """Offset index: from which file position to look for an offset."""

    ENTRY = Struct(">ii")

    @property
    def last_offset(self) -> int:
        """The offset of the newest entry; the segment's base offset without one."""
        return self.base_offset + (self._last[0] if self.count else 0)

    def add(self, offset: int, *, position: int) -> None:
        """Add the batch at `position` whose last offset is `offset`. Raises CorruptIndex unless `offset` grows."""
        relative = offset - self.base_offset
        if relative <= self._last[0]:
            raise CorruptIndex(
                f"{self.path}: offset {offset} is not larger than the last entry's, {self.last_offset}"
            )
        assert 0 <= relative <= MAX_RELATIVE_OFFSET, (str(self.path), offset)
        assert position >= 0, (str(self.path), offset, position)
        self._add(relative, position)

    def lookup(self, offset: int, *, may_block: bool = True) -> OffsetPosition:
        """The newest entry at or before `offset`, else the segment's beginning. Raises WouldBlock unless `may_block`.

        Cost: no I/O for the newest 1,024 entries (4 MiB of log or more), else one read per step of the binary search.
        """
        at = self._count_up_to(offset - self.base_offset, may_block=may_block)
        if not at:
            return OffsetPosition(self.base_offset, 0)
        return self.entry(at - 1, may_block=may_block)

    def entry(self, number: int, *, may_block: bool = True) -> OffsetPosition:
        """One entry with its absolute offset. Raises CorruptIndex for an impossible position."""
        relative, position = self._entry(number, may_block=may_block)
        if position < 0:  # not caught by `load`, which looks at the first and the last entry only
            raise CorruptIndex(f"{self.path}: entry {number} has the negative position {position}")
        return OffsetPosition(self.base_offset + relative, position)

    def at_or_before(self, position: int) -> OffsetPosition | None:
        """The last indexed batch that begins at `position` or before it; None if none does."""
        at = self._count_up_to(position, field=1)
        return self.entry(at - 1) if at else None

    def after(self, position: int) -> OffsetPosition | None:
        """The first indexed batch that begins behind `position`; None if none does."""
        at = self._count_up_to(position, field=1)
        return self.entry(at) if at < self.count else None

    def upper_bound(self, position: int) -> int | None:
        """The last offset of the first indexed batch at or after `position`; None if no entry is there."""
        at = self._count_up_to(position - 1, field=1)
        return self.entry(at).offset if at < self.count else None

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or after `offset`."""
        self._truncate_to_count(self._count_up_to(offset - self.base_offset - 1))


class TimeIndex(Index):
    """Time index: from which offset to look for a timestamp."""

    ENTRY = Struct(">qi")
    #: Room for the entry that is added when the segment is closed.
    RESERVED_ENTRIES = 1

    @property
    def last(self) -> TimestampOffset:
        """The newest entry; without entries timestamp -1 at the segment's base offset."""
        timestamp, relative = self._last
        return TimestampOffset(timestamp, self.base_offset + max(relative, 0))

    def maybe_add(self, timestamp: int, *, offset: int) -> None:
        """Add the largest timestamp so far, which the batch that ends with `offset` has.

        Nothing is added unless the timestamp is larger than the last one. Raises CorruptIndex if the
        offset is smaller than the last one.
        """
        last_timestamp, last_relative = self._last
        if timestamp <= last_timestamp:
            return
        relative = offset - self.base_offset
        if relative < last_relative:
            raise CorruptIndex(
                f"{self.path}: offset {offset} is smaller than the last entry's, {self.last.offset}"
            )
        self._add(timestamp, relative)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The newest entry at or before `timestamp`: only records after its offset may have a later timestamp."""
        at = self._count_up_to(timestamp)
        return self.entry(at - 1) if at else TimestampOffset(-1, self.base_offset)

    def entry(self, number: int) -> TimestampOffset:
        """One entry with its absolute offset."""
        timestamp, relative = self._entry(number)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or after `offset`."""
        self._truncate_to_count(self._count_up_to(offset - self.base_offset - 1, field=1))
