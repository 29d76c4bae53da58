"""Append rules of one producer in one log: sequences, epochs and transaction markers (KIP-98, KIP-890).

A producer numbers its records per partition from 0 on; after 2**31 - 1 the sequence wraps to 0. The last five batches
of each producer are kept (a producer has at most five requests in flight), so that a batch that is sent again is
recognised, and the response has the offsets that it got the first time:

    epoch of the batch   its first sequence        what happens
    older                any                       InvalidProducerEpoch
    same                 a batch of the last five  duplicate: nothing is written
    same                 last sequence + 1         written
    same                 any other                 OutOfOrderSequenceNumber
    newer                0                         written; earlier batches are dropped
    newer                any other                 OutOfOrderSequenceNumber
    unknown producer     any                       written: what it wrote before may have been deleted

Source: ProducerStateEntry and ProducerAppendInfo of Kafka 4.3.1.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.protocol.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from ottla.protocol.records.control import EndTransactionMarker
from ottla.storage.appending import AppendOrigin

#: Batches of a producer that are recognised as duplicates: its largest `max.in.flight.requests.per.connection`.
BATCHES_RETAINED: Final = 5

_SEQUENCE_MASK: Final = 2**31 - 1
_MAX_EPOCH: Final = 2**15 - 1
_new_tuple = tuple.__new__


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
        """The sequence number of the batch's first record."""
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """The state of one producer in one log."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    #: Epoch of the coordinator that ended its last transaction here; None before the first.
    coordinator_epoch: int | None = None
    last_timestamp: int = NO_TIMESTAMP
    #: Where its open transaction begins; None without one.
    transaction_first_offset: int | None = None
    #: Batches of `epoch`, oldest first; empty if the epoch is known from a marker only.
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_RETAINED))
    #: At least so many of the newest batches have ascending last sequences; so if it is all of them, a larger one than
    #: the newest is none of theirs.
    ascending_count: int = field(default=0, compare=False, repr=False)

    @property
    def last_sequence(self) -> int | None:
        """The sequence number of the producer's last record; None if no batch is known."""
        return self.batches[-1].last_sequence if self.batches else None

    def enter_epoch(self, epoch: int) -> None:
        """Adopt the epoch. Sequences restart at 0 in each epoch, so batches of another one are dropped.

        A follower's may go back: it adopts whatever its leader has written.
        """
        if self.epoch != epoch:
            self.batches.clear()
            self.ascending_count = 0
            self.epoch = epoch

    def extend(self, batches: Iterable[BatchMetadata]) -> None:
        """Record batches of the same epoch that were written."""
        self.batches.extend(batches)
        self.ascending_count = 0

    def next_batch(
        self, *, epoch: int, first_sequence: int, last_offset: int, offset_delta: int, timestamp: int
    ) -> BatchMetadata | None:
        """The metadata of a data batch that directly follows the last one, outside of transactions; else None.

        None for every batch that could be wrong, or that changes more than the list of batches. The caller has
        checked that it is neither transactional nor a control batch. Changes nothing: see `add_next`.
        """
        batches = self.batches
        if epoch != self.epoch or self.transaction_first_offset is not None or not batches:
            return None
        newest = batches[-1][0]  # `last_sequence`, without a look-up of the name
        if first_sequence != (newest + 1) & _SEQUENCE_MASK:
            return None
        last_sequence = (first_sequence + offset_delta) & _SEQUENCE_MASK
        if self.ascending_count < len(batches) or last_sequence <= newest:
            for batch in batches:
                if batch.last_sequence == last_sequence:
                    return (
                        None  # sequences have wrapped, or a follower copied unusual ones: perhaps a duplicate
                    )
        # Not by a call of the class: 0.15 us instead of 0.25.
        return _new_tuple(BatchMetadata, (last_sequence, last_offset, offset_delta, timestamp))

    def copied_batch(
        self, *, epoch: int, first_sequence: int, last_offset: int, offset_delta: int, timestamp: int
    ) -> BatchMetadata | None:
        """On a follower: the metadata of a data batch of the same epoch, outside of transactions; else None.

        The leader has checked its sequence. Changes nothing: see `add_next`.
        """
        if epoch != self.epoch or self.transaction_first_offset is not None or first_sequence < 0:
            return None
        last_sequence = (first_sequence + offset_delta) & _SEQUENCE_MASK
        return _new_tuple(BatchMetadata, (last_sequence, last_offset, offset_delta, timestamp))

    def add_next(self, batch: BatchMetadata) -> None:
        """The result of `next_batch` or `copied_batch` is written."""
        batches, count = self.batches, self.ascending_count
        if not batches or batch[0] <= batches[-1][0]:
            self.ascending_count = 1
        elif count < BATCHES_RETAINED:
            self.ascending_count = count + 1
        batches.append(batch)
        self.last_timestamp = batch[3]  # by numbers: 0.06 us less

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch with the same epoch and sequences, if it was written before."""
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
    """The batches of one producer in one append, checked against its known state."""

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
        """Check and add a data batch that has its final offsets."""
        state = self.state
        epoch = header.producer_epoch
        if epoch < state.epoch:
            self._refuse_epoch(epoch, f"older than {state.epoch}")
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, header.base_sequence)
        assert epoch >= state.epoch or self._origin is AppendOrigin.REPLICATION, (state, epoch)
        state.enter_epoch(epoch)
        delta, timestamp = header.last_offset_delta, header.max_timestamp
        # Not by a call of the class: 0.15 us instead of 0.35.
        state.batches.append(
            _new_tuple(BatchMetadata, (header.last_sequence, header.base_offset + delta, delta, timestamp))
        )
        state.last_timestamp = timestamp
        if header.attributes & TRANSACTIONAL_FLAG:
            if state.transaction_first_offset is None:
                state.transaction_first_offset = header.base_offset
                self.transactions.append(OngoingTransaction(state.producer_id, header.base_offset))
        elif state.transaction_first_offset is not None:
            raise InvalidTxnState(
                f"Producer {state.producer_id} has an open transaction, but the batch is not transactional"
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
                f"Producer {state.producer_id}, epoch {epoch}: sequence {first_sequence}, "
                f"but the next one is {expected}"
            )

    def end_transaction(
        self, marker: EndTransactionMarker, *, epoch: int, offset: int, transaction_version: int
    ) -> CompletedTransaction | None:
        """Check and add a marker at `offset`; returns None if no transaction was open."""
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
        """Since transaction version 2 a marker bumps the epoch, so that a late one cannot end the next (KIP-890)."""
        current = self.state.epoch
        if transaction_version < 2:
            if epoch < current:
                self._refuse_epoch(epoch, f"older than {current}")
        elif epoch <= current:
            # The same marker again: its transaction has ended, so writing the marker again is harmless. The epoch
            # cannot grow beyond the largest one, so a marker of that epoch is always accepted.
            is_repeated = epoch == current and (
                self.state.transaction_first_offset is None or epoch == _MAX_EPOCH
            )
            if not is_repeated:
                self._refuse_epoch(epoch, f"not newer than {current}")

    def _refuse_epoch(self, epoch: int, why: str) -> None:
        # A follower appends what its leader wrote, without checks.
        if self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(f"Epoch {epoch} of producer {self.state.producer_id} is {why}")

    def _refuse_coordinator(self, coordinator_epoch: int) -> None:
        if self._origin is not AppendOrigin.REPLICATION:
            raise TransactionCoordinatorFenced(
                f"Producer {self.state.producer_id}: coordinator epoch {coordinator_epoch} is older than "
                f"{self.state.coordinator_epoch}"
            )
