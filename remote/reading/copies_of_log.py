"""The choice of the copy that holds an offset of a log, and of the end up to which it agrees with the log.

A copy is found by (leader epoch, offset): two logs are identical there, whichever leader wrote the copy. It
may go on with records that an unclean election has removed from this log, so a read ends where the epochs differ:

    log        e0@0      e1@40         e2@60
    copy                 e1@40 ................ 80     offsets 40 to 59 are read from it, 60 to 79 are not

Source: RemoteLogManager.read of Kafka 4.3.1. Differs: Kafka reads on, to the end of the copy.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ottla.remote.lineage import without_empty_epochs
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.log_reader import LogReader


class TieredLog(Protocol):
    """The properties of a log that reads from the remote tier use; ottla.storage.log.Log has them."""

    @property
    def offsets(self) -> LogOffsets:
        """The log's start, in either tier, and its end."""

    @property
    def leader_epochs(self) -> LeaderEpochCache:
        """The lineage of the log: its leader epochs, each with its first offset."""

    @property
    def reader(self) -> LogReader:
        """The reader of the log's local tier."""


class FoundCopy(NamedTuple):
    """A finished copy, and the end, exclusive, of its agreement with the log from the wanted offset on."""

    copy: RemoteLogSegmentMetadata
    end_offset: int


def find_copy(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, log: TieredLog, offset: int
) -> FoundCopy | None:
    """Return the copy to read `offset` from; None: there is none. Raises RemoteStorageError.

    Cost: O(epochs + log copies).
    """
    epoch = log.leader_epochs.epoch_for_offset(offset)
    if epoch is None:
        return None
    copy = metadata.remote_log_segment_metadata(partition, epoch=epoch, offset=offset)
    if copy is None:
        return None
    end = agreed_end(
        copy,
        without_empty_epochs(log.leader_epochs.entries),
        offset=offset,
        log_end_offset=log.offsets.log_end_offset,
    )
    return FoundCopy(copy, end)


def agreed_end(
    copy: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry], *, offset: int, log_end_offset: int
) -> int:
    """Return the first offset behind `offset` at which the copy has another epoch than the log, or ends.

    Precondition: `offset` has the same epoch in both. Neither has empty epochs.
    """
    of_copy = _ranges(without_empty_epochs(copy.leader_epochs), copy.end_offset)
    of_log = _ranges(lineage, log_end_offset)
    ends = {epoch: end for epoch, _, end in of_log}
    starts = {epoch: start for epoch, start, _ in of_log}
    reached = offset
    for epoch, start, end in of_copy:
        if end <= offset:
            continue
        if epoch not in ends or (start > offset and starts[epoch] != start):
            return reached
        if ends[epoch] != end:
            # At the end of the copy the epoch may go on in the log.
            return min(ends[epoch], end)
        reached = end
    return reached


def _ranges(entries: Sequence[EpochEntry], end_offset: int) -> list[tuple[int, int, int]]:
    """Return (epoch, start, end) of each epoch."""
    ends = [*(entry.start_offset for entry in entries[1:]), end_offset]
    return [(entry.epoch, entry.start_offset, end) for entry, end in zip(entries, ends, strict=True)]
