"""What a log remembers of its producers: duplicates, gaps, stale epochs and open transactions (KIP-98).

A producer numbers its records, for each partition, from 0 on and on past 2**31 - 1 to 0 again. Of each producer the
last five batches are kept (a producer has at most five requests in flight), so that a batch that is sent once more is
recognised and answered with the offsets it got the first time:

    epoch of the batch   its first sequence        what happens
    older                any                       InvalidProducerEpoch
    same                 a batch of the last five  duplicate: nothing is written
    same                 last sequence + 1         written
    same                 any other                 OutOfOrderSequenceNumber
    newer                0                         written; earlier batches are forgotten
    newer                any other                 OutOfOrderSequenceNumber
    producer not known   any                       written: what it wrote before may have been deleted

An append goes in three steps, so that nothing is remembered that was not written: `analyze` decides, the log writes,
`apply` remembers. Pure: the log that owns this reads and writes the `.snapshot` files.

Source: ProducerStateManager, ProducerStateEntry and ProducerAppendInfo of Kafka 4.3.1.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from protocol.records.batch import (
    CONTROL_FLAG,
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from protocol.records.control import EndTransactionMarker, end_transaction_marker
from storage.append_origin import AppendOrigin

#: Batches of a producer that can be recognised: its largest `max.in.flight.requests.per.connection`.
BATCHES_RETAINED: Final = 5
#: How much later than `transaction.max.timeout.ms` an open transaction counts as hanging.
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
#: Default of `producer.id.expiration.ms`.
PRODUCER_ID_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000

_SEQUENCE_MASK: Final = 2**31 - 1
_MAX_EPOCH: Final = 2**15 - 1


class BatchMetadata(NamedTuple):
    """One batch that a producer wrote."""

    last_sequence: int
    last_offset: int
    #: Last offset minus first.
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """Sequence of the batch's first record."""
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """What is known of one producer in one log."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    #: Of the coordinator that ended its last transaction here; None before the first.
    coordinator_epoch: int | None = None
    last_timestamp: int = NO_TIMESTAMP
    #: Where its open transaction begins; None without one.
    transaction_first_offset: int | None = None
    #: Of `epoch`, oldest first; empty if all we know comes from markers.
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_RETAINED))

    @property
    def last_sequence(self) -> int | None:
        """Sequence of its last record."""
        return self.batches[-1].last_sequence if self.batches else None

    def enter_epoch(self, epoch: int) -> None:
        """Sequences begin anew in each epoch: batches of another one are no duplicates any more."""
        if self.epoch != epoch:
            self.batches.clear()
            self.epoch = epoch

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch of these sequences, if it was written before."""
        if header.producer_epoch == self.epoch:
            last_sequence = header.last_sequence
            delta = header.last_offset_delta
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == delta:
                    return batch
        return None


class OngoingTransaction(NamedTuple):
    """A transaction whose end is not in the log yet."""

    producer_id: int
    first_offset: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppend:
    """The batches of one producer in one append, checked against what is known of it."""

    __slots__ = ("_known", "_origin", "state", "transactions")

    def __init__(self, producer_id: int, known: ProducerState | None, origin: AppendOrigin) -> None:
        self._known = known
        self._origin = origin
        #: What `apply` adds to the known state: only the batches of this append.
        self.state = (
            ProducerState(producer_id=producer_id)
            if known is None
            else ProducerState(
                producer_id=producer_id,
                epoch=known.epoch,
                coordinator_epoch=known.coordinator_epoch,
                last_timestamp=known.last_timestamp,
                transaction_first_offset=known.transaction_first_offset,
            )
        )
        #: Transactions that begin in this append.
        self.transactions: list[OngoingTransaction] = []

    def add_batch(self, header: BatchHeader) -> None:
        """A data batch, with the offsets it is to have."""
        state = self.state
        epoch = header.producer_epoch
        if epoch < state.epoch:
            self._refuse_epoch(epoch, f"older than {state.epoch}")
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, header.base_sequence)
        state.enter_epoch(epoch)
        state.batches.append(
            BatchMetadata(
                header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp
            )
        )
        state.last_timestamp = header.max_timestamp
        if header.attributes & TRANSACTIONAL_FLAG:
            if state.transaction_first_offset is None:
                state.transaction_first_offset = header.base_offset
                self.transactions.append(OngoingTransaction(state.producer_id, header.base_offset))
        elif state.transaction_first_offset is not None:
            raise InvalidTxnState(
                f"Producer {state.producer_id} has an open transaction; this batch is not part of one"
            )

    def _check_sequence(self, epoch: int, first_sequence: int) -> None:
        state = self.state
        known = self._known
        if known is None:
            # The first batch of this producer, or all that it wrote has been deleted.
            return
        if epoch != state.epoch:
            expected = 0
        else:
            last_sequence = state.last_sequence
            if last_sequence is None and epoch == known.epoch:
                last_sequence = known.last_sequence
            expected = 0 if last_sequence is None else (last_sequence + 1) & _SEQUENCE_MASK
        if first_sequence != expected:
            raise OutOfOrderSequenceNumber(
                f"Producer {state.producer_id}, epoch {epoch}: sequence {first_sequence} where {expected} is next"
            )

    def end_transaction(
        self, marker: EndTransactionMarker, *, epoch: int, offset: int, transaction_version: int
    ) -> CompletedTransaction | None:
        """A marker at `offset`; None if there was nothing to end."""
        state = self.state
        self._check_marker_epoch(epoch, transaction_version)
        if state.coordinator_epoch is not None and state.coordinator_epoch > marker.coordinator_epoch:
            self._refuse_coordinator(marker.coordinator_epoch)
        completed = None
        if state.transaction_first_offset is not None:
            completed = CompletedTransaction(
                state.producer_id, state.transaction_first_offset, offset, not marker.is_commit
            )
        state.enter_epoch(epoch)
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp = marker.timestamp
        state.transaction_first_offset = None
        return completed

    def _check_marker_epoch(self, epoch: int, transaction_version: int) -> None:
        """Since transaction version 2 each marker has a new epoch, so that a late one cannot end the next (KIP-890)."""
        current = self.state.epoch
        if transaction_version < 2:
            if epoch < current:
                self._refuse_epoch(epoch, f"older than {current}")
        elif epoch <= current:
            # The same marker once more: its transaction is over, writing it again does no harm. The epoch cannot
            # grow beyond the last one, so there it is let through in any case.
            is_repeated = epoch == current and (
                self.state.transaction_first_offset is None or epoch == _MAX_EPOCH
            )
            if not is_repeated:
                self._refuse_epoch(epoch, f"not newer than {current}")

    def _refuse_epoch(self, epoch: int, why: str) -> None:
        # A follower copies what its leader wrote, whatever it is.
        if self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(f"Epoch {epoch} of producer {self.state.producer_id} is {why}")

    def _refuse_coordinator(self, coordinator_epoch: int) -> None:
        if self._origin is not AppendOrigin.REPLICATION:
            raise TransactionCoordinatorFenced(
                f"Coordinator epoch {coordinator_epoch} is older than {self.state.coordinator_epoch}"
            )


class ProducerUpdates(NamedTuple):
    """What an append will change, once it is written."""

    appends: tuple[ProducerAppend, ...] = ()
    completed: tuple[CompletedTransaction, ...] = ()
    #: The batch is already in the log, here: write nothing, and forget the rest of this.
    duplicate: BatchMetadata | None = None


NO_UPDATES: Final = ProducerUpdates()


class ProducerStateManager:
    """The producers of one log.

    Invariant: every offset of an ongoing or unreplicated transaction is before `map_end_offset`.
    """

    def __init__(self, *, producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> None:
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._producers: dict[int, ProducerState] = {}
        #: By first offset, ascending: transactions begin in the order of offsets.
        self._ongoing: dict[int, OngoingTransaction] = {}
        #: By first offset, in no order: ended by a marker that the high watermark has not passed.
        self._unreplicated: dict[int, CompletedTransaction] = {}
        #: End, exclusive, of the log that this knows.
        self.map_end_offset = 0
        #: End of the log as of the last snapshot that was written or loaded.
        self.last_snapshot_offset = 0

    @property
    def producers(self) -> Mapping[int, ProducerState]:
        """By producer id; to look at only."""
        return self._producers

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known, so that a snapshot is not worth a file."""
        return not self._producers and not self._unreplicated

    # Appends

    def analyze(
        self,
        batches: Iterable[tuple[BatchHeader, memoryview | bytes]],
        *,
        origin: AppendOrigin,
        transaction_version: int = 0,
    ) -> ProducerUpdates:
        """Check batches, with their final offsets, that are about to be written in this order.

        `transaction_version` is the one of the coordinator that sends a marker; 0 for all that followers copy.
        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, InvalidTxnState, TransactionCoordinatorFenced; and
        InvalidRecord for a control batch of a producer that is no marker. Changes nothing.
        """
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTransaction] = []
        for header, batch in batches:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            append = appends.get(producer_id)
            if append is None:
                known = self._producers.get(producer_id)
                if known is not None and origin is AppendOrigin.CLIENT:
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
        """Remember what was written. Completed transactions stay open until `complete`."""
        for append in updates.appends:
            new = append.state
            state = self._producers.get(new.producer_id)
            if state is None:
                self._producers[new.producer_id] = new
            else:
                state.enter_epoch(new.epoch)
                state.batches.extend(new.batches)
                state.coordinator_epoch = new.coordinator_epoch
                state.last_timestamp = new.last_timestamp
                state.transaction_first_offset = new.transaction_first_offset
            for transaction in append.transactions:
                self._ongoing[transaction.first_offset] = transaction

    # Transactions

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset that the completion will leave, for the transaction index; before `complete`."""
        for transaction in self._ongoing.values():
            if transaction.producer_id != completed.producer_id:
                return transaction.first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """The marker is in the log; the transaction stays unstable until the high watermark passes it."""
        assert completed.first_offset in self._ongoing, f"{completed=} was not begun"
        del self._ongoing[completed.first_offset]
        self._unreplicated[completed.first_offset] = completed

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is undecided, or decided above the high watermark; None without any."""
        first = next(iter(self._ongoing), None)
        if self._unreplicated:
            unreplicated = min(self._unreplicated)
            return unreplicated if first is None else min(first, unreplicated)
        return first

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of a transaction without a marker; None without any."""
        return next(iter(self._ongoing), None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions whose marker is below it are stable now."""
        if self._unreplicated:
            self._forget_unreplicated(high_watermark)

    def _forget_unreplicated(self, offset: int) -> None:
        for first_offset in [
            first for first, done in self._unreplicated.items() if done.last_offset < offset
        ]:
            del self._unreplicated[first_offset]

    def has_late_transaction(self, now_ms: int, *, max_transaction_timeout_ms: int) -> bool:
        """Whether the oldest open transaction has been left without its end for too long (a hanging one)."""
        oldest = next(iter(self._ongoing.values()), None)
        state = None if oldest is None else self._producers.get(oldest.producer_id)
        if state is None or state.last_timestamp <= 0:
            return False
        return now_ms - state.last_timestamp > max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    # Expiry and truncation

    def _is_expired(self, state: ProducerState, now_ms: int) -> bool:
        return (
            state.transaction_first_offset is None
            and now_ms - state.last_timestamp >= self.producer_id_expiration_ms
        )

    def remove_expired(self, now_ms: int) -> int:
        """Forget producers that have been silent for `producer.id.expiration.ms`; how many there were."""
        expired = [number for number, state in self._producers.items() if self._is_expired(state, now_ms)]
        for number in expired:
            del self._producers[number]
        return len(expired)

    def on_log_start_offset(self, log_start_offset: int, *, latest_snapshot_offset: int | None) -> None:
        """The log begins later now; producers stay known, their transactions before it do not matter any more."""
        self._forget_unreplicated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = (
            log_start_offset if latest_snapshot_offset is None else latest_snapshot_offset
        )

    def reset(self, offset: int, *, last_snapshot_offset: int | None = None) -> None:
        """Know nothing, as of `offset`: before a snapshot is loaded, or when a log begins anew there."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = offset
        self.last_snapshot_offset = offset if last_snapshot_offset is None else last_snapshot_offset

    def load(self, producers: Iterable[ProducerState], *, offset: int, now_ms: int) -> None:
        """Take over a snapshot of `offset` (see storage.producer_snapshot) in place of all that is known."""
        self.reset(offset)
        for state in producers:
            if not self._is_expired(state, now_ms):
                self._producers[state.producer_id] = state
        transactions = [
            OngoingTransaction(state.producer_id, state.transaction_first_offset)
            for state in self._producers.values()
            if state.transaction_first_offset is not None
        ]
        for transaction in sorted(transactions, key=lambda transaction: transaction.first_offset):
            self._ongoing[transaction.first_offset] = transaction
