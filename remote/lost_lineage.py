"""Restores the leader epochs of a log's remote part, when the log has lost them, from the metadata of its copies.

A power cut may take a log's leader-epoch-checkpoint. The log reads the epochs of its local part from its
batches again, but not those of the remote part, without which no copy there is known to be its own: it would
not be read, and be deleted as unreferenced. Each copy's metadata has its epochs, and the copies are followed
from the local part back to the first one:

    local part        e4@80                   before 80, of epoch 4 at most
    [60, 80) e2@60 e4@75                      it has offset 79 in epoch 4
    [50, 70) e3@50                            has offset 59, but e3 is newer than e2: it is of another branch
    [40, 60) e1@40 e2@55
    restored          e1@40 e2@55 e4@75

Of several copies with an offset, that of the newest epoch is the log's: a branch that was given up wrote it
in an older one.

A power cut may also take the log start offset back to an older one. A copy that begins before the log's first
epoch, and whose own epochs begin with it, was made when the log started there: records before are no part of
the log any more.

Kafka 4.3.1 continues with the epochs of the local part, and deletes the copies of the others.
"""

from collections.abc import Iterable
from logging import getLogger

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.log import Log

_LOG = getLogger(__name__)
_COPIES = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)


def restore_lineage(log: Log, copies: RemoteLogMetadataCache) -> None:
    """Restore the lineage of a leader's log that has lost it; what was deleted is not part of the log any more.

    `copies` must be complete. Cost: nothing for a log with its lineage, else O(copies). Raises KafkaStorageError.
    """
    if log.has_whole_lineage:
        return
    end, entries = _lost_lineage(log, copies)
    _restore(log, entries)
    first = log.leader_epochs.earliest
    if log.has_whole_lineage or first is None:
        return
    if any(_starts_within(copy, first) for copy in copies.segments(first.epoch)):
        log.maybe_increment_log_start_offset(
            first.start_offset, reason="a copy shows that it had advanced to there"
        )
        return
    removed = copies.removed_before_epoch(first.epoch)
    if removed is not None:
        start = min(removed, entries[0].start_offset if entries else end)
        log.maybe_increment_log_start_offset(start, reason="the copies of the records before are deleted")


def _starts_within(copy: RemoteLogSegmentMetadata, first: EpochEntry) -> bool:
    """Whether the log, whose first epoch this is, started within the copied segment when it was copied."""
    return copy.state in _COPIES and copy.start_offset < first.start_offset and copy.leader_epochs[0] == first


def restore_lineage_of_follower(log: Log, copies: RemoteLogMetadataCache) -> None:
    """Restore the lineage of a follower's log that has lost it, if these copies have all of it.

    Consumers read the remote part from followers, too (KIP-392). A follower may not know all copies yet, and
    its log starts where its leader's does.
    """
    if log.has_whole_lineage:
        return
    _, entries = _lost_lineage(log, copies)
    if entries and entries[0].start_offset <= log.log_start_offset:
        _restore(log, entries)


def _lost_lineage(log: Log, copies: RemoteLogMetadataCache) -> tuple[int, list[EpochEntry]]:
    """Return the offset where the known lineage begins, and the older epochs by the metadata of the copies."""
    first = log.leader_epochs.earliest
    end, newest_epoch = log.local_log_start_offset, None
    if first is not None:
        end, newest_epoch = min(first.start_offset, end), first.epoch
    return end, lineage_before(copies.segments(), end, newest_epoch=newest_epoch)


def _restore(log: Log, entries: list[EpochEntry]) -> None:
    _LOG.warning(
        "%s: the leader epochs of its remote part are lost; by the metadata of its copies they are %s",
        log.topic_partition,
        entries,
    )
    log.restore_lineage(entries)


def lineage_before(
    copies: Iterable[RemoteLogSegmentMetadata], end_offset: int, *, newest_epoch: int | None
) -> list[EpochEntry]:
    """Return the leader epochs of the log before `end_offset`, oldest first, as far back as copies follow each other.

    Copies that seem unfinished count, too: the record that one is finished may be lost.
    `newest_epoch` is the leader epoch of the record at `end_offset`; None: unknown.
    """
    #: Copies by end offset: the last one has the largest.
    waiting = sorted(
        (copy for copy in copies if copy.state in _COPIES),
        key=lambda copy: copy.end_offset,
    )
    #: Copies that end after `last`; mostly one.
    candidates: list[RemoteLogSegmentMetadata] = []
    starts: dict[int, int] = {}
    last = end_offset - 1
    while True:
        while waiting and waiting[-1].end_offset > last:
            candidates.append(waiting.pop())
        candidates = [copy for copy in candidates if copy.start_offset <= last]
        found: list[EpochEntry] = []
        for copy in candidates:
            entries = [entry for entry in copy.leader_epochs if entry.start_offset <= last]
            if not entries:
                # The log started within the segment when it was copied: what is before is not part of the log.
                continue
            epoch = entries[-1].epoch
            if (newest_epoch is None or epoch <= newest_epoch) and (not found or epoch > found[-1].epoch):
                found = entries
        if not found:
            return [EpochEntry(epoch, starts[epoch]) for epoch in sorted(starts)]
        starts.update(found)  # the start in an older copy is the smaller one
        newest_epoch, last = found[0].epoch, found[0].start_offset - 1
