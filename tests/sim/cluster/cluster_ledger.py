"""The committed records of a partition, as the simulation's judge writes them down.

An unclean election begins another ledger: what only the one before has may be gone, and nothing that the new one has
may be. A replica is held against the ledger of its leader epoch, so that a leader that does not know its successor yet
goes on in the old one.

The log of a leader that was elected uncleanly may have gaps, between its segments or behind its last batch, where a
crash has taken the end of a segment. The election loses the records in them. Nothing removes these records from the
other replicas, here as in Kafka: a follower finds the end of an epoch in its leader's log, and no gap before it. So a
replica may have records in a gap of its ledger, or none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cluster_isolation import Isolation

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.record import records as records_of


class BatchReader(Protocol):
    """The batches of a log, as `ottla.storage.log_reader.LogReader` reads them."""

    def records_since(
        self, offset: int, *, end: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]: ...


class ReplicaLog(Protocol):
    """A log that is held against a ledger."""

    @property
    def local_log_start_offset(self) -> int: ...

    @property
    def reader(self) -> BatchReader: ...


class CommittedLog(ReplicaLog, Protocol):
    """A log whose committed records a ledger writes down."""

    @property
    def high_watermark(self) -> int: ...


class Batch(NamedTuple):
    """A batch as all replicas have to have it."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class Committed(NamedTuple):
    """A record of the ledger."""

    leader_epoch: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Ledger:
    """The records committed since the unclean election of the leader of `first_epoch` (-1: since the
    beginning)."""

    first_epoch: int = -1
    #: base offset -> batch
    batches: dict[int, Batch] = field(default_factory=dict)
    #: offset -> record
    records: dict[int, Committed] = field(default_factory=dict)
    end: int = 0
    #: What is before was deleted in the moment in which it was committed, or is unknown.
    known_from: int = 0
    #: The offsets in the gaps of the log of a leader that was elected uncleanly.
    lost: set[int] = field(default_factory=set)
    #: key -> its last record's offset
    last: dict[bytes | None, int] = field(default_factory=dict)
    #: The largest log start offset that a leader has had.
    start: int = 0
    #: leader epoch -> how much of this was committed when it began: everything that its leader has to know of.
    begun: dict[int, int] = field(default_factory=dict)
    #: What each isolation level shows of it.
    isolation: Isolation = field(default_factory=Isolation)

    def commit(self, log: CommittedLog) -> None:
        """A leader's high watermark may have moved beyond all that was committed."""
        end = log.high_watermark
        if end <= self.end:
            return
        # What is in the remote tier only was committed before; a judge that has not seen that does not know it.
        start = log.local_log_start_offset
        if start > self.end:
            self.known_from = start
            self.isolation.skip()
        reached = max(self.end, start)
        for header, data in log.reader.records_since(reached, end=end):
            if header.base_offset < self.end or header.base_offset >= end:
                continue
            self._lose(reached, header.base_offset)
            reached = header.next_offset
            epoch = header.partition_leader_epoch
            self.batches[header.base_offset] = Batch(
                header.base_offset, header.next_offset, epoch, header.crc
            )
            self.isolation.add(header, data)
            for record in records_of(data):
                key, value = (None if each is None else bytes(each) for each in (record.key, record.value))
                self.records[record.offset] = Committed(epoch, record.timestamp, key, value)
                self.last[key] = record.offset
        self._lose(reached, end)
        self.end = end

    def _lose(self, start: int, end: int) -> None:
        """The leader's log has no batch with these offsets."""
        if self.first_epoch >= 0 and start < end:
            self.lost.update(range(start, end))
            self.isolation.cross_gap()

    def last_stable_offset(self, log_start_offset: int = 0) -> int:
        """The offset before which all records are committed, and in no open transaction since the log start
        offset."""
        return self.isolation.last_stable_offset(self.end, log_start_offset)

    def shown(self, start: int, end: int, *, is_read_committed: bool) -> list[int]:
        """The offsets of [start, end) that readers of this isolation level get, as far as they are known."""
        is_visible = self.isolation.is_visible
        return [
            offset
            for offset in range(max(start, self.known_from), end)
            if offset in self.records and is_visible(offset, is_read_committed=is_read_committed)
        ]

    def differing(self, *, is_read_committed: bool) -> set[int]:
        """The offsets that one replica may show to readers of this isolation level, and another one not."""
        return self.lost | self.isolation.ambiguous if is_read_committed else self.lost

    def end_under(self, leader_epoch: int) -> int:
        """The end of the records that were committed before a newer leader came, which an older one need not
        know."""
        newer = [epoch for epoch in self.begun if epoch > leader_epoch]
        return self.begun[min(newer)] if newer else self.end

    def end_of_epoch(self, epoch: int, *, before: int) -> int:
        """The end of the last committed record before `before` that is not of a newer epoch."""
        return max(
            (
                offset + 1
                for offset, record in self.records.items()
                if offset < before and record.leader_epoch <= epoch
            ),
            default=0,
        )


def difference(ledger: Ledger, log: ReplicaLog, start: int, end: int, *, is_compacted: bool) -> str | None:
    """The first difference in [start, end) between a replica and the ledger; None: there is none.

    What is before its log start offset is no matter, nor is an older record of a key where the log `is_compacted`, nor
    a record that the election of an unclean leader has lost.
    """
    start = max(start, log.local_log_start_offset, ledger.known_from)
    if is_compacted:
        return _difference_of_compacted(ledger, log, start, end)
    reached = start
    for batch in batches_of(log, start, end):
        known = ledger.batches.get(batch.base_offset)
        if known != batch and not is_lost(batch, ledger.lost):
            return f"{batch}, committed is {known}"
        if not ledger.lost.issuperset(range(reached, batch.base_offset)):
            return f"{batch} behind {reached}, committed is everything in between"
        reached = batch.next_offset
    if ledger.lost.issuperset(range(reached, end)):
        return None
    return f"it ends at {reached}, committed is everything before {end}"


def is_lost(batch: Batch, lost: set[int]) -> bool:
    """Whether all offsets of the batch are `lost`."""
    return lost.issuperset(range(batch.base_offset, batch.next_offset))


def _difference_of_compacted(ledger: Ledger, log: ReplicaLog, start: int, end: int) -> str | None:
    found = records_in(log, start, end)
    for offset, record in found.items():
        if record != ledger.records.get(offset):
            return f"{record} at {offset}, committed is {ledger.records.get(offset)}"
    for offset in range(start, end):
        known = ledger.records.get(offset)
        if known is not None and offset not in found and ledger.last[known.key] == offset:
            return f"nothing at {offset}, where the last record of its key is: {known}"
    return None


def records_in(log: ReplicaLog, start: int, end: int) -> dict[int, Committed]:
    """The records of [start, end), by offset."""
    found = {}
    for header, data in log.reader.records_since(start, end=end) if start < end else ():
        for record in records_of(data):
            if start <= record.offset < end:
                key, value = (None if each is None else bytes(each) for each in (record.key, record.value))
                found[record.offset] = Committed(header.partition_leader_epoch, record.timestamp, key, value)
    return found


def batches_of(log: ReplicaLog, start: int, end: int) -> Iterator[Batch]:
    """The batches of [start, end); the first one may begin before."""
    if start >= end:
        return
    for header, _ in log.reader.records_since(start, end=end):
        if header.base_offset >= end:
            return
        if header.next_offset > start:
            yield Batch(header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc)
