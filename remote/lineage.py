"""The remote tier as seen from one leader's epochs: which copies are part of its log (KIP-405, "Follower Replication").

A leader's lineage is its leader epoch cache: each epoch with its first offset. After an unclean election the
tier also has copies of the branch that was given up. Only copies within the lineage count as part of the log:
they are read, and retention counts and deletes them.

    lineage   e0@0 e2@40               e0 = [0, 40), e2 = [40, log end)
    within    [0, 20) e0    [20, 60) e0@20 e2@40
    not       [20, 50) e0              ends behind the end of e0: the other branch
              [20, 60) e0@20 e1@30     e1 is not in the lineage

Source: RemoteLogManager.isRemoteSegmentWithinLeaderEpochs, findHighestRemoteOffset and findLogStartOffset of
Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ottla.protocol.types import MAX_OFFSET
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage.leader_epoch_cache import EpochEntry


def without_empty_epochs(entries: Iterable[EpochEntry]) -> list[EpochEntry]:
    """Return these epochs without those that wrote nothing: of several with the same start, the last one.

    >>> without_empty_epochs([EpochEntry(0, 0), EpochEntry(1, 7), EpochEntry(2, 7)])
    [EpochEntry(epoch=0, start_offset=0), EpochEntry(epoch=2, start_offset=7)]
    """
    kept: list[EpochEntry] = []
    for entry in entries:
        if kept and kept[-1].start_offset == entry.start_offset:
            kept.pop()
        kept.append(entry)
    return kept


def epoch_bounds(lineage: Sequence[EpochEntry]) -> dict[int, tuple[int, int]]:
    """Return the offsets [start, end) of each epoch; the last one is still being written.

    `lineage` has no empty epochs.
    """
    ends = [*(entry.start_offset for entry in lineage[1:]), MAX_OFFSET]
    return {entry.epoch: (entry.start_offset, end) for entry, end in zip(lineage, ends, strict=bool(lineage))}


def common_ranges(
    copy: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry], *, log_start_offset: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (epoch, start, end) of the records from the log start on that a copy and this log have in common.

    `lineage` is not empty, and has no empty epochs. Where it does not begin at the log start, older epochs
    count as its own. Cost: O(epochs).
    """
    bounds = epoch_bounds(lineage)
    older = (log_start_offset, lineage[0].start_offset)
    for entry in copy.leader_epochs:
        of_log = older if entry.epoch < lineage[0].epoch else bounds.get(entry.epoch)
        of_copy = copy.epoch_range(entry.epoch)
        if of_log is None or of_copy is None:
            continue
        start, end = max(of_copy[0], of_log[0], log_start_offset), min(of_copy[1], of_log[1])
        if start < end:
            yield entry.epoch, start, end


def is_within(copy: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry], *, log_end_offset: int) -> bool:
    """Whether a copy is part of the log with this lineage. `lineage` has no empty epochs, and grows.

    Epochs before the lineage's first one are not compared: retention has removed them from the leader's cache. An
    epoch's start offset may be smaller in the lineage than in the copy only for the copy's first epoch, which began in
    an earlier segment. Cost: O(epochs).
    """
    if copy.end_offset > log_end_offset or not lineage:
        return False
    of_copy = [each for each in without_empty_epochs(copy.leader_epochs) if each.epoch >= lineage[0].epoch]
    if not of_copy:
        return False
    starts = dict(lineage)
    first = of_copy[0]
    if first.epoch not in starts:
        return False
    if first.epoch != lineage[0].epoch and first.start_offset < starts[first.epoch]:
        return False
    # From the copy's first epoch on, the lineage has the same epochs at the same offsets, up to the copy's end.
    expected = [each for each in lineage if each.epoch > first.epoch and each.start_offset < copy.end_offset]
    return of_copy[1:] == expected


def highest_remote_offset(
    lineage: Sequence[EpochEntry], copied_end: Callable[[int], int | None], *, log_end_offset: int
) -> int | None:
    """Return the end, exclusive, of the offsets that were ever copied of this log; None: nothing was.

    `copied_end` is the end of what was copied of an epoch (`highest_offset_for_epoch`), also on another branch: an
    epoch ends in this log where the next one starts, and what lies behind is not part of it. Newest epochs first.
    """
    end = log_end_offset
    for entry in reversed(lineage):
        copied = copied_end(entry.epoch)
        if copied is not None and copied >= entry.start_offset:
            return min(copied, end)
        end = entry.start_offset
    return None


def removed_until(
    lineage: Sequence[EpochEntry], removed_end: Callable[[int, int], int | None], *, log_end_offset: int
) -> int | None:
    """Return the end, exclusive, of the offsets that were copied of this log and are deleted; None: nothing is.

    `removed_end` is the end of what is deleted of an epoch before an offset (`RemoteLogMetadataCache.removed_until`).
    """
    end = log_end_offset
    for entry in reversed(lineage):
        removed = removed_end(entry.epoch, end)
        if removed is not None and removed > entry.start_offset:
            return removed
        end = entry.start_offset
    return None


class CopiedRanges(Protocol):
    """The finished copies of a partition, as `ottla.remote.metadata_cache.RemoteLogMetadataCache` has them."""

    def covered_until(self, *, epoch: int, offset: int) -> int:
        """Return the end, exclusive, of the offsets from `offset` on that copies of this epoch have without a gap."""

    def end_offset_for_epoch(self, epoch: int) -> int | None:
        """Return the end, exclusive, of the offsets of an epoch that were ever copied; None: nothing was."""


def remote_end_offset(
    lineage: Sequence[EpochEntry], copies: CopiedRanges, *, local_log_start_offset: int, log_end_offset: int
) -> int:
    """Return the end, exclusive, of the prefix of this log that the remote tier has; 0: nothing is copied.

    Local segments before it may be removed. The copies that exist are followed from the local log start on,
    up to the first offset that none holds: after a hole the log is copied again, as long as local segments
    have it. The part before the local log start cannot be copied any more.

        lineage e0@0 e2@40, local log start 20, log end 70

        [0, 20) [20, 40) [40, 60)       60
        [0, 20) [20, 50)e0 [40, 60)     60   of the second one only [20, 40) is part of this log
        [0, 20) [40, 60)                20   a hole; Kafka 4.3.1: 60, and the segments from 20 to 40 are lost
        [0, 20) expired, nothing else   20   the log was copied up to there, once

    Cost: O(copies behind the local log start).
    """
    offset = local_log_start_offset
    for at, entry in enumerate(lineage):
        end = lineage[at + 1].start_offset if at + 1 < len(lineage) else log_end_offset
        if entry.start_offset <= offset < end:
            offset = min(end, copies.covered_until(epoch=entry.epoch, offset=offset))
            if offset < end:
                break
    if offset > local_log_start_offset:
        return offset
    ever = highest_remote_offset(lineage, copies.end_offset_for_epoch, log_end_offset=log_end_offset)
    return 0 if ever is None else min(ever, local_log_start_offset)
