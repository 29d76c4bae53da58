"""Reads of a log: records, offsets by timestamp, aborted transactions. Changes nothing, so any thread may read.

Of a tiered log these are the reads of the local tier; `ottla.remote.reading.remote_log_reader` reads the other one.

Segments are an immutable set that is replaced as a whole, and files of removed segments stay for a while, so
that a reader off the event loop never sees an incomplete change; the records may be truncated after it has
read them, as with a remote reader.

Source: the read methods of UnifiedLog and LocalLog of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from ottla.protocol.errors import CorruptMessage, KafkaError, OffsetMovedToTieredStorage, OffsetOutOfRange
from ottla.protocol.records.batch import NO_TIMESTAMP, BatchHeader, batches
from ottla.protocol.records.record import Bounds
from ottla.protocol.types import TopicPartition
from ottla.storage import kept_times
from ottla.storage.files import WouldBlock
from ottla.storage.index import TimestampOffset
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.segment import Segment
from ottla.storage.segment_times import PIECE_BYTES
from ottla.storage.segments import Segments
from ottla.storage.transaction_index import AbortedTransaction
from ottla.storage.warming import warm_up, warm_up_times

#: Bytes of one read of a replay.
REPLAY_BYTES = 1024 * 1024


class LogRead(NamedTuple):
    """The result of a read (Kafka's FetchDataInfo): batches, of which the last one may be incomplete."""

    #: bytes; after a read with `lend` perhaps a slice of the mapped file: only for a transport, not to be read.
    records: bytes | memoryview
    #: The requested offset.
    offset: int
    #: Base offset of the first batch, at or before `offset`; None without records.
    base_offset: int | None = None
    #: Whether `records` is empty because the first batch is longer than `max_bytes`.
    is_first_batch_incomplete: bool = False


class LogReader:
    """Reads of a log's local tier, in any thread: records, offsets by timestamp, aborted transactions."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        availability: LogAvailability,
    ) -> None:
        self._topic_partition = topic_partition
        self._offsets = offsets
        self._files = files
        self._availability = availability
        #: The last bound that was looked up: offset, segment, position. Replaced as a whole, on the event loop's thread
        #: only: in another thread a truncation could come between the look-up and the assignment.
        self._bound: tuple[int, Segment, int] | None = None
        #: Whether what was kept of the records' times has been restored, and whether there is more to keep.
        self._are_times_restored = False
        self._are_times_new = False

    def forget_bound(self) -> None:
        """Forget the bound of the last read: segments have been truncated, removed or replaced."""
        self._bound = None

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        max_offset: int | None = None,
        min_one_message: bool = False,
        may_block: bool = True,
        lend: bool = False,
    ) -> LogRead:
        """Batches from the one that holds `offset` on, none at or beyond `max_offset`, from one segment.

        `max_offset` is exclusive: high watermark or last stable offset; None is the log end. At most
        `max_bytes`, but with `min_one_message` at least the whole first batch. If the first batch is longer than
        what may be read, the result is empty and `is_first_batch_incomplete`.

        With `lend` the records may be a slice of the mapped file (from 128 KiB on): only for a socket, which passes
        it to the kernel, and only on the event loop's thread. Python code must not read it: a page that the disk
        cannot read would end the process (`ottla.storage.lending`).

        Raises OffsetOutOfRange outside of [log_start_offset, log_end_offset], OffsetMovedToTieredStorage within it
        before local_log_start_offset, CorruptMessage for a damaged file, KafkaStorageError for a failing disk; with
        `may_block=False` WouldBlock if index, headers or batches are probably not in memory: then call `warm_up` in a
        thread, and read again.
        Cost: 3.5 us at the end of the log, 20 us in the middle, no copy of a lent slice.
        """
        segments = self._files.segments
        segment = active = segments.active
        # Read before the log end: a thread must not get a concurrent append, which may be beyond `max_offset`.
        size = active.log.size
        log_start, log_end = self._offsets.log_start_offset, self._offsets.log_end_offset
        if not log_start <= offset <= log_end:
            raise OffsetOutOfRange(
                f"Offset {offset} of {self._topic_partition} is not in [{log_start}, {log_end}]"
            )
        if max_offset is None or max_offset > log_end:
            max_offset = log_end
        if offset >= max_offset:
            return LogRead(b"", offset)
        if offset < segment.base_offset:
            floor = segments.floor(offset)
            if floor is None and offset >= self._offsets.local_log_start_offset:
                floor = segments.first  # the log begins with a gap (`Log.ignore_gap`)
            if floor is None:
                raise OffsetMovedToTieredStorage(
                    f"Offset {offset} of {self._topic_partition} is before the first local segment, {segments.first}"
                )
            segment = floor
        try:
            if max_offset == log_end:
                last, last_end = active, active.log.end_before(max_offset, size)
            else:
                last, last_end = self._position_of_bound(segments, max_offset, may_block=may_block)
            while True:
                end_position = last_end if last is segment else None
                found = segment.reader.read(
                    offset,
                    max_bytes=max_bytes,
                    end_position=end_position,
                    min_one_message=min_one_message,
                    may_block=may_block,
                    lend=lend,
                )
                if found is not None:
                    base_offset = found.base_offset if len(found.records) else None
                    return LogRead(found.records, offset, base_offset, found.is_first_batch_incomplete)
                # Compaction or a truncated control batch leaves offsets at a segment's end that no batch has.
                next_base = segments.end_of(segment)
                if next_base is None or last is segment:
                    return LogRead(b"", offset)
                segment = segments.floor(next_base) or segments.active
        except OSError as error:
            raise self._availability.read_failed(error) from error

    def read_newest(self, offset: int, *, max_bytes: int, max_offset: int) -> bytes | None:
        """The records that `read` returns without blocking; None: not one of the newest batches, `read` decides.

        Newest are the batches of the active segment whose positions are known. `offset` and `max_offset` have to be the
        first ones of such batches, or `max_offset` the log end, with less in between than is lent, and the
        first batch is whole. On the event loop's thread only. Raises KafkaStorageError, and as `read` for a
        damaged batch.
        Cost: 1.5 us instead of 3.5 (bench: replication of small batches).
        """
        offsets, segment = self._offsets, self._files.segments.active
        recent = segment.log.recent
        position = recent.get(offset)
        if position is None or not offsets.log_start_offset <= offset < max_offset <= offsets.log_end_offset:
            return None
        end = recent.get(max_offset)
        if end is None:
            if max_offset != offsets.log_end_offset:
                return None
            end = segment.log.size
        try:
            return segment.reader.read_newest(position, min(max_bytes, end - position))
        except OSError as error:
            raise self._availability.read_failed(error) from error

    def size_between(self, offset: int, end: int) -> int | None:
        """The size of the batches from the one that holds `offset` to the one that holds `end`, which is exclusive.

        None if `read` decides: `offset` is not in the active segment, the positions are not in memory, or they
        cannot be read. On the event loop's thread only. Precondition: local_log_start_offset <= offset < end <=
        log_end_offset.
        Cost: 0.3 us if both are among the newest batches, 12 us otherwise.
        Source: Kafka's LogOffsetMetadata.positionDiff.
        """
        segments = self._files.segments
        active = segments.active
        if offset < active.base_offset:
            return None
        try:
            if end == self._offsets.log_end_offset:
                end_position = active.log.end_before(end, active.log.size)
            else:
                end_position = self._position_of_bound(segments, end, may_block=False)[1]
            return end_position - active.reader.position_of(offset, may_block=False)
        except (WouldBlock, KafkaError, OSError):
            return None

    def warm_up(self, offset: int, *, max_bytes: int, max_offset: int | None = None) -> None:
        """Read into the page cache what `read` reads with these arguments. Changes nothing. [any thread]

        Raises KafkaStorageError for a failing disk; other errors are left to `read`.
        """
        segments = self._files.segments
        with self._warming():
            warm_up(
                segments.floor(offset) or segments.first,
                offset,
                max_bytes=max_bytes,
                files=self._files.file_system,
            )
            if max_offset is not None and max_offset < self._offsets.log_end_offset:
                warm_up(
                    segments.floor(max_offset) or segments.first,
                    max_offset,
                    max_bytes=0,
                    files=self._files.file_system,
                )

    def warm_up_times(
        self,
        kept_from_ms: int,
        *,
        go_by_file: Callable[[int], bool],
        of_records: bool,
        most: int | None = None,
    ) -> None:
        """Read into the page cache the timestamps of the segments that may be older than `kept_from_ms`. [any thread]

        Only of the first `most` segments. `go_by_file`: whether instead of such a timestamp the file's time
        decides. With `of_records` also those of their records, where these decide. Raises KafkaStorageError for
        a failing disk.
        """
        with self._warming():
            warm_up_times(
                islice(self._files.segments, most),
                kept_from_ms=kept_from_ms,
                go_by_file=go_by_file,
                of_records=of_records,
                files=self._files.file_system,
            )

    @contextmanager
    def _warming(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # deleted meanwhile
        except OSError as error:
            raise self._availability.read_failed(error) from error

    def _position_of_bound(self, segments: Segments, offset: int, *, may_block: bool) -> tuple[Segment, int]:
        """The position of the first batch that must not be read."""
        bound = self._bound
        segment = segments.floor(offset) or segments.first
        if bound is not None and bound[0] == offset and bound[1] is segment:
            return bound[1], bound[2]
        position = segment.reader.position_of(offset, may_block=may_block)
        if not may_block:  # on the event loop's thread
            self._bound = offset, segment, position
        return segment, position

    def records_since(
        self, offset: int, *, end: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Whole batches from the one that holds `offset` on, up to `end` (exclusive; None: the log end).

        For replays: reads 1 MiB, or at least one batch, at a time. Raises as `read`.
        """
        offset = max(offset, self._offsets.log_start_offset)
        while True:
            found = self.read(offset, max_bytes=REPLAY_BYTES, max_offset=end, min_one_message=True)
            next_offset = offset
            for header, batch in batches(memoryview(found.records)):
                yield header, batch
                next_offset = header.next_offset
            if next_offset <= offset:
                if found.is_first_batch_incomplete:
                    raise CorruptMessage(f"{self._topic_partition} cannot be read at offset {offset}")
                return
            offset = next_offset

    def read_for_replay(self, offset: int, *, max_bytes: int) -> bytes:
        """Batches from the one that holds `offset` on, of one segment; at most `max_bytes`, but at least one batch.

        Empty at the log end. The last batch may be incomplete, if it is not the first. For a replay that is divided
        into turns of the event loop (`records_since` is one call). Raises as `read`. [any thread]
        """
        assert max_bytes > 0, max_bytes
        while True:
            start = max(offset, self._offsets.log_start_offset)
            try:
                found = self.read(start, max_bytes=max_bytes, min_one_message=True)
            except OffsetOutOfRange:
                if start >= self._offsets.log_start_offset:
                    raise
                continue  # the log start has advanced meanwhile
            if found.is_first_batch_incomplete:
                raise CorruptMessage(f"{self._topic_partition} cannot be read at offset {offset}")
            return bytes(found.records)

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [first_offset, end_offset) (read_committed, KIP-98).

        Of a tiered log only those that end in a local segment: the range may begin in the remote tier, where a
        transaction may begin whose marker is local.
        """
        found: list[AbortedTransaction] = []
        try:
            for segment in self._files.segments.from_offset(first_offset):
                aborted, is_complete = segment.indexes.transactions.aborted_in(first_offset, end_offset)
                found += aborted
                if is_complete:
                    break
        except OSError as error:
            raise self._availability.read_failed(error) from error
        return found

    def offset_for_timestamp(
        self, timestamp: int, *, end: int | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> TimestampOffset | None:
        """The first record whose timestamp is at least `timestamp`, before offset `end`; None if there is none.

        Of a tiered log: the first one in local segments. None also after a cancellation.
        Decompresses one or a few batches, and reads what `read_times` has not read: call it in a thread.
        Raises InvalidRecord for a batch that exceeds the topic's bounds.
        """
        start_offset = self._offsets.log_start_offset
        while not is_cancelled() and not self.read_times(timestamp):
            pass
        try:
            for segment in self._files.segments.from_offset(start_offset):
                if is_cancelled():
                    return None
                times = segment.times_from(start_offset)
                if times.known.largest < timestamp:
                    continue
                found = segment.find_timestamp(
                    timestamp,
                    times,
                    start_offset=start_offset,
                    bounds=self._bounds,
                    is_cancelled=is_cancelled,
                )
                if found is not None:
                    return found if end is None or found.offset < end else None
        except OSError as error:
            raise self._availability.read_failed(error) from error
        return None

    def max_timestamp_offset(
        self, *, is_cancelled: Callable[[], bool] = lambda: False
    ) -> TimestampOffset | None:
        """The first record with the largest timestamp of the local segments (ListOffsets -3); None: there is none.

        Of the records from the log start on. As `offset_for_timestamp`.
        """
        start_offset = self._offsets.log_start_offset
        while not is_cancelled() and not self.read_times(None):
            pass
        latest: Segment | None = None
        largest = NO_TIMESTAMP
        try:
            for segment in self._files.segments.from_offset(start_offset):
                found = segment.times_from(start_offset).known.largest
                if found > largest:  # of equal ones the first counts
                    latest, largest = segment, found
            if latest is None or is_cancelled():
                return None
            return latest.find_timestamp(
                largest,
                latest.times_from(start_offset),
                start_offset=start_offset,
                bounds=self._bounds,
                is_cancelled=is_cancelled,
            )
        except OSError as error:
            raise self._availability.read_failed(error) from error

    def read_times(self, timestamp: int | None) -> bool:
        """Read one piece of the records that a look-up relies on; whether it has all of them by then. [any thread]

        A record at or after `timestamp` is in what was read, or all records are read; None: all are. What was
        read is known to all later look-ups, also after a restart (`ottla.storage.segment_times`). Cost:
        `PIECE_BYTES`, 0.3 to 1 ms; 0.5 us a segment that is known. Raises KafkaStorageError.
        """
        start_offset = self._offsets.log_start_offset
        left = PIECE_BYTES
        try:
            if not self._are_times_restored:
                self._are_times_restored = True
                if not self._files.config.is_compacted:
                    kept_times.restore(self._files.directory, self._files.segments, self._files.file_system)
            for segment in self._files.segments.from_offset(start_offset):
                times, end = segment.times_from(start_offset), segment.size
                if times.known.position < end and (timestamp is None or times.known.largest < timestamp):
                    left -= times.read_piece(segment.log, end=end, most_bytes=left)
                    self._are_times_new |= segment.log.is_closed and times.known.position == end
                if timestamp is not None and times.known.largest >= timestamp:
                    break
                if times.known.position < end or left <= 0:
                    return False
        except OSError as error:
            raise self._availability.read_failed(error) from error
        self._keep_times()
        return True

    def _keep_times(self) -> None:
        if not self._are_times_new or self._files.config.is_compacted:
            return
        self._are_times_new = False
        # A disk that is full, or a log that is deleted meanwhile, is no reason to fail; other errors come again.
        with suppress(OSError):
            kept_times.write(self._files.directory, self._files.segments, self._files.file_system)

    @property
    def _bounds(self) -> Bounds:
        return Bounds(max_record_bytes=self._files.config.max_decompressed_message_bytes)
