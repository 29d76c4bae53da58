"""Fetch and FetchSnapshot of a follower or observer: where it sends them, and what a response does to its log.

    Fetch ----> records              append, make durable, fetch the next ones
           |--> diverging_epoch      truncate the log there, and fetch again
           |--> snapshot_id          FetchSnapshot, chunk by chunk ----> complete: the log starts at its end
           |                                                       |---> deleted or inconsistent: back to Fetch
           '--> another leader/epoch follow that one

A voter fetches more only after its records are durable: `Flush` stands before the next `Send`. The same holds for every
node after a truncation: the records appended next must not be on the disk together with the truncated ones.
Source: KafkaRaftClient.handleFetchResponse and handleFetchSnapshotResponse of Kafka 4.3.1; KIP-595, KIP-630.
"""

from controller.raft.core import Core, logger
from controller.raft.discovery import Outcome, error_of, handle_common_response, handle_unexpected_error
from controller.raft.log import RaftLog
from controller.raft.messages import (
    address_of,
    fetch_request,
    fetch_snapshot_request,
    node_of,
    only_partition,
)
from controller.raft.roles import Follower
from controller.raft.types import NEVER_MS, Node, OffsetAndEpoch
from protocol.error_code import ErrorCode
from protocol.errors import CorruptMessage, KafkaError
from protocol.messages.fetch import FetchResponse, PartitionData
from protocol.messages.fetch_snapshot import FetchSnapshotResponse, PartitionSnapshotResponse


def leader_node(core: Core, role: Follower) -> Node | None:
    """The leader as the destination of requests; None if its address on our listener is unknown."""
    address = role.leader_endpoints.get(core.settings.listener_name)
    return None if address is None else Node(role.leader_id, address)


def send_fetch(core: Core) -> int:
    """Send the next Fetch or FetchSnapshot to the leader; returns when to check again.

    While the leader does not respond, Fetches go to bootstrap servers or other voters: there may be a new leader.
    """
    role = core.role
    assert isinstance(role, Follower), role
    if role.is_freezing:
        return NEVER_MS
    node = leader_node(core, role)
    if node is None or core.requests.is_backing_off(node, core.now_ms):
        again_ms = maybe_send_fetch_to_any_bootstrap(core)
    elif core.requests.has_request_timed_out(node, core.now_ms):
        core.requests.reset(node)
        again_ms = maybe_send_fetch_to_any_bootstrap(core)
    elif not core.requests.has_any_inflight_request(core.now_ms):
        core.send(node, lambda: _next_request(core, role))
        again_ms = core.requests.ready_at_ms(node, core.now_ms)
    else:
        again_ms = core.requests.bootstrap_ready_at_ms(core.now_ms)
    return again_ms


def _next_request(core: Core, role: Follower):  # type: ignore[no-untyped-def]  # noqa: ANN202
    if role.download is not None:
        assert role.snapshot_id is not None
        return fetch_snapshot_request(core, role.snapshot_id, position=role.download.size)
    return fetch_request(core)


def maybe_send_fetch_to_any_bootstrap(core: Core) -> int:
    """Send a Fetch to one of the bootstrap servers or voters to find the leader; returns when to retry."""
    node = core.requests.find_ready_bootstrap_server(core.now_ms)
    if node is not None:
        core.send(node, lambda: fetch_request(core))
    return core.requests.bootstrap_ready_at_ms(core.now_ms)


def truncation_offset(log: RaftLog, diverging: OffsetAndEpoch) -> int:
    """The offset to truncate to, for a log that agrees with the leader's log up to `diverging` at most.

    The leader reports its largest epoch that is not after ours, and where that epoch ends. If this log has the epoch,
    too, the smaller of the two end offsets counts. Otherwise only our records of earlier epochs may agree
    (KIP-595, "Log reconciliation"), and the next Fetch reports the last of those.

    Example: the leader has epoch 1 in [0, 5) and epoch 3 from 5 on; this log has epoch 1 in [0, 4) and epoch 2 in
    [4, 9). To a Fetch at 9 with epoch 2 the leader reports epoch 1, end 5. This log truncates to 4.
    """
    if diverging.epoch == 0:
        return min(diverging.offset, log.end.offset)
    mine = log.end_offset_for_epoch(diverging.epoch)
    return min(mine.offset, diverging.offset) if mine.epoch == diverging.epoch else mine.offset


# -- Fetch -----------------------------------------------------------------------------------------------


def _handle_common_response(
    core: Core,
    error: ErrorCode,
    row: PartitionData | PartitionSnapshotResponse,
    response: FetchResponse | FetchSnapshotResponse,
) -> Outcome:
    """Apply the leader and epoch that the row names, with the leader's address from the response."""
    leader_id = node_of(row.current_leader.leader_id)
    endpoints = core.endpoints_of(leader_id, address_of(leader_id, response.node_endpoints))
    return handle_common_response(core, error, leader_id, row.current_leader.leader_epoch, endpoints)


def handle_fetch_response(core: Core, sender_id: int, response: FetchResponse) -> Outcome:
    """Handle a response to Fetch: of the leader, or of another node that was asked for the leader."""
    error = error_of(response.error_code)
    row: PartitionData | None = only_partition(response.responses)
    if error is not ErrorCode.none or row is None:
        return handle_unexpected_error(core, sender_id, response, error)
    error = error_of(row.error_code)
    outcome = _handle_common_response(core, error, row, response)
    if outcome is not Outcome.CONTINUE:
        return outcome
    role = core.role
    if error is not ErrorCode.none or not isinstance(role, Follower):
        return handle_unexpected_error(core, sender_id, response, error)
    if row.diverging_epoch.epoch >= 0:
        outcome = _truncate(core, OffsetAndEpoch(row.diverging_epoch.end_offset, row.diverging_epoch.epoch))
    elif row.snapshot_id.epoch >= 0 or row.snapshot_id.end_offset >= 0:
        outcome = _begin_snapshot(
            core, role, OffsetAndEpoch(row.snapshot_id.end_offset, row.snapshot_id.epoch)
        )
    else:
        outcome = _append(core, role, row)
    if outcome is Outcome.DONE:
        _reset_fetch_timeout(core, role)
    return outcome


def _reset_fetch_timeout(core: Core, role: Follower) -> None:
    role.fetch_deadline_ms = core.now_ms + core.settings.fetch_timeout_ms
    role.has_fetched = True


def _truncate(core: Core, diverging: OffsetAndEpoch) -> Outcome:
    offset = truncation_offset(core.log, diverging)
    if offset < core.log.high_watermark:
        core.fail(
            f"The leader of epoch {core.epoch} has other records than this node from offset {offset} on, though "
            f"everything before {core.log.high_watermark} is committed: it, or a majority before it, has lost data."
        )
        return Outcome.BACK_OFF
    core.log.truncate_to(offset)
    core.flush()
    core.history.truncate(offset)
    logger.info(
        "node %d has truncated its log to %d for the leader of epoch %d",
        core.local_key.id,
        offset,
        core.epoch,
    )
    return Outcome.DONE


def _append(core: Core, role: Follower, row: PartitionData) -> Outcome:
    outcome = Outcome.DONE
    end_offset = core.log.end.offset
    if row.records:
        try:
            core.log.append_as_follower(row.records, epoch=role.epoch)
        except (
            CorruptMessage
        ) as error:  # the fault of the leader or the network; an I/O error here ends the node
            logger.warning(
                "records from leader %d cannot be appended at %d: %s", role.leader_id, end_offset, error
            )
            outcome = Outcome.BACK_OFF
        if core.log.end.offset > end_offset:
            core.history.read(end_offset)
            if core.is_voter or core.settings.can_become_voter:
                core.flush()
    update_follower_high_watermark(core, row.high_watermark)
    return outcome


def update_follower_high_watermark(core: Core, offset: int) -> None:
    """Adopt the leader's high watermark, bounded by the log end offset. Invariant: it never moves back."""
    reached = min(offset, core.log.end.offset)
    if offset >= 0 and (core.high_watermark is None or reached > core.high_watermark):
        core.update_high_watermark(reached)


# -- FetchSnapshot ---------------------------------------------------------------------------------------


def _begin_snapshot(core: Core, role: Follower, snapshot: OffsetAndEpoch) -> Outcome:
    if snapshot.epoch < 0 or snapshot.offset < 0:
        logger.error("the leader %d names an impossible snapshot: %s", role.leader_id, snapshot)
        return Outcome.BACK_OFF
    if snapshot.offset < core.log.high_watermark:
        core.fail(
            f"The leader of epoch {core.epoch} has a snapshot of everything before {snapshot.offset} for this node, "
            f"where everything before {core.log.high_watermark} is committed: committed data is lost."
        )
        return Outcome.BACK_OFF
    abandon_snapshot_download(role)
    role.download = core.log.begin_snapshot(snapshot)
    if role.download is None:  # stored already, by a process that ended before it loaded the snapshot
        _load_snapshot(core, snapshot)
        return Outcome.DONE
    role.snapshot_id = snapshot
    logger.info("node %d fetches snapshot %s from leader %d", core.local_key.id, snapshot, role.leader_id)
    return Outcome.DONE


def abandon_snapshot_download(role: Follower) -> None:
    """Abandon the download and fetch records again; the leader names another snapshot if it has no such records."""
    if role.download is not None:
        role.download.delete()
    role.download = role.snapshot_id = None


def handle_fetch_snapshot_response(core: Core, sender_id: int, response: FetchSnapshotResponse) -> Outcome:
    """Handle a response to FetchSnapshot: a chunk of the snapshot, or an error if the leader has deleted it."""
    error = error_of(response.error_code)
    row: PartitionSnapshotResponse | None = only_partition(response.topics)
    if error is not ErrorCode.none or row is None:
        return handle_unexpected_error(core, sender_id, response, error)
    error = error_of(row.error_code)
    outcome = _handle_common_response(core, error, row, response)
    role = core.role
    if outcome is not Outcome.CONTINUE or not isinstance(role, Follower) or role.download is None:
        return Outcome.BACK_OFF if outcome is Outcome.CONTINUE else outcome
    if error is ErrorCode.snapshot_not_found or row.snapshot_id.end_offset < 0 or row.snapshot_id.epoch < 0:
        logger.info("leader %d has snapshot %s no more", sender_id, role.snapshot_id)
        abandon_snapshot_download(role)
        _reset_fetch_timeout(core, role)
        return Outcome.DONE
    if error is not ErrorCode.none:
        abandon_snapshot_download(role)
        return handle_unexpected_error(core, sender_id, response, error)
    return _append_snapshot_chunk(core, role, row)


def _append_snapshot_chunk(core: Core, role: Follower, row: PartitionSnapshotResponse) -> Outcome:
    download, snapshot = role.download, role.snapshot_id
    assert download is not None
    assert snapshot is not None
    end = row.position + len(row.unaligned_records)
    if (
        OffsetAndEpoch(row.snapshot_id.end_offset, row.snapshot_id.epoch) != snapshot
        or row.position != download.size
        or end > row.size
        or not row.unaligned_records
    ):
        logger.warning("leader %d has sent another piece of snapshot %s than asked", role.leader_id, snapshot)
        abandon_snapshot_download(role)
        return Outcome.BACK_OFF
    download.append(row.unaligned_records)
    if end == row.size:
        role.is_freezing = True
        core.freeze(download)
    _reset_fetch_timeout(core, role)
    return Outcome.DONE


def snapshot_frozen(core: Core, error: KafkaError | None) -> None:
    """The download is one of the log's snapshots now, or it is corrupt."""
    role = core.role
    assert isinstance(role, Follower), role
    assert role.is_freezing, role
    assert role.snapshot_id is not None
    snapshot, role.is_freezing = role.snapshot_id, False
    if error is not None:
        logger.warning("snapshot %s from leader %d is corrupt: %s", snapshot, role.leader_id, error)
        abandon_snapshot_download(role)
        core.requests.back_off(role.leader_id, core.now_ms)
        return
    role.download = role.snapshot_id = None
    core.log.add_snapshot(snapshot)
    _load_snapshot(core, snapshot)
    _reset_fetch_timeout(core, role)


def _load_snapshot(core: Core, snapshot: OffsetAndEpoch) -> None:
    log = core.log
    if not log.truncate_to_latest_snapshot():
        # The log is no shorter than the snapshot, or ends in a later epoch, of a leader whose records no other
        # replica has kept. The leader of this epoch would not name a snapshot if its log continued where ours ends.
        # Committed records are in the snapshot, so the uncommitted ones are truncated. (A Kafka node stops here.)
        log.truncate_to(log.high_watermark)
        core.history.truncate(log.end.offset)
        if not log.truncate_to_latest_snapshot():
            return  # the log has everything in the snapshot already, committed
    core.flush()
    logger.info("node %d has loaded snapshot %s", core.local_key.id, snapshot)
    core.history.reload()
    core.snapshot_loaded(log.end)
    update_follower_high_watermark(core, log.end.offset)
