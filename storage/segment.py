"""One segment of a log: consecutive batches in one file, and the indexes that find them.

    00000000000000368769.log         batches, as they came from producers
    00000000000000368769.index       every 4 KiB or so: where a batch lies
    00000000000000368769.timeindex   every 4 KiB or so: the largest timestamp so far
    00000000000000368769.txnindex    aborted transactions, if any

The last segment of a log is the active one, the only one that is written. A segment holds its parts, and this module is
what concerns them all: a segment is created or loaded, appended to, rolled, truncated, closed, renamed and deleted.

    Segment
      files      SegmentFiles     directory, base offset and suffix: the paths of the four files
      log        FileRecords      the log file: size, positions of newest batches, descriptor, lent slices, truncation
      indexes    SegmentIndexes   offset, time and transaction index, the largest timestamp; verified against `log`
      reader     SegmentReader    finds and reads batches by `log` and `indexes`; the positions of expected reads

Invariants: the offsets of the batches grow from the base offset on, and the indexes have entries of batches before
`size` only. Nothing here flushes, except for `flush` and a rebuilt index of a closed segment. I/O errors are raised as
`OSError`; an index with impossible content is rebuilt.

Source: LogSegment of Kafka.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.record import Bounds
from ottla.storage import file_names
from ottla.storage.file_records import FileRecords
from ottla.storage.files import Buffer, Files
from ottla.storage.index import MAX_RELATIVE_OFFSET, CorruptIndex, TimestampOffset
from ottla.storage.segment_files import SegmentFiles
from ottla.storage.segment_indexes import SegmentIndexes, SegmentSettings
from ottla.storage.segment_reader import SegmentReader
from ottla.storage.segment_times import STRETCH_BYTES, SegmentTimes


class OffsetOverflow(Exception):
    """The segment has offsets too far from its base for an index (Kafka's LogSegmentOffsetOverflowException)."""


class SegmentBounds(Protocol):
    """The part of a topic's configuration (`LogConfig`) that says when its log is rolled."""

    @property
    def segment_bytes(self) -> int:
        """The size at which the active segment is rolled: `segment.bytes`."""

    @property
    def max_segment_ms(self) -> int:
        """Age at which the active segment is rolled."""


class Segment:
    """A segment of a log: its batches from a base offset on, with their indexes, times and files."""

    __slots__ = (
        "_first_timestamp", "_times_from", "base_offset", "created_ms", "files", "indexes", "log", "reader",
        "roll_jitter_ms", "times",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        settings: SegmentSettings,
        files: Files,
        size_bytes: int,
        created_ms: int,
        is_new: bool,
        suffix: str = "",
        roll_jitter_ms: int = 0,
    ) -> None:
        assert base_offset >= 0, (directory, base_offset)
        self.base_offset = base_offset
        self.files = SegmentFiles(directory, base_offset, system=files, suffix=suffix)
        self.log = FileRecords(self.files, size_bytes=size_bytes, is_closed=not is_new)
        self.indexes = SegmentIndexes(self.files, self.log, settings=settings, is_new=is_new)
        self.reader = SegmentReader(self.files, self.log, self.indexes)
        #: Creation time, for rolling by time before the segment has a timestamp.
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        #: The largest timestamp of the first batch; negative: it has none; None: not read yet.
        self._first_timestamp: int | None = None
        self.times = SegmentTimes()
        #: Of the records from the log start on, if that is within the segment; with the generation of `times`.
        self._times_from: tuple[int, SegmentTimes] | None = None

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
            directory, base_offset, settings=settings, files=files, size_bytes=0, created_ms=now_ms, is_new=True,
            suffix=suffix, roll_jitter_ms=roll_jitter_ms,
        )  # fmt: skip
        segment.log.create()
        try:
            if not is_alone:
                files.unlink(segment.path_of(file_names.TRANSACTION_INDEX))
                segment.log.set_file_size(0)
            if settings.preallocated_bytes:
                segment.log.set_file_size(settings.preallocated_bytes)
            segment.indexes.create(is_alone=is_alone)
        except OSError:
            segment.log.close()
            raise
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
            directory, base_offset, settings=settings, files=files, size_bytes=size or 0, created_ms=now_ms,
            is_new=False, suffix=suffix, roll_jitter_ms=roll_jitter_ms,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Size of all batches, in bytes."""
        return self.log.size

    def __str__(self) -> str:
        return str(self.log)

    # -- appending ---------------------------------------------------------------------------------

    def append(self, headers: Sequence[BatchHeader], buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Write batches to the end of the file with one system call. `headers` are those of the batches, in order.

        `append_batch` has the same steps for one batch on the fast path: who changes one changes the other.
        After an OSError some of the batches may be in the file, or in the indexes: nothing more may be appended.
        """
        indexes = self.indexes
        if indexes.known_largest is None:
            indexes.load_largest()
        position = self.log.append(headers, buffers, size_bytes)
        if not position:
            self._first_timestamp = headers[0].max_timestamp
        try:
            end = indexes.add_batches(headers, position)
            assert end == self.log.size, (str(self), end, self.log.size)
        except CorruptIndex as error:
            # The batches are written: a corrupt index must not cause their offsets to be assigned again.
            indexes.rebuild_corrupt(error)

    def append_batch(
        self, batch: Buffer, *, first_offset: int, last_offset: int, max_timestamp: int, size_bytes: int
    ) -> None:
        """Append one batch in one buffer, as `append` does, by the header fields that are needed of it.

        The fast path (`ottla.storage.fast_append`) has no header; its test holds both equal.
        """
        indexes = self.indexes
        if indexes.known_largest is None:
            indexes.load_largest()
        position = self.log.append_buffers((batch,), first_offset=first_offset, size_bytes=size_bytes)
        if not position:
            self._first_timestamp = max_timestamp
        try:
            indexes.add(position, last_offset=last_offset, max_timestamp=max_timestamp, size_bytes=size_bytes)
        except CorruptIndex as error:
            indexes.rebuild_corrupt(error)

    def update_settings(self, *, index_interval_bytes: int) -> None:
        """Apply a new configuration; index sizes take effect with the next segment."""
        self.indexes.settings = self.indexes.settings._replace(index_interval_bytes=index_interval_bytes)

    # -- rolling -----------------------------------------------------------------------------------

    def is_full(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int, bounds: SegmentBounds
    ) -> bool:
        """Whether the log must be rolled before batches of this size, last offset and timestamp are appended.

        The segment's age is that of its first batch's timestamp, by the timestamp of the new batches; or by the clock
        where they have none.
        """
        offsets, times, size = self.indexes.offsets, self.indexes.times, self.log.size
        is_indexed = (
            last_offset - self.base_offset <= MAX_RELATIVE_OFFSET and offsets.count < offsets.full_count
        )
        if not is_indexed or not size:
            return not is_indexed
        if size > bounds.segment_bytes - size_bytes or times.count >= times.full_count:
            return True
        first = self._first_timestamp  # already known for nearly all appends: 80 ns less than a call
        if first is None or first < 0:
            first = self.first_timestamp()
        age_ms = max_timestamp - first if first is not None else now_ms - self.created_ms
        return age_ms > bounds.max_segment_ms - self.roll_jitter_ms

    def first_timestamp(self) -> int | None:
        """The largest timestamp of the first batch; None without one."""
        if self._first_timestamp is None and self.log.size:
            self._first_timestamp = self.log.header_at(0).max_timestamp
        first = self._first_timestamp
        return first if first is not None and first >= 0 else None

    @property
    def is_first_timestamp_in_memory(self) -> bool:
        """Whether `first_timestamp` reads no file."""
        return self._first_timestamp is not None or not self.log.size

    def set_first_timestamp(self, timestamp: int) -> None:
        """Keep the first timestamp that a thread has read; negative: there is none. Ignored if it is known by now."""
        if not self.is_first_timestamp_in_memory:
            self._first_timestamp = timestamp

    def largest_timestamp_ms(self) -> int:
        """The segment's time for retention: its largest timestamp, or the file's modification time without one."""
        largest = self.indexes.largest.timestamp
        return largest if largest >= 0 else self.files.modified_ms()

    def is_older_than(self, kept_from_ms: int) -> bool:
        """Whether all records are older, for retention.

        Reads records that a thread has not read; see `ottla.storage.segment_times`.
        """
        if self.largest_timestamp_ms() >= kept_from_ms:
            return False
        return (
            not self.waits_for_times(kept_from_ms) or self.times.read(self.log, end=self.size) < kept_from_ms
        )

    def waits_for_times(self, kept_from_ms: int) -> bool:
        """Whether a segment whose headers claim to be older was written later, so that its records decide."""
        return self.files.modified_ms() >= kept_from_ms

    def times_from(self, start_offset: int) -> SegmentTimes:
        """The known timestamps of the records at or after `start_offset`. May read the disk. [any thread]"""
        if start_offset <= self.base_offset:
            return self.times
        kept, generation = self._times_from, self.times.generation
        if kept is not None and kept[0] == generation and kept[1].start_offset == start_offset:
            return kept[1]
        times = SegmentTimes(start_offset=start_offset, position=self.reader.position_of(start_offset))
        self._times_from = generation, times
        return times

    def find_timestamp(
        self,
        timestamp: int,
        times: SegmentTimes,
        *,
        start_offset: int,
        bounds: Bounds,
        is_cancelled: Callable[[], bool],
    ) -> TimestampOffset | None:
        """The first record from `start_offset` on whose timestamp is at least `timestamp`, as far as `times` are known.

        By the headers, and in all batches where some have records that are later than their headers claim. [any thread]
        """
        found = self.reader.find_timestamp(
            timestamp, start_offset=start_offset, bounds=bounds, is_cancelled=is_cancelled
        )
        for position, largest in times.known.understated:
            if largest >= timestamp:
                if found is not None and found.offset < self.log.header_at(position).base_offset:
                    break
                sooner = self.reader.find_in_batches(
                    timestamp,
                    position=position,
                    end=position + STRETCH_BYTES,
                    start_offset=start_offset,
                    bounds=bounds,
                    is_cancelled=is_cancelled,
                )
                if sooner is not None:
                    return sooner
        return found

    # -- truncation --------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Remove the batch that holds `offset` and all after it."""
        assert offset >= self.base_offset, (str(self), offset)
        self.log.prepare_reading()  # also if only reserved descriptors are left: the log's truncation has begun
        found = self.reader.find(offset)
        self.times.forget()
        self.indexes.begin_truncation(offset)
        if found is not None:
            self.log.truncate_to(found.position)
            self.times.forget()  # again: a thread may have read what was there until now
            self.reader.expected.clear()
        if not self.log.size:
            self.created_ms = now_ms
            self._first_timestamp = None
        self.indexes.end_truncation()
        self.reopen_to_appends()

    def truncate_at(self, position: int) -> None:
        """Remove everything from `position` on, without changing the indexes (recovery has just rebuilt them).

        Raises OffsetOverflow, with nothing changed, if the batches there are only too far from the base offset.
        """
        if self._overflows_at(position):
            raise OffsetOverflow(f"{self} at position {position}")
        self.times.forget()
        self.log.truncate_to(position)

    def has_overflow(self) -> bool:
        """Whether a batch's offset is too far from the base for an index (KAFKA-6264). Reads headers up to that one."""
        for header, position in self.log.valid_headers():
            if header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
                return self._overflows_at(position)
        return False

    def _overflows_at(self, position: int) -> bool:
        """Whether the batch at `position` overflows, and the next one follows it.

        A single such offset may be a flipped bit.
        """
        try:
            first, second = islice(self.log.headers(position), 2)
        except (ValueError, CorruptMessage, UnsupportedForMessageFormat):
            return False
        is_beyond = first.header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET
        return is_beyond and second.header.base_offset >= first.header.next_offset

    # -- closing -----------------------------------------------------------------------------------

    def close_to_appends(self) -> None:
        """End the appends: add the largest timestamp to the time index, truncate the files to their content."""
        self.indexes.close_to_appends()
        self.log.close_to_appends()

    def reopen_to_appends(self) -> None:
        """Make the segment the active one (again): after loading, or when later segments were truncated."""
        self.log.is_closed = False

    def close(self) -> None:
        """Close the files, of an active segment after `close_to_appends`."""
        if not self.log.is_closed:
            self.close_to_appends()
        self.close_files()

    def close_files(self) -> None:
        """Close the descriptors and release the mapping, without writing."""
        self.indexes.close()
        self.log.close()

    def open_existing(self) -> None:
        """Open log and indexes for reading only. Raises FileNotFoundError."""
        self.log.open_existing()
        self.indexes.open_existing()

    # -- the files together ------------------------------------------------------------------------

    def path_of(self, extension: str) -> Path:
        """The current path of the file with this extension."""
        return self.files.path_of(extension)

    def flush(self, *, with_indexes: bool = True) -> None:
        """Wait until the segment's files are on the disk; the indexes, too, `with_indexes`. [any thread]"""
        self.files.flush(with_indexes=with_indexes)

    def change_suffix(self, suffix: str) -> None:
        """Rename all files, the log file first; a missing index file is ignored."""
        self.files.change_suffix(suffix)
        self.indexes.update_paths()

    def move_to(self, directory: Path) -> None:
        """Adopt the paths in `directory`: the log's directory has been renamed."""
        self.files.directory = directory
        self.indexes.update_paths()

    def delete_files(self) -> None:
        """Delete the files. [any thread, once no reader can find the segment]"""
        self.close_files()
        self.files.unlink()
