"""Producer state of a log: idempotence, open transactions and expiry of producer ids (KIP-98).

The rules are in `producer_append`. An append has three steps, so that only written batches are recorded:
`analyze` checks, the log writes, `apply` records. A transaction passes through these states:

    first batch           a marker ends it              the high watermark passes the marker
    ongoing ------------> unreplicated ---------------> stable: nothing is kept

Pure: the log that owns this reads and writes the `.snapshot` files (`producer_snapshot`).

Source: ProducerStateManager of Kafka 4.3.1, and UnifiedLog.analyzeAndValidateProducerState.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from ottla.protocol.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from ottla.protocol.records.control import end_transaction_marker
from ottla.storage.appending import AppendOrigin
from ottla.storage.producer_append import (
    BatchMetadata,
    CompletedTransaction,
    OngoingTransaction,
    ProducerAppend,
    ProducerState,
)

__all__ = [
    "NO_UPDATES", "BatchMetadata", "CompletedTransaction", "ProducerState", "ProducerStateManager", "ProducerUpdates",
]  # fmt: skip

#: How long after `transaction.max.timeout.ms` an open transaction counts as hanging.
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
#: Default of `producer.id.expiration.ms`.


class ProducerUpdates(NamedTuple):
    """The changes of producer state that an append makes, once it is written."""

    appends: tuple[ProducerAppend, ...] = ()
    completed: tuple[CompletedTransaction, ...] = ()
    #: The batch is already in the log, at these offsets: nothing is written, the other fields are empty.
    duplicate: BatchMetadata | None = None
    #: In place of `appends`: the next batch of a known producer, with no other change.
    next_batch: tuple[ProducerState, BatchMetadata] | None = None


NO_UPDATES: Final = ProducerUpdates()
_first_offset: Final = attrgetter("first_offset")


def default_producer_id_expiration_ms() -> int:
    """Kafka's default of `producer.id.expiration.ms`."""
    return 24 * 60 * 60 * 1000


class ProducerStateManager:
    """The producers of one log.

    Invariant: every offset of an ongoing or unreplicated transaction is before `map_end_offset`.
    """

    def __init__(
        self, *, producer_id_expiration_ms: Callable[[], int] = default_producer_id_expiration_ms
    ) -> None:
        """`producer_id_expiration_ms` is called at each use: the configuration may be altered."""
        self._producer_id_expiration_ms = producer_id_expiration_ms
        #: Producer state by producer id; others read it only. Not a property: each append asks for it.
        self.producers: dict[int, ProducerState] = {}
        #: By first offset, ascending: transactions begin in the order of offsets.
        self._ongoing: dict[int, OngoingTransaction] = {}
        #: By first offset, unordered: ended by a marker that the high watermark has not passed.
        self._unreplicated: dict[int, CompletedTransaction] = {}
        #: End, exclusive, of the part of the log that this state covers.
        self.map_end_offset = 0
        #: Offset of the last snapshot that was written or loaded.
        self.last_snapshot_offset = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no producer state, so that no snapshot file is needed."""
        return not self.producers and not self._unreplicated

    # Appends

    def analyze(
        self,
        batches: Iterable[tuple[BatchHeader, memoryview | bytes]],
        *,
        origin: AppendOrigin,
        transaction_version: int = 0,
    ) -> ProducerUpdates:
        """Check batches, with their final offsets, that are about to be written in this order. Changes nothing.

        `transaction_version` is that of the coordinator that sends a marker; 0 for everything that followers copy.
        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, InvalidTxnState, TransactionCoordinatorFenced; and
        InvalidRecord for a producer's control batch that is not a transaction marker.
        """
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTransaction] = []
        for header, batch in batches:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            append = appends.get(producer_id)
            if append is None:
                known = self.producers.get(producer_id)
                if known is not None and origin is AppendOrigin.CLIENT:
                    # A client's append is one batch, and nearly always the next one: 2 us instead of 5.
                    next_batch = _next_batch(known, header)
                    if next_batch is not None:
                        return ProducerUpdates(next_batch=(known, next_batch))
                    duplicate = known.duplicate_of(header)
                    if duplicate is not None:
                        return ProducerUpdates(duplicate=duplicate)
                append = appends[producer_id] = ProducerAppend(producer_id, known, origin)
            if not header.attributes & CONTROL_FLAG:
                append.add_batch(header)
                continue
            marker = end_transaction_marker(batch)
            if marker is not None:
                ended = append.end_transaction(
                    marker,
                    epoch=header.producer_epoch,
                    offset=header.base_offset,
                    transaction_version=transaction_version,
                )
                if ended is not None:
                    completed.append(ended)
        if not appends:
            return NO_UPDATES
        return ProducerUpdates(tuple(appends.values()), tuple(completed))

    def apply(self, updates: ProducerUpdates) -> None:
        """Record what was written. Completed transactions stay open until `complete`.

        Offsets are not asserted on: a replay reads headers whose base offset no CRC covers.
        """
        if updates.next_batch is not None:
            producer, batch = updates.next_batch
            producer.add_next(batch)
            return
        for append in updates.appends:
            new = append.state
            state = self.producers.get(new.producer_id)
            if state is None:
                self.producers[new.producer_id] = new
            else:
                state.enter_epoch(new.epoch)
                state.extend(new.batches)
                state.coordinator_epoch = new.coordinator_epoch
                state.last_timestamp = new.last_timestamp
                state.transaction_first_offset = new.transaction_first_offset
        # A follower's append has batches of several producers in turn: by producer they are not in the order of
        # offsets.
        begun = [transaction for append in updates.appends for transaction in append.transactions]
        for transaction in sorted(begun, key=_first_offset):
            self._ongoing[transaction.first_offset] = transaction

    # Transactions

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset after the completion, for the transaction index. Called before `complete`.

        In a follower's append the same producer may have begun its next transaction, which Kafka leaves out: the index
        would say that no later one is aborted in what is before the next transaction of another producer.
        """
        for first_offset in self._ongoing:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """The marker is in the log; the transaction stays unstable until the high watermark passes the marker."""
        assert completed.first_offset in self._ongoing, f"{completed=} was not begun"
        del self._ongoing[completed.first_offset]
        self._unreplicated[completed.first_offset] = completed

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker is not below the high watermark; None without.

        The last stable offset is this one where it is below the high watermark, else the high watermark (KIP-98).
        """
        first = next(iter(self._ongoing), None)
        if self._unreplicated:
            unreplicated = min(self._unreplicated)
            return unreplicated if first is None else min(first, unreplicated)
        return first

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of an open transaction (one without a marker); None without any."""
        return next(iter(self._ongoing), None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Let transactions become stable whose marker is below the high watermark."""
        if self._unreplicated:
            self._forget_unreplicated(high_watermark)

    def _forget_unreplicated(self, offset: int) -> None:
        for first_offset in [
            first for first, done in self._unreplicated.items() if done.last_offset < offset
        ]:
            del self._unreplicated[first_offset]

    def has_late_transaction(self, now_ms: int, *, max_transaction_timeout_ms: int) -> bool:
        """Whether the oldest open transaction has been open for too long (a hanging transaction)."""
        oldest = next(iter(self._ongoing.values()), None)
        state = None if oldest is None else self.producers.get(oldest.producer_id)
        if state is None or state.last_timestamp <= 0:
            return False
        return now_ms - state.last_timestamp > max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    # Expiry and truncation

    def _is_expired(self, state: ProducerState, now_ms: int) -> bool:
        return (
            state.transaction_first_offset is None
            and now_ms - state.last_timestamp >= self._producer_id_expiration_ms()
        )

    def remove_expired(self, now_ms: int) -> int:
        """Remove producers that have written nothing for `producer.id.expiration.ms`; returns how many were removed."""
        expired = [number for number, state in self.producers.items() if self._is_expired(state, now_ms)]
        for number in expired:
            del self.producers[number]
        return len(expired)

    def on_log_start_offset(self, log_start_offset: int, *, latest_snapshot_offset: int | None) -> None:
        """Remove completed transactions before the new log start offset; producers are kept."""
        assert log_start_offset >= 0, log_start_offset
        self._forget_unreplicated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = (
            log_start_offset if latest_snapshot_offset is None else latest_snapshot_offset
        )

    def reset(self, offset: int, *, last_snapshot_offset: int | None = None) -> None:
        """Remove all state, as of `offset`: before a snapshot is loaded, or when the log is restarted there."""
        assert offset >= 0, offset
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = offset
        self.last_snapshot_offset = offset if last_snapshot_offset is None else last_snapshot_offset

    def sibling(self) -> "ProducerStateManager":
        """An empty producer state with the same configuration, for the same log."""
        return ProducerStateManager(producer_id_expiration_ms=self._producer_id_expiration_ms)

    def replace(self, other: "ProducerStateManager") -> None:
        """Adopt the state of `other`, which must not be used afterwards."""
        assert other is not self, self.map_end_offset
        self.producers, self._ongoing, self._unreplicated = (
            other.producers,
            other._ongoing,
            other._unreplicated,
        )
        self.map_end_offset, self.last_snapshot_offset = other.map_end_offset, other.last_snapshot_offset

    def load(self, producers: Iterable[ProducerState], *, offset: int, now_ms: int) -> None:
        """Replace all state by a snapshot of `offset` (see ottla.storage.producer_snapshot)."""
        self.reset(offset)
        for state in producers:
            if not self._is_expired(state, now_ms):
                self.producers[state.producer_id] = state
        transactions = [
            OngoingTransaction(state.producer_id, state.transaction_first_offset)
            for state in self.producers.values()
            if state.transaction_first_offset is not None
        ]
        for transaction in sorted(transactions, key=_first_offset):
            self._ongoing[transaction.first_offset] = transaction


def _next_batch(known: ProducerState, header: BatchHeader) -> BatchMetadata | None:
    if header.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG):
        return None
    return known.next_batch(
        epoch=header.producer_epoch,
        first_sequence=header.base_sequence,
        last_offset=header.base_offset + header.last_offset_delta,
        offset_delta=header.last_offset_delta,
        timestamp=header.max_timestamp,
    )
