"""Copies of a branch that was lost in an unclean leader election: which of them are deleted, and when.

A leader goes on alone, and copies segments; a replica that lacks their records is elected uncleanly. The
branch is lost, but the remote tier has it.

    lost branch   e0@0 ...... e1@40 ............. 99
    leader's log  e0@0 ...... e2@40 ............ 95     copied up to 90

    [20, 50) e0@20 e1@40   stays: its first records, up to 40, are of the leader's log, and readers may get them from it
    [50, 80) e1@50         no record of it is of the leader's log: it is deleted, if the conditions below are met
    [80, 99) e1@80         waits until the log is copied up to 99, or until its records expire
    [60, 70) e3@60         stays: e3 is newer than the leader's epoch, so the leader is deposed, and does not
    know it yet

**No replica needs it.** A replica that has the branch may be elected uncleanly in its turn, and may have
removed its local segments: then these copies are the only ones. So all assigned replicas must be in the ISR.
A replica joins the ISR after it has truncated its log to the leader's, and has everything before the high
watermark, below which all copies are: from then on no replica has the branch, whichever is elected, and also
if this broker does not lead any more when it deletes. While a replica is down, or lags, the copies stay.

**Its offsets are copied again**, from the log start on, or its records are older than retention.ms: until
then an operator may want to read what was lost.

Below the log start neither is asked for: the leader's own records there are deleted, and everything below
goes in order.

**The lineage must be known.** The leader epoch cache must begin at the log start: after a power cut it may
not, until the lineage is restored (`ottla.remote.lost_lineage`).

What remains: a power cut may undo the last truncation of a replica's segment. If that replica is elected
uncleanly afterwards, it has a few records of the branch again, and no copies of those before. And where two
branches were copied up to the same offset, and the power cut takes the leader epoch cache before one of them
is deleted here, the lineage that is restored may be the other one.

Source: none. Kafka 4.3.1 (RemoteLogManager.deleteLogSegmentsDueToLeaderEpochCacheTruncation) deletes copies
all of whose epochs are older than the first one of the leader epoch cache, at once; the others stay as long
as that begins with an older epoch.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from ottla.remote.lineage import common_ranges, remote_end_offset
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage.leader_epoch_cache import EpochEntry

#: The most copies that one decision examines, by start offset: 12 us each, and a branch may have 100,000.
MAX_EXAMINED: Final = 1000


def lost_copies(
    cache: RemoteLogMetadataCache,
    lineage: Sequence[EpochEntry],
    *,
    log_start_offset: int,
    log_end_offset: int,
    is_fully_in_sync: bool,
    expired_before_ms: int | None,
) -> list[RemoteLogSegmentMetadata]:
    """Return the finished copies without a record of the leader's log that are to be deleted now, by start offset.

    `lineage` is not empty, and has no empty epochs. `is_fully_in_sync`: all assigned replicas are in the ISR
    of this leader. `expired_before_ms`: copies with older records only have expired; None: none ever does.
    Cost: O(epochs), and `MAX_EXAMINED` copies at most; 0.1 us for each copy of a lost branch, and for each
    behind the first one.
    """
    if lineage[0].start_offset > log_start_offset:
        return []
    examined: Iterator[RemoteLogSegmentMetadata] = islice(cache.outside(lineage), MAX_EXAMINED)
    if not is_fully_in_sync:
        examined = takewhile(lambda copy: copy.start_offset < log_start_offset, examined)
    lost = [
        copy
        for copy in examined
        if copy.leader_epochs[-1].epoch < lineage[-1].epoch
        and not any(common_ranges(copy, lineage, log_start_offset=log_start_offset))
    ]
    before = [copy for copy in lost if copy.end_offset <= log_start_offset]
    behind = [copy for copy in lost if copy.end_offset > log_start_offset]
    if not (behind and is_fully_in_sync):
        return before
    covered_end = remote_end_offset(
        lineage,
        cache,
        local_log_start_offset=max(behind[0].start_offset, log_start_offset),
        log_end_offset=log_end_offset,
    )
    return before + [
        copy
        for copy in behind
        if copy.end_offset <= covered_end
        or (expired_before_ms is not None and copy.max_timestamp_ms < expired_before_ms)
    ]
