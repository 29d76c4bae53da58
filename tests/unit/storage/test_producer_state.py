"""Sequences, epochs and transactions of producers: KIP-98's rules as tables, and a naive model beside them."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.protocol.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch, build_empty_batch
from ottla.protocol.records.control import EndTransactionMarker, build_end_transaction_marker
from ottla.protocol.records.record import Record
from ottla.storage import producer_snapshot
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.producer_state import (
    NO_UPDATES,
    BatchMetadata,
    CompletedTransaction,
    ProducerState,
    ProducerStateManager,
)
from ottla.storage.snapshot_files import apply_updates
from ottla.storage.transaction_index import TransactionIndex

NOW = 1_700_000_000_000
MAX_SEQUENCE = 2**31 - 1
CLIENT, COORDINATOR, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION


class Aborted(list):
    """The aborted transactions of a log, in the place of its transaction index."""

    add = list.append


class Log:
    """Producer state with the little of a log that it needs: an end offset, and a place for aborted transactions."""

    def __init__(self, *, transactions=None, **options):
        self.producers = ProducerStateManager(**options)
        self.transactions = Aborted() if transactions is None else transactions

    @property
    def end(self):
        return self.producers.map_end_offset

    def append(self, data, *, origin=CLIENT, transaction_version=0):
        """(first offset, last offset) of what was written, or of its duplicate."""
        found = list(batches(memoryview(data)))
        updates = self.producers.analyze(found, origin=origin, transaction_version=transaction_version)
        if updates.duplicate is not None:
            return updates.duplicate.first_offset, updates.duplicate.last_offset
        first = self.end
        apply_updates(self.producers, updates, self.transactions)
        self.producers.map_end_offset = found[-1][0].next_offset
        return first, self.end - 1

    def produce(self, sequence, count=1, *, producer=1, epoch=0, transactional=False, origin=CLIENT, at=NOW):
        return self.append(
            build_batch(
                [Record(self.end + i, at, b"k", b"v") for i in range(count)],
                base_offset=self.end,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=transactional,
            ),
            origin=origin,
        )

    def marker(self, *, commit=True, producer=1, epoch=0, coordinator=0, version=0, origin=COORDINATOR):
        return build_end_transaction_marker(
            EndTransactionMarker(commit, coordinator, NOW),
            producer_id=producer,
            producer_epoch=epoch,
            base_offset=self.end,
        )

    def end_transaction(self, *, version=0, origin=COORDINATOR, **fields):
        return self.append(self.marker(**fields), origin=origin, transaction_version=version)


# Sequences


@pytest.mark.parametrize(("epoch", "sequence", "count", "expected"), [
    # after epoch 3: sequences 0-1 at offset 0, 2-4 at 2, 5 at 5
    (3, 6, 2, (6, 7)),                      # the next one
    (3, 5, 1, (5, 5)),                      # duplicates: of the last,
    (3, 2, 3, (2, 4)),                      # of one before,
    (3, 0, 2, (0, 1)),                      # of the first
    (3, 2, 2, OutOfOrderSequenceNumber),    # begins like one, but is shorter
    (3, 7, 1, OutOfOrderSequenceNumber),    # a gap
    (3, 1, 1, OutOfOrderSequenceNumber),
    (4, 0, 1, (6, 6)),                      # a new epoch begins with sequence 0
    (4, 1, 1, OutOfOrderSequenceNumber),
    (4, 6, 1, OutOfOrderSequenceNumber),
    (2, 6, 1, InvalidProducerEpoch),        # an old one
    (2, 0, 2, InvalidProducerEpoch),        # is no duplicate either
])  # fmt: skip
def test_sequences(epoch, sequence, count, expected):
    log = Log()
    for first, how_many in ((0, 2), (2, 3), (5, 1)):
        log.produce(first, how_many, epoch=3)
    if isinstance(expected, tuple):
        assert log.produce(sequence, count, epoch=epoch) == expected
        return
    before = producer_snapshot.encode(log.producers.producers)
    with pytest.raises(expected):
        log.produce(sequence, count, epoch=epoch)
    assert producer_snapshot.encode(log.producers.producers) == before


# KIP-360
def test_a_producer_that_is_not_known_may_begin_anywhere():
    assert Log().produce(17) == (0, 0)


def test_five_batches_are_remembered():
    log = Log()
    for sequence in range(6):
        log.produce(sequence)
    assert [log.produce(sequence) for sequence in range(1, 6)] == [(n, n) for n in range(1, 6)]
    with pytest.raises(OutOfOrderSequenceNumber):
        log.produce(0)


def test_sequences_wrap_behind_int32():
    log = Log()
    log.produce(MAX_SEQUENCE - 1, 3)  # MAX - 1, MAX, 0
    assert log.produce(MAX_SEQUENCE - 1, 3) == (0, 2)
    assert log.produce(1) == (3, 3)
    log = Log()
    log.produce(MAX_SEQUENCE)
    assert log.produce(0) == (1, 1)


def test_duplicates_of_an_earlier_epoch_are_forgotten():
    log = Log()
    log.produce(0, epoch=0)
    log.produce(0, epoch=1)
    assert [batch.first_offset for batch in log.producers.producers[1].batches] == [1]


@pytest.mark.parametrize("origin", [REPLICATION, COORDINATOR])
def test_only_clients_sequences_are_checked(origin):
    log = Log()
    log.produce(0)
    assert log.produce(9, origin=origin) == (1, 1)
    assert log.produce(9, origin=origin) == (2, 2)  # nor are duplicates looked for


def test_followers_take_what_the_leader_wrote():
    log = Log()
    log.produce(0, epoch=5)
    assert log.produce(0, epoch=4, origin=REPLICATION) == (1, 1)
    with pytest.raises(InvalidProducerEpoch):
        log.produce(1, epoch=3, origin=COORDINATOR)


def test_batches_without_producer_change_nothing():
    log = Log()
    data = build_batch([Record(0, NOW, b"k", b"v")])
    found = list(batches(memoryview(data)))
    assert log.producers.analyze(found, origin=CLIENT) is NO_UPDATES
    assert log.producers.is_empty


def test_nothing_is_remembered_before_apply():
    log = Log()
    data = build_batch([Record(0, NOW, b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=0)
    found = list(batches(memoryview(data)))
    log.producers.analyze(found, origin=CLIENT)
    assert log.producers.is_empty
    assert log.producers.analyze(found, origin=CLIENT).duplicate is None


# Transactions


def test_a_transaction():
    log = Log()
    log.produce(0, 3, transactional=True)
    log.produce(3, 2, transactional=True)
    assert log.producers.first_unstable_offset == log.producers.first_undecided_offset == 0
    with pytest.raises(InvalidTxnState):
        log.produce(5)
    updates = log.producers.analyze(list(batches(memoryview(log.marker(commit=False)))), origin=COORDINATOR)
    assert updates.completed == (CompletedTransaction(1, 0, 5, is_aborted=True),)
    assert log.end_transaction(commit=False) == (5, 5)
    assert log.producers.first_undecided_offset is None
    assert log.producers.first_unstable_offset == 0
    log.producers.on_high_watermark(5)  # the marker is at 5: not below
    assert log.producers.first_unstable_offset == 0
    log.producers.on_high_watermark(6)
    assert log.producers.first_unstable_offset is None
    assert log.produce(5) == (6, 6)  # sequences go on, outside of a transaction as well


def test_last_stable_offset_after_a_completion():
    log = Log()
    log.produce(0, producer=1, transactional=True)
    log.produce(0, producer=2, transactional=True)
    log.produce(0, producer=3, transactional=True)
    first = CompletedTransaction(1, 0, 3, is_aborted=False)
    assert log.producers.last_stable_offset_after(first) == 1
    log.end_transaction(producer=1)
    assert log.producers.last_stable_offset_after(CompletedTransaction(3, 2, 4, is_aborted=True)) == 1
    log.end_transaction(producer=2)
    assert log.producers.last_stable_offset_after(CompletedTransaction(3, 2, 5, is_aborted=True)) == 6
    assert log.producers.first_unstable_offset == 0


def transactional(offset, producer, sequence):
    return build_batch(
        [Record(offset, NOW, b"k", b"v")],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def abort(offset, producer):
    return build_end_transaction_marker(
        EndTransactionMarker(False, 0, NOW), producer_id=producer, producer_epoch=0, base_offset=offset
    )


def test_transactions_that_begin_in_turn_in_one_fetch_of_a_follower():
    log = Log()
    fetched = [transactional(0, 1, 0), transactional(1, 2, 0), abort(2, 1), transactional(3, 1, 1)]
    log.append(b"".join(fetched), origin=REPLICATION)
    log.producers.on_high_watermark(4)
    assert log.producers.first_undecided_offset == 1
    assert log.producers.first_unstable_offset == 1


def test_the_next_transaction_of_the_producer_in_the_same_fetch_is_unstable_too():
    log = Log()
    fetched = [transactional(0, 1, 0), abort(1, 1), transactional(2, 1, 1), transactional(3, 2, 0)]
    log.append(b"".join(fetched), origin=REPLICATION)
    # Not 3: then the transaction of offset 2, if it is aborted, would not be looked for.
    assert [each.last_stable_offset for each in log.transactions] == [2]


def test_begun_and_ended_in_one_fetch_of_a_follower():
    log = Log()
    data = build_batch(
        [Record(0, NOW, b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    ) + build_end_transaction_marker(
        EndTransactionMarker(True, 0, NOW), producer_id=1, producer_epoch=0, base_offset=1
    )
    log.append(data, origin=REPLICATION)
    assert log.producers.first_undecided_offset is None
    assert log.producers.first_unstable_offset == 0


def test_a_marker_without_a_transaction_completes_nothing():
    log = Log()
    updates = log.producers.analyze(list(batches(memoryview(log.marker(epoch=4)))), origin=COORDINATOR)
    assert updates.completed == ()
    log.end_transaction(epoch=4)
    assert log.producers.producers[1].epoch == 4
    with pytest.raises(OutOfOrderSequenceNumber):
        log.produce(3, epoch=4)
    assert log.produce(0, epoch=4) == (1, 1)


@pytest.mark.parametrize(("version", "is_open", "epoch", "is_written"), [
    # current epoch 5
    (0, True,  4, False),
    (0, True,  5, True),
    (0, True,  6, True),
    (1, False, 5, True),
    (2, True,  5, False),  # KIP-890: each marker has an epoch of its own
    (2, True,  6, True),
    (2, False, 5, True),   # the same marker again
    (2, False, 4, False),
])  # fmt: skip
def test_epochs_of_markers(version, is_open, epoch, is_written):
    log = Log()
    log.produce(0, epoch=5, transactional=is_open)
    if is_written:
        log.end_transaction(epoch=epoch, version=version)
        assert log.producers.first_undecided_offset is None
    else:
        with pytest.raises(InvalidProducerEpoch):
            log.end_transaction(epoch=epoch, version=version)


def test_the_last_epoch_can_always_be_ended():
    log = Log()
    log.produce(0, epoch=32767, transactional=True)
    log.end_transaction(epoch=32767, version=2)
    assert log.producers.first_undecided_offset is None


def test_old_coordinators_are_fenced():
    log = Log()
    log.end_transaction(coordinator=3)
    with pytest.raises(TransactionCoordinatorFenced):
        log.end_transaction(coordinator=2)
    log.end_transaction(coordinator=2, origin=REPLICATION)
    log.end_transaction(coordinator=3)


def test_control_batches_of_producers_are_markers():
    log = Log()
    data = build_batch([Record(0, NOW, b"\0\0\0\2", b"")], producer_id=1, producer_epoch=0, is_control=True)
    with pytest.raises(InvalidRecord):
        log.append(data, origin=REPLICATION)
    marker = next(batches(memoryview(log.marker())))[0]
    log.append(build_empty_batch(marker), origin=REPLICATION)  # compacted away: nothing to do
    assert log.end == 1


def test_late_transactions():
    log = Log()
    log.produce(0, transactional=True)
    limit = NOW + 900_000 + 300_000
    assert not log.producers.has_late_transaction(limit, max_transaction_timeout_ms=900_000)
    assert log.producers.has_late_transaction(limit + 1, max_transaction_timeout_ms=900_000)
    log.end_transaction()
    assert not log.producers.has_late_transaction(limit + 1, max_transaction_timeout_ms=900_000)


# Expiry and truncation


def test_expiry():
    expiration_ms = [1000]
    log = Log(producer_id_expiration_ms=lambda: expiration_ms[0])
    log.produce(0, producer=1, at=NOW)
    log.produce(0, producer=2, at=NOW + 1)
    log.produce(0, producer=3, at=NOW, transactional=True)
    assert log.producers.remove_expired(NOW + 999) == 0
    assert log.producers.remove_expired(NOW + 1000) == 1
    assert set(log.producers.producers) == {2, 3}
    assert log.produce(77, producer=1) == (3, 3)
    expiration_ms[0] = 5  # producer.id.expiration.ms was altered
    assert log.producers.remove_expired(NOW + 1000) == 2
    assert set(log.producers.producers) == {3}


def test_log_start_offset_moves():
    log = Log()
    log.produce(0, transactional=True)
    log.end_transaction()
    log.producers.on_log_start_offset(1, latest_snapshot_offset=None)
    assert log.producers.first_unstable_offset == 0  # its marker, at 1, is still there
    log.producers.on_log_start_offset(5, latest_snapshot_offset=4)
    assert log.producers.first_unstable_offset is None
    assert (log.producers.map_end_offset, log.producers.last_snapshot_offset) == (5, 4)
    assert 1 in log.producers.producers


def test_reset():
    log = Log()
    log.produce(0, transactional=True)
    log.producers.reset(40)
    assert log.producers.is_empty
    assert log.producers.first_unstable_offset is None
    assert log.produce(9) == (40, 40)


# A naive model: what each producer wrote, in which transaction, and nothing clever


@dataclass
class Transaction:
    """`end` is the marker's offset; `stable_to`: up to where all transactions were decided then."""

    producer: int
    first: int
    end: int | None = None
    is_aborted: bool = False
    stable_to: int | None = None


@dataclass
class Written:
    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # sequence, count, first offset
    transaction: Transaction | None = None


class Sequences(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.directory = Path(mkdtemp())
        self.log = Log(transactions=self.transaction_index(is_new=True))
        self.model: dict[int, Written] = {}
        self.transactions: list[Transaction] = []
        #: Of each data offset, in order: its producer, and its transaction if it has one.
        self.offsets: dict[int, tuple[int, Transaction | None]] = {}
        self.high_watermark = 0
        #: Markers before it are known to be replicated.
        self.replicated_to = 0

    def teardown(self):
        shutil.rmtree(self.directory)

    def transaction_index(self, *, is_new):
        return TransactionIndex(self.directory / "0.txnindex", base_offset=0, files=Files(), is_new=is_new)

    def expected(self, producer, epoch, sequence, count, *, transactional):
        known = self.model.get(producer)
        if known is None:
            return "write"
        if epoch < known.epoch:
            return InvalidProducerEpoch
        if epoch == known.epoch:
            for old_sequence, old_count, offset in known.batches[-5:]:
                if (old_sequence, old_count) == (sequence, count):
                    return offset, offset + count - 1
        if sequence != (self.next_sequence(known) if epoch == known.epoch else 0):
            return OutOfOrderSequenceNumber
        return InvalidTxnState if known.transaction and not transactional else "write"

    def next_sequence(self, known):
        if not known.batches:
            return 0
        last_sequence, last_count, _ = known.batches[-1]
        return (last_sequence + last_count) % 2**31

    @rule(
        producer=st.integers(1, 3),
        epoch=st.integers(0, 2),
        count=st.integers(1, 3),
        sequence=st.sampled_from([0, 1, 2, MAX_SEQUENCE]),
        transactional=st.booleans(),
    )
    def anything(self, producer, epoch, count, sequence, transactional):
        self.produce(producer, epoch, sequence, count, transactional=transactional)

    @rule(producer=st.integers(1, 3), count=st.integers(1, 3), transactional=st.booleans())
    def the_next(self, producer, count, transactional):
        known = self.model.get(producer)
        if known is None:
            self.produce(producer, 0, MAX_SEQUENCE - 5, count, transactional=transactional)
        else:
            self.produce(producer, known.epoch, self.next_sequence(known), count, transactional=transactional)

    @rule(producer=st.integers(1, 3), back=st.integers(1, 8))
    def once_more(self, producer, back):
        known = self.model.get(producer)
        if known is not None and len(known.batches) >= back:
            sequence, count, _ = known.batches[-back]
            self.produce(producer, known.epoch, sequence, count, transactional=known.transaction is not None)

    def produce(self, producer, epoch, sequence, count, *, transactional):
        expected = self.expected(producer, epoch, sequence, count, transactional=transactional)
        end = self.log.end
        fields = {"producer": producer, "epoch": epoch, "transactional": transactional}
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.log.produce(sequence, count, **fields)
            assert self.log.end == end
        elif expected == "write":
            assert self.log.produce(sequence, count, **fields) == (end, end + count - 1)
            known = self.model.setdefault(producer, Written(epoch))
            if known.epoch != epoch:
                known.epoch, known.batches = epoch, []
            known.batches.append((sequence, count, end))
            if transactional and known.transaction is None:
                known.transaction = Transaction(producer, end)
                self.transactions.append(known.transaction)
            self.offsets |= dict.fromkeys(range(end, end + count), (producer, known.transaction))
        else:
            assert self.log.produce(sequence, count, **fields) == expected
            assert self.log.end == end

    @rule(producer=st.integers(1, 3), commit=st.booleans(), version=st.sampled_from([0, 2]))
    def end_transaction(self, producer, commit, version):
        """End a transaction, even one that was not begun; since version 2 the marker has a new epoch
        (KIP-890)."""
        known = self.model.get(producer)
        if known is None:
            return
        if version == 2:
            known.epoch, known.batches = known.epoch + 1, []
        if known.transaction is not None:
            ended, known.transaction = known.transaction, None
            ended.end, ended.is_aborted = self.log.end, not commit
            ended.stable_to = min(
                (it.first for it in self.transactions if it.end is None), default=ended.end + 1
            )
        self.log.end_transaction(producer=producer, epoch=known.epoch, commit=commit, version=version)

    @rule(producer=st.integers(1, 3), commit=st.booleans())
    def a_marker_that_comes_late(self, producer, commit):
        known = self.model.get(producer)
        if known is not None and known.epoch > 0:
            with pytest.raises(InvalidProducerEpoch):
                self.log.end_transaction(producer=producer, epoch=known.epoch - 1, commit=commit)

    @rule(data=st.data())
    def replicated(self, data):
        edges = {
            at for it in self.transactions if it.end is not None for at in (it.first, it.end, it.end + 1)
        }
        above = sorted(at for at in edges | {self.log.end} if at >= self.high_watermark)
        self.high_watermark = data.draw(st.sampled_from(above))
        self.replicated_to = max(self.replicated_to, self.high_watermark)
        self.log.producers.on_high_watermark(self.high_watermark)

    @rule()
    def reopen(self):
        """A snapshot keeps the last batch of each producer, and the beginnings of open transactions."""
        data = producer_snapshot.encode(self.log.producers.producers)
        self.log.producers.load(producer_snapshot.decode(data), offset=self.log.end, now_ms=NOW)
        self.log.transactions = self.transaction_index(is_new=False)
        for known in self.model.values():
            del known.batches[:-1]
        # As with Kafka, it does not say which markers were above the high watermark.
        self.replicated_to = self.log.end

    @invariant()
    def what_is_known(self):
        found = {
            number: (state.epoch, state.last_sequence, state.transaction_first_offset)
            for number, state in self.log.producers.producers.items()
        }
        assert found == {
            number: (
                known.epoch,
                (self.next_sequence(known) - 1) % 2**31 if known.batches else None,
                known.transaction and known.transaction.first,
            )
            for number, known in self.model.items()
        }

    @invariant()
    def what_is_stable(self):
        """Nothing from the first transaction on whose marker is missing, or not replicated."""
        undecided = [it.first for it in self.transactions if it.end is None]
        unstable = [it.first for it in self.transactions if it.end is None or it.end >= self.replicated_to]
        assert self.log.producers.first_undecided_offset == min(undecided, default=None)
        assert self.log.producers.first_unstable_offset == min(unstable, default=None)

    @invariant()
    def what_was_aborted(self):
        """Any range: those that have offsets in it. A reader who skips them gets what was committed, and all of it."""
        aborted = sorted((it for it in self.transactions if it.is_aborted), key=lambda it: it.end)
        end = self.log.end
        for first in range(0, end + 1, 1 + end // 6):
            for last in range(first, end + 1, 1 + end // 6):
                found, _ = self.log.transactions.aborted_in(first, last)
                overlapping = [it for it in aborted if it.end >= first and it.first < last]
                assert found == [(it.producer, it.first, it.end, it.stable_to) for it in overlapping]
        first_undecided = self.log.producers.first_undecided_offset
        skipped, _ = self.log.transactions.aborted_in(0, end)
        for offset, (producer, transaction) in self.offsets.items():
            if first_undecided is None or offset < first_undecided:
                is_skipped = any(it[0] == producer and it[1] <= offset <= it[2] for it in skipped)
                assert is_skipped == (transaction is not None and transaction.is_aborted)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


SEQUENCES = st.sampled_from((0, 1, 2, 3, MAX_SEQUENCE - 2, MAX_SEQUENCE - 1, MAX_SEQUENCE))


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("next", "next", "next", "copied", "copied", "epoch", "extend")),
            SEQUENCES,
            st.sampled_from((0, 0, 1, 2, 2**30, MAX_SEQUENCE)),
        ),
        max_size=16,
    )
)
@example([("copied", sequence, 0) for sequence in (0, 1, 2, 3, 4, 5, 0)])
def test_the_next_batch_is_none_of_the_known_ones(steps):
    """The last sequences of known batches do not ascend if they have wrapped, or if a follower copied them."""
    state = ProducerState(producer_id=1, epoch=0)
    for kind, sequence, delta in steps:
        batch = BatchMetadata((sequence + delta) & MAX_SEQUENCE, 100, delta, NOW)
        match kind:
            case "next" if state.batches:
                first = (state.batches[-1].last_sequence + 1) & MAX_SEQUENCE
                found = next_batch(state, first, delta)
                if found is not None:
                    state.add_next(found)
            case "copied":
                state.add_next(batch)
            case "epoch":
                state.enter_epoch(state.epoch + 1)
            case "extend":
                state.extend([batch, batch._replace(last_sequence=5)])
        if state.batches:
            first = (state.batches[-1].last_sequence + 1) & MAX_SEQUENCE
            for known in state.batches:
                assert next_batch(state, first, (known.last_sequence - first) & MAX_SEQUENCE) is None


def next_batch(state, first_sequence, offset_delta):
    return state.next_batch(
        epoch=state.epoch,
        first_sequence=first_sequence,
        last_offset=1000,
        offset_delta=offset_delta,
        timestamp=NOW,
    )
