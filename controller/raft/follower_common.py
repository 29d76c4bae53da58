"""Common to Fetch and FetchSnapshot on a follower: the leader's address, the timeout, the high watermark.

Source: KafkaRaftClient.updateFollowerHighWatermark, FollowerState.resetFetchTimeoutForSuccessfulFetch of Kafka 4.3.1.
"""

from ottla.controller.raft.core import Core
from ottla.controller.raft.discovery import Outcome, handle_common_response
from ottla.controller.raft.messages import address_of, node_of
from ottla.controller.raft.roles import Follower
from ottla.controller.raft.types import Node
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.fetch import FetchResponse, PartitionData
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotResponse, PartitionSnapshotResponse


def leader_node(core: Core, role: Follower) -> Node | None:
    """The leader as the destination of requests; None if its address on our listener is unknown."""
    address = role.leader_endpoints.get(core.settings.listener_name)
    return None if address is None else Node(role.leader_id, address)


def handle_current_leader(
    core: Core,
    error: ErrorCode,
    row: PartitionData | PartitionSnapshotResponse,
    response: FetchResponse | FetchSnapshotResponse,
) -> Outcome:
    """Apply the leader and epoch that the row names, with the leader's address from the response."""
    leader_id = node_of(row.current_leader.leader_id)
    endpoints = core.endpoints_of(leader_id, address_of(leader_id, response.node_endpoints))
    return handle_common_response(
        core, error, leader_id=leader_id, epoch=row.current_leader.leader_epoch, endpoints=endpoints
    )


def reset_fetch_timeout(core: Core, role: Follower) -> None:
    """A request to the leader has succeeded: the fetch timeout starts again."""
    role.fetch_deadline_ms = core.now_ms + core.settings.fetch_timeout_ms
    role.has_fetched = True


def update_follower_high_watermark(core: Core, offset: int) -> None:
    """Adopt the leader's high watermark, bounded by the log end offset. Invariant: it never moves back."""
    reached = min(offset, core.log.end.offset)
    if offset >= 0 and (core.high_watermark is None or reached > core.high_watermark):
        core.update_high_watermark(reached)
