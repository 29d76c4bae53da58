"""SegmentTimes: the largest timestamp of a segment, read from its records, before something is deleted by it.

The headers of batches claim their largest timestamps. A leader checks those of small batches, and trusts the others
(`storage.validation`). A header that claims too little would have retention, in either tier, delete records that are newer:

    claimed by the headers   when the file was last written   is older than `kept_from_ms`
    newer                    any                              no
    older                    before `kept_from_ms`            yes: the records have been there for as long
    older                    since then                       as the records say, which are read: a thread does so

So the records are read only of what was written long after its time, as a mirror or a restore does. A record whose
timestamp is after its append counts as of its append.

Source: none in Kafka, which checks every record when it is produced.
"""

from contextlib import suppress

from protocol.errors import CorruptMessage, KafkaError, UnsupportedForMessageFormat
from protocol.records.batch import NO_TIMESTAMP
from protocol.records.record import times_of
from storage.file_records import FileRecords
from storage.validation import FULLY_CHECKED

__all__ = ["SegmentTimes", "largest_in"]


class SegmentTimes:
    """What is known of the records' timestamps, from a thread that has read them."""

    __slots__ = ("_generation", "_known")

    def __init__(self) -> None:
        self._generation = 0
        #: The generation, and up to which position the records' largest timestamp is known. Replaced as a whole.
        self._known = (0, 0, NO_TIMESTAMP)

    def forget(self) -> None:
        """The segment has been truncated."""
        self._generation += 1

    def known(self) -> tuple[int, int]:
        """A position, and the largest timestamp of the records before it."""
        generation, position, largest = self._known
        return (position, largest) if generation == self._generation else (0, NO_TIMESTAMP)

    def read(self, log: FileRecords, *, end: int) -> int:
        """The largest timestamp of all records in `log`, the file of the segment, before `end`. [any thread]

        Cost: 0.3 us for each record that was not read before, and its decompression.
        """
        generation = self._generation
        position, largest = self.known()
        if position < end:
            largest = max(largest, largest_in(log, position=position, end=end))
            self._known = (generation, end, largest)
        return largest


def largest_in(log: FileRecords, *, position: int = 0, end: int) -> int:
    """The largest timestamp of the records in the batches from `position` on; -1 for none. [any thread]

    A batch whose records cannot be read counts as what its header claims; what follows a damaged header is not read.
    """
    largest = NO_TIMESTAMP
    with suppress(CorruptMessage, UnsupportedForMessageFormat):
        for header, at in log.headers(position, end=end):
            largest = max(largest, header.max_timestamp)
            if header.records_count > FULLY_CHECKED and not header.is_log_append_time:
                with suppress(KafkaError):
                    times = times_of(log.pread(at, header.size_bytes))
                    largest = max(largest, max((timestamp for _, timestamp in times), default=largest))
    return largest
