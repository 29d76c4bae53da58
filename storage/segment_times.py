"""SegmentTimes: the timestamps of a segment's records, as far as they are known, whatever the headers of its batches claim.

A leader checks the claims of small batches, and trusts the others (`storage.validation`). A header that claims too little
would have retention, in either tier, delete records that are newer:

    claimed by the headers   when the file was last written   is older than `kept_from_ms`
    newer                    any                              no
    older                    before `kept_from_ms`            yes: the records have been there for as long
    older                    since then                       as the records say, which are read: a thread does so

So for retention the records are read only of what was written long after its time, as a mirror or a restore does. A record
whose timestamp is after its append counts as of its append.

A look-up by time relies on what is known only: it reads the records up to the one that it finds, once. What it keeps of a
segment is small: up to where it has read, the largest timestamp until there, and where headers claim too little, of which
there may be one entry a MiB. Headers that claim too much do no harm, since a batch is opened before it is an answer.

Source: none in Kafka, which checks every record when it is produced.
"""

from typing import Final, NamedTuple

from protocol.errors import CorruptMessage, KafkaError, UnsupportedForMessageFormat
from protocol.records.batch import NO_TIMESTAMP, BatchHeader, batches, read_header
from protocol.records.record import latest_time, payload_of, times_of
from storage.file_records import FileRecords

__all__ = ["PIECE_BYTES", "STRETCH_BYTES", "SegmentTimes"]

#: Bytes of records, decompressed, that a look-up by time reads before it gives its thread to the next one.
PIECE_BYTES: Final = 8 * 1024 * 1024
#: Batches whose headers claim too little are found by the part of the file in which they begin.
STRETCH_BYTES: Final = 1024 * 1024
#: Bytes of one read of the file; more only for a batch that is larger.
_READ_BYTES: Final = 256 * 1024


class Known(NamedTuple):
    """What the batches before a position have."""

    position: int = 0
    largest: int = NO_TIMESTAMP
    #: Parts of `STRETCH_BYTES` with batches whose headers claim too little: the position of the first one, and the largest
    #: timestamp of all of them. In their order, not overlapping.
    understated: tuple[tuple[int, int], ...] = ()


class SegmentTimes:
    """What is known of the timestamps of a segment's records, from threads that have read them."""

    __slots__ = ("_begin", "_known", "generation", "start_offset")

    def __init__(self, *, start_offset: int = 0, position: int = 0) -> None:
        """Of the records at or after `start_offset`, whose batch is at `position`."""
        self.start_offset = start_offset
        self._begin = Known(position)
        #: Incremented by a truncation.
        self.generation = 0
        #: With the generation of what it is true. Replaced as a whole.
        self._known = (0, self._begin)

    def forget(self) -> None:
        """The segment has been truncated."""
        self.generation += 1

    @property
    def known(self) -> Known:
        """What has been read."""
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
        """Read on, up to `end` or about `most_bytes` of records; returns the number of bytes that were read. [any thread]

        `end` is between two batches. Memory: what is read of the file at a time, or one batch, decompressed.
        """
        generation, known = self.generation, self.known
        known, read_bytes = _read_on(known, log, end, most_bytes=most_bytes, start_offset=self.start_offset)
        if generation == self.generation and known.position > self.known.position:
            self._known = (generation, known)
        return read_bytes


def _read_on(
    known: Known, log: FileRecords, end: int, *, most_bytes: int, start_offset: int
) -> tuple[Known, int]:
    """A batch whose records cannot be read counts as what its header claims; what follows a damaged header as nothing."""
    position, largest, found = known
    understated = list(found)
    wanted, read_bytes = _READ_BYTES, 0
    try:
        while position < end and read_bytes < most_bytes:
            view = memoryview(log.pread(position, min(wanted, end - position)))
            first = position
            for header, batch in batches(view):
                real, size_bytes = _largest_of(header, batch, start_offset)
                read_bytes += size_bytes
                largest = max(largest, real)
                if real > header.max_timestamp:
                    if understated and position < understated[-1][0] + STRETCH_BYTES:
                        understated[-1] = understated[-1][0], max(real, understated[-1][1])
                    else:
                        understated.append((position, real))
                position += header.size_bytes
                if read_bytes >= most_bytes:
                    break
            wanted = _READ_BYTES
            if position == first:
                wanted = read_header(view).size_bytes
                if wanted <= len(view) or position + wanted > end:
                    position = end  # damage, or a file that is shorter
    except (CorruptMessage, UnsupportedForMessageFormat):
        position = end
    return Known(position, largest, tuple(understated)), read_bytes


def _largest_of(header: BatchHeader, batch: memoryview, start_offset: int) -> tuple[int, int]:
    """The largest timestamp of the batch's records from `start_offset` on, -1 without any; and the bytes that were read."""
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
