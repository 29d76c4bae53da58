"""SegmentTimes: the known timestamps of a segment's records, whatever the headers of its batches claim.

A leader checks the claims of small batches, and trusts the others (`ottla.storage.validation`). A header that
claims too little would have retention, in either tier, delete records that are newer:

    claimed by the headers   when the file was last written   is older than `kept_from_ms`
    newer                    any                              no
    older                    before `kept_from_ms`            yes: the records have been there for as long
    older                    since then                       as the records say, which are read: a thread does so

So for retention the records are read only of what was written long after its time, as a mirror or a restore
does. A record whose timestamp is after its append counts as of its append.

A look-up by time relies on what is known only: it reads the records up to the one that it finds, once. What it
keeps of a segment is small: up to where it has read, the largest timestamp until there, and where headers claim
too little, of which there may be one entry a MiB. Headers that claim too much do no harm, since a batch is
opened before it is an answer.

A copy in the remote tier gets the times of its records (`times_of_file`): its metadata the largest one, and its
time index what the headers do not say. So a look-up in a copy relies on both, in any broker, without reading more.

Source: none in Kafka, which checks every record when it is produced.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ottla.protocol.errors import CorruptMessage, KafkaError, UnsupportedForMessageFormat
from ottla.protocol.records.batch import NO_TIMESTAMP, BatchHeader, batches, read_header
from ottla.protocol.records.record import latest_time, payload_of, times_of
from ottla.storage.file_records import FileRecords
from ottla.storage.files import Files
from ottla.storage.index import TimeIndex

__all__ = [
    "PIECE_BYTES",
    "STRETCH_BYTES",
    "FileTimes",
    "Known",
    "SegmentFile",
    "SegmentTimes",
    "times_of_file",
]

#: Bytes of records, decompressed, that a look-up by time reads before it gives its thread to the next one: some
#: 0.3 to 1 ms. While a thread reads times, the event loop waits for the interpreter's lock: 6 ms in the median
#: with pieces of 8 MiB.
PIECE_BYTES: Final = 512 * 1024
#: Batches whose headers claim too little are found by the part of the file in which they begin.
#: `ottla.storage.kept_times` keeps such parts: another size needs another version of its file.
STRETCH_BYTES: Final = 1024 * 1024
#: Bytes of one read of the file; more only for a batch that is larger.
_READ_BYTES: Final = 128 * 1024


class Known(NamedTuple):
    """The largest timestamp of the batches before a position, and the parts whose headers claim too little."""

    position: int = 0
    largest: int = NO_TIMESTAMP
    #: Parts of `STRETCH_BYTES` with batches whose headers claim too little: the position of the first one, and
    #: the largest timestamp of all of them. In their order, not overlapping.
    understated: tuple[tuple[int, int], ...] = ()
    #: The position of the last batch.
    last: int = -1


class SegmentTimes:
    """The known timestamps of a segment's records, from threads that have read them."""

    __slots__ = ("_begin", "_known", "generation", "start_offset")

    def __init__(self, *, start_offset: int = 0, position: int = 0) -> None:
        """Cover the records at or after `start_offset`, whose batch is at `position`; nothing is known yet."""
        self.start_offset = start_offset
        self._begin = Known(position)
        #: Incremented by a truncation.
        self.generation = 0
        #: With the generation of what it is true. Replaced as a whole.
        self._known = (0, self._begin)

    def forget(self) -> None:
        """Forget the known timestamps: the segment has been truncated."""
        self.generation += 1

    @property
    def known(self) -> Known:
        """The timestamps that have been read; after a truncation, none."""
        generation, known = self._known
        return known if generation == self.generation else self._begin

    def read(self, log: FileRecords, *, end: int) -> int:
        """The largest timestamp of all records in `log`, the file of the segment, before `end`. [any thread]

        Cost: 0.2 us for each record that was not read before, and its decompression.
        """
        while self.known.position < end:
            self.read_piece(log, end=end, most_bytes=PIECE_BYTES)
        return self.known.largest

    def read_piece(self, log: FileRecords, *, end: int, most_bytes: int) -> int:
        """Read on, up to `end` or about `most_bytes` of records; returns the number of bytes read. [any thread]

        `end` is between two batches. Memory: what is read of the file at a time, or one batch, decompressed.
        """
        assert most_bytes > 0, most_bytes
        generation, known = self.generation, self.known
        with log.for_one_use() as fd:
            known, read_bytes = _read_on(
                known, partial(log.pread_by, fd), end, most_bytes=most_bytes, start_offset=self.start_offset
            )
        self.keep(known, generation)
        return read_bytes

    def keep(self, known: Known, generation: int) -> None:
        """Keep what was known in this `generation`, if that is more. [any thread]"""
        if generation == self.generation and known.position > self.known.position:
            self._known = (generation, known)


def _read_on(
    known: Known, pread: Callable[[int, int], bytes], end: int, *, most_bytes: int, start_offset: int
) -> tuple[Known, int]:
    """Read about `most_bytes` of records more, up to `end`; returns the known timestamps and the bytes read.

    A batch whose records cannot be read has the timestamp that its header claims. What follows a damaged header has
    none.
    """
    position, largest, found, last = known
    understated = list(found)
    read_bytes = 0
    for at, header, batch in _batches(pread, position, end):
        last = at
        real, size_bytes = _largest_of(header, batch, start_offset)
        largest = max(largest, real)
        if real > header.max_timestamp:
            if understated and at < understated[-1][0] + STRETCH_BYTES:
                understated[-1] = understated[-1][0], max(real, understated[-1][1])
            else:
                understated.append((at, real))
        read_bytes += size_bytes
        if read_bytes >= most_bytes:
            position = at + header.size_bytes
            break
    else:
        position = end
    assert position <= end, (position, end)
    return Known(position, largest, tuple(understated), last), read_bytes


def _batches(
    pread: Callable[[int, int], bytes], position: int, end: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The batches of a file with their positions, up to `end` or to damage. `pread`: of a position and a size."""
    wanted = _READ_BYTES
    try:
        while position < end:
            view, first = memoryview(pread(position, min(wanted, end - position))), position
            for header, batch in batches(view):
                yield position, header, batch
                position += header.size_bytes
            wanted = _READ_BYTES
            if position == first:
                wanted = read_header(view).size_bytes
                if wanted <= len(view) or position + wanted > end:
                    return  # damage, or a file that is shorter
    except (CorruptMessage, UnsupportedForMessageFormat):
        return


def _largest_of(header: BatchHeader, batch: memoryview, start_offset: int) -> tuple[int, int]:
    """The largest timestamp of the batch's records from `start_offset` on, -1 without any; and the bytes read."""
    if header.is_log_append_time and header.base_offset >= start_offset:
        return (header.max_timestamp if header.records_count else NO_TIMESTAMP), len(batch)
    try:
        payload = payload_of(header, batch)
        if header.base_offset >= start_offset:
            return latest_time(payload, header), len(payload)
        times = (timestamp for offset, timestamp in times_of(batch) if offset >= start_offset)
        return max(times, default=NO_TIMESTAMP), len(payload)
    except KafkaError:
        return header.max_timestamp, len(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """The log file of a closed segment."""

    path: Path
    base_offset: int
    size_bytes: int
    #: The least number of bytes between two entries of its indexes.
    index_interval_bytes: int


class FileTimes(NamedTuple):
    """The timestamps of a segment's records."""

    #: -1: no record has one.
    largest: int
    #: The time index by the records, as a file; None: the one by the headers claims no less.
    time_index: bytes | None


def times_of_file(segment: SegmentFile, files: Files, *, on_piece: Callable[[], None]) -> FileTimes:
    """Read the times of all records of a segment. [any thread or process]

    `on_piece` is called before each read, and may raise. Cost: as `SegmentTimes.read`. Raises OSError.
    """

    def pread(position: int, size: int) -> bytes:
        on_piece()
        return files.pread(fd, size, position)

    entries = bytearray()
    largest = last_written = NO_TIMESTAMP
    relative = since_entry = 0
    is_understated = False
    fd = files.open(segment.path)
    try:
        # The entries are those of `SegmentIndexes`, but for the timestamps.
        for _, header, batch in _batches(pread, 0, segment.size_bytes):
            real, _ = _largest_of(header, batch, 0)
            is_understated |= real > header.max_timestamp
            if real > largest:
                largest, relative = real, header.last_offset - segment.base_offset
            if since_entry > segment.index_interval_bytes:
                if largest > last_written:
                    entries += TimeIndex.ENTRY.pack(largest, relative)
                    last_written = largest
                since_entry = 0
            since_entry += header.size_bytes
    finally:
        files.close(fd)
    if largest > last_written:
        entries += TimeIndex.ENTRY.pack(largest, relative)
    return FileTimes(largest, bytes(entries) if is_understated else None)
