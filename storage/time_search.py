"""TimeSearch: a look-up by time in one log (ListOffsets), in pieces.

A header may claim too early a time, so the records up to the one that is found have to be read, once
(`ottla.storage.segment_times`). Of a large log that takes seconds. So a thread carries out one step after the
other, and does other work in between.

Source: none in Kafka, which reads one batch.
"""

from collections.abc import Callable

from ottla.storage.index import TimestampOffset
from ottla.storage.log_reader import LogReader


class TimeSearch:
    """A look-up by time in one log, which a thread carries out in steps.

    After a step that returns True, `found` is the record; None: there is none, or it was cancelled.
    """

    __slots__ = ("_is_cancelled", "_reader", "_timestamp", "found")

    def __init__(self, reader: LogReader, timestamp: int | None, *, is_cancelled: Callable[[], bool]) -> None:
        """The first record at or after a time in ms; None: the first one with the largest timestamp."""
        self._reader = reader
        self._timestamp = timestamp
        self._is_cancelled = is_cancelled
        self.found: TimestampOffset | None = None

    def step(self) -> bool:
        """Search on; whether that was all. [any thread, one at a time]

        Raises KafkaStorageError, InvalidRecord, CorruptMessage.
        """
        reader, timestamp = self._reader, self._timestamp
        if not self._is_cancelled() and not reader.read_times(timestamp):
            return False
        if timestamp is None:
            self.found = reader.max_timestamp_offset(is_cancelled=self._is_cancelled)
        else:
            self.found = reader.offset_for_timestamp(timestamp, is_cancelled=self._is_cancelled)
        return True
