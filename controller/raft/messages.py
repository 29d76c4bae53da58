"""Raft's requests and responses: each is about the one partition of the metadata topic, wrapped in two lists.

What is built here has the fields of all versions; the encoder leaves out what a version has not.
Source: RaftUtil of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from controller.raft.core import Core
from controller.raft.types import (
    LAST_EPOCH,
    NOBODY,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Address,
    Endpoints,
    OffsetAndEpoch,
    ReplicaKey,
)
from protocol.error_code import ErrorCode
from protocol.messages import (
    begin_quorum_epoch,
    end_quorum_epoch,
    fetch,
    fetch_snapshot,
    vote,
)
from protocol.messages.add_raft_voter import AddRaftVoterResponse
from protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from protocol.messages.remove_raft_voter import RemoveRaftVoterResponse
from protocol.messages.vote import VoteRequest, VoteResponse

E = TypeVar("E")


class _Listener(Protocol):
    name: str
    host: str
    port: int


class _NodeEndpoint(Protocol):
    node_id: int
    host: str
    port: int


# -- reading ---------------------------------------------------------------------------------------------


def only_partition(topics: Sequence[Any]) -> Any | None:  # noqa: ANN401 a partition's row, of any message
    """The row of our partition; None unless the message is about it and nothing else.

    Empty lists are no exception: Kafka 4.3.1 takes the first element of them in FetchSnapshot, and its
    controller stops (CVE-2026-83525).
    """
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, row = topics[0], topics[0].partitions[0]
    if isinstance(topic, fetch.FetchTopic | fetch.FetchableTopicResponse):
        is_ours = topic.topic_id == TOPIC_ID
    else:
        is_ours = getattr(topic, "topic_name", None) == TOPIC or getattr(topic, "name", None) == TOPIC
    return row if is_ours and _index(row) == PARTITION else None


def _index(row: Any) -> int:  # noqa: ANN401 as above
    for name in ("partition_index", "partition", "index"):
        if hasattr(row, name):
            return int(getattr(row, name))
    raise AssertionError(type(row))


def node_of(id: int) -> int | None:
    """A node id from the wire."""
    return None if id < 0 else id


def address_of(node_id: int | None, node_endpoints: Iterable[_NodeEndpoint]) -> Address | None:
    """Where the message says that a node is."""
    return next((Address(each.host, each.port) for each in node_endpoints if each.node_id == node_id), None)


def endpoints_of(listeners: Iterable[_Listener]) -> Endpoints:
    """Listeners that a message names."""
    return {each.name: Address(each.host, each.port) for each in listeners}


def is_other_cluster(core: Core, cluster_id: str | None) -> bool:
    """Whether a request is meant for another cluster; one without a cluster id is believed."""
    return cluster_id is not None and cluster_id != core.settings.cluster_id


def fences(core: Core, epoch: int, sender_id: int) -> ErrorCode | None:
    """Why Vote, BeginQuorumEpoch or EndQuorumEpoch is refused; None if it is not."""
    if epoch < core.epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.invalid_request if sender_id < 0 or epoch >= LAST_EPOCH else None


def is_for_me(core: Core, voter_id: int, directory_id: UUID) -> bool:
    """Whether Vote or BeginQuorumEpoch is meant for this replica; version 0 names nobody."""
    return voter_id < 0 or ReplicaKey(voter_id, directory_id).names(core.me)


# -- requests --------------------------------------------------------------------------------------------


def vote_request(core: Core, voter: ReplicaKey, *, pre_vote: bool) -> VoteRequest:
    """Asks a voter for its vote, or (`pre_vote`) whether it would give it."""
    end = core.log.end
    row = vote.PartitionData(
        partition_index=PARTITION,
        replica_epoch=core.epoch,
        replica_id=core.me.id,
        replica_directory_id=core.me.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=end.epoch,
        last_offset=end.offset,
        pre_vote=pre_vote,
    )
    topics = [vote.TopicData(topic_name=TOPIC, partitions=[row])]
    return VoteRequest(cluster_id=core.settings.cluster_id, voter_id=voter.id, topics=topics)


def begin_request(core: Core, voter: ReplicaKey) -> BeginQuorumEpochRequest:
    """Tells a voter that we lead this epoch, and where we are."""
    row = begin_quorum_epoch.PartitionData(
        partition_index=PARTITION,
        voter_directory_id=voter.directory_id,
        leader_id=core.me.id,
        leader_epoch=core.epoch,
    )
    return BeginQuorumEpochRequest(
        cluster_id=core.settings.cluster_id,
        voter_id=voter.id,
        topics=[begin_quorum_epoch.TopicData(topic_name=TOPIC, partitions=[row])],
        leader_endpoints=[
            begin_quorum_epoch.LeaderEndpoint(name=name, host=address.host, port=address.port)
            for name, address in core.settings.endpoints.items()
        ],
    )


def end_request(core: Core, successors: Sequence[ReplicaKey]) -> EndQuorumEpochRequest:
    """Tells a voter that we lead this epoch no more, and who should run first."""
    row = end_quorum_epoch.PartitionData(
        partition_index=PARTITION,
        leader_id=core.me.id,
        leader_epoch=core.epoch,
        preferred_candidates=[
            end_quorum_epoch.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id)
            for key in successors
        ],
        preferred_successors=[key.id for key in successors],
    )
    return EndQuorumEpochRequest(
        cluster_id=core.settings.cluster_id,
        topics=[end_quorum_epoch.TopicData(topic_name=TOPIC, partitions=[row])],
        leader_endpoints=[
            end_quorum_epoch.LeaderEndpoint(name=name, host=address.host, port=address.port)
            for name, address in core.settings.endpoints.items()
        ],
    )


def fetch_request(core: Core) -> FetchRequest:
    """Asks for what comes behind our log, and says how it ends and what we know to be committed."""
    end, settings = core.log.end, core.settings
    row = fetch.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=core.epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        replica_directory_id=core.me.directory_id,
        high_watermark=NOBODY if core.high_watermark is None else core.high_watermark,
    )
    return FetchRequest(
        cluster_id=settings.cluster_id,
        replica_id=core.me.id,
        replica_state=fetch.ReplicaState(replica_id=core.me.id),
        max_wait_ms=settings.fetch_max_wait_ms,
        max_bytes=settings.fetch_max_bytes,
        topics=[fetch.FetchTopic(topic_id=TOPIC_ID, topic=TOPIC, partitions=[row])],
    )


def fetch_snapshot_request(core: Core, snapshot: OffsetAndEpoch, *, position: int) -> FetchSnapshotRequest:
    """Asks for a piece of a snapshot."""
    row = fetch_snapshot.PartitionSnapshot(
        partition=PARTITION,
        current_leader_epoch=core.epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=core.me.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=core.settings.cluster_id,
        replica_id=core.me.id,
        max_bytes=core.settings.fetch_snapshot_max_bytes,
        topics=[fetch_snapshot.TopicSnapshot(name=TOPIC, partitions=[row])],
    )


# -- responses -------------------------------------------------------------------------------------------


def _leader_endpoint(core: Core, listener_name: str, endpoint: Callable[..., E]) -> list[E]:
    """Where the leader is reached over this listener, as an answer's node endpoints; nowhere, while that is not known."""
    address = core.leader_endpoints.get(listener_name)
    if address is None or core.leader_id is None:
        return []
    return [endpoint(node_id=core.leader_id, host=address.host, port=address.port)]


def leader_or_nobody(core: Core) -> int:
    """The leader as it stands on the wire."""
    return NOBODY if core.leader_id is None else core.leader_id


def vote_response(core: Core, error: ErrorCode, *, granted: bool, listener_name: str) -> VoteResponse:
    """The answer to Vote, with the epoch and leader that we know."""
    row = vote.PartitionDataResponse(
        partition_index=PARTITION,
        error_code=error,
        leader_id=leader_or_nobody(core),
        leader_epoch=core.epoch,
        vote_granted=granted,
    )
    response = VoteResponse(topics=[vote.TopicDataResponse(topic_name=TOPIC, partitions=[row])])
    response.node_endpoints = _leader_endpoint(core, listener_name, vote.NodeEndpoint)
    return response


def begin_response(core: Core, error: ErrorCode, *, listener_name: str) -> BeginQuorumEpochResponse:
    """The answer to BeginQuorumEpoch."""
    row = begin_quorum_epoch.PartitionDataResponse(
        partition_index=PARTITION,
        error_code=error,
        leader_id=leader_or_nobody(core),
        leader_epoch=core.epoch,
    )
    response = BeginQuorumEpochResponse(
        topics=[begin_quorum_epoch.TopicDataResponse(topic_name=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, begin_quorum_epoch.NodeEndpoint)
    return response


def end_response(core: Core, error: ErrorCode, *, listener_name: str) -> EndQuorumEpochResponse:
    """The answer to EndQuorumEpoch."""
    row = end_quorum_epoch.PartitionDataResponse(
        partition_index=PARTITION,
        error_code=error,
        leader_id=leader_or_nobody(core),
        leader_epoch=core.epoch,
    )
    response = EndQuorumEpochResponse(
        topics=[end_quorum_epoch.TopicDataResponse(topic_name=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, end_quorum_epoch.NodeEndpoint)
    return response


def fetch_response(core: Core, row: fetch.PartitionData, *, listener_name: str) -> FetchResponse:
    """The answer to Fetch around its partition's row."""
    row.current_leader = fetch.LeaderIdAndEpoch(leader_id=leader_or_nobody(core), leader_epoch=core.epoch)
    response = FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic_id=TOPIC_ID, topic=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, fetch.NodeEndpoint)
    return response


def fetch_snapshot_response(
    core: Core, row: fetch_snapshot.PartitionSnapshotResponse, *, listener_name: str
) -> FetchSnapshotResponse:
    """The answer to FetchSnapshot around its partition's row."""
    row.current_leader = fetch_snapshot.LeaderIdAndEpoch(
        leader_id=leader_or_nobody(core), leader_epoch=core.epoch
    )
    response = FetchSnapshotResponse(
        topics=[fetch_snapshot.TopicSnapshotResponse(name=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, fetch_snapshot.NodeEndpoint)
    return response


def voter_change_response(
    error: ErrorCode, message: str | None = None, *, is_addition: bool
) -> AddRaftVoterResponse | RemoveRaftVoterResponse:
    """The answer to AddRaftVoter or RemoveRaftVoter."""
    if message is None and error:
        message = error.name
    cls = AddRaftVoterResponse if is_addition else RemoveRaftVoterResponse
    return cls(error_code=error, error_message=message)
