"""Replicas of the metadata log in memory: the Raft machine, and a driver that flushes at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from ottla.controller.raft.effects import (
    Committed,
    Effect,
    Fatal,
    Flush,
    Freeze,
    LeaderChanged,
    Persist,
    Reply,
    Send,
    SnapshotLoaded,
    Stopped,
)
from ottla.controller.raft.log import Diverging, NeedsSnapshot, Valid, Validation
from ottla.controller.raft.machine import Raft
from ottla.controller.raft.types import (
    Address,
    ElectionState,
    OffsetAndEpoch,
    RaftSettings,
    ReplicaKey,
    VersionRange,
)
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.errors import CorruptMessage
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.records.batch import BatchHeader, batches, crc_is_valid
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.quorum import QuorumMessage, build_quorum_batch, decode_quorum_record
from ottla.protocol.records.record import records
from ottla.protocol.schema import Request, Response

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAw"
LISTENER = "CONTROLLER"
START_MS = 1_000_000


def directory(id: int) -> UUID:
    """Return the id of a node's first directory."""
    return UUID(int=1000 + id)


def key(id: int) -> ReplicaKey:
    """Return a node on its first disk."""
    return ReplicaKey(id, directory(id))


def address(id: int) -> Address:
    """Return where a node is reached."""
    return Address("127.0.0.1", 9000 + id)


def settings(id: int, voters: Sequence[int] = (1, 2, 3), **others: Any) -> RaftSettings:
    """Return the settings of a node; by default one of three configured voters."""
    fields: dict[str, Any] = {
        "node_id": id,
        "directory_id": directory(id),
        "cluster_id": CLUSTER_ID,
        "listener_name": LISTENER,
        "endpoints": {LISTENER: address(id)},
        "static_voters": {voter: address(voter) for voter in voters},
    }
    return RaftSettings(**(fields | others))


def voter_set(*ids: int) -> VoterSet:
    """Return the set of these voters."""
    return VoterSet({id: Voter(key(id), {LISTENER: address(id)}, VersionRange(0, 1)) for id in ids})


@dataclass
class Batch:
    """A batch of the log."""

    header: BatchHeader
    data: bytes


@dataclass
class Download:
    """A snapshot that comes in pieces."""

    log: "MemoryLog"
    id: OffsetAndEpoch
    data: bytearray = field(default_factory=bytearray)
    is_deleted: bool = False

    @property
    def size(self) -> int:
        """The number of bytes so far."""
        return len(self.data)

    def append(self, data: bytes | memoryview) -> None:
        """Append a piece of the snapshot."""
        self.data += data

    def freeze(self) -> None:
        """Check the snapshot, and keep it for `add_snapshot`."""
        found = [batch for _, batch in batches(memoryview(bytes(self.data)))]
        if sum(map(len, found)) != self.size or not all(map(crc_is_valid, found)):
            raise CorruptMessage("damaged")
        self.log.frozen[self.id] = bytes(self.data)

    def delete(self) -> None:
        """Forget what was downloaded."""
        self.is_deleted = True


class MemoryLog:
    """The simplest thing that is a RaftLog."""

    def __init__(self) -> None:
        self.log_start_offset = 0
        self.batches: list[Batch] = []
        self.snapshots: dict[OffsetAndEpoch, bytes] = {}
        self.frozen: dict[OffsetAndEpoch, bytes] = {}
        self.high_watermark = 0

    # -- for tests

    def append(self, *values: str, epoch: int) -> int:
        """Append records in one batch; returns the log's end."""
        base_offset = self.end.offset
        rows = simple_records(
            [(None, value.encode()) for value in values], timestamp=0, base_offset=base_offset
        )
        self._take(build_batch(rows, base_offset=base_offset, leader_epoch=epoch))
        return self.end.offset

    def snapshot(self, id: OffsetAndEpoch, messages: Sequence[QuorumMessage] = ()) -> None:
        """Store a snapshot that holds no more than these control records; the log keeps its beginning."""
        self.snapshots[id] = (
            build_quorum_batch(messages, base_offset=0, leader_epoch=0, timestamp=0) if messages else b""
        ) or build_batch(simple_records([(None, b"state")], timestamp=0), base_offset=0, leader_epoch=0)

    def begin_at(self, offset: int) -> None:
        """Forget what a snapshot covers."""
        self.batches = [each for each in self.batches if each.header.base_offset >= offset]
        self.log_start_offset = offset
        self.snapshots = {id: data for id, data in self.snapshots.items() if id.offset >= offset}

    def values(self) -> list[str]:
        """Return the values of all records that are no control records."""
        return [
            (row.value or b"").decode()
            for batch in self.batches
            if not batch.header.is_control
            for row in records(memoryview(batch.data))
        ]

    # -- RaftLog

    @property
    def end(self) -> OffsetAndEpoch:
        """Implement the method of RaftLog."""
        if self.batches:
            last = self.batches[-1].header
            return OffsetAndEpoch(last.next_offset, last.partition_leader_epoch)
        latest = self.latest_snapshot
        return OffsetAndEpoch(self.log_start_offset, latest.epoch if latest is not None else 0)

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """Implement the method of RaftLog."""
        return max(self.snapshots, default=None)

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """Implement the method of RaftLog."""
        return min(self.snapshots, default=None)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Implement the method of RaftLog."""
        known = OffsetAndEpoch(self.log_start_offset, 0)
        earliest = self.earliest_snapshot
        if earliest is not None and earliest.epoch <= epoch:
            known = OffsetAndEpoch(max(earliest.offset, self.log_start_offset), earliest.epoch)
        for batch in self.batches:
            if batch.header.partition_leader_epoch <= epoch:
                known = OffsetAndEpoch(batch.header.next_offset, batch.header.partition_leader_epoch)
        return known

    def validate(self, offset: int, epoch: int) -> Validation:
        """Implement the method of RaftLog."""
        if self.log_start_offset == 0 and offset == 0:
            return Valid()
        earliest = self.earliest_snapshot
        if earliest is not None and (
            offset < self.log_start_offset
            or (offset == self.log_start_offset and epoch != earliest.epoch)
            or epoch < earliest.epoch
        ):
            latest = self.latest_snapshot
            assert latest is not None
            return NeedsSnapshot(latest)
        end = self.end_offset_for_epoch(epoch)
        return Diverging(end) if end.epoch != epoch or end.offset < offset else Valid()

    def append_control(self, messages: Sequence[QuorumMessage], *, epoch: int, now_ms: int) -> int:
        """Implement the method of RaftLog."""
        base_offset = self.end.offset
        self._take(
            build_quorum_batch(messages, base_offset=base_offset, leader_epoch=epoch, timestamp=now_ms)
        )
        return base_offset

    def append_as_follower(self, data: bytes | memoryview, *, epoch: int) -> None:
        """Implement the method of RaftLog."""
        for header, batch in batches(memoryview(data)):
            if (
                not crc_is_valid(batch)
                or header.base_offset != self.end.offset
                or header.partition_leader_epoch > epoch
            ):
                raise CorruptMessage(f"not what follows on {self.end}: {header}")
            self._take(bytes(batch))

    def _take(self, data: bytes) -> None:
        ((header, batch),) = batches(memoryview(data))
        self.batches.append(Batch(header, bytes(batch)))

    def read(self, offset: int, *, max_bytes: int) -> bytes:
        """Implement the method of RaftLog."""
        found = bytearray()
        for batch in self.batches:
            if batch.header.next_offset > offset:
                if found and len(found) + len(batch.data) > max_bytes:
                    break
                found += batch.data
        return bytes(found)

    def truncate_to(self, offset: int) -> None:
        """Implement the method of RaftLog."""
        assert offset >= self.high_watermark, (offset, self.high_watermark)
        self.batches = [each for each in self.batches if each.header.next_offset <= offset]

    def truncate_to_latest_snapshot(self) -> bool:
        """Implement the method of RaftLog."""
        latest = self.latest_snapshot
        if latest is None or latest <= self.end:
            return False
        self.batches = []
        self.log_start_offset = latest.offset
        self.snapshots = {latest: self.snapshots[latest]}
        self.high_watermark = max(self.high_watermark, latest.offset)
        return True

    def update_high_watermark(self, offset: int) -> None:
        """Implement the method of RaftLog."""
        assert self.high_watermark <= offset <= self.end.offset, (self.high_watermark, offset, self.end)
        self.high_watermark = offset

    def quorum_messages(self, start_offset: int | None = None) -> Iterator[tuple[int, QuorumMessage]]:
        """Implement the method of RaftLog."""
        latest = self.latest_snapshot
        if start_offset is None and latest is not None:
            for _, batch in batches(memoryview(self.snapshots[latest])):
                yield from ((latest.offset - 1, message) for _, message in _messages(batch))
            start_offset = latest.offset
        for each in self.batches:
            if each.header.base_offset >= (start_offset or 0):
                yield from _messages(each.data)

    def snapshot_chunk(
        self, snapshot: OffsetAndEpoch, *, position: int, max_bytes: int
    ) -> tuple[bytes, int] | None:
        """Implement the method of RaftLog."""
        data = self.snapshots.get(snapshot)
        return None if data is None else (data[position : position + max_bytes], len(data))

    def begin_snapshot(self, snapshot: OffsetAndEpoch) -> Download | None:
        """Implement the method of RaftLog."""
        return None if snapshot in self.snapshots else Download(self, snapshot)

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Implement the method of RaftLog."""
        self.snapshots[snapshot] = self.frozen.pop(snapshot)


def _messages(data: bytes | memoryview) -> Iterator[tuple[int, QuorumMessage]]:
    ((header, batch),) = batches(memoryview(data))
    if header.is_control:
        for row in records(batch):
            message = decode_quorum_record(row)
            if message is not None:
                yield row.offset, message


def dynamic_log(*ids: int) -> MemoryLog:
    """The log of a directory that was formatted with these first voters (kraft.version 1)."""
    log = MemoryLog()
    log.snapshot(OffsetAndEpoch(0, 0), [KRaftVersionRecord(k_raft_version=1), voter_set(*ids).to_record()])
    return log


class Replica:
    """One node: the machine, and a driver that flushes at once and keeps all other effects for the test."""

    def __init__(
        self,
        config: RaftSettings,
        *,
        log: MemoryLog | None = None,
        election: ElectionState | None = None,
        seed: int = 0,
        now_ms: int = START_MS,
    ) -> None:
        self.log = log or MemoryLog()
        self.now_ms = now_ms
        self.settings = config
        self.election = election
        self.raft = Raft(settings=config, log=self.log, election=election, random=Random(seed))
        self.history: list[Effect] = []
        #: Not taken by the test yet.
        self.sends: list[Send] = []
        self.replies: dict[object, Response] = {}
        self.do(self.raft.start(now_ms))

    @property
    def id(self) -> int:
        """The id of the node."""
        return self.settings.node_id

    @property
    def role(self) -> Any:
        """The present role of the node."""
        return self.raft.role

    def do(self, effects: list[Effect]) -> list[Effect]:
        """Carry effects out; returns them, with those of flushes and of a download that is frozen."""
        done = list(effects)
        flushes = []
        downloads = []
        for effect in effects:
            self.history.append(effect)
            match effect:
                case Persist(state):
                    self.election = state
                case Flush(end_offset):
                    flushes.append(end_offset)
                case Freeze(download):
                    downloads.append(download)
                case Send():
                    self.sends.append(effect)
                case Reply(token, response):
                    assert token not in self.replies
                    self.replies[token] = response
                case Committed() | LeaderChanged() | SnapshotLoaded() | Stopped() | Fatal():
                    pass
        for end_offset in flushes:
            done += self.do(self.raft.flushed(self.now_ms, end_offset))
        for download in downloads:
            error = None
            try:
                download.freeze()
            except CorruptMessage as raised:
                error = raised
            done += self.do(self.raft.frozen(self.now_ms, error))
        return done

    def pass_time(self, ms: int) -> list[Effect]:
        """Let time pass, ticking whenever the machine wants to."""
        end_ms = self.now_ms + ms
        done: list[Effect] = []
        while self.raft.next_deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms + 1, self.raft.next_deadline_ms)
            done += self.do(self.raft.tick(self.now_ms))
        self.now_ms = end_ms
        return done + self.do(self.raft.tick(end_ms))

    def ask(self, request: Any) -> Any:
        """Send a request from outside; returns the answer, None if it waits."""
        token = object()
        self.do(self.raft.receive(self.now_ms, request, token))
        return self.replies.pop(token, None)

    def answer(self, sent: Send, response: Any) -> list[Effect]:
        """Deliver the response to a request."""
        if sent in self.sends:
            self.sends.remove(sent)
        return self.do(self.raft.answered(self.now_ms, sent, response))

    def sent(self, cls: type) -> list[Send]:
        """Requests of a class that were sent and not answered."""
        return [each for each in self.sends if isinstance(each.message, cls)]

    def write(self, *values: str) -> None:
        """Append records as the leader."""
        self.log.append(*values, epoch=self.role.epoch)
        self.do(self.raft.appended(self.now_ms, self.log.end.offset))

    def of(self, cls: type) -> list[Any]:
        """Return all effects of a class so far."""
        return [each for each in self.history if isinstance(each, cls)]


def over_the_wire(message: Any, versions: Mapping[int, int]) -> Any:
    """The message as the peer decodes it, in the last version unless `versions` has one for the API key."""
    key_ = type(message).__api_key__
    version = versions.get(key_, type(message).__versions__.last)
    if isinstance(message, Request):
        return decode_request(key_, version, encode_request(key_, version, message))
    return decode_response(key_, version, encode_response(key_, version, message))
