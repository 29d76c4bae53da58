"""Replicas of the metadata log in memory, and a network between them in which a test says what happens."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from ottla.controller.raft.effects import (
    Send,
)
from ottla.controller.raft.types import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
)
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages import fetch, vote
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.protocol.messages.vote import VoteRequest, VoteResponse
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    MemoryLog,
    Replica,
    address,
    directory,
    dynamic_log,
    over_the_wire,
    settings,
)


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
