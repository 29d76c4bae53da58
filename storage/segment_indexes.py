"""The indexes of one segment, and its largest timestamp: kept, verified against the log file, and rebuilt from it.

An entry is added when `index.interval.bytes` of batches have followed the last one. An index is not checksummed: an
entry that is used must match the batch at its position, else both indexes are rebuilt from the headers of all batches.

A thread may look up while the event loop truncates the segment. What it then reads does not show damage: so an index is
rebuilt only if no truncation has run meanwhile (`truncation_count`).

Source: LogSegment of Kafka 4.3.1, which checks an index only when the log is opened.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from logging import getLogger
from typing import NamedTuple, TypeVar

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import LOG_OVERHEAD_BYTES, BatchHeader
from ottla.storage import file_names
from ottla.storage.file_records import FileRecords
from ottla.storage.index import (
    MAX_RELATIVE_OFFSET,
    CorruptIndex,
    Index,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
)
from ottla.storage.segment_files import SegmentFiles
from ottla.storage.transaction_index import TransactionIndex

_LOG = getLogger(__name__)
_new_tuple = tuple.__new__
_T = TypeVar("_T")
_I = TypeVar("_I", bound=Index)


class SegmentSettings(NamedTuple):
    """The part of its topic's configuration that a segment uses."""

    index_interval_bytes: int
    max_index_bytes: int
    #: The initial size of the log file (`preallocate`), None to let it grow.
    preallocated_bytes: int | None = None


class SegmentIndexes:
    """Offset, time and transaction index of one segment, verified against its log file and rebuilt from it."""

    __slots__ = (
        "_bytes_since_entry", "_files", "_log", "_truncation_count", "known_largest", "offsets", "settings", "times",
        "transactions",
    )  # fmt: skip

    def __init__(
        self, files: SegmentFiles, log: FileRecords, *, settings: SegmentSettings, is_new: bool
    ) -> None:
        self._files = files
        self._log = log
        self.settings = settings
        #: May not be loaded yet; the properties `offset_index` and `time_index` load them.
        self.offsets = self._index(OffsetIndex, file_names.OFFSET_INDEX, is_new=is_new)
        self.times = self._index(TimeIndex, file_names.TIME_INDEX, is_new=is_new)
        self.transactions = TransactionIndex(
            files.path_of(file_names.TRANSACTION_INDEX),
            base_offset=files.base_offset,
            files=files.system,
            is_new=is_new,
        )
        self._bytes_since_entry = 0
        #: The largest timestamp and the last offset of the batch that has it; None: not read from the time index yet.
        self.known_largest: TimestampOffset | None = (
            TimestampOffset(-1, files.base_offset) if is_new else None
        )
        #: Odd while the segment is being truncated.
        self._truncation_count = 0

    def _index(self, kind: type[_I], extension: str, *, is_new: bool) -> _I:
        return kind(
            self._files.path_of(extension),
            base_offset=self._files.base_offset,
            max_bytes=self.settings.max_index_bytes,
            files=self._files.system,
            is_new=is_new,
        )

    # -- the files ---------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, loaded at the first use. Raises CorruptIndex."""
        self.offsets.load()
        return self.offsets

    @property
    def time_index(self) -> TimeIndex:
        """The time index, loaded at the first use. Raises CorruptIndex."""
        self.times.load()
        return self.times

    def create(self, *, is_alone: bool) -> None:
        """Create the files of a new segment; `is_alone`: there are no old ones, which would be emptied."""
        for index in (self.offsets, self.times):
            if is_alone:
                index.make()
            else:
                index.reset()

    def have_possible_sizes(self) -> bool:
        """Whether both files exist and have a possible size (Kafka's sanityCheck).

        Closing a segment adds its largest timestamp: an empty time index of a segment with timestamps is invalid.
        """
        sizes = [self._files.system.size_of(it.path) for it in (self.offsets, self.times)]
        if sizes[0] is None or sizes[0] % OffsetIndex.ENTRY.size:
            return False
        if sizes[1] is None or sizes[1] % TimeIndex.ENTRY.size:
            return False
        return sizes[1] > 0 or all(
            found.header.max_timestamp < 0 for found in islice(self._log.valid_headers(), 1)
        )

    def update_paths(self) -> None:
        """Adopt the paths of the index files, which have been renamed."""
        self.offsets.path = self._files.path_of(file_names.OFFSET_INDEX)
        self.times.path = self._files.path_of(file_names.TIME_INDEX)
        self.transactions.path = self._files.path_of(file_names.TRANSACTION_INDEX)

    def open_existing(self) -> None:
        """Open offset and time index for reading only. Raises FileNotFoundError."""
        self.offsets.open_existing()
        self.times.open_existing()

    def close_to_appends(self) -> None:
        """Add the largest timestamp to the time index, and truncate the files to their entries."""
        if self.known_largest is not None and self.known_largest.timestamp >= 0:
            try:
                self.time_index.maybe_add(self.known_largest.timestamp, offset=self.known_largest.offset)
            except CorruptIndex as error:
                self.rebuild_corrupt(error)
        self.offsets.trim()
        self.times.trim()

    def close(self) -> None:
        """Close the descriptors, without writing."""
        self.offsets.close()
        self.times.close()

    @property
    def is_changed(self) -> bool:
        """Whether a file has changes that may not be on the disk."""
        return self.offsets.is_changed or self.times.is_changed or self.transactions.is_changed

    # -- appends -----------------------------------------------------------------------------------

    def add_batch(self, header: BatchHeader, position: int) -> None:
        """Add the batch at `position` to the indexes if the index interval has passed. Raises CorruptIndex."""
        self.add(
            position,
            last_offset=header.base_offset + header.last_offset_delta,
            max_timestamp=header.max_timestamp,
            size_bytes=header.batch_length + LOG_OVERHEAD_BYTES,
        )

    def add_batches(self, headers: Sequence[BatchHeader], position: int) -> int:
        """Add consecutive batches, the first one at `position`, as `add_batch` does; returns the end of the
        last one.
        """
        for header in headers:
            size_bytes = header.batch_length + LOG_OVERHEAD_BYTES
            self.add(
                position,
                last_offset=header.base_offset + header.last_offset_delta,
                max_timestamp=header.max_timestamp,
                size_bytes=size_bytes,
            )
            position += size_bytes
        return position

    def add(self, position: int, *, last_offset: int, max_timestamp: int, size_bytes: int) -> None:
        """Add the batch at `position` to the indexes, as `add_batch`, by the fields that it needs."""
        largest = self.known_largest
        assert largest is not None, str(self._log)
        if max_timestamp > largest.timestamp:
            # Not by a call of the class: 0.15 us instead of 0.35.
            self.known_largest = largest = _new_tuple(TimestampOffset, (max_timestamp, last_offset, None))
        if self._bytes_since_entry > self.settings.index_interval_bytes:
            self.offset_index.add(last_offset, position=position)
            self.time_index.maybe_add(largest.timestamp, offset=largest.offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    # -- the largest timestamp ---------------------------------------------------------------------

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of the batch that has it; -1 without timestamps.

        Cost: the first use reads both indexes and the log, if `known_largest` is None.
        """
        return self.known_largest if self.known_largest is not None else self.load_largest()

    def load_largest(self) -> TimestampOffset:
        """Read the largest timestamp from the time index, which is rebuilt if it is corrupt."""
        truncation_count = self._truncation_count
        try:
            self.known_largest = self.checked(self.time_index.last)
        except CorruptIndex as error:
            self._check_not_truncated(truncation_count, error)
            self.rebuild_corrupt(error)  # sets `known_largest`
        assert self.known_largest is not None, str(self._log)
        return self.known_largest

    # -- verified look-ups -------------------------------------------------------------------------

    def checked(self, entry: TimestampOffset) -> TimestampOffset:
        """Return an entry of the time index. Raises CorruptIndex unless the batch that it points at has its timestamp.

        Without this check a single flipped bit could make retention remove a new segment, or a look-up miss its record.
        """
        if entry.timestamp < 0:
            return entry  # none
        start = self.offset_index.lookup(entry.offset).position
        with self._log.for_one_use() as fd:
            try:
                found = next(
                    (it for it in self._log.headers(start, fd=fd) if it.header.last_offset >= entry.offset),
                    None,
                )
            except (CorruptMessage, UnsupportedForMessageFormat) as error:
                raise CorruptIndex(f"{entry} points at no batch: {error}") from error
        # The last offset is not compared: Kafka 3.7 stores that of the record.
        if found is None or found.header.max_timestamp != entry.timestamp:
            raise CorruptIndex(f"the batch that {entry} points at has another timestamp")
        return entry

    def scan_start(self, offset: int, *, may_block: bool = True) -> int:
        """The position from which to look for `offset`. Raises CorruptIndex if another batch is there."""
        self.offsets.load(may_block=may_block)
        entry = self.offsets.lookup(offset, may_block=may_block)
        if not entry.position:
            return 0
        try:
            last_offset = self._log.header_at(entry.position, may_block=may_block).last_offset
        except (CorruptMessage, UnsupportedForMessageFormat) as error:
            raise CorruptIndex(f"{entry} points at no batch: {error}") from error
        if last_offset != entry.offset or entry.offset > offset or entry.position >= self._log.size:
            raise CorruptIndex(
                f"{entry}, found for offset {offset}, points at a batch that ends with {last_offset}"
            )
        return entry.position

    def with_rebuild(self, look_up: Callable[[], _T]) -> _T:
        """The result of `look_up`, after rebuilding the indexes if they turn out to be corrupt.

        Raises CorruptMessage in a thread if the event loop has truncated the segment meanwhile.
        """
        truncation_count = self._truncation_count
        try:
            return look_up()
        except CorruptIndex as error:
            self._check_not_truncated(truncation_count, error)
            self.rebuild_corrupt(error)
            return look_up()

    def _check_not_truncated(self, truncation_count: int, error: CorruptIndex) -> None:
        if truncation_count % 2 or truncation_count != self._truncation_count:
            raise CorruptMessage(f"{self._log} has been truncated meanwhile: {error}") from error

    # -- truncation --------------------------------------------------------------------------------

    def begin_truncation(self, offset: int) -> None:
        """Drop the entries at or after `offset`; then the log file is truncated, and `end_truncation` called."""
        self._truncation_count += 1
        try:
            self._drop_from(offset)
        except CorruptIndex as error:
            self.rebuild_corrupt(error)
            self._drop_from(offset)
        self.transactions.truncate_to(offset)

    def _drop_from(self, offset: int) -> None:
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)

    def end_truncation(self) -> None:
        """Read the largest timestamp of the batches that stay."""
        self._bytes_since_entry = 0
        try:
            largest = self.checked(self.time_index.last)
            for header, _ in self._log.headers(self.offset_index.lookup(largest.offset).position):
                if header.max_timestamp > largest.timestamp:
                    largest = TimestampOffset(header.max_timestamp, header.last_offset)
            self.known_largest = largest
        except CorruptIndex as error:
            self.rebuild_corrupt(error)  # sets `known_largest`
        self._truncation_count += 1

    # -- rebuild -----------------------------------------------------------------------------------

    def rebuild_corrupt(self, error: CorruptIndex) -> None:
        """Rebuild the segment's indexes after this error was found in one of them."""
        _LOG.warning("%s: a corrupt index is rebuilt: %s", self._log, error)
        self.rebuild()

    def begin_rebuild(self) -> None:
        """Clear indexes and timestamps; the caller calls `add_batch` for each batch, and then `close_to_appends`."""
        self.offsets.reset()
        self.times.reset()
        self.known_largest = TimestampOffset(-1, self._files.base_offset)
        self._bytes_since_entry = 0

    def rebuild(self) -> None:
        """Rebuild offset and time index from the headers of all batches.

        The indexes end before an offset that decreases or is too far from the base.
        """
        _LOG.warning("%s: rebuilding the offset and time index from the batches", self._log)
        self.begin_rebuild()
        base_offset = self._files.base_offset
        last_offset = base_offset - 1
        for header, position in self._log.valid_headers():
            if not last_offset < header.last_offset <= base_offset + MAX_RELATIVE_OFFSET:
                _LOG.error(
                    "%s: the indexes end before offset %d, which is too small or too far from the base offset",
                    self._log,
                    header.last_offset,
                )
                break
            last_offset = header.last_offset
            self.add_batch(header, position)
        if self._log.is_closed:
            self.close_to_appends()
            # The log does not flush a closed segment again, and a partly written index is not detected after a crash.
            self._files.flush()
