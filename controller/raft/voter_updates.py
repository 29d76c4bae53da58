"""Voter updates and auto-join: a follower keeps its entry in the voter set correct, or has itself added (KIP-853).

| this node | where | sends the leader |
|---|---|---|
| a voter whose endpoints or versions are not those in the log | kraft.version 1 | UpdateRaftVoter |
| a voter, once to each leader | kraft.version 0 | UpdateRaftVoter: the leader needs it for an upgrade |
| a controller that is not a voter | kraft.version 1 and `controller.quorum.auto.join.enable` | AddRaftVoter |
| the same, while its id is a voter with another directory id | as above | RemoveRaftVoter of that one first |

Checked once per fetch timeout. Source: KafkaRaftClient.pollFollowerAsVoter, pollFollowerAsObserver of Kafka 4.3.1.
"""

from ottla.controller.raft.core import Core
from ottla.controller.raft.discovery import Outcome, error_of, handle_common_response, handle_unexpected_error
from ottla.controller.raft.follower_common import leader_node
from ottla.controller.raft.messages import node_of
from ottla.controller.raft.roles import Follower
from ottla.controller.raft.types import RECONFIGURABLE, SUPPORTED_KRAFT_VERSIONS, Address
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.messages.add_raft_voter import Listener as AddedListener
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.messages.update_raft_voter import (
    KRaftVersionFeature,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from ottla.protocol.messages.update_raft_voter import Listener as UpdatedListener
from ottla.protocol.schema import Request


def send_voter_change(core: Core) -> bool:
    """Send the leader the request of the table, if it is due; whether one was sent."""
    role = core.role
    assert isinstance(role, Follower), role
    if core.now_ms < role.update_voter_at_ms:
        return False
    node = leader_node(core, role)
    request = _request_due(core, role)
    if request is not None and (node is None or not core.requests.is_ready(node, core.now_ms)):
        return False  # retried as soon as the leader has answered the Fetch
    role.update_voter_at_ms = core.now_ms + core.settings.fetch_timeout_ms
    return request is not None and node is not None and core.send(node, lambda: request)


def _request_due(core: Core, role: Follower) -> Request | None:
    is_in_log = core.history.kraft_version >= RECONFIGURABLE
    if core.is_voter:
        is_wrong = core.voters.differs_from(core.local_voter) if is_in_log else not role.has_updated_leader
        return _update_request(core) if is_wrong and core.settings.endpoints else None
    if not (is_in_log and core.settings.can_become_voter and core.settings.auto_join_enable):
        return None
    former = core.voters.voters.get(core.local_key.id)
    if former is not None:
        return RemoveRaftVoterRequest(
            cluster_id=core.settings.cluster_id,
            voter_id=former.key.id,
            voter_directory_id=former.key.directory_id,
        )
    return AddRaftVoterRequest(
        cluster_id=core.settings.cluster_id,
        timeout_ms=core.settings.request_timeout_ms,
        voter_id=core.local_key.id,
        voter_directory_id=core.local_key.directory_id,
        listeners=[
            AddedListener(name=name, host=address.host, port=address.port)
            for name, address in core.settings.endpoints.items()
        ],
        ack_when_committed=False,
    )


def _update_request(core: Core) -> UpdateRaftVoterRequest:
    return UpdateRaftVoterRequest(
        cluster_id=core.settings.cluster_id,
        current_leader_epoch=core.epoch,
        voter_id=core.local_key.id,
        voter_directory_id=core.local_key.directory_id,
        listeners=[
            UpdatedListener(name=name, host=address.host, port=address.port)
            for name, address in core.settings.endpoints.items()
        ],
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=SUPPORTED_KRAFT_VERSIONS.min_version,
            max_supported_version=SUPPORTED_KRAFT_VERSIONS.max_version,
        ),
    )


def handle_update_voter_response(core: Core, sender_id: int, response: UpdateRaftVoterResponse) -> Outcome:
    """Handle the response to UpdateRaftVoter: the leader has applied the update, or is not the leader any more."""
    error = error_of(response.error_code)
    leader = response.current_leader
    leader_id = node_of(leader.leader_id)
    address = Address(leader.host, leader.port) if leader.host else None
    outcome = handle_common_response(
        core,
        error,
        leader_id=leader_id,
        epoch=leader.leader_epoch,
        endpoints=core.endpoints_of(leader_id, address),
    )
    if outcome is not Outcome.CONTINUE:
        return outcome
    role = core.role
    if error in (ErrorCode.none, ErrorCode.unsupported_version) and isinstance(role, Follower):
        role.has_updated_leader = role.has_fetched = True  # the leader runs, and leads
        role.fetch_deadline_ms = core.now_ms + core.settings.fetch_timeout_ms
        return Outcome.DONE
    return handle_unexpected_error(core, sender_id, response, error)


def handle_voter_change_response(
    core: Core, sender_id: int, response: AddRaftVoterResponse | RemoveRaftVoterResponse
) -> Outcome:
    """Handle the response to AddRaftVoter or RemoveRaftVoter: the change is made, or retried a fetch timeout later."""
    error = error_of(response.error_code)
    expected = (
        ErrorCode.none,
        ErrorCode.request_timed_out,
        ErrorCode.duplicate_voter
        if isinstance(response, AddRaftVoterResponse)
        else ErrorCode.voter_not_found,
    )
    if error in expected:
        if isinstance(core.role, Follower):
            core.role.update_voter_at_ms = core.now_ms + core.settings.fetch_timeout_ms
        return Outcome.DONE
    return handle_unexpected_error(core, sender_id, response, error)
