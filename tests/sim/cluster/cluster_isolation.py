"""The committed records that each isolation level shows (KIP-98), computed by the judge from a ledger's
batches.

    offset    0  1  2  3  4  5  6  7  8
    batch     a  P  b  Q  A  P  c  C  ...     P, Q: of transactions; A aborts that of P, C commits that of Q

    read_uncommitted   0 1 2 3 5 6        everything but markers
    read_committed     0 2 3              up to the last stable offset, 5, as the second transaction of P is open

A ledger that begins in the middle of a log, or goes on behind a gap, does not know which transactions are open
there: what it first sees of a producer may be the rest of one. That is so until the first marker of this producer.

A gap in the log of a leader that was elected uncleanly may have had markers. The transactions that are open before the
gap are ended by their producers' next markers there, and by those in the gap on a replica that has these.

Nothing of the brokers' own producer state is used.
"""

from dataclasses import dataclass, field

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import end_transaction_marker
from ottla.storage.transaction_index import AbortedTransaction


@dataclass(slots=True, eq=False)
class _Transaction:
    first_offset: int
    #: The offset of its last record so far.
    last_offset: int
    #: Whether nothing of it is before `first_offset`.
    is_whole: bool = True
    #: None while it is open.
    is_committed: bool | None = None


@dataclass(slots=True)
class Isolation:
    """The records that each isolation level shows of one ledger, computed from its batches in their order."""

    #: producer id -> its transaction without a marker
    _open: dict[int, _Transaction] = field(default_factory=dict)
    #: offset -> the transaction of the record there
    _of: dict[int, _Transaction] = field(default_factory=dict)
    markers: set[int] = field(default_factory=set)
    #: In the order of their markers; without the last stable offset.
    aborted: list[AbortedTransaction] = field(default_factory=list)
    #: The offsets of the markers of those that may have begun before their first offset.
    begun_before: set[int] = field(default_factory=set)
    #: The offsets, before a gap, of transactions that were open there: one replica may show them, and another one not.
    ambiguous: set[int] = field(default_factory=set)
    committed_count: int = 0
    #: Whether there is nothing before the batches; else the producers that have had a marker since.
    _knows_all: bool = True
    _known: set[int] = field(default_factory=set)

    def skip(self) -> None:
        """Skip offsets: everything before the next batch is unknown, since transactions may have begun and
        ended there."""
        self._open.clear()
        self._known.clear()
        self._knows_all = False

    def cross_gap(self) -> None:
        """Continue behind a gap, in which transactions may have ended on other replicas."""
        of_open = [id(each) for each in self._open.values()]
        self.ambiguous.update(offset for offset, each in self._of.items() if id(each) in of_open)

    def add(self, header: BatchHeader, data: memoryview) -> None:
        """The next committed batch."""
        if header.is_control:
            self.markers.add(header.base_offset)
            self._end(header, data)
        elif header.is_transactional:
            is_whole = self._knows_all or header.producer_id in self._known
            transaction = self._open.setdefault(
                header.producer_id, _Transaction(header.base_offset, header.last_offset, is_whole)
            )
            transaction.last_offset = header.last_offset
            self._of.update(dict.fromkeys(range(header.base_offset, header.next_offset), transaction))

    def _end(self, header: BatchHeader, data: memoryview) -> None:
        marker = end_transaction_marker(data) if header.producer_id >= 0 else None
        transaction = self._open.pop(header.producer_id, None)
        self._known.add(header.producer_id)
        if marker is None or transaction is None:
            return
        transaction.is_committed = marker.is_commit
        if marker.is_commit:
            self.committed_count += 1
        else:
            if not transaction.is_whole:
                self.begun_before.add(header.base_offset)
            self.aborted.append(
                AbortedTransaction(header.producer_id, transaction.first_offset, header.base_offset, -1)
            )

    def last_stable_offset(self, end: int, log_start_offset: int) -> int:
        """The first offset of an open transaction, or where the ledger ends.

        One whose records are all deleted counts no more: a replica that was restarted since does not know it.
        """
        known = (each.first_offset for each in self._open.values() if each.last_offset >= log_start_offset)
        return min(known, default=end)

    def is_visible(self, offset: int, *, is_read_committed: bool) -> bool:
        """Whether readers of this level get the record there. Precondition for read_committed: it is decided."""
        if offset in self.markers:
            return False
        transaction = self._of.get(offset)
        return not is_read_committed or transaction is None or transaction.is_committed is True
