"""A compacted log against all that was ever appended to it: what consumers of both isolation levels must still get."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.config.log_config import LogConfig
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import ControlRecordType, control_type
from ottla.protocol.records.record import Record, records
from ottla.storage import cleaner
from ottla.storage.log import AppendOrigin
from tests.unit.storage.storage_support import NOW_MS, marker, open_log

# A compaction leaves gaps between segments, which a recovery after an unclean stop reports.
pytestmark = pytest.mark.logs("begins after a gap")

CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=1,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
IDEMPOTENT, TRANSACTIONAL = (1,), (11, 12)
KEYS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=2)
PRODUCERS = st.sampled_from([-1, *IDEMPOTENT, *TRANSACTIONAL])


@dataclass
class Transaction:
    """`end` is the marker's offset, while it is in the log."""

    end: int | None = None
    is_aborted: bool = False


@dataclass
class Written:
    """A batch: (offset, key, value) of its records, and what it takes to go on after a truncation."""

    rows: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    producer: int = -1
    sequence: int = -1
    transaction: Transaction | None = None


class CompactedLog(RuleBasedStateMachine):
    """The model: every batch that was appended and not truncated, and the fates of transactions."""

    def __init__(self):
        super().__init__()
        self.directory = Path(mkdtemp()) / "orders-0"
        self.model: list[Written] = []
        self.ends: list[Transaction] = []
        self.open: dict[int, Transaction] = {}
        self.now_ms = NOW_MS
        self.cleaned_to: int | None = None
        self.number = 0
        #: By offset: when a cleaning first left it.
        self.tombstones_met_ms: dict[int, int] = {}

    @initialize()
    def begin(self):
        self.log = open_log(self.directory, config=CONFIG)

    def teardown(self):
        self.log.close_files()
        shutil.rmtree(self.directory.parent)

    @rule(
        steps=st.lists(
            st.tuples(KEYS, PRODUCERS, st.sampled_from([None, True, False])), min_size=2, max_size=6
        )
    )
    def work(self, steps):
        for pairs, producer, commit in steps:
            self.append(pairs, producer)
            if commit is not None:
                self.end_transaction(producer, commit)

    def append(self, pairs, producer):
        base = self.log.log_end_offset
        self.number += 1
        rows = [
            (base + at, key.encode(), b"%d" % self.number * 9 if has_value else None)
            for at, (key, has_value) in enumerate(pairs)
        ]
        written = Written(rows, producer)
        fields = {}
        if producer >= 0:
            written.sequence = sum(len(it.rows) for it in self.model if it.producer == producer)
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": written.sequence}
        if producer in TRANSACTIONAL:
            written.transaction = self.open.setdefault(producer, Transaction())
            fields["is_transactional"] = True
        data = build_batch(
            [Record(at, NOW_MS, key, value) for at, (_, key, value) in enumerate(rows)], **fields
        )
        info = self.log.append_as_leader(bytearray(data), leader_epoch=0, now_ms=NOW_MS)
        assert (info.first_offset, info.is_duplicate) == (base, False)
        self.model.append(written)

    @rule(producer=st.sampled_from(TRANSACTIONAL), commit=st.booleans())
    def end_transaction(self, producer, commit):
        transaction = self.open.pop(producer, None)
        if transaction is not None:
            transaction.end, transaction.is_aborted = self.log.log_end_offset, not commit
            data = marker(producer_id=producer, commit=commit)
            self.log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
            self.ends.append(transaction)

    @rule()
    def replicated(self):
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def roll(self):
        self.log.roll(self.now_ms)

    @rule(later=st.sampled_from([0, 999, 1000]), is_rolled=st.sampled_from([True, True, False]))
    def clean(self, later, is_rolled):
        """Below the clean end each key is there once, but for what was aborted."""
        self.now_ms += later
        if is_rolled:
            self.replicated()
            self.roll()
        outcomes = []
        chosen = cleaner.measure(self.log, cleaned_to=self.cleaned_to, now_ms=self.now_ms)
        cleaner.cleaning_job(
            chosen, now_ms=self.now_ms, on_done=lambda log, end: outcomes.append(end)
        ).complete()
        (self.cleaned_to,) = outcomes
        served = self.served()
        keys = [key for offset, (key, _) in served.items() if offset < self.cleaned_to]
        assert len(keys) == len(set(keys))
        newest = {
            key: (offset, value)
            for offset, (key, value) in self.committed().items()
            if offset < self.cleaned_to
        }
        for offset in (offset for offset, value in newest.values() if value is None):
            # Readers that are behind see a tombstone for delete.retention.ms.
            met_ms = self.tombstones_met_ms.setdefault(offset, self.now_ms)
            assert offset in served or self.now_ms >= met_ms + CONFIG.delete_retention_ms
        whole = self.served_to_read_committed(0)
        for start in range(0, self.log.last_stable_offset, 3):  # a reader may begin anywhere
            assert self.served_to_read_committed(start) == {
                at: row for at, row in whole.items() if at >= start
            }

    @rule(back=st.integers(1, 4))
    def truncate(self, back):
        """Truncate records that are not on all replicas, as a follower does."""
        bases = [it.rows[0][0] for it in self.model] + [it.end for it in self.ends]
        above = sorted(offset for offset in bases if offset >= self.log.high_watermark)
        if not above:
            return
        offset = above[-min(back, len(above))]
        self.log.truncate_to(offset, now_ms=self.now_ms)
        self.model = [it for it in self.model if it.rows[0][0] < offset]
        for it in self.ends:
            if it.end >= offset:
                it.end, it.is_aborted = None, False
        self.ends = [it for it in self.ends if it.end is not None]
        self.open = {
            it.producer: it.transaction for it in self.model if it.transaction and it.transaction.end is None
        }

    @rule(is_clean=st.booleans())
    def reopen(self, is_clean):
        log = self.log
        if is_clean:
            log.close()
        else:
            log.close_files()
        self.log = open_log(
            self.directory, config=CONFIG, is_clean=is_clean, recovery_point=log.recovery_point
        )
        assert self.log.log_end_offset == log.log_end_offset
        self.log.update_high_watermark(log.high_watermark)

    # -- what consumers get ------------------------------------------------------------------------

    def served(self, *, start=0, end=None):
        """read_uncommitted: offset -> (key, value)."""
        found = {}
        for header, data in self.log.reader.records_since(start, end=end):
            if not header.is_control:
                found |= {it.offset: (it.key, it.value) for it in records(data) if it.offset >= start}
        return found

    def served_to_read_committed(self, start):
        """The records by the rules of Kafka's consumer: listed transactions are skipped until their markers."""
        end = self.log.last_stable_offset
        coming = sorted(self.log.reader.aborted_transactions(start, end), key=lambda it: it.first_offset)
        aborted, found = set(), {}
        for header, data in self.log.reader.records_since(start, end=end):
            while coming and coming[0].first_offset <= header.last_offset:
                aborted.add(coming.pop(0).producer_id)
            if header.is_control:
                for it in records(data):
                    if control_type(it.key) is ControlRecordType.ABORT:
                        aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found |= {it.offset: (it.key, it.value) for it in records(data) if it.offset >= start}
        return found

    def committed(self):
        """Return, by the model, offset -> (key, value) of all that was decided, but not aborted, up to the
        last stable offset.
        """
        return {
            offset: (key, value)
            for it in self.model
            if it.transaction is None or not it.transaction.is_aborted
            for offset, key, value in it.rows
            if offset < self.log.last_stable_offset
        }

    @invariant()
    def offsets_are_unchanged(self):
        sent = {offset: (key, value) for it in self.model for offset, key, value in it.rows}
        assert self.served().items() <= sent.items()
        cleaned_to = self.cleaned_to or 0
        after = {offset: row for offset, row in sent.items() if offset >= cleaned_to}
        assert self.served(start=cleaned_to) == after

    @invariant()
    def committed_values_are_the_last_ones(self):
        """From the log's beginning on, a table of the newest values is that of all records, deletions included."""
        found, expected = self.served_to_read_committed(0), self.committed()
        assert found.items() <= expected.items()  # nothing that was aborted comes back
        tables = [{key: value for _, (key, value) in sorted(it.items())} for it in (found, expected)]
        found_table, expected_table = ({k: v for k, v in it.items() if v is not None} for it in tables)
        assert found_table == expected_table

    @invariant()
    def nothing_committed_is_hidden_from_read_uncommitted(self):
        newest = {key: offset for offset, (key, value) in self.committed().items() if value is not None}
        deleted = {key: offset for offset, (key, value) in self.committed().items() if value is None}
        served = self.served()
        for key, offset in newest.items():
            assert offset in served or deleted.get(key, -1) > offset


TestCompactedLog = CompactedLog.TestCase
TestCompactedLog.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
