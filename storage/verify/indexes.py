"""Verification of one segment's offset index and time index against its batches.

Kafka 4 writes exact entries in both: an offset index entry has the position and the last offset of one batch; a
time index entry has the timestamp and the last offset of the first batch that reached a new maximum. The last
entry of a closed segment's time index has the largest timestamp of the whole segment.
"""

from pathlib import Path
from struct import Struct

from ottla.protocol.records.batch import BatchHeader
from ottla.storage.files import Files
from ottla.storage.index import OffsetIndex, TimeIndex
from ottla.storage.verify.findings import Findings


def read_entries(
    path: Path, entry: Struct, files: Files, findings: Findings, *, is_active: bool
) -> list[tuple[int, int]] | None:
    """The entries of an index file; None if there is no file.

    The active segment's file may end with zeros: preallocated room for more entries.
    """
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    excess = len(data) % entry.size
    if excess and not (is_active and not data[-excess:].strip(b"\0")):
        findings.error(
            path, f"{len(data)} bytes are no multiple of {entry.size}", position=len(data) - excess
        )
    entries = [(first, second) for first, second in entry.iter_unpack(data[: len(data) - excess])]
    if is_active:
        while entries and entries[-1] == (0, 0):
            entries.pop()
    return entries


class OffsetIndexCheck:
    """`.index`: is passed all batches of its segment in order, then `finish` is called."""

    def __init__(
        self, path: Path, files: Files, findings: Findings, *, base_offset: int, is_active: bool
    ) -> None:
        self._path, self._findings, self._base_offset = path, findings, base_offset
        entries = read_entries(path, OffsetIndex.ENTRY, files, findings, is_active=is_active)
        self._is_missing = entries is None
        self._has_batches = False
        #: By position in the log: (number of the entry, offset).
        self._pending: dict[int, tuple[int, int]] = {}
        last = (-1, -1)
        for number, (relative, position) in enumerate(entries or ()):
            if relative <= last[0] or position <= last[1]:
                self._error(number, f"({relative}, {position}) does not follow {last}")
            else:
                last = (relative, position)
            self._pending.setdefault(position, (number, base_offset + relative))

    def _error(self, number: int, message: str) -> None:
        self._findings.error(
            self._path, f"entry {number}: {message}", position=number * OffsetIndex.ENTRY.size
        )

    def on_batch(self, header: BatchHeader, position: int) -> None:
        """The next batch of the segment."""
        self._has_batches = True
        if position not in self._pending:
            return
        number, offset = self._pending.pop(position)
        if offset != header.last_offset:
            self._error(
                number, f"offset {offset}, but the batch at {position} ends with {header.last_offset}"
            )

    def finish(self) -> None:
        """Finish the checks: remaining entries are errors, as no batch has confirmed them."""
        if self._is_missing and self._has_batches:
            self._findings.error(self._path, "the index is missing")
        for number, (position, (entry, _)) in enumerate(self._pending.items()):
            if number == 0:
                more = f" (and {len(self._pending) - 1} more such entries)" if len(self._pending) > 1 else ""
                self._error(entry, f"no batch begins at byte {position} of the log{more}")


class TimeIndexCheck:
    """`.timeindex`: is passed all batches of its segment in order, then `finish` is called."""

    def __init__(
        self, path: Path, files: Files, findings: Findings, *, base_offset: int, is_active: bool
    ) -> None:
        self._path, self._findings, self._is_active = path, findings, is_active
        entries = read_entries(path, TimeIndex.ENTRY, files, findings, is_active=is_active)
        self._is_missing = entries is None
        self._max_timestamp = -1
        self._has_batches = False
        #: By offset: (number of the entry, timestamp).
        self._pending: dict[int, tuple[int, int]] = {}
        self._last_timestamp = -1
        last = (-1, -1)
        for number, (timestamp, relative) in enumerate(entries or ()):
            if timestamp <= last[0] or relative <= last[1]:
                self._error(number, f"({timestamp}, {relative}) does not follow {last}")
            else:
                last = (timestamp, relative)
            self._pending.setdefault(base_offset + relative, (number, timestamp))
            self._last_timestamp = timestamp

    def _error(self, number: int, message: str) -> None:
        self._findings.error(self._path, f"entry {number}: {message}", position=number * TimeIndex.ENTRY.size)

    def on_batch(self, header: BatchHeader) -> None:
        """The next batch of the segment."""
        self._has_batches = True
        if header.max_timestamp <= self._max_timestamp:
            return
        self._max_timestamp = header.max_timestamp
        if header.last_offset in self._pending:
            number, timestamp = self._pending.pop(header.last_offset)
            if timestamp != header.max_timestamp:
                self._error(
                    number,
                    f"timestamp {timestamp}, but the batch that ends with offset {header.last_offset} "
                    f"has {header.max_timestamp}",
                )

    def finish(self) -> None:
        """Finish the checks: remaining entries are errors, as no batch has confirmed them."""
        if self._is_missing and self._has_batches:
            self._findings.error(self._path, "the index is missing")
        elif not self._is_active and self._last_timestamp != self._max_timestamp:
            self._findings.error(
                self._path,
                f"ends with timestamp {self._last_timestamp}, the segment's largest is {self._max_timestamp}",
            )
        for number, (offset, (entry, timestamp)) in enumerate(self._pending.items()):
            if number == 0:
                more = f" (and {len(self._pending) - 1} more such entries)" if len(self._pending) > 1 else ""
                self._error(
                    entry,
                    f"timestamp {timestamp} at offset {offset}: no batch that ends there is the first "
                    f"with its timestamp{more}",
                )
