"""Messages, effects and logs of a quorum as short lines of text: `1 -> 2 Vote e3, log 5 of e2`."""

from typing import Any
from uuid import UUID

from ottla.controller.raft.roles import Follower, Role
from ottla.controller.raft.types import ElectionState
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from ottla.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from ottla.protocol.messages.vote import VoteRequest, VoteResponse
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.protocol.records.batch import BatchHeader, batches
from ottla.protocol.records.quorum import decode_quorum_record
from ottla.protocol.records.record import records
from ottla.stories.quorum.raft_replicas import Batch, directory


def node(id: int, directory_id: UUID) -> str:
    """A replica; one on another disk than the node's first one has a prime: 3'."""
    return f"{id}" if directory_id in (directory(id), UUID(int=0)) else f"{id}'"


def role_line(role: Role) -> str:
    """The role, its epoch and its leader."""
    leader = f" of {role.leader_id}" if isinstance(role, Follower) else ""
    return f"{type(role).__name__}{leader} e{role.epoch}"


def state_line(state: ElectionState) -> str:
    """The content of `quorum-state`."""
    leader = "" if state.leader_id is None else f" leader {state.leader_id}"
    voted = "" if state.voted_id is None else f" voted {node(state.voted_id, state.voted_directory_id)}"
    return f"quorum-state e{state.leader_epoch}{leader}{voted}"


def request_line(message: Any) -> str:
    """The line of a story that shows a request."""
    match message:
        case AddRaftVoterRequest() | RemoveRaftVoterRequest() | UpdateRaftVoterRequest():
            name = type(message).__name__.removesuffix("Request")
            return f"{name} {node(message.voter_id, message.voter_directory_id)}"
        case ApiVersionsRequest():
            return "ApiVersions"
    row = message.topics[0].partitions[0]
    match message:
        case VoteRequest():
            what = "pre-vote" if row.pre_vote else "vote"
            return f"{what} e{row.replica_epoch}, log {row.last_offset} of e{row.last_offset_epoch}"
        case BeginQuorumEpochRequest():
            return f"BeginQuorumEpoch e{row.leader_epoch}"
        case EndQuorumEpochRequest():
            ids = " ".join(str(each.candidate_id) for each in row.preferred_candidates)
            return f"EndQuorumEpoch e{row.leader_epoch}, successors {ids}"
        case FetchSnapshotRequest():
            return (
                f"FetchSnapshot {row.snapshot_id.end_offset} of e{row.snapshot_id.epoch}, byte {row.position}"
            )
        case FetchRequest():
            high_watermark = f", HW {row.high_watermark}" if row.high_watermark >= 0 else ""
            return (
                f"Fetch {row.fetch_offset} of e{row.last_fetched_epoch} "
                f"in e{row.current_leader_epoch}{high_watermark}"
            )
        case _:
            raise AssertionError(message)


def is_pre_vote(message: Any) -> bool:
    """Whether it is a Vote request of a Prospective (KIP-996)."""
    return isinstance(message, VoteRequest) and message.topics[0].partitions[0].pre_vote


def response_line(response: Any) -> str:
    """The line of a story that shows a response."""
    if response.error_code:
        return ErrorCode(response.error_code).name.upper()
    if isinstance(response, ApiVersionsResponse):
        (feature,) = response.supported_features
        return f"{feature.name} {feature.min_version}-{feature.max_version}"
    topics = response.responses if isinstance(response, FetchResponse) else getattr(response, "topics", [])
    if not topics:
        return "done"
    row: Any = topics[0].partitions[0]
    if row.error_code:
        leader_id, epoch = _leader(response, row)
        leader = "" if leader_id < 0 else f" leader {leader_id}"
        return f"{ErrorCode(row.error_code).name.upper()}, e{epoch}{leader}"
    match response:
        case VoteResponse():
            return "granted" if row.vote_granted else "refused"
        case FetchResponse():
            return _fetched(row)
        case FetchSnapshotResponse():
            return f"bytes {row.position} to {row.position + len(row.unaligned_records)} of {row.size}"
        case _:
            return "done"


def _leader(response: Any, row: Any) -> tuple[int, int]:
    has_field = isinstance(response, FetchResponse | FetchSnapshotResponse)
    known = row.current_leader if has_field else row
    return known.leader_id, known.leader_epoch


def _fetched(row: Any) -> str:
    if row.diverging_epoch.epoch >= 0:
        return f"diverging: e{row.diverging_epoch.epoch} ends at {row.diverging_epoch.end_offset}"
    if row.snapshot_id.end_offset >= 0:
        return f"snapshot {row.snapshot_id.end_offset} of e{row.snapshot_id.epoch}"
    found = [batch_line(header, data) for header, data in batches(memoryview(bytes(row.records or b"")))]
    high_watermark = "" if row.high_watermark < 0 else f", HW {row.high_watermark}"
    return (" ".join(found) or "nothing") + high_watermark


def batch_line(header: BatchHeader, data: Any) -> str:
    """The records of a batch with their epoch: values, or names of control records."""
    names = [value_of(header, row) for row in records(data)]
    return " ".join(f"{name}:e{header.partition_leader_epoch}" for name in names)


def value_of(header: BatchHeader, row: Any) -> str:
    """Return the value of a record, or the name of a control record."""
    return _control(row) if header.is_control else (row.value or b"").decode()


def _control(row: Any) -> str:
    message = decode_quorum_record(row)
    match message:
        case LeaderChangeMessage():
            return f"leader={message.leader_id}"
        case KRaftVersionRecord():
            return f"kraft.version={message.k_raft_version}"
        case VotersRecord():
            ids = ",".join(node(each.voter_id, each.voter_directory_id) for each in message.voters)
            return f"voters={ids}"
        case _:
            raise AssertionError(message)


def log_line(log: list[Batch]) -> str:
    """All records of a log."""
    return " ".join(batch_line(each.header, memoryview(each.data)) for each in log) or "empty"
