"""Replicas of the metadata log in memory, and a network between them in which a test says what happens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Address,
    ElectionState,
    OffsetAndEpoch,
    RaftSettings,
    ReplicaKey,
    VersionRange,
)
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import CorruptMessage
from ottla.protocol.messages import fetch, vote
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.vote import VoteRequest, VoteResponse
from ottla.protocol.records.batch import BatchHeader, batches, crc_is_valid
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.quorum import QuorumMessage, build_quorum_batch, decode_quorum_record
from ottla.protocol.records.record import records
from ottla.protocol.schema import Request, Response

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAw"
LISTENER = "CONTROLLER"
START_MS = 1_000_000


def directory(id: int) -> UUID:
    return UUID(int=1000 + id)


def key(id: int) -> ReplicaKey:
    return ReplicaKey(id, directory(id))


def address(id: int) -> Address:
    return Address("127.0.0.1", 9000 + id)


def settings(id: int, voters: Sequence[int] = (1, 2, 3), **others: Any) -> RaftSettings:
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
    return VoterSet({id: Voter(key(id), {LISTENER: address(id)}, VersionRange(0, 1)) for id in ids})


@dataclass
class Batch:
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
        return len(self.data)

    def append(self, data: bytes | memoryview) -> None:
        self.data += data

    def freeze(self) -> None:
        found = [batch for _, batch in batches(memoryview(bytes(self.data)))]
        if sum(map(len, found)) != self.size or not all(map(crc_is_valid, found)):
            raise CorruptMessage("damaged")
        self.log.frozen[self.id] = bytes(self.data)

    def delete(self) -> None:
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
        return [
            (row.value or b"").decode()
            for batch in self.batches
            if not batch.header.is_control
            for row in records(memoryview(batch.data))
        ]

    # -- RaftLog

    @property
    def end(self) -> OffsetAndEpoch:
        if self.batches:
            last = self.batches[-1].header
            return OffsetAndEpoch(last.next_offset, last.partition_leader_epoch)
        latest = self.latest_snapshot
        return OffsetAndEpoch(self.log_start_offset, latest.epoch if latest is not None else 0)

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        return max(self.snapshots, default=None)

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        return min(self.snapshots, default=None)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        known = OffsetAndEpoch(self.log_start_offset, 0)
        earliest = self.earliest_snapshot
        if earliest is not None and earliest.epoch <= epoch:
            known = OffsetAndEpoch(max(earliest.offset, self.log_start_offset), earliest.epoch)
        for batch in self.batches:
            if batch.header.partition_leader_epoch <= epoch:
                known = OffsetAndEpoch(batch.header.next_offset, batch.header.partition_leader_epoch)
        return known

    def validate(self, offset: int, epoch: int) -> Validation:
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
        base_offset = self.end.offset
        self._take(
            build_quorum_batch(messages, base_offset=base_offset, leader_epoch=epoch, timestamp=now_ms)
        )
        return base_offset

    def append_as_follower(self, data: bytes | memoryview, *, epoch: int) -> None:
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
        found = bytearray()
        for batch in self.batches:
            if batch.header.next_offset > offset:
                if found and len(found) + len(batch.data) > max_bytes:
                    break
                found += batch.data
        return bytes(found)

    def truncate_to(self, offset: int) -> None:
        assert offset >= self.high_watermark, (offset, self.high_watermark)
        self.batches = [each for each in self.batches if each.header.next_offset <= offset]

    def truncate_to_latest_snapshot(self) -> bool:
        latest = self.latest_snapshot
        if latest is None or latest <= self.end:
            return False
        self.batches = []
        self.log_start_offset = latest.offset
        self.snapshots = {latest: self.snapshots[latest]}
        self.high_watermark = max(self.high_watermark, latest.offset)
        return True

    def update_high_watermark(self, offset: int) -> None:
        assert self.high_watermark <= offset <= self.end.offset, (self.high_watermark, offset, self.end)
        self.high_watermark = offset

    def quorum_messages(self, start_offset: int | None = None) -> Iterator[tuple[int, QuorumMessage]]:
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
        data = self.snapshots.get(snapshot)
        return None if data is None else (data[position : position + max_bytes], len(data))

    def begin_snapshot(self, snapshot: OffsetAndEpoch) -> Download | None:
        return None if snapshot in self.snapshots else Download(self, snapshot)

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
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
        return self.settings.node_id

    @property
    def role(self) -> Any:
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
        return [each for each in self.history if isinstance(each, cls)]


def over_the_wire(message: Any, versions: Mapping[int, int]) -> Any:
    """The message as the peer decodes it, in the last version unless `versions` has one for the API key."""
    key_ = type(message).__api_key__
    version = versions.get(key_, type(message).__versions__.last)
    if isinstance(message, Request):
        return decode_request(key_, version, encode_request(key_, version, message))
    return decode_response(key_, version, encode_response(key_, version, message))


class Cluster:
    """Replicas and a network that carries everything at once, except between those whom the test has cut off."""

    def __init__(self, *replicas: Replica) -> None:
        self.replicas = {each.id: each for each in replicas}
        self.tokens: dict[object, tuple[Replica, Send]] = {}
        #: Versions that are spoken, by API key, where it is not the last one.
        self.versions: dict[int, int] = {}
        self.is_cut: Callable[[int, int], bool] = lambda _from, _to: False

    @classmethod
    def static(cls, count: int, **others: Any) -> "Cluster":
        voters = range(1, count + 1)
        return cls(*(Replica(settings(id, voters, **others), seed=id) for id in voters))

    @classmethod
    def dynamic(cls, voters: Sequence[int], observers: Sequence[int] = (), **others: Any) -> "Cluster":
        servers = tuple(address(id) for id in voters)
        return cls(
            *(
                Replica(
                    settings(id, (), bootstrap_servers=servers, **others),
                    log=dynamic_log(*voters) if id in voters else MemoryLog(),
                    seed=id,
                )
                for id in (*voters, *observers)
            )
        )

    def add(self, replica: Replica) -> Replica:
        self.replicas[replica.id] = replica
        return replica

    def __getitem__(self, id: int) -> Replica:
        return self.replicas[id]

    def deliver(self) -> bool:
        """Carry what was sent; whether there was anything."""
        is_busy = False
        for replica in list(self.replicas.values()):
            sends, replica.sends = replica.sends, []
            for sent in sends:
                is_busy = True
                to = next((each for each in self.replicas.values() if sent.to == address(each.id)), None)
                if to is None or self.is_cut(replica.id, to.id):
                    replica.do(replica.raft.answered(replica.now_ms, sent, None))
                elif isinstance(sent.message, ApiVersionsRequest):
                    features = [SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)]
                    replica.do(
                        replica.raft.answered(
                            replica.now_ms, sent, ApiVersionsResponse(supported_features=features)
                        )
                    )
                else:
                    token = object()
                    self.tokens[token] = (replica, sent)
                    to.do(to.raft.receive(to.now_ms, over_the_wire(sent.message, self.versions), token))
            for token, response in list(replica.replies.items()):
                if token in self.tokens:
                    is_busy = True
                    del replica.replies[token]
                    requester, sent = self.tokens.pop(token)
                    lost = self.is_cut(replica.id, requester.id)
                    requester.do(
                        requester.raft.answered(
                            requester.now_ms, sent, None if lost else over_the_wire(response, self.versions)
                        )
                    )
        return is_busy

    def run(self, ms: int, *, step_ms: int = 10) -> None:
        """Let time pass for all nodes."""
        for _ in range(ms // step_ms):
            for replica in self.replicas.values():
                replica.now_ms += step_ms
                if replica.raft.next_deadline_ms <= replica.now_ms:
                    replica.do(replica.raft.tick(replica.now_ms))
            rounds = 0
            while self.deliver():
                rounds += 1
                if rounds > 20:
                    break

    def run_until(self, holds: Callable[[], object], *, limit_ms: int = 30_000) -> None:
        for _ in range(limit_ms // 10):
            if holds():
                return
            self.run(10)
        raise AssertionError({id: each.role for id, each in self.replicas.items()})

    @property
    def leaders(self) -> list[Replica]:
        return [each for each in self.replicas.values() if type(each.role).__name__ == "Leader"]

    def elect(self) -> Replica:
        """Wait for a leader that all others follow."""

        def is_elected() -> bool:
            epoch = max(each.role.epoch for each in self.replicas.values())
            leaders = [each for each in self.leaders if each.role.epoch == epoch]
            return bool(leaders) and all(
                each.raft.leader_and_epoch.leader_id == leaders[0].id and each.role.epoch == epoch
                for each in self.replicas.values()
            )

        self.run_until(is_elected)
        return max(self.leaders, key=lambda each: each.role.epoch)


def fetch_request(
    id: int,
    *,
    offset: int,
    epoch: int,
    leader_epoch: int,
    high_watermark: int = -1,
    max_wait_ms: int = 500,
    directory_id: UUID | None = None,
    cluster_id: str | None = CLUSTER_ID,
) -> fetch.FetchRequest:
    """The Fetch request of a replica."""
    row = fetch.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=epoch,
        replica_directory_id=directory(id) if directory_id is None else directory_id,
        high_watermark=high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=fetch.ReplicaState(replica_id=id),
        max_wait_ms=max_wait_ms,
        max_bytes=1_000_000,
        topics=[fetch.FetchTopic(topic_id=TOPIC_ID, topic=TOPIC, partitions=[row])],
    )


def vote_answer(
    *,
    granted: bool = False,
    epoch: int,
    leader: int = -1,
    error: ErrorCode = ErrorCode.none,
    top_error: ErrorCode = ErrorCode.none,
    endpoint: bool = False,
) -> VoteResponse:
    """A voter's response to a vote request."""
    row = vote.PartitionDataResponse(
        error_code=error, leader_id=leader, leader_epoch=epoch, vote_granted=granted
    )
    answer = VoteResponse(
        error_code=top_error, topics=[vote.TopicDataResponse(topic_name=TOPIC, partitions=[row])]
    )
    if endpoint:
        host, port = address(leader)
        answer.node_endpoints = [vote.NodeEndpoint(node_id=leader, host=host, port=port)]
    return answer


def fetch_answer(
    records: bytes = b"",
    *,
    high_watermark: int = -1,
    leader: int = 2,
    epoch: int = 5,
    error: ErrorCode = ErrorCode.none,
    diverging: tuple[int, int] | None = None,
    snapshot: tuple[int, int] | None = None,
    endpoint: bool = False,
) -> fetch.FetchResponse:
    """The response to a Fetch from node 2, which leads epoch 5 unless stated otherwise."""
    row = fetch.PartitionData(
        error_code=error,
        high_watermark=high_watermark,
        records=records,
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
    )
    if diverging is not None:
        row.diverging_epoch = fetch.EpochEndOffset(end_offset=diverging[0], epoch=diverging[1])
    if snapshot is not None:
        row.snapshot_id = fetch.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1])
    answer = fetch.FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])]
    )
    if endpoint:
        host, port = address(leader)
        answer.node_endpoints = [fetch.NodeEndpoint(node_id=leader, host=host, port=port)]
    return answer


def elected(id: int = 1, voters: Sequence[int] = (1, 2, 3), *, log: MemoryLog | None = None) -> Replica:
    """A leader with the votes of all voters, from which none has fetched yet."""
    replica = Replica(settings(id, voters), log=log)
    while type(replica.role).__name__ != "Leader":
        replica.pass_time(50)
        for sent in replica.sent(VoteRequest):
            replica.answer(sent, vote_answer(granted=True, epoch=replica.role.epoch))
    return replica
