"""One segment of a log: consecutive batches in one file, and the indexes that find them.

    00000000000000368769.log         batches, as they came from producers
    00000000000000368769.index       every 4 KiB or so: where a batch lies
    00000000000000368769.timeindex   every 4 KiB or so: the largest timestamp so far
    00000000000000368769.txnindex    aborted transactions, if any

The last segment of a log is the active one, the only one that is written. An append is one system call.
To find an offset: the positions of the newest batches are in memory; otherwise the index gives a batch at
or before the offset, and headers are read from there on.

Nothing here flushes. I/O errors are raised as `OSError`; an index with impossible content is rebuilt.

Source: LogSegment and FileRecords of Kafka.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from logging import getLogger
from pathlib import Path
from typing import NamedTuple, TypeVar

from protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from protocol.records.batch import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, read_header
from protocol.records.record import records as parse_records
from storage import file_names
from storage.files import Buffer, Files, WouldBlock
from storage.index import MAX_RELATIVE_OFFSET, CorruptIndex, OffsetIndex, TimeIndex, TimestampOffset
from storage.lending import LEND_BYTES
from storage.log_config import LogConfig
from storage.segment_files import SegmentFiles, SegmentSettings
from storage.transaction_index import AbortedTransaction

#: How many of the newest batches are found without an index look-up, at least.
RECENT_BATCHES = 64
#: Bytes of one read of a search for a header: an index interval and the header after it.
SCAN_BYTES = 8192
#: Most next positions that are kept for consumers of large batches.
EXPECTED_READS = 64
#: Beyond every offset.
MAX_OFFSET = 2**63 - 1
#: The newest bytes of a segment are assumed to be in the page cache, without a check.
WARM_TAIL_BYTES = 16 * 1024 * 1024

_LOG = getLogger(__name__)
_T = TypeVar("_T")


class OffsetOverflow(Exception):
    """The segment has offsets too far from its base for an index (Kafka's LogSegmentOffsetOverflowException)."""


class BatchPosition(NamedTuple):
    """A batch and where it begins in the segment's file."""

    header: BatchHeader
    position: int


class SegmentRead(NamedTuple):
    """Bytes from a segment, beginning with a batch; the last batch may be incomplete."""

    records: bytes | memoryview
    base_offset: int
    is_first_batch_incomplete: bool


class Segment(SegmentFiles):
    """One segment. `size` is the end of the last whole batch; bytes of the file after it are ignored."""

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        *,
        settings: SegmentSettings,
        files: Files,
        now_ms: int,
        suffix: str = "",
        roll_jitter_ms: int = 0,
        is_alone: bool = False,
    ) -> "Segment":
        """Create an empty segment. Old files of that name are overwritten; `is_alone`: there are none."""
        segment = cls(
            directory, base_offset, settings=settings, files=files, size=0, created_ms=now_ms, is_new=True,
            suffix=suffix, roll_jitter_ms=roll_jitter_ms,
        )  # fmt: skip
        fd = segment._fd = files.open(segment.path_of(file_names.LOG), write=True, create=True)
        if not is_alone:
            files.unlink(segment.path_of(file_names.TRANSACTION_INDEX))
            files.truncate(fd, 0)
        if settings.preallocated_bytes:
            files.truncate(fd, settings.preallocated_bytes)
        for index in (segment._offset_index, segment._time_index):
            if is_alone:
                index.make()
            else:
                index.reset()
        return segment

    @classmethod
    def load(
        cls,
        directory: Path,
        base_offset: int,
        *,
        settings: SegmentSettings,
        files: Files,
        now_ms: int,
        suffix: str = "",
        roll_jitter_ms: int = 0,
    ) -> "Segment":
        """A segment of existing files. Opens nothing yet."""
        size = files.size_of(directory / file_names.of_offset(base_offset, file_names.LOG, suffix))
        return cls(
            directory, base_offset, settings=settings, files=files, size=size or 0, created_ms=now_ms, is_new=False,
            suffix=suffix, roll_jitter_ms=roll_jitter_ms,
        )  # fmt: skip

    def has_index_files(self) -> bool:
        """Whether both index files exist and have a possible size.

        Closing a segment adds its largest timestamp: an empty time index of a segment with timestamps is invalid.
        """
        sizes = [self._files.size_of(index.path) for index in (self._offset_index, self._time_index)]
        if sizes[0] is None or sizes[0] % OffsetIndex.ENTRY.size:
            return False
        if sizes[1] is None or sizes[1] % TimeIndex.ENTRY.size:
            return False
        return sizes[1] > 0 or all(
            found.header.max_timestamp < 0 for found in islice(self.sound_headers(), 1)
        )

    def close_to_appends(self) -> None:
        """End the appends: add the largest timestamp to the time index, truncate the files to their content."""
        self._note_largest_timestamp()
        self._offset_index.trim()
        self._time_index.trim()
        if self._fd is not None and self._files.size(self._fd) != self.size:
            self._shorten(self.size)
        self._recent.clear()
        self.is_closed = True

    def reopen_to_appends(self) -> None:
        """Make it the active segment (again): after loading, or when later segments were truncated."""
        self.is_closed = False

    def close(self) -> None:
        """Close the files, of an active segment after `close_to_appends`."""
        if not self.is_closed:
            self.close_to_appends()
        self.close_files()

    # -- appending ---------------------------------------------------------------------------------

    def is_full(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether the log must be rolled before batches of this size, last offset and timestamp are appended."""
        offsets, times = self._offset_index, self._time_index
        is_indexed = (
            last_offset - self.base_offset <= MAX_RELATIVE_OFFSET and offsets.count < offsets.full_count
        )
        if not is_indexed or not self.size:
            return not is_indexed
        return (
            self.size > config.segment_bytes - size_bytes
            or times.count >= times.full_count
            or self.age_ms(now_ms, max_timestamp) > config.max_segment_ms - self.roll_jitter_ms
        )

    def age_ms(self, now_ms: int, timestamp: int) -> int:
        """The segment's age for rolling: by the batches' timestamps, or by the clock where they have none."""
        first = self._first_timestamp  # already known for nearly all appends
        if first is None or first < 0:
            first = self.first_timestamp()
        return timestamp - first if first is not None else now_ms - self.created_ms

    def first_timestamp(self) -> int | None:
        """The largest timestamp of the first batch; None without one."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = self.header_at(0).max_timestamp
        first = self._first_timestamp
        return first if first is not None and first >= 0 else None

    def append(self, headers: Sequence[BatchHeader], buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Write batches to the end of the file with one system call. `headers` are those of the batches, in order.

        After an OSError some of the batches may be in the file, or in the indexes: nothing more may be appended.
        """
        if self._largest is None:
            self._load_largest()
        position = self.size
        fd = self._fd if self._fd is not None else self.fd
        if len(buffers) == 1:
            self._files.pwrite(fd, buffers[0], position)
        else:
            self._files.writev(fd, buffers, position)
        recent = self._recent
        recent[headers[0].base_offset] = position  # before the size: see `end_before`
        self.size = position + size_bytes
        try:
            for header in headers:
                recent[header.base_offset] = position
                self.index_batch(header, position)
                position += header.batch_length + LOG_OVERHEAD_BYTES
            assert position == self.size, (position, self.size)
        except CorruptIndex as error:
            # The batches are written: a corrupt index must not cause their offsets to be assigned again.
            self._rebuild_corrupt(error)
        if len(recent) > 2 * RECENT_BATCHES:
            self._recent = dict(list(recent.items())[-RECENT_BATCHES:])

    def index_batch(self, header: BatchHeader, position: int) -> None:
        """Add the batch at `position` to the indexes if the index interval has passed. Raises CorruptIndex."""
        largest = self._largest
        assert largest is not None, self
        if header.max_timestamp > largest.timestamp:
            last_offset = header.base_offset + header.last_offset_delta
            self._largest = largest = TimestampOffset(header.max_timestamp, last_offset)
        if self._bytes_since_index_entry > self.settings.index_interval_bytes:
            self.offset_index.append(header.base_offset + header.last_offset_delta, position)
            self.time_index.maybe_append(largest.timestamp, largest.offset)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.batch_length + LOG_OVERHEAD_BYTES

    # -- timestamps --------------------------------------------------------------------------------

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of the batch that has it; -1 without timestamps."""
        return self._largest if self._largest is not None else self._load_largest()

    def _load_largest(self) -> TimestampOffset:
        cut_count = self._cut_count
        try:
            self._largest = self._checked(self.time_index.last)
        except CorruptIndex as error:
            self._check_not_cut(cut_count, error)
            self._rebuild_corrupt(error)  # sets `_largest`
        assert self._largest is not None, self
        return self._largest

    def _checked(self, entry: TimestampOffset) -> TimestampOffset:
        """Return an entry of the time index. Raises CorruptIndex unless the batch that it points at has its timestamp.

        Else a single flipped bit could make retention remove a new segment, or a look-up miss its record.
        """
        if entry.timestamp < 0:
            return entry  # none
        start = self.offset_index.lookup(entry.offset).position
        with self._file() as fd:
            try:
                found = next(
                    (it for it in self.headers(start, fd=fd) if it.header.last_offset >= entry.offset), None
                )
            except (CorruptMessage, UnsupportedForMessageFormat) as error:
                raise CorruptIndex(f"{entry} is no batch: {error}") from error
        # The last offset is not compared: Kafka 3.7 stores that of the record.
        if found is None or found.header.max_timestamp != entry.timestamp:
            raise CorruptIndex(f"{entry} is not the time of the batch there")
        return entry

    def _note_largest_timestamp(self) -> None:
        if self._largest is not None and self._largest.timestamp >= 0:
            try:
                self.time_index.maybe_append(self._largest.timestamp, self._largest.offset)
            except CorruptIndex as error:
                self._rebuild_corrupt(error)

    def largest_timestamp_ms(self) -> int:
        """The segment's time for retention: its largest timestamp, or the file's modification time without one."""
        return self.largest.timestamp if self.largest.timestamp >= 0 else self.modified_ms()

    def find_timestamp(self, timestamp: int, *, start_offset: int) -> TimestampOffset | None:
        """The first record at or after `start_offset` whose timestamp is at least `timestamp`.

        Decompresses the batches that may hold it.
        """
        hint = self._with_indexes(lambda: self._checked(self.time_index.lookup(timestamp)))
        start = self.find(max(hint.offset, start_offset))
        for header, position in self.headers(start.position) if start else ():
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            batch = self._files.pread(self.fd, header.size_bytes, position)
            for record in parse_records(batch):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    epoch = header.partition_leader_epoch
                    return TimestampOffset(record.timestamp, record.offset, epoch if epoch >= 0 else None)
        return None

    def find_largest_timestamp(self) -> TimestampOffset | None:
        """The first record that has the segment's largest timestamp."""
        if self.largest.timestamp < 0:
            return None
        return self.find_timestamp(self.largest.timestamp, start_offset=self.base_offset)

    # -- finding -----------------------------------------------------------------------------------

    def header_at(self, position: int, *, may_block: bool = True) -> BatchHeader:
        """The header of the batch that begins there. Raises CorruptMessage, UnsupportedForMessageFormat."""
        return read_header(self._files.pread(self.fd, HEADER_SIZE_BYTES, position, may_block=may_block))

    def headers(
        self, position: int = 0, end: int | None = None, *, fd: int | None = None, may_block: bool = True
    ) -> Iterator[BatchPosition]:
        """The headers of the batches from `position` on; `fd` is the log file's, if the segment must not keep it open.

        Raises CorruptMessage or UnsupportedForMessageFormat at a position without a valid header.
        """
        end = self.size if end is None else end
        chunk, chunk_start = b"", position
        while position < end:
            at = position - chunk_start
            if at + HEADER_SIZE_BYTES > len(chunk):
                size = min(SCAN_BYTES, end - position)
                chunk = self._files.pread(self.fd if fd is None else fd, size, position, may_block=may_block)
                chunk_start, at = position, 0
            header = read_header(chunk, at)
            if position + header.size_bytes > end:
                raise CorruptMessage(f"{self}: the batch at {position} reaches beyond the end at {end}")
            yield BatchPosition(header, position)
            position += header.size_bytes

    def sound_headers(self, position: int = 0) -> Iterator[BatchPosition]:
        """As `headers`, but ends at a position without a valid header, with an ERROR in the process's log."""
        try:
            yield from self.headers(position)
        except (CorruptMessage, UnsupportedForMessageFormat) as error:
            _LOG.error("%s is damaged: %s", self, error)

    def has_overflow(self) -> bool:
        """Whether a batch's offset is too far from the base for an index (KAFKA-6264). Reads headers up to that one."""
        for header, position in self.sound_headers():
            if header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
                return self._overflows_at(position)
        return False

    def _overflows_at(self, position: int) -> bool:
        """Whether the batch there overflows, and the next one follows it: a single such offset may be a flipped bit."""
        try:
            first, second = islice(self.headers(position), 2)
        except (ValueError, CorruptMessage, UnsupportedForMessageFormat):
            return False
        is_beyond = first.header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET
        return is_beyond and second.header.base_offset >= first.header.next_offset

    def read_bytes(self, position: int, size: int) -> memoryview:
        """The bytes at `position`, up to the segment's end."""
        return memoryview(self._files.pread(self.fd, max(min(size, self.size - position), 0), position))

    def find(self, offset: int, *, may_block: bool = True) -> BatchPosition | None:
        """The batch that holds `offset`, or the first one after it; None if all are before.

        Raises WouldBlock, unless `may_block`, when the index or the headers are not in memory.
        """
        position = self._recent.get(offset)
        if position is not None:
            return BatchPosition(self.header_at(position, may_block=may_block), position)
        return self._with_indexes(lambda: self.find_by_index(offset, may_block=may_block))

    def find_by_index(self, offset: int, *, may_block: bool = True) -> BatchPosition | None:
        """As `find`, but raises CorruptIndex instead of rebuilding the indexes."""
        start = self._indexed_position(offset, may_block=may_block)
        for found in self.headers(start, may_block=may_block):
            if found.header.last_offset >= offset:
                return found
        return None

    def _indexed_position(self, offset: int, *, may_block: bool = True) -> int:
        """The position from which to look for `offset`. Raises CorruptIndex if another batch is there."""
        self._offset_index.load(may_block=may_block)
        entry = self._offset_index.lookup(offset, may_block=may_block)
        if not entry.position:
            return 0
        try:
            last_offset = self.header_at(entry.position, may_block=may_block).last_offset
        except (CorruptMessage, UnsupportedForMessageFormat) as error:
            raise CorruptIndex(f"{entry} is no batch: {error}") from error
        if last_offset != entry.offset or entry.offset > offset or entry.position >= self.size:
            raise CorruptIndex(f"{entry} for {offset} is the batch that ends with {last_offset}")
        return entry.position

    def _with_indexes(self, look: Callable[[], _T]) -> _T:
        """The result of `look`, after rebuilding the indexes if they turn out to be corrupt.

        Raises CorruptMessage in a thread if the event loop has truncated the segment meanwhile: what the thread has
        read is no sign of damage.
        """
        cut_count = self._cut_count
        try:
            return look()
        except CorruptIndex as error:
            self._check_not_cut(cut_count, error)
            self._rebuild_corrupt(error)
            return look()

    def _check_not_cut(self, cut_count: int, error: CorruptIndex) -> None:
        if cut_count % 2 or cut_count != self._cut_count:
            raise CorruptMessage(f"{self} has been truncated meanwhile: {error}") from error

    def _rebuild_corrupt(self, error: CorruptIndex) -> None:
        _LOG.warning("%s: %s", self, error)
        self.rebuild_indexes()

    def position_of(self, offset: int, *, may_block: bool = True) -> int:
        """The position of the batch that holds `offset`, else of the first one after it, else the end.

        Raises as `find`.
        """
        if (position := self._recent.get(offset)) is not None:
            return position
        found = self.find(offset, may_block=may_block)
        return found.position if found else self.size

    def end_before(self, log_end: int, size: int) -> int:
        """The end position of the batches before `log_end`; `size` is the segment's size, read before `log_end`.

        Only a batch of a concurrent append can begin at `log_end` and be included in `size`: then the end is its
        position.
        """
        return self._recent.get(log_end, size)

    def start_of(self, offset: int) -> int:
        """The position from which to read for `offset`: that of the last indexed batch at or before it."""
        return self._with_indexes(lambda: self._indexed_position(offset))

    def next_offset(self) -> int:
        """The offset after the last batch: reads headers from the last index entry on.

        Of a segment with a suffix it reads all headers: a crash may have renamed its index file already, and an index
        that is rebuilt under the suffix would be left over.
        """
        next_offset = self.base_offset
        for found in self.headers(0 if self.suffix else self.start_of(MAX_OFFSET)):
            next_offset = found.header.next_offset
        return next_offset

    def aborted_in(self, first_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """See TransactionIndex.aborted_in."""
        return self.transactions.aborted_in(first_offset, end_offset)

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_position: int | None = None,
        min_one_message: bool = False,
        may_block: bool = True,
        lend: bool = False,
    ) -> SegmentRead | None:
        """Batches from the one that holds `offset` on, up to `end_position`; None if all are before.

        At most `max_bytes`, but the whole first batch with `min_one_message`. If the first batch is longer
        than what may be read, the result is empty and `is_first_batch_incomplete`. With `lend` a large read may be
        a slice of the mapped file (`storage.lending`): on the event loop's thread, for a socket only.
        Raises WouldBlock, unless `may_block`, when the bytes are probably not in memory.
        Cost: 3 us for up to 16 KiB at the end of the log.
        """
        end = self.size if end_position is None else end_position
        position = self._recent.get(offset)
        if position is None:
            position = self._expected.get(offset)
            if position is None or position >= self.size:
                found = self.find(offset, may_block=may_block)
                if found is None:
                    return None
                position = found.position
        size = min(max_bytes, end - position)
        if size <= 0 and (not min_one_message or position >= end):
            return SegmentRead(b"", offset, is_first_batch_incomplete=position < end)
        if (
            not may_block
            and position < max(self._appended_from, self.size - WARM_TAIL_BYTES)
            and not self._files.is_cached(self.fd, max(size, HEADER_SIZE_BYTES), position)
        ):
            raise WouldBlock(f"{self} at {position}")
        if size < LEND_BYTES:
            data = self._files.pread(self.fd, max(size, HEADER_SIZE_BYTES), position)
            header = read_header(data)
            if header.size_bytes <= size:
                if len(data) > size:
                    data = data[:size]
                return SegmentRead(data, header.base_offset, is_first_batch_incomplete=False)
        else:
            # Not from the mapping, which only system calls may access: for them a bad disk is an error, not SIGBUS.
            header = self.header_at(position)
        if header.size_bytes > size:
            if not min_one_message or position + header.size_bytes > end:
                return SegmentRead(b"", header.base_offset, is_first_batch_incomplete=True)
            size = header.size_bytes
        if not may_block:  # on the event loop's thread, the only one that writes `_expected`
            self._expect_next(header, position)
        return SegmentRead(
            self._large_read(position, size, lend=lend), header.base_offset, is_first_batch_incomplete=False
        )

    def _expect_next(self, header: BatchHeader, position: int) -> None:
        """Keep the position of the next batch: a consumer of large batches reads one at a time.

        The index look-up that this saves is 11 of the 18 us of a read (bench: rdkafka-consume-1024b-1p).
        """
        expected = self._expected
        if len(expected) >= EXPECTED_READS:
            del expected[next(iter(expected))]
        expected[header.next_offset] = position + header.size_bytes

    def _large_read(self, position: int, size: int, *, lend: bool) -> bytes | memoryview:
        if lend and size >= LEND_BYTES:
            lent = self._lender.lend(
                self.fd, position=position, size=size, file_size=self.size, is_closed=self.is_closed
            )
            if lent is not None:
                return lent
        return self._files.pread(self.fd, size, position)

    # -- changing ----------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Remove the batch that holds `offset` and all after it."""
        found = self.find(offset)
        self._cut_count += 1
        self._truncate_indexes(offset)
        self.transactions.truncate_to(offset)
        if found is not None:
            self._recent = {base: at for base, at in self._recent.items() if at < found.position}
            self._shorten(found.position)
        if not self.size:
            self.created_ms = now_ms
            self._first_timestamp = None
        self._bytes_since_index_entry = 0
        try:
            self._largest = self._read_largest()
        except CorruptIndex as error:
            self._rebuild_corrupt(error)  # sets `_largest`
        self._cut_count += 1
        self.reopen_to_appends()

    def _truncate_indexes(self, offset: int) -> None:
        try:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        except CorruptIndex as error:
            self._rebuild_corrupt(error)
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)

    def _read_largest(self) -> TimestampOffset:
        largest = self._checked(self.time_index.last)
        for header, _ in self.headers(self.offset_index.lookup(largest.offset).position):
            if header.max_timestamp > largest.timestamp:
                largest = TimestampOffset(header.max_timestamp, header.last_offset)
        return largest

    def truncate_at(self, position: int) -> None:
        """Remove everything from `position` on, without changing the indexes (recovery has just rebuilt them).

        Raises OffsetOverflow, with nothing changed, if the batches there are only too far from the base offset.
        """
        if self._overflows_at(position):
            raise OffsetOverflow(f"{self} at {position}")
        self._shorten(position)

    def begin_rebuild(self) -> None:
        """Clear indexes and timestamps; the caller rebuilds them by `index_batch` per batch, and `end_rebuild`."""
        self._offset_index.reset()
        self._time_index.reset()
        self._largest = TimestampOffset(-1, self.base_offset)
        self._first_timestamp = None
        self._bytes_since_index_entry = 0
        self._recent.clear()

    def end_rebuild(self) -> None:
        """Finish a rebuild, after all batches have been indexed."""
        self._note_largest_timestamp()
        self._offset_index.trim()
        self._time_index.trim()

    def rebuild_indexes(self) -> None:
        """Rebuild offset and time index from the headers of all batches.

        The indexes end before an offset that decreases or is too far from the base.
        """
        _LOG.warning("%s: rebuilding the indexes", self)
        self.begin_rebuild()
        last_offset = self.base_offset - 1
        for header, position in self.sound_headers():
            if not last_offset < header.last_offset <= self.base_offset + MAX_RELATIVE_OFFSET:
                _LOG.error("%s: offset %d cannot be in an index", self, header.last_offset)
                break
            last_offset = header.last_offset
            self.index_batch(header, position)
        if self.is_closed:
            self.end_rebuild()
            # The log will not flush a closed segment again, and a partly written index is not noticed after a crash.
            self.flush()
