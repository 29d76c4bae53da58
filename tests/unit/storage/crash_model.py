"""The expected content of logs after a crash, by a model that knows only what was appended and what was
flushed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import BatchHeader, crc_is_valid
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import ControlRecordType, control_type
from ottla.protocol.records.record import Record
from ottla.protocol.records.record import records as parse_records
from ottla.protocol.types import TopicPartition
from ottla.storage import leader_epoch_cache
from ottla.storage.log import Log
from ottla.storage.manager.log_manager import LogManager
from ottla.stories.partition.faulty_files import Loss

#: Log sizes, in offsets, are far below.
EVERYTHING = 10**9


class Batch(NamedTuple):
    """A batch as a reader sees it."""

    base: int
    last: int
    epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    control: ControlRecordType | None
    #: (offset, timestamp, key, value)
    records: tuple[tuple[int, int, bytes | None, bytes | None], ...]


def observe(log: Log) -> list[Batch]:
    """All batches that the log serves from its local tier; each has a right CRC, and they are in order."""
    return observe_batches(log.reader.records_since(log.local_log_start_offset))


def observe_batches(batches: Iterable[tuple[BatchHeader, memoryview]]) -> list[Batch]:
    """These batches; each has a right CRC, and they are in order."""
    found: list[Batch] = []
    for header, data in batches:
        assert crc_is_valid(data), header
        assert header.base_offset >= (found[-1].last + 1 if found else 0), (found[-1], header)
        records = tuple((it.offset, it.timestamp, it.key, it.value) for it in parse_records(data))
        kind = control_type(records[0][2] or b"") if header.is_control and records else None
        found.append(
            Batch(header.base_offset, header.last_offset, header.partition_leader_epoch, header.producer_id,
                  header.producer_epoch, header.base_sequence, header.is_transactional, kind, records)
        )  # fmt: skip
    return found


def holes(batches: list[Batch]) -> set[tuple[int, int]]:
    """The last offset before each hole, and the first one after it."""
    return {(a.last, b.base) for a, b in pairwise(batches) if a.last + 1 != b.base}


def produced(records: tuple[tuple[int, int, bytes | None, bytes | None], ...], **fields) -> bytearray:
    """The batch as its producer sends it: offsets from 0 on."""
    rows = [Record(at, timestamp, key, value) for at, (_, timestamp, key, value) in enumerate(records)]
    return bytearray(build_batch(rows, **fields))


class NaiveProducers:
    """Producer state the slow way: read every batch from the first on."""

    def __init__(self, batches: list[Batch]) -> None:
        #: producer id -> (epoch, last sequence, last offset of data)
        self.last: dict[int, tuple[int, int | None, int | None]] = {}
        self.open: dict[int, int] = {}
        #: (producer id, first offset, offset of the marker)
        self.aborted: list[tuple[int, int, int]] = []
        for it in batches:
            if it.producer_id < 0 or (not it.records and it.base_sequence < 0):
                continue  # the latter: a marker of which compaction has left the header
            if it.control is not None:
                first = self.open.pop(it.producer_id, None)
                epoch, sequence, offset = self.last.get(it.producer_id, (it.producer_epoch, None, None))
                if epoch != it.producer_epoch:
                    sequence = offset = None
                self.last[it.producer_id] = (it.producer_epoch, sequence, offset)
                if it.control is ControlRecordType.ABORT and first is not None:
                    self.aborted.append((it.producer_id, first, it.last))
                continue
            count = it.last - it.base
            self.last[it.producer_id] = (it.producer_epoch, it.base_sequence + count, it.last)
            if it.is_transactional:
                self.open.setdefault(it.producer_id, it.base)


class Copy(NamedTuple):
    """A copy of a segment in the remote tier, which no crash of the broker takes."""

    base: int
    end: int
    batches: tuple[Batch, ...]
    epochs: bytes
    producer_snapshot: bytes


class Model:
    """The expected content of one log."""

    def __init__(self, *, config: LogConfig) -> None:
        self.config = config
        self.batches: list[Batch] = []
        #: Holes of before the truncations since the last crash: one that does not reach the disk brings them back.
        self.truncated_holes: set[tuple[int, int]] = set()
        #: Every record that was ever sent for an offset: nothing else may be served there.
        self.sent: dict[int, set[tuple[int, int, bytes | None, bytes | None]]] = {}
        #: Everything before, as far as it was not deleted, is to survive any crash.
        self.flushed_to = 0
        #: As `flushed_to`, for a crash of the process alone.
        self.appended_to = 0
        self.start = 0
        self.epoch = 0
        self.has_lost_its_beginning = False
        self.is_created = False
        self.producer_epochs: dict[int, int] = {}
        #: What compaction may have touched; what was appended later is as it was.
        self.compacted_to = 0
        #: Newest offset of each key that was truncated: compaction may have removed older ones for its sake.
        self.truncated: dict[bytes | None, int] = {}
        #: Offsets of transactions that were aborted, until the marker was truncated.
        self.unsafe: set[int] = set()
        #: Of a tiered log, also those of branches that a truncation or a crash has taken.
        self.copies: list[Copy] = []

    def own_copies(self) -> list[Copy]:
        """The copies of this log as it is now."""
        batches = set(self.batches)
        return [copy for copy in self.copies if batches.issuperset(copy.batches)]

    def copied(self) -> set[Batch]:
        """Everything that is in the remote tier."""
        return {batch for copy in self.copies for batch in copy.batches}

    def send(self, batch: Batch) -> None:
        """Record batches that are about to be appended."""
        for record in batch.records:
            self.sent.setdefault(record[0], set()).add(record)

    def appended(self, batch: Batch) -> None:
        """The append has returned."""
        self.batches.append(batch)
        self.appended_to = batch.last + 1

    def truncate(self, offset: int) -> None:
        """Record a truncation that is about to begin."""
        self.flushed_to = min(self.flushed_to, offset)
        self.appended_to = min(self.appended_to, offset)
        self.compacted_to = min(self.compacted_to, offset)
        for _, first, last in NaiveProducers(self.batches).aborted:
            if first < offset <= last:
                # Compaction may have removed what was aborted, before the marker went.
                self.unsafe.update(range(first, offset))
        for batch in self.batches:
            if batch.base >= offset:
                for at, _, key, _ in batch.records:
                    self.truncated[key] = max(at, self.truncated.get(key, -1))
        self.truncated_holes |= holes(self.batches)
        self.batches = [it for it in self.batches if it.base < offset]


class Checks:
    """Holds the logs of a manager against their models."""

    random: Random
    now_ms: int
    manager: LogManager
    #: Logs of which an fsync has failed, and lost pages that a later one does not bring back.
    logs_with_lost_pages: frozenset[Path] = frozenset()

    def check(self, topic_partition: TopicPartition, model: Model, loss: Loss) -> None:
        """Compare one log after a recovery with its model."""
        log = self.manager.get(topic_partition)
        bound = model.appended_to if loss is Loss.NOTHING else model.flushed_to
        if log is None:
            expected = [it for it in model.batches if it.last < bound and it.last >= model.start]
            assert not expected, f"{topic_partition} is gone"
            model.is_created = False
            model.batches, model.flushed_to, model.appended_to, model.start = [], 0, 0, 0
            model.truncated_holes.clear()
            return
        log.update_high_watermark(log.log_end_offset)
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
        found = observe(log)
        for it in found:
            for record in it.records:
                assert record in model.sent.get(record[0], ()), (topic_partition, it)
        if log.is_tiered and log.directory not in self.logs_with_lost_pages:
            self.check_tiers(log, model)
        self.check_flushed(topic_partition, model, found, bound)
        if not log.config.is_compacted:
            # A disk that writes in any order may keep a segment and lose the end of the one before it; so does one that
            # loses pages by a failed fsync, and keeps what was written later. What a process leaves behind
            # has no holes.
            is_in_order = loss is Loss.SUFFIX and log.directory not in self.logs_with_lost_pages
            if loss is Loss.NOTHING or is_in_order:
                new = holes(found) - holes(model.batches) - model.truncated_holes
                assert not new, f"{topic_partition}: holes {new} in {found}"
        for a, b in pairwise(found):
            assert a.epoch <= b.epoch, f"{topic_partition}: epoch goes back after {a}: {b}"
        if log.directory not in self.logs_with_lost_pages:
            # Such a loss may bring a truncated batch back in a segment, and keep what was appended in the next one.
            self.check_epochs(log, found)
        # A swap is renames in one order: a disk that keeps the last of them without the first ones can lose it.
        # No file system with a journal does; the clean stop, after which all is flushed, has to stand that, too.
        if not log.config.is_compacted or loss is not Loss.ANYTHING or bound == EVERYTHING:
            if log.config.is_compacted:
                self.check_compacted(topic_partition, model, found, bound)
            self.check_producers(log, model, found)
            self.check_lookups(log, found)
        remote = [it for it in model.batches if log.log_start_offset <= it.last < log.local_log_start_offset]
        model.batches = remote + found
        model.truncated_holes.clear()
        model.appended_to = log.log_end_offset
        model.flushed_to = log.recovery_point
        model.start = log.log_start_offset
        model.epoch = max(model.epoch, log.latest_epoch or 0) + log.is_tiered  # a start is a new leader epoch

    def check_tiers(self, log: Log, model: Model) -> None:
        """No hole between the tiers: what is before the local part is in a finished copy (KIP-405)."""
        local = log.local_log_start_offset
        if not log.has_whole_lineage:
            # The epochs' file is lost, or it is a restart without a remote part, whose log start is not written yet.
            newest = max(
                (it for it in model.own_copies() if it.end <= local), key=lambda it: it.end, default=None
            )
            if newest is not None and newest.end == local:
                log.restore_lineage(leader_epoch_cache.decode(newest.epochs))
            if not log.has_whole_lineage:
                log.update_high_watermark(log.log_end_offset)
                log.maybe_increment_log_start_offset(local)
                log.leader_epochs.truncate_from_end(log.log_end_offset)
            for job in self.manager.checkpoints.log_start_jobs():
                job.complete()
        # By their epochs: a truncation that has not reached the disk brings the branch back that was truncated.
        copied = {it for it in model.copied() if log.epoch_for_offset(it.last) == it.epoch}
        for it in model.batches:
            if (
                log.log_start_offset <= it.base
                and it.last < local
                and log.epoch_for_offset(it.base) == it.epoch
            ):
                assert it in copied, f"{it} is in no tier, local from {local}"
        if not model.truncated_holes and not holes(model.batches):
            found = {offset for it in copied for offset in range(it.base, it.last + 1)}
            missing = set(range(log.log_start_offset, local)) - found
            assert not missing, f"{missing} are in no tier, local from {local}"

    def check_flushed(
        self, topic_partition: TopicPartition, model: Model, found: list[Batch], bound: int
    ) -> None:
        """Every batch up to there, but those that compaction may have changed."""
        present = set(found) | model.copied()
        for it in model.batches:
            is_compacted = model.config.is_compacted and it.base < model.compacted_to
            if it.last < bound and it.last >= model.start and not is_compacted:
                assert it in present, f"{topic_partition}: lost {it}, safe to {bound}"

    def check_compacted(
        self, topic_partition: TopicPartition, model: Model, found: list[Batch], bound: int
    ) -> None:
        """The newest record of every key, or a newer one."""
        newest: dict[bytes, int] = {}
        for it in found:
            for offset, _, key, _ in it.records:
                newest[key or b""] = offset
        aborted = NaiveProducers(model.batches).aborted
        for it in model.batches:
            is_aborted = any(
                pid == it.producer_id and first <= it.base <= last for pid, first, last in aborted
            )
            if it.last >= bound or it.last < model.start or is_aborted or it.control is not None:
                continue
            for offset, _, key, value in it.records:
                if offset >= model.start and value is not None and offset not in model.unsafe:
                    assert newest.get(key or b"", -1) >= offset or self.is_superseded(model, key, offset), (
                        f"{topic_partition}: lost {key!r} at {offset}"
                    )

    def is_superseded(self, model: Model, key: bytes | None, offset: int) -> bool:
        """Whether the value is superseded by a tombstone, which may have gone, too, or by records that were
        truncated later."""
        return model.truncated.get(key, -1) > offset or any(
            record[0] > offset and record[2] == key and record[3] is None
            for it in model.batches
            for record in it.records
        )

    def check_epochs(self, log: Log, found: list[Batch]) -> None:
        entries = log.leader_epochs.entries
        assert list(entries) == sorted(set(entries))
        for it in found:
            if it.base >= log.log_start_offset:
                assert log.epoch_for_offset(it.base) == it.epoch, (it, entries)
        has_holes = bool(found and found[0].base > log.segments.first.base_offset) or any(
            a.last + 1 != b.base for a, b in pairwise(found)
        )
        if found and not has_holes and not log.config.is_compacted and not log.is_tiered:
            first_of = {}
            for it in found:
                first_of.setdefault(it.epoch, max(it.base, log.log_start_offset))
            written = {entry.epoch: entry.start_offset for entry in entries if entry.epoch in first_of}
            assert written == first_of

    def check_producers(self, log: Log, model: Model, found: list[Batch]) -> None:
        naive = NaiveProducers(found)
        # A snapshot may know producers whose batches compaction has removed, all of them even.
        is_whole = (
            not log.config.is_compacted and (found[0].base if found else log.local_log_start_offset) == 0
        )
        known = log.producers.producers
        for producer_id, (epoch, sequence, last_offset) in naive.last.items():
            state = known.get(producer_id)
            assert state is not None, (producer_id, naive.last)
            assert state.epoch == epoch or (log.config.is_compacted and state.epoch > epoch), (
                producer_id,
                state,
                naive.last,
            )
            if state.epoch > epoch:
                continue
            if sequence is not None and (log.config.is_compacted or holes(found)):
                # A snapshot may know of a batch that compaction has removed, if the log start has gone back; or of
                # one in a hole: of what retention has removed, a disk without order may bring back a part.
                assert state.batches[-1].last_offset >= last_offset
            elif sequence is not None:
                assert (state.last_sequence, state.batches[-1].last_offset) == (sequence, last_offset)
        if is_whole and log.log_start_offset == 0 and not model.has_lost_its_beginning:
            assert set(known) == set(naive.last)
            opened = {
                number: it.transaction_first_offset
                for number, it in known.items()
                if it.transaction_first_offset is not None
            }
            assert opened == naive.open
            # All that it has counts as replicated, but for what is behind a gap.
            end = log.log_end_offset if log.first_gap_offset is None else log.first_gap_offset
            # A marker behind the gap does not count yet.
            unstable = NaiveProducers([it for it in found if it.last < end]).open
            assert log.last_stable_offset == min([*unstable.values(), end])
            aborted = [it[:3] for it in log.reader.aborted_transactions(0, EVERYTHING)]
            assert aborted == naive.aborted

    def check_lookups(self, log: Log, found: list[Batch]) -> None:
        """Indexes find what reading everything finds."""
        for offset in range(log.local_log_start_offset, log.log_end_offset + 1):
            after = next((it.base for it in found if it.last >= offset), None)
            assert log.reader.read(offset, max_bytes=1, min_one_message=True).base_offset == after, offset
        records = [record for it in found for record in it.records if record[0] >= log.log_start_offset]
        for _ in range(5):
            target = self.now_ms - self.random.choice([0, 100, 3000, 60_000, 600_000])
            expected = next((record[:2] for record in records if record[1] >= target), None)
            answer = log.reader.offset_for_timestamp(target)
            assert (answer and (answer.offset, answer.timestamp)) == expected, (target, answer, expected)
