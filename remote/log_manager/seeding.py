"""Seeding: where the log starts and up to where it is copied, from the metadata of its copies.

A leader has to know both before it copies or deletes anything. Kafka 4.3.1 runs retention before it knows the
end of what is copied, counts the bytes in both tiers twice, and deletes records that retention.bytes has room
for (KAFKA-20732). A follower needs the end for its local retention, and the lineage for consumers that read
from it (KIP-392).

    lineage     if a power cut has taken it (`ottla.remote.lost_lineage`)
    log start   the former leader has moved it and deleted the copies before it, and this replica was not
                notified: it is the start of the first copy of the lineage; if all copies are deleted, that of
                the local log. A former leader may end a deletion after its successor has begun, so this is
                repeated for offsets that are in the remote tier only. It moves only where the metadata say
                that copies were deleted: without a record that there was a copy, that record may be lost, and
                `ottla tier rebuild-metadata` finds the copy
    remote end  by `ottla.remote.lineage.remote_end_offset`. It changes also without this leader: a former one
                may finish a copy, or delete one, after another leader has begun

Both are unknown as long as the metadata are not read up to their end (`RemoteLogMetadataManager.is_ready`).

Source: RLMCopyTask.maybeUpdateLogStartOffsetOnBecomingLeader, maybeUpdateCopiedOffset, RLMFollowerTask of Kafka 4.3.1.
"""

from ottla.remote.lineage import remote_end_offset, removed_until, without_empty_epochs
from ottla.remote.log_manager.lane import NotYet
from ottla.remote.log_manager.partition_state import PartitionState
from ottla.remote.lost_lineage import restore_lineage, restore_lineage_of_follower
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.storage.log import Log


def seed_leader(state: PartitionState, metadata: RemoteLogMetadataManager) -> None:
    """Update lineage, log start and remote end of a leader's log from the metadata, before each task. Raises NotYet."""
    if state.is_deleting_all:
        raise NotYet("copies from before tiering was disabled are still being deleted")
    assert state.leads, state.id
    log = state.partition.log
    epoch = state.partition.leader_epoch
    assert state.seeded_epoch is None or state.seeded_epoch <= epoch, (state.id, state.seeded_epoch, epoch)
    copies = ready_copies(state, metadata)
    if state.seeded_epoch != epoch:
        restore_lineage(log, copies)
        _advance_log_start(state, copies)
    elif log.log_start_offset < log.local_log_start_offset:
        _advance_log_start(state, copies, end_offset=log.local_log_start_offset)
    update_remote_end(log, copies)
    state.seeded_epoch = epoch


def _advance_log_start(
    state: PartitionState, copies: RemoteLogMetadataCache, *, end_offset: int | None = None
) -> None:
    """Advance the log start to the first copied offset, at most to `end_offset`, and to the end of deleted copies.

    Without a copy the records of copies may be lost, and the log start stays; unless a crash has taken the
    log's beginning.
    """
    log = state.partition.log
    removed = removed_until(
        without_empty_epochs(log.leader_epochs.entries),
        copies.removed_until,
        log_end_offset=log.log_end_offset,
    )
    start = first_copied_offset(log, copies)
    if start is not None:
        log.offsets.begin_after_copies()
    if removed is None:
        if start is not None or not log.offsets.begins_after_gap:
            return
        removed = log.local_log_start_offset
    start = min(log.local_log_start_offset if start is None else start, removed)
    if end_offset is not None:
        start = min(start, end_offset)
    if start <= log.log_start_offset:
        return
    if start > log.high_watermark:
        raise NotYet(f"the remote tier begins at {start}, and the high watermark is {log.high_watermark}")
    log.maybe_increment_log_start_offset(start, reason="the remote tier begins there")
    state.partition.notice_retention()


def seed_follower(state: PartitionState, metadata: RemoteLogMetadataManager) -> None:
    """Update lineage and remote end of a follower's log, in each interval. Raises NotYet, KafkaStorageError."""
    log, copies = state.partition.log, ready_copies(state, metadata)
    restore_lineage_of_follower(log, copies)
    update_remote_end(log, copies)


def ready_copies(state: PartitionState, metadata: RemoteLogMetadataManager) -> RemoteLogMetadataCache:
    """Return all copies of the partition. Raises NotYet while their metadata are not read up to their end."""
    if not metadata.is_ready(state.id):
        raise NotYet("the metadata of its copies are not read up to their end yet")
    return metadata.copies(state.id)


def update_remote_end(log: Log, copies: RemoteLogMetadataCache) -> None:
    """Set the end offset up to which the log is copied.

    It may move back: copies that this replica has known may be deleted since.
    """
    end = remote_end_offset(
        without_empty_epochs(log.leader_epochs.entries),
        copies,
        local_log_start_offset=log.local_log_start_offset,
        log_end_offset=log.log_end_offset,
    )
    # Local retention removes the segments before it.
    assert 0 <= end <= log.log_end_offset, (end, log.offsets)
    log.offsets.forget_remote_end()
    log.update_remote_end_offset(end)


def first_copied_offset(log: Log, copies: RemoteLogMetadataCache) -> int | None:
    """Return the start offset of the first copy with records of this log; None without one.

    A copy may end on another branch. One that begins there is none of this log: as after an unclean election
    of a replica that ends before the first copy.
    """
    lineage = without_empty_epochs(log.leader_epochs.entries)
    ends = [*(entry.start_offset for entry in lineage[1:]), log.log_end_offset]
    for entry, end in zip(lineage, ends, strict=False):
        for copy in copies.referenced(entry.epoch):
            found = copy.epoch_range(entry.epoch)
            if found is not None and found[0] < end:
                return copy.start_offset
            break
    return None
