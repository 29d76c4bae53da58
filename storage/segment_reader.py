"""Reads of one segment: finds the batch of an offset or a timestamp, and reads batches from it on.

To find an offset: the positions of the newest batches are in memory; otherwise the offset index gives a batch at or
before the offset, and headers are read from there on.

Any thread may read. A thread that reads while the event loop truncates the segment may get batches that are removed
then, as a remote reader may.

Source: LogSegment.read, findOffsetByTimestamp and translateOffset of Kafka.
"""

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import NamedTuple

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, first_size_bytes, read_header
from ottla.protocol.records.record import ANY_BATCH, Bounds, times_of
from ottla.protocol.types import MAX_OFFSET
from ottla.storage.file_records import BatchPosition, FileRecords
from ottla.storage.files import WouldBlock
from ottla.storage.index import TimestampOffset
from ottla.storage.lending import LEND_BYTES
from ottla.storage.segment_files import SegmentFiles
from ottla.storage.segment_indexes import SegmentIndexes

#: Most next positions that are kept for consumers of large batches.
EXPECTED_READS = 64
#: The newest bytes of a segment are assumed to be in the page cache, without a check.
WARM_TAIL_BYTES = 16 * 1024 * 1024


class SegmentRead(NamedTuple):
    """Bytes from a segment, beginning with a batch; the last batch may be incomplete."""

    records: bytes | memoryview
    base_offset: int
    is_first_batch_incomplete: bool


class SegmentReader:
    """Reads of one segment, in any thread: finds the batch of an offset or a timestamp, and reads from it on."""

    __slots__ = ("_files", "_indexes", "_log", "expected")

    def __init__(self, files: SegmentFiles, log: FileRecords, indexes: SegmentIndexes) -> None:
        self._files = files
        self._log = log
        self._indexes = indexes
        #: Next offset -> next position, after large batches that were just read. Only a hint, which a
        #: truncation clears.
        self.expected: dict[int, int] = {}

    # -- finding -----------------------------------------------------------------------------------

    def find(self, offset: int, *, may_block: bool = True) -> BatchPosition | None:
        """The batch that holds `offset`, or the first one after it; None if all are before.

        Raises WouldBlock, unless `may_block`, when the index or the headers are not in memory.
        """
        position = self._log.recent.get(offset)
        if position is not None:
            return BatchPosition(self._log.header_at(position, may_block=may_block), position)
        return self._indexes.with_rebuild(lambda: self.find_by_index(offset, may_block=may_block))

    def find_by_index(self, offset: int, *, may_block: bool = True) -> BatchPosition | None:
        """The batch that holds `offset`, or the first one after it; None if all are before.

        Raises CorruptIndex where `find` would rebuild the indexes.
        """
        start = self._indexes.scan_start(offset, may_block=may_block)
        for found in self._log.headers(start, may_block=may_block):
            if found.header.last_offset >= offset:
                return found
        return None

    def position_of(self, offset: int, *, may_block: bool = True) -> int:
        """The position of the batch that holds `offset`, else of the first one after it, else the end.

        Raises as `find`.
        """
        if (position := self._log.recent.get(offset)) is not None:
            return position
        found = self.find(offset, may_block=may_block)
        return found.position if found else self._log.size

    def start_of(self, offset: int) -> int:
        """The position from which to read for `offset`: that of the last indexed batch at or before it."""
        return self._indexes.with_rebuild(lambda: self._indexes.scan_start(offset))

    def next_offset(self) -> int:
        """The offset after the last batch: reads headers from the last index entry on.

        Of a segment with a suffix it reads all headers: a crash may have renamed its index file already, and an index
        that is rebuilt under the suffix would be left over.
        """
        next_offset = self._files.base_offset
        for found in self._log.headers(0 if self._files.suffix else self.start_of(MAX_OFFSET)):
            next_offset = found.header.next_offset
        return next_offset

    def find_timestamp(
        self,
        timestamp: int,
        *,
        start_offset: int,
        bounds: Bounds = ANY_BATCH,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> TimestampOffset | None:
        """The first record at or after `start_offset` whose timestamp is at least `timestamp`.

        Decompresses the batches that may hold it, within `bounds`. None also after a cancellation.
        """
        indexes = self._indexes
        hint = indexes.with_rebuild(lambda: indexes.checked(indexes.time_index.lookup(timestamp)))
        start = self.find(max(hint.offset, start_offset))
        return self._first_of(
            self._log.headers(start.position) if start else (),
            timestamp,
            least_claim=timestamp,
            start_offset=start_offset,
            bounds=bounds,
            is_cancelled=is_cancelled,
        )

    def find_in_batches(
        self,
        timestamp: int,
        *,
        position: int,
        end: int,
        start_offset: int,
        bounds: Bounds,
        is_cancelled: Callable[[], bool],
    ) -> TimestampOffset | None:
        """The record that `find_timestamp` looks for, in the batches that begin at a position in [`position`, `end`).

        The batches are read whatever their headers claim.
        """
        return self._first_of(
            takewhile(lambda found: found[1] < end, self._log.headers(position)),
            timestamp,
            least_claim=None,
            start_offset=start_offset,
            bounds=bounds,
            is_cancelled=is_cancelled,
        )

    def _first_of(
        self,
        headers: Iterable[tuple[BatchHeader, int]],
        timestamp: int,
        *,
        least_claim: int | None,
        start_offset: int,
        bounds: Bounds,
        is_cancelled: Callable[[], bool],
    ) -> TimestampOffset | None:
        """The first record at or after `timestamp` in the batches with these headers and positions; None without one.

        Batches whose headers claim less than `least_claim` are left out.
        """
        for header, position in headers:
            if is_cancelled():
                return None
            if header.last_offset < start_offset or (
                least_claim is not None and header.max_timestamp < least_claim
            ):
                continue
            found = first_record(
                header,
                self._log.pread(position, header.size_bytes),
                timestamp,
                start_offset=start_offset,
                bounds=bounds,
                is_cancelled=is_cancelled,
            )
            if found is not None:
                return found
        return None

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
        a slice of the mapped file (`ottla.storage.lending`): on the event loop's thread, for a socket only.
        Raises WouldBlock, unless `may_block`, when the bytes are probably not in memory.
        Cost: 3 us for up to 16 KiB at the end of the log.
        """
        log = self._log
        end = log.size if end_position is None else end_position
        position = log.recent.get(offset)
        if position is None:
            position = self.expected.get(offset)
            if position is None or position >= log.size:
                found = self.find(offset, may_block=may_block)
                if found is None:
                    return None
                position = found.position
        size = min(max_bytes, end - position)
        if size <= 0 and (not min_one_message or position >= end):
            return SegmentRead(b"", offset, is_first_batch_incomplete=position < end)
        if (
            not may_block
            and position < max(log.appended_from, log.size - WARM_TAIL_BYTES)
            and not log.is_cached(position, size_bytes=max(size, HEADER_SIZE_BYTES))
        ):
            raise WouldBlock(f"{log} at {position}")
        if size < LEND_BYTES:
            data = log.pread(position, max(size, HEADER_SIZE_BYTES))
            header = read_header(data)
            if header.size_bytes <= size:
                if len(data) > size:
                    data = data[:size]
                return SegmentRead(data, header.base_offset, is_first_batch_incomplete=False)
        else:
            # Not from the mapping, which only system calls may access: for them a bad disk is an error, not SIGBUS.
            header = log.header_at(position)
        if header.size_bytes > size:
            if not min_one_message or position + header.size_bytes > end:
                return SegmentRead(b"", header.base_offset, is_first_batch_incomplete=True)
            size = header.size_bytes
        if not may_block:  # on the event loop's thread, the only one that writes `expected`
            self._expect_next(header, position)
        lent = log.lend(position, size_bytes=size) if lend and size >= LEND_BYTES else None
        records = log.pread(position, size) if lent is None else lent
        return SegmentRead(records, header.base_offset, is_first_batch_incomplete=False)

    def read_newest(self, position: int, size: int) -> bytes | None:
        """A copy of these newest bytes of the file, read without blocking, as `read` would return it.

        None where `read` would lend, or return anything else.

        Raises CorruptMessage, UnsupportedForMessageFormat, as `read`.
        """
        log = self._log
        if (
            not HEADER_SIZE_BYTES <= size < LEND_BYTES
            or position < log.appended_from
            or position < log.size - WARM_TAIL_BYTES
        ):
            return None
        records = log.pread(position, size)
        return records if first_size_bytes(records) <= size else None

    def _expect_next(self, header: BatchHeader, position: int) -> None:
        """Keep the position of the next batch: a consumer of large batches reads one at a time.

        The index look-up that this saves is 11 of the 18 us of a read (bench: rdkafka-consume-1024b-1p).
        """
        expected = self.expected
        if len(expected) >= EXPECTED_READS:
            del expected[next(iter(expected))]
        expected[header.next_offset] = position + header.size_bytes


def first_record(
    header: BatchHeader,
    batch: bytes | memoryview,
    timestamp: int,
    *,
    start_offset: int,
    bounds: Bounds = ANY_BATCH,
    is_cancelled: Callable[[], bool],
) -> TimestampOffset | None:
    """The first record of the batch at or after `start_offset` whose timestamp is at least `timestamp`.

    Decompresses the batch, within `bounds`. None also after a cancellation, as a batch may have a million
    records. Raises KafkaError if it cannot be read, and its header claims such a record.
    """
    try:
        for offset, found in times_of(batch, bounds):
            if not offset & 0xFFF and is_cancelled():
                return None
            if found >= timestamp and offset >= start_offset:
                epoch = header.partition_leader_epoch
                return TimestampOffset(found, offset, epoch if epoch >= 0 else None)
    except KafkaError:
        if header.max_timestamp >= timestamp:
            raise
    return None
