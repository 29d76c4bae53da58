"""Fetch, on a follower or observer: where it is sent, and what a response does to the log.

    Fetch ----> records              append, make durable, fetch the next ones
           |--> diverging_epoch      truncate the log there, and fetch again
           |--> snapshot_id          FetchSnapshot (`follower_fetch_snapshot`)
           '--> another leader/epoch follow that one

A voter fetches more only after its records are durable: `Flush` stands before the next `Send`. The same holds for every
node after a truncation: the records appended next must not be on the disk together with the truncated ones.
Source: KafkaRaftClient.handleFetchResponse, maybeSendFetchToBestNode of Kafka 4.3.1; KIP-595.
"""

from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.discovery import Outcome, error_of, handle_unexpected_error
from ottla.controller.raft.follower_common import (
    handle_current_leader,
    leader_node,
    reset_fetch_timeout,
    update_follower_high_watermark,
)
from ottla.controller.raft.follower_fetch_snapshot import begin_snapshot_download
from ottla.controller.raft.log import RaftLog
from ottla.controller.raft.messages import (
    fetch_request,
    fetch_snapshot_request,
    only_partition,
)
from ottla.controller.raft.roles import Follower
from ottla.controller.raft.types import NEVER_MS, OffsetAndEpoch
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import CorruptMessage
from ottla.protocol.messages.fetch import FetchResponse, PartitionData
from ottla.protocol.schema import Request
from ottla.replication import replica_rules


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


def _next_request(core: Core, role: Follower) -> Request:
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

    The rule is that of partitions (`ottla.replication.replica_rules.truncation_offset`; KIP-595, "Log reconciliation").
    """
    mine = log.end_offset_for_epoch(diverging.epoch)
    return replica_rules.truncation_offset(
        (diverging.epoch, diverging.offset),
        # No record has epoch 0, which stands for the start of the log: only the offset counts.
        None if diverging.epoch == 0 else (mine.epoch, mine.offset),
        log_end_offset=log.end.offset,
    )


# -- Fetch -----------------------------------------------------------------------------------------------


def handle_fetch_response(core: Core, sender_id: int, response: FetchResponse) -> Outcome:
    """Handle a response to Fetch: of the leader, or of another node that may know the leader."""
    error = error_of(response.error_code)
    row: PartitionData | None = only_partition(response.responses)
    if error is not ErrorCode.none or row is None:
        return handle_unexpected_error(core, sender_id, response, error)
    error = error_of(row.error_code)
    outcome = handle_current_leader(core, error, row, response)
    if outcome is not Outcome.CONTINUE:
        return outcome
    role = core.role
    if error is not ErrorCode.none or not isinstance(role, Follower):
        return handle_unexpected_error(core, sender_id, response, error)
    if row.diverging_epoch.epoch >= 0:
        outcome = _truncate(core, OffsetAndEpoch(row.diverging_epoch.end_offset, row.diverging_epoch.epoch))
    elif row.snapshot_id.epoch >= 0 or row.snapshot_id.end_offset >= 0:
        outcome = begin_snapshot_download(
            core, role, OffsetAndEpoch(row.snapshot_id.end_offset, row.snapshot_id.epoch)
        )
    else:
        outcome = _append(core, role, row)
    if outcome is Outcome.DONE:
        reset_fetch_timeout(core, role)
    return outcome


def _truncate(core: Core, diverging: OffsetAndEpoch) -> Outcome:
    offset = truncation_offset(core.log, diverging)
    if offset < core.log.high_watermark:
        core.fail(
            f"The leader of epoch {core.epoch} has a log that diverges from this node's at offset {offset}, but "
            f"everything before {core.log.high_watermark} is committed: the leader, or a majority of the voters, "
            "lost data."
        )
        return Outcome.BACK_OFF
    core.log.truncate_to(offset)
    assert core.log.high_watermark <= core.log.end.offset <= offset, (
        core.log.high_watermark,
        core.log.end,
        offset,
    )
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
                "not all batches from leader %d at offset %d are valid; the others are fetched again: %s",
                role.leader_id,
                end_offset,
                error,
            )
            outcome = Outcome.BACK_OFF
        assert core.log.end.offset >= end_offset, (core.log.end, end_offset)
        assert core.log.end.epoch <= role.epoch, (core.log.end, role.epoch)
        if core.log.end.offset > end_offset:
            core.history.read(end_offset)
            if core.is_voter or core.settings.can_become_voter:
                core.flush()
    update_follower_high_watermark(core, row.high_watermark)
    return outcome
