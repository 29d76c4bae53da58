"""SegmentTimes: the largest timestamp of a segment, read from its records, before something is deleted by it.

The headers of batches claim their largest timestamps. A leader checks those of small batches, and trusts the others
(`storage.validation`). A header that claims too little would have retention, in either tier, delete records that are newer:

    claimed by the headers   when the file was last written   is older than `kept_from_ms`
    newer                    any                              no
    older                    before `kept_from_ms`            yes: the records have been there for as long
    older                    since then                       as the records say, which are read: a thread does so

So the records are read only of what was written long after its time, as a mirror or a restore does. A record whose
timestamp is after its append counts as of its append.

What was read serves look-ups by time, too, which read some themselves (`LOOK_UP_BYTES`): a batch whose records are later
than its header claims is found by them.

Source: none in Kafka, which checks every record when it is produced.
"""

from contextlib import suppress
from typing import Final, NamedTuple

from protocol.errors import CorruptMessage, KafkaError, UnsupportedForMessageFormat
from protocol.records.batch import NO_TIMESTAMP
from protocol.records.record import times_of
from storage.file_records import FileRecords
from storage.validation import FULLY_CHECKED

__all__ = ["LOOK_UP_BYTES", "SegmentTimes"]

#: Most bytes of batches that one look-up by time reads for what their headers do not say.
LOOK_UP_BYTES: Final = 8 * 1024 * 1024
#: Most batches of a segment that are kept with the times of their records.
_MAX_UNDERSTATED: Final = 10_000


class _Known(NamedTuple):
    """What the batches before a position have."""

    position: int = 0
    largest: int = NO_TIMESTAMP
    #: Position and largest timestamp of the batches whose headers claim less, in their order.
    understated: tuple[tuple[int, int], ...] = ()


_NOTHING: Final = _Known()


class SegmentTimes:
    """What is known of the records' timestamps, from a thread that has read them."""

    __slots__ = ("_generation", "_known")

    def __init__(self) -> None:
        self._generation = 0
        #: With the generation of what it is true. Replaced as a whole.
        self._known = (0, _NOTHING)

    def forget(self) -> None:
        """The segment has been truncated."""
        self._generation += 1

    @property
    def known(self) -> _Known:
        """What has been read."""
        generation, known = self._known
        return known if generation == self._generation else _NOTHING

    def read(self, log: FileRecords, *, end: int) -> int:
        """The largest timestamp of all records in `log`, the file of the segment, before `end`. [any thread]

        Only whole batches are read, so that `end` may be anywhere. Cost: 0.3 us for each record that was not read before,
        and its decompression.
        """
        generation, known = self._generation, self.known
        if known.position < end:
            known = _read_on(known, log, end)
            self._known = (generation, known)
        return known.largest


def _read_on(known: _Known, log: FileRecords, end: int) -> _Known:
    """A batch whose records cannot be read counts as what its header claims; what follows a damaged header is not read."""
    position, largest, found = known
    understated = list(found)
    try:
        for header, at in log.headers(position, end=end):
            claimed = real = header.max_timestamp
            if header.records_count > FULLY_CHECKED and not header.is_log_append_time:
                with suppress(KafkaError):
                    times = times_of(log.pread(at, header.size_bytes))
                    real = max(claimed, max((timestamp for _, timestamp in times), default=claimed))
            largest = max(largest, real)
            if real > claimed and len(understated) < _MAX_UNDERSTATED:
                understated.append((at, real))
            position = at + header.size_bytes
    except (CorruptMessage, UnsupportedForMessageFormat):
        pass  # a part of a batch, or damage
    return _Known(position, largest, tuple(understated))
