"""Transactions during a cleaning: which ones still have records, while the cleaner reads a log in offset order.

A marker may be removed only when no record of its transaction is left: until then readers need it to know whether
the records are committed. Records of aborted transactions are removed at once.

Source: CleanedTransactionMetadata of Kafka.
"""

import heapq
from collections.abc import Iterable

from ottla.protocol.errors import InvalidRecord
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import ControlRecordType, control_type
from ottla.protocol.records.record import OF_MARKERS, records
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex


class CleanedTransactions:
    """Batches must be passed in offset order; aborted transactions that still have records are added to `index`."""

    def __init__(self, index: TransactionIndex | None = None) -> None:
        self.index = index
        #: A heap by first offset: aborted transactions that begin after the current position.
        self._coming: list[tuple[int, AbortedTransaction]] = []
        #: By producer id: the aborted transaction that is open at the current position, and whether it has records.
        self._aborted: dict[int, AbortedTransaction] = {}
        self._has_records: set[int] = set()
        #: Producer ids whose open transaction has records, and is not aborted.
        self._committed: set[int] = set()

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions of the following batches, from the transaction indexes.

        A transaction that spans several segments is added several times, which is harmless: the copies are ignored.
        Cost: O(log n) for each.
        """
        for transaction in aborted:
            heapq.heappush(self._coming, (transaction.first_offset, transaction))

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            _, transaction = heapq.heappop(self._coming)
            self._aborted.setdefault(transaction.producer_id, transaction)

    def is_data_obsolete(self, header: BatchHeader) -> bool:
        """Whether the data batch belongs to an aborted transaction, so that none of its records is needed."""
        assert not header.is_control, header
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._has_records.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_marker_obsolete(self, header: BatchHeader, batch: memoryview | bytes) -> bool:
        """Whether the control batch ends a transaction without records, or is empty."""
        assert header.is_control, header
        self._begin_up_to(header.last_offset)
        if not header.records_count:
            return True
        kind = _kind(batch)
        producer_id = header.producer_id
        if kind is ControlRecordType.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is not None and producer_id in self._has_records:
                self._has_records.discard(producer_id)
                if self.index is not None:
                    self.index.add(transaction)
                return False
            return True
        if kind is ControlRecordType.COMMIT:
            is_without_records = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_without_records
        return False


def _kind(batch: memoryview | bytes) -> ControlRecordType | None:
    try:
        return control_type(next(iter(records(batch, OF_MARKERS))).key)
    except InvalidRecord:
        return None
