"""Raft's requests and responses: each is about the single partition of the metadata topic, wrapped in two lists.

Messages built here have the fields of all versions; the encoder omits those that a version does not have.
Source: RaftUtil of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from ottla.controller.raft.core import Core
from ottla.controller.raft.types import (
    LAST_EPOCH,
    MAX_EPOCH_STEP,
    NO_NODE,
    NO_OFFSET,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Address,
    Endpoints,
    OffsetAndEpoch,
    ReplicaKey,
)
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages import (
    begin_quorum_epoch,
    end_quorum_epoch,
    fetch,
    fetch_snapshot,
    vote,
)
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest
from ottla.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from ottla.protocol.messages.vote import VoteRequest, VoteResponse

#: The requests that a replica handles.
QuorumRequest = (
    FetchRequest
    | FetchSnapshotRequest
    | VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | DescribeQuorumRequest
    | AddRaftVoterRequest
    | RemoveRaftVoterRequest
    | UpdateRaftVoterRequest
)
#: The responses to the requests that a replica sends.
QuorumResponse = (
    FetchResponse
    | FetchSnapshotResponse
    | VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | ApiVersionsResponse
    | AddRaftVoterResponse
    | RemoveRaftVoterResponse
    | UpdateRaftVoterResponse
)

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
    """The row of the metadata partition; None unless the message has this row and no other.

    Also None for empty lists: Kafka 4.3.1 reads their first element in FetchSnapshot, and its controller stops
    (CVE-2026-83525).
    """
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, row = topics[0], topics[0].partitions[0]
    if isinstance(topic, fetch.FetchTopic | fetch.FetchableTopicResponse):
        is_ours = topic.topic_id == TOPIC_ID
    else:
        is_ours = getattr(topic, "topic_name", None) == TOPIC or getattr(topic, "name", None) == TOPIC
    return row if is_ours and _index(row) == PARTITION else None


def _index(row: object) -> int:
    for name in ("partition_index", "partition", "index"):
        if hasattr(row, name):
            return int(getattr(row, name))
    raise AssertionError(type(row))


def node_of(id: int) -> int | None:
    """A node id from the wire; None if it is negative (-1: unknown)."""
    return None if id < 0 else id


def address_of(node_id: int | None, node_endpoints: Iterable[_NodeEndpoint]) -> Address | None:
    """A node's address among the endpoints of a message; None if it is not there."""
    return next((Address(each.host, each.port) for each in node_endpoints if each.node_id == node_id), None)


def endpoints_of(listeners: Iterable[_Listener]) -> Endpoints:
    """The listeners in a message, as addresses by listener name."""
    return {each.name: Address(each.host, each.port) for each in listeners}


def is_other_cluster(core: Core, cluster_id: str | None) -> bool:
    """Whether a request is meant for another cluster; one without a cluster id is accepted."""
    return cluster_id is not None and cluster_id != core.settings.cluster_id


def validate_voter_only_request(core: Core, *, epoch: int, sender_id: int) -> ErrorCode | None:
    """The error for a Vote, BeginQuorumEpoch or EndQuorumEpoch with a stale or invalid epoch or sender, else None."""
    if epoch < core.epoch:
        return ErrorCode.fenced_leader_epoch
    last_epoch = min(core.epoch + MAX_EPOCH_STEP, LAST_EPOCH - 1)
    return ErrorCode.invalid_request if sender_id < 0 or epoch > last_epoch else None


def is_valid_voter_key(core: Core, voter_id: int, directory_id: UUID) -> bool:
    """Whether Vote or BeginQuorumEpoch is meant for this replica; version 0 names no voter, and is accepted."""
    return voter_id < 0 or ReplicaKey(voter_id, directory_id).matches(core.local_key)


# -- requests --------------------------------------------------------------------------------------------


def vote_request(core: Core, voter: ReplicaKey, *, pre_vote: bool) -> VoteRequest:
    """Requests a voter's vote, or its pre-vote (`pre_vote`)."""
    end = core.log.end
    row = vote.PartitionData(
        partition_index=PARTITION,
        replica_epoch=core.epoch,
        replica_id=core.local_key.id,
        replica_directory_id=core.local_key.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=end.epoch,
        last_offset=end.offset,
        pre_vote=pre_vote,
    )
    topics = [vote.TopicData(topic_name=TOPIC, partitions=[row])]
    return VoteRequest(cluster_id=core.settings.cluster_id, voter_id=voter.id, topics=topics)


def begin_request(core: Core, voter: ReplicaKey) -> BeginQuorumEpochRequest:
    """A BeginQuorumEpoch request: this node leads the epoch, at these addresses."""
    row = begin_quorum_epoch.PartitionData(
        partition_index=PARTITION,
        voter_directory_id=voter.directory_id,
        leader_id=core.local_key.id,
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
    """An EndQuorumEpoch request: this node has resigned; `successors` is the order of the next candidates."""
    row = end_quorum_epoch.PartitionData(
        partition_index=PARTITION,
        leader_id=core.local_key.id,
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
    """Requests the records after the end of our log; reports that end, its epoch, and the high watermark known here."""
    end, settings = core.log.end, core.settings
    row = fetch.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=core.epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        replica_directory_id=core.local_key.directory_id,
        high_watermark=NO_OFFSET if core.high_watermark is None else core.high_watermark,
    )
    return FetchRequest(
        cluster_id=settings.cluster_id,
        replica_id=core.local_key.id,
        replica_state=fetch.ReplicaState(replica_id=core.local_key.id),
        max_wait_ms=settings.fetch_max_wait_ms,
        max_bytes=settings.fetch_max_bytes,
        topics=[fetch.FetchTopic(topic_id=TOPIC_ID, topic=TOPIC, partitions=[row])],
    )


def fetch_snapshot_request(core: Core, snapshot: OffsetAndEpoch, *, position: int) -> FetchSnapshotRequest:
    """A FetchSnapshot request for the chunk of a snapshot at `position`."""
    row = fetch_snapshot.PartitionSnapshot(
        partition=PARTITION,
        current_leader_epoch=core.epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=core.local_key.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=core.settings.cluster_id,
        replica_id=core.local_key.id,
        max_bytes=core.settings.fetch_snapshot_max_bytes,
        topics=[fetch_snapshot.TopicSnapshot(name=TOPIC, partitions=[row])],
    )


# -- responses -------------------------------------------------------------------------------------------


def _leader_endpoint(core: Core, listener_name: str, endpoint: Callable[..., E]) -> list[E]:
    """The leader's endpoint on this listener, as a response's node endpoints; empty while it is not known."""
    address = core.leader_endpoints.get(listener_name)
    if address is None or core.leader_id is None:
        return []
    return [endpoint(node_id=core.leader_id, host=address.host, port=address.port)]


def leader_id_or_sentinel(core: Core) -> int:
    """The leader's id on the wire: -1 if it is not known."""
    return NO_NODE if core.leader_id is None else core.leader_id


def vote_response(core: Core, error: ErrorCode, *, granted: bool, listener_name: str) -> VoteResponse:
    """The response to Vote, with the epoch and leader that this node knows."""
    row = vote.PartitionDataResponse(
        partition_index=PARTITION,
        error_code=error,
        leader_id=leader_id_or_sentinel(core),
        leader_epoch=core.epoch,
        vote_granted=granted,
    )
    response = VoteResponse(topics=[vote.TopicDataResponse(topic_name=TOPIC, partitions=[row])])
    response.node_endpoints = _leader_endpoint(core, listener_name, vote.NodeEndpoint)
    return response


def begin_response(core: Core, error: ErrorCode, *, listener_name: str) -> BeginQuorumEpochResponse:
    """The response to BeginQuorumEpoch."""
    row = begin_quorum_epoch.PartitionDataResponse(
        partition_index=PARTITION,
        error_code=error,
        leader_id=leader_id_or_sentinel(core),
        leader_epoch=core.epoch,
    )
    response = BeginQuorumEpochResponse(
        topics=[begin_quorum_epoch.TopicDataResponse(topic_name=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, begin_quorum_epoch.NodeEndpoint)
    return response


def end_response(core: Core, error: ErrorCode, *, listener_name: str) -> EndQuorumEpochResponse:
    """The response to EndQuorumEpoch."""
    row = end_quorum_epoch.PartitionDataResponse(
        partition_index=PARTITION,
        error_code=error,
        leader_id=leader_id_or_sentinel(core),
        leader_epoch=core.epoch,
    )
    response = EndQuorumEpochResponse(
        topics=[end_quorum_epoch.TopicDataResponse(topic_name=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, end_quorum_epoch.NodeEndpoint)
    return response


def fetch_response(core: Core, row: fetch.PartitionData, *, listener_name: str) -> FetchResponse:
    """The response to Fetch around its partition's row."""
    row.current_leader = fetch.LeaderIdAndEpoch(
        leader_id=leader_id_or_sentinel(core), leader_epoch=core.epoch
    )
    response = FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic_id=TOPIC_ID, topic=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, fetch.NodeEndpoint)
    return response


def fetch_snapshot_response(
    core: Core, row: fetch_snapshot.PartitionSnapshotResponse, *, listener_name: str
) -> FetchSnapshotResponse:
    """The response to FetchSnapshot around its partition's row."""
    row.current_leader = fetch_snapshot.LeaderIdAndEpoch(
        leader_id=leader_id_or_sentinel(core), leader_epoch=core.epoch
    )
    response = FetchSnapshotResponse(
        topics=[fetch_snapshot.TopicSnapshotResponse(name=TOPIC, partitions=[row])]
    )
    response.node_endpoints = _leader_endpoint(core, listener_name, fetch_snapshot.NodeEndpoint)
    return response


def voter_change_response(
    error: ErrorCode, message: str | None = None, *, is_addition: bool
) -> AddRaftVoterResponse | RemoveRaftVoterResponse:
    """The response to AddRaftVoter or RemoveRaftVoter."""
    if message is None and error:
        message = error.name
    cls = AddRaftVoterResponse if is_addition else RemoveRaftVoterResponse
    return cls(error_code=error, error_message=message)
