"""FetchSnapshot, on a follower or observer: the snapshot is downloaded chunk by chunk, and replaces the log (KIP-630).

    snapshot_id in a Fetch response --> FetchSnapshot --chunk--> FetchSnapshot ...
                                            |--last chunk--> `Freeze` --> the log starts at the snapshot's end
                                            '--deleted on the leader, or inconsistent--> back to Fetch

Source: KafkaRaftClient.handleFetchSnapshotResponse of Kafka 4.3.1; KIP-630.
"""

from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.discovery import Outcome, error_of, handle_unexpected_error
from ottla.controller.raft.follower_common import (
    handle_current_leader,
    reset_fetch_timeout,
    update_follower_high_watermark,
)
from ottla.controller.raft.messages import only_partition
from ottla.controller.raft.roles import Follower
from ottla.controller.raft.types import OffsetAndEpoch
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotResponse, PartitionSnapshotResponse


def begin_snapshot_download(core: Core, role: Follower, snapshot: OffsetAndEpoch) -> Outcome:
    """Begin to download the snapshot that the leader has named; or load it, if it is stored here already."""
    if not 0 <= snapshot.epoch <= role.epoch or snapshot.offset < 0:
        logger.error("leader %d names an invalid snapshot: %s", role.leader_id, snapshot)
        return Outcome.BACK_OFF
    if snapshot.offset < core.log.high_watermark:
        core.fail(
            f"The leader of epoch {core.epoch} requires this node to load a snapshot up to offset "
            f"{snapshot.offset}, but everything before {core.log.high_watermark} is committed: the leader, or a "
            "majority of the voters, lost data."
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
    outcome = handle_current_leader(core, error, row, response)
    role = core.role
    if outcome is not Outcome.CONTINUE or not isinstance(role, Follower) or role.download is None:
        return Outcome.BACK_OFF if outcome is Outcome.CONTINUE else outcome
    if error is ErrorCode.snapshot_not_found or row.snapshot_id.end_offset < 0 or row.snapshot_id.epoch < 0:
        logger.info("leader %d has deleted snapshot %s, this node fetches again", sender_id, role.snapshot_id)
        abandon_snapshot_download(role)
        reset_fetch_timeout(core, role)
        return Outcome.DONE
    if error is not ErrorCode.none:
        abandon_snapshot_download(role)
        return handle_unexpected_error(core, sender_id, response, error)
    return _append_snapshot_chunk(core, role, row)


def _append_snapshot_chunk(core: Core, role: Follower, row: PartitionSnapshotResponse) -> Outcome:
    download, snapshot = role.download, role.snapshot_id
    assert download is not None
    assert snapshot is not None
    assert not role.is_freezing, role
    end = row.position + len(row.unaligned_records)
    if (
        OffsetAndEpoch(row.snapshot_id.end_offset, row.snapshot_id.epoch) != snapshot
        or row.position != download.size
        or end > row.size
        or not row.unaligned_records
    ):
        logger.warning(
            "leader %d returned a chunk of snapshot %s other than the requested one; the download starts again",
            role.leader_id,
            snapshot,
        )
        abandon_snapshot_download(role)
        return Outcome.BACK_OFF
    download.append(row.unaligned_records)
    if end == row.size:
        role.is_freezing = True
        core.freeze(download)
    reset_fetch_timeout(core, role)
    return Outcome.DONE


def snapshot_frozen(core: Core, error: KafkaError | None) -> None:
    """The download is one of the log's snapshots now, or it is corrupt."""
    role = core.role
    assert isinstance(role, Follower), role
    assert role.is_freezing, role
    assert role.snapshot_id is not None
    snapshot, role.is_freezing = role.snapshot_id, False
    if error is not None:
        logger.warning(
            "snapshot %s from leader %d is corrupt, and is fetched again: %s", snapshot, role.leader_id, error
        )
        abandon_snapshot_download(role)
        core.requests.back_off(role.leader_id, now_ms=core.now_ms)
        return
    role.download = role.snapshot_id = None
    core.log.add_snapshot(snapshot)
    _load_snapshot(core, snapshot)
    reset_fetch_timeout(core, role)


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
    # A snapshot has committed records only, and all of them up to its end.
    assert log.end.offset >= (core.high_watermark or 0), (log.end, core.high_watermark)
    assert log.end.offset >= snapshot.offset, (log.end, snapshot)
    core.history.reload()
    core.snapshot_loaded(log.end)
    update_follower_high_watermark(core, log.end.offset)
