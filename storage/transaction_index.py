"""The transaction index of one segment: its aborted transactions, for read_committed consumers (KIP-98).

`.txnindex`: entries of 34 bytes in the order of their markers: version 0, producer id, first offset,
last offset (of the marker), last stable offset when the marker was written. The file exists only if there
are entries.

Source: TransactionIndex and AbortedTxn of Kafka.
"""

from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed consumer skips."""

    producer_id: int
    first_offset: int
    #: Of the abort marker, inclusive.
    last_offset: int
    #: What the last stable offset became when the marker was written.
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of one segment, kept in memory after the first read: they are few."""

    def __init__(self, path: Path, *, base_offset: int, files: Files, is_new: bool) -> None:
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self._entries: list[AbortedTransaction] | None = [] if is_new else None
        #: Whether the file has been written since it was opened.
        self.is_changed = False

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All entries. Raises CorruptIndex."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def check(self) -> None:
        """Read the file, if there is one. Raises CorruptIndex if it is not a valid transaction index."""
        if self._entries is None and self._files.exists(self.path):
            self._entries = self._read()

    def _read(self) -> list[AbortedTransaction]:
        try:
            data = self._files.read(self.path)
        except FileNotFoundError:
            return []
        if len(data) % _ENTRY.size:
            raise CorruptIndex(f"{self.path} has {len(data)} bytes, not a multiple of {_ENTRY.size}")
        entries: list[AbortedTransaction] = []
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION or entry.last_offset < self.base_offset or entry.producer_id < 0:
                raise CorruptIndex(f"{self.path}: invalid entry of version {version}: {entry}")
            if entries and entry.last_offset <= entries[-1].last_offset:
                raise CorruptIndex(
                    f"{self.path}: the entries are not in offset order: {entries[-1]}, {entry}"
                )
            entries.append(entry)
        return entries

    def add(self, transaction: AbortedTransaction) -> None:
        """Add an entry and write it to the file. Raises CorruptIndex unless its marker is after all others."""
        entries = self.entries
        if entries and transaction.last_offset <= entries[-1].last_offset:
            raise CorruptIndex(f"{self.path}: {transaction} does not follow the last entry, {entries[-1]}")
        self._write(_ENTRY.pack(_VERSION, *transaction), at=len(entries))
        entries.append(transaction)

    def _write(self, data: bytes, *, at: int) -> None:
        self.is_changed = True
        fd = self._files.open(self.path, write=True, create=True)
        try:
            self._files.pwrite(fd, data, at * _ENTRY.size)
            self._files.truncate(fd, at * _ENTRY.size + len(data))
        finally:
            self._files.close(fd)

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at or after `offset`."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        assert kept == self.entries[: len(kept)], (str(self.path), offset)
        if len(kept) != len(self.entries):
            self._write(b"", at=len(kept))
            self._entries = kept

    def reset(self) -> None:
        """Remove all entries, before the index is rebuilt."""
        self._entries = []
        if self._files.exists(self.path):
            self._write(b"", at=0)

    def aborted_in(self, first_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that overlap [first_offset, end_offset), and whether no later segment can have more.

        They are complete at an entry whose last stable offset is at or after `end_offset`: every transaction that
        ends later begins at or after that one.
        """
        found = []
        for entry in self.entries:
            if entry.last_offset >= first_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False
