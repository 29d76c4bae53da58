"""Retention in the remote tier: the copies that expire, and the log start afterwards (KIP-405, "Remote log retention").

    log start                     local log start      copied up to         log end
        |                                |                   |                 |
        [ remote only ][ remote only ]...[ in both tiers ]...[ local only .....]
         ^ expired first: retention.ms, retention.bytes, or the log start has passed it

A decision is made in one pass over the leader's lineage, oldest first, and stops at the first copy that is
kept: so a log never has a hole. The caller moves the log start offset first, then deletes: a follower that
becomes leader in between finds the same copies below its log start.

The log's size is what is in either tier, each byte once: finished copies of the lineage, and local segments from
the end of what is copied on. A new leader that does not know yet up to where the log is copied has to find out first
(`ottla.remote.lineage.highest_remote_offset`). Kafka 4.3.1 takes "unknown" for "nothing": it counts what is
in both tiers twice, and deletes what retention.bytes has room for (KAFKA-20732).

Source: RemoteLogManager.RLMExpirationTask of Kafka 4.3.1.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Final, assert_never
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.lineage import is_within, without_empty_epochs
from ottla.remote.lost_branches import lost_copies
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.only_copies import may_be_only_copy
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage.leader_epoch_cache import EpochEntry

#: The most copies of the log that one decision deletes: 12 us each, and there may be 100,000.
MAX_EXPIRED: Final = 500


class Reason(Enum):
    """The reason why a copy is deleted."""

    RETENTION_TIME = "retention.ms"
    RETENTION_SIZE = "retention.bytes"
    LOG_START_OFFSET = "log start offset"
    #: No record in it is of the leader's log: a branch was lost in an unclean election (`ottla.remote.lost_branches`).
    LOST_BRANCH = "lost branch"
    #: Another copy has the same records.
    DUPLICATE = "duplicate of another copy"
    #: The copy has been unfinished for longer than any copy takes.
    ABANDONED = "unfinished copy"
    #: An earlier deletion has not finished.
    RETRY = "deletion that did not finish"


@dataclass(slots=True, frozen=True, kw_only=True)
class LogView:
    """The leader's log at the time of the decision."""

    #: The leader's leader epoch cache: each epoch with its first offset.
    lineage: Sequence[EpochEntry]
    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int
    #: The size of the local segments from the end of what is copied on: they are in the local tier only.
    local_only_bytes: int
    #: retention.ms and retention.bytes; None: unlimited, or `cleanup.policy` has no `delete`.
    retention_ms: int | None
    retention_bytes: int | None
    #: Whether every assigned replica is in the ISR.
    is_fully_in_sync: bool


@dataclass(slots=True, kw_only=True)
class Expiration:
    """The decision of `expire`: copies to delete, oldest first, and the log start offset to set before."""

    deleted: list[tuple[RemoteLogSegmentMetadata, Reason]] = field(default_factory=list)
    #: The log start offset to set before anything is deleted; None: it stays.
    log_start_offset: int | None = None
    #: Unfinished copies that have exceeded every deadline, and may be the only ones of their records
    #: (`ottla.remote.only_copies`).
    doubtful: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    #: Whether there may be more to delete, beyond `MAX_EXPIRED`.
    has_more: bool = False


def expire(
    cache: RemoteLogMetadataCache,
    log: LogView,
    *,
    being_copied: Collection[UUID],
    abandoned: Collection[UUID],
    now_ms: int,
) -> Expiration:
    """Decide what retention deletes now.

    `being_copied`: ids of the copies that this broker makes now. `abandoned`: those of unfinished copies that
    have exceeded every deadline: no broker writes to them any more, so that their deletion leaves no object
    behind. Those that no reader needs are deleted.
    Cost: O(deleted), at most `MAX_EXPIRED` copies of the log, and of its former epochs; 0.1 us for each copy
    when the log is larger than retention.bytes by at least its first copy.
    """
    result = Expiration()
    lineage = without_empty_epochs(log.lineage)
    if not lineage:
        return result
    for copy in cache.unreferenced():  # of other branches, too
        reason = (
            None
            if copy.segment_id.id in being_copied
            else _unread(cache, copy, is_abandoned=copy.segment_id.id in abandoned)
        )
        if reason is Reason.ABANDONED and may_be_only_copy(
            copy,
            cache,
            lineage=lineage,
            log_start_offset=log.log_start_offset,
            local_log_start_offset=log.local_log_start_offset,
        ):
            result.doubtful.append(copy)
        elif reason is not None:
            result.deleted.append((copy, reason))
    excess = _Excess(cache, log, lineage)
    before_count = len(result.deleted)
    for copy in _distinct(cache.referenced(entry.epoch) for entry in lineage):
        if len(result.deleted) - before_count == MAX_EXPIRED:
            result.has_more = True
            break
        if copy.end_offset <= log.log_start_offset and copy.leader_epochs[-1].epoch <= lineage[0].epoch:
            # The leader epoch cache begins at the log start: one below it with newer epochs is of a lost branch.
            result.deleted.append((copy, Reason.LOG_START_OFFSET))
        elif is_within(copy, lineage, log_end_offset=log.log_end_offset):
            reason = _by_retention(copy, log, excess=excess, now_ms=now_ms)
            if reason is None:
                break
            # A prefix of the log expires: no copy behind one that is kept, nor one that is not read any more.
            assert copy.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED, copy
            result.deleted.append((copy, reason))
            excess.remove(copy)
            # Copies of two leaders may overlap: the next one may end where this one does, or before.
            result.log_start_offset = max(result.log_start_offset or 0, copy.end_offset)
    found = {copy.segment_id.id for copy, _ in result.deleted}
    lost = lost_copies(
        cache,
        lineage,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        is_fully_in_sync=log.is_fully_in_sync,
        expired_before_ms=None if log.retention_ms is None else now_ms - log.retention_ms,
    )
    lost = [copy for copy in lost if copy.segment_id.id not in found]
    result.has_more |= len(lost) > MAX_EXPIRED
    for copy in lost[:MAX_EXPIRED]:
        is_before = copy.end_offset <= log.log_start_offset
        result.deleted.append((copy, Reason.LOG_START_OFFSET if is_before else Reason.LOST_BRANCH))
    assert result.log_start_offset is None or result.log_start_offset <= log.log_end_offset, (result, log)
    return result


def _unread(
    cache: RemoteLogMetadataCache, copy: RemoteLogSegmentMetadata, *, is_abandoned: bool
) -> Reason | None:
    """The reason to delete a copy that no reader finds; None: it is kept.

    It may still be finished, or is found in another epoch.
    """
    match copy.state:
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return Reason.ABANDONED if is_abandoned else None
        case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            return None if cache.is_referenced(copy) else Reason.DUPLICATE
        case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return Reason.RETRY
        case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            raise AssertionError(f"{copy.segment_id} is deleted, yet in the cache")
        case _:
            assert_never(copy.state)


def _by_retention(
    copy: RemoteLogSegmentMetadata, log: LogView, *, excess: "_Excess", now_ms: int
) -> Reason | None:
    """The reason why retention deletes the oldest copy of the log; None: it is kept."""
    if log.retention_ms is not None and copy.max_timestamp_ms < now_ms - log.retention_ms:
        return Reason.RETENTION_TIME
    if excess.is_at_least(copy.segment_size_bytes):
        return Reason.RETENTION_SIZE
    return None


class _Excess:
    """The number of bytes by which the log exceeds retention.bytes.

    The size of all finished copies gives an upper bound, and costs nothing. A log at its limit exceeds it by
    less than a segment: so the copies of the lineage are summed up only when one of them is due, or when
    there are other copies.
    """

    def __init__(self, cache: RemoteLogMetadataCache, log: LogView, lineage: Sequence[EpochEntry]) -> None:
        self._cache = cache
        self._log = log
        self._lineage = lineage
        self._removed_bytes = 0
        self._is_exact = False
        self._total_bytes = log.local_only_bytes + cache.finished_bytes

    def is_at_least(self, size_bytes: int) -> bool:
        """Whether the log exceeds retention.bytes by `size_bytes` at least."""
        limit = self._log.retention_bytes
        if limit is None or self._total_bytes - self._removed_bytes - limit < size_bytes:
            return False
        if not self._is_exact:
            self._is_exact = True
            self._total_bytes = self._log.local_only_bytes + self._cache.bytes_within(
                self._lineage,
                log_start_offset=self._log.log_start_offset,
                log_end_offset=self._log.log_end_offset,
            )
        return self._total_bytes - self._removed_bytes - limit >= size_bytes

    def remove(self, copy: RemoteLogSegmentMetadata) -> None:
        """Subtract a copy that is going to be deleted."""
        self._removed_bytes += copy.segment_size_bytes


def _distinct(groups: Iterable[Iterable[RemoteLogSegmentMetadata]]) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield each copy once: one with several epochs is in several groups."""
    seen: set[UUID] = set()
    for copy in chain.from_iterable(groups):
        if copy.segment_id.id not in seen:
            seen.add(copy.segment_id.id)
            yield copy
