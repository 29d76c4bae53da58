"""Verification of a log's batches: each one sound, and all in offset order."""

from pathlib import Path

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import NO_TIMESTAMP, BatchHeader, crc_is_valid
from ottla.protocol.records.record import records
from ottla.storage.index import MAX_RELATIVE_OFFSET
from ottla.storage.verify.findings import Findings

#: The message of a gap; in a compacted log it is no error.
_GAP = "offsets {} to {} are missing (as compaction leaves it; this log is not known to be compacted)"


class BatchCheck:
    """Is passed all segments with their batches in offset order.

    `may_have_gaps`: the log is compacted. `is_deep`: the records are checked, too (compressed ones are decompressed).
    """

    def __init__(self, findings: Findings, *, may_have_gaps: bool, is_deep: bool) -> None:
        self._findings, self._may_have_gaps, self._is_deep = findings, may_have_gaps, is_deep
        self._log = Path()
        self._base_offset = 0
        #: End of the log so far, exclusive; None before the first segment.
        self.end_offset: int | None = None

    def begin_segment(self, log: Path, base_offset: int) -> None:
        """Start the next segment."""
        self._log, self._base_offset = log, base_offset
        end = self.end_offset
        if end is not None and base_offset < end:
            self._findings.error(log, f"begins at {base_offset}, before the segment before it ends ({end})")
        elif end is not None and base_offset > end and not self._may_have_gaps:
            self._findings.error(log, _GAP.format(end, base_offset - 1), offset=end)
        self.end_offset = max(end or 0, base_offset)

    def on_batch(self, header: BatchHeader, batch: memoryview, position: int) -> bool:
        """Check the next batch; returns False if it is corrupt."""
        assert self.end_offset is not None, "begin_segment comes first"
        if not crc_is_valid(batch):
            self._error(header, position, "the batch's CRC is wrong")
            return False
        if header.last_offset_delta < 0 or header.records_count < 0:
            self._error(
                header, position, f"{header.records_count} records up to delta {header.last_offset_delta}"
            )
            return False
        if header.base_offset < self.end_offset:
            self._error(header, position, f"the offset goes back: {self.end_offset} was next")
        elif header.base_offset > self.end_offset and not self._may_have_gaps:
            self._error(header, position, _GAP.format(self.end_offset, header.base_offset - 1))
        if header.last_offset - self._base_offset > MAX_RELATIVE_OFFSET:
            self._error(header, position, "the offset is more than 2^31 from the segment's base")
        if header.records_count > header.last_offset_delta + 1:
            self._error(
                header,
                position,
                f"{header.records_count} records in {header.last_offset_delta + 1} offsets",
            )
        if self._is_deep:
            self._check_records(header, batch, position)
        self.end_offset = max(self.end_offset, header.next_offset)
        return True

    def _error(self, header: BatchHeader, position: int, message: str) -> None:
        self._findings.error(self._log, message, position=position, offset=header.base_offset)

    def _check_records(self, header: BatchHeader, batch: memoryview, position: int) -> None:
        last_offset, max_timestamp = header.base_offset - 1, NO_TIMESTAMP
        try:
            for record in records(batch):
                if not last_offset < record.offset <= header.last_offset:
                    self._error(header, position, f"a record of offset {record.offset} after {last_offset}")
                last_offset = record.offset
                max_timestamp = max(max_timestamp, record.timestamp)
        except KafkaError as error:
            self._error(header, position, f"its records cannot be read: {error}")
            return
        if header.records_count and max_timestamp != header.max_timestamp:
            self._error(
                header,
                position,
                f"has max timestamp {header.max_timestamp}, but that of its records is {max_timestamp}",
            )
