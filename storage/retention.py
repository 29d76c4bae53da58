"""Retention: which local segments of a log are due for removal, by log start offset, size or age.

Decides only; `ottla.storage.log_start` removes them.
Only segments from the beginning are removed, up to the first one that must stay, and none that ends after
the high watermark: the log start offset never passes it. The active segment is removed, too, when it is due
(the log is rolled first), unless it is empty or due by the log start offset only.

A segment is as old as its headers say, and its file; if it was written later, as its records say
(`ottla.storage.segment_times`). For local retention a segment with a timestamp in the future is as old as its
file: the clients' clocks do not decide how long the disk keeps what the remote tier has. Total retention keeps
its records until they are old by their own time.

A tiered log has two retentions (KIP-405). Total retention (`retention.ms`, `retention.bytes`) is for both
tiers, and is the remote tier's to apply (`ottla.remote.expiration`): it advances the log start offset. Local
retention (`local.retention.ms`, `local.retention.bytes`) removes a local segment only if the remote tier has
it, or if it is before the log start:

    log start        remote end            high watermark
        [ 0 .. ][ 10 .. ][ 20 .. ][ 30 .. ][ active 40 ..
        due      due      due      due      due             by local.retention.ms
        removed  removed  stays: not copied yet. The next run removes it, if it is copied by then

The active segment is rolled when it is due and everything before it is copied: an idle log is offloaded completely.
With `remote.log.copy.disable` nothing is copied any more: total retention applies to the local segments, as in
a log that is not tiered, once it has removed everything that only the remote tier has. Until then a segment
goes only if it is copied: it is newer than what is kept there. Kafka moves the log start over that.

Source: UnifiedLog.deleteOldSegments, deletableSegments and isSegmentEligibleForDeletion of Kafka 4.3.1; the
file's time is that of Kafka 4.4 (KAFKA-20609).
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

from ottla.config.log_config import LogConfig
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.log_reader import LogReader
from ottla.storage.segment import Segment
from ottla.storage.segments import Segments


class Retention(NamedTuple):
    """Segments to remove, oldest first, and the reason."""

    segments: list[Segment]
    reason: str
    #: Whether the active segment is due. If it is not one of `segments`, it waits for its copy, and is only rolled.
    rolls_active: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is due: no segment is removed, and the active one is not rolled."""
        return not (self.segments or self.rolls_active)


class Limits(NamedTuple):
    """The limits of a log's retention: the age and the size up to which local segments are kept."""

    #: None: no limit.
    retention_ms: int | None
    retention_bytes: int | None
    #: The configurations that these are, for messages.
    prefix: str = ""
    #: Whether a segment stays until it is copied, unless it is before the log start.
    must_be_copied: bool = False
    #: Whether these are of the local tier only: what is removed is in the other one, or before the log start.
    is_local: bool = False

    @classmethod
    def of(cls, config: LogConfig, *, is_tiered: bool, has_remote_part: bool = False) -> "Limits":
        """The limits of a log; without limits where `cleanup.policy` has no `delete`.

        `has_remote_part`: the log starts before its local segments.
        """
        if is_tiered and not config.remote_log_copy_disable:
            # Also without `cleanup.policy=delete`: nothing expires then, but the local tier is only a part.
            return cls(
                config.effective_local_retention_ms,
                config.effective_local_retention_bytes,
                "local.",
                must_be_copied=True,
                is_local=True,
            )
        return cls(
            config.total_retention_ms,
            config.total_retention_bytes,
            must_be_copied=is_tiered and has_remote_part,
        )

    def kept_from_ms(self, now_ms: int) -> int | None:
        """The oldest timestamp that is kept; None if nothing is removed by age."""
        assert self.retention_ms is None or self.retention_ms >= 0, self
        return None if self.retention_ms is None else now_ms - self.retention_ms

    def go_by_file(self, largest_ms: int, *, now_ms: int) -> bool:
        """Whether a segment's age is that of its file, not that of its largest timestamp (negative: it has none)."""
        return largest_ms < 0 or (self.is_local and largest_ms > now_ms)


def _time_ms(segment: Segment, limits: Limits, now_ms: int) -> int:
    """The time from which a segment ages, by its headers or its file."""
    largest_ms = segment.indexes.largest.timestamp
    return segment.files.modified_ms() if limits.go_by_file(largest_ms, now_ms=now_ms) else largest_ms


def _copied_end(offsets: LogOffsets, limits: Limits) -> int:
    """The offset up to which segments need not stay for a copy; the active segment is not asked."""
    if not limits.must_be_copied:
        return offsets.log_end_offset
    return max(offsets.remote_end_offset or 0, offsets.log_start_offset)


def waits_for_disk(
    segments: Segments, *, limits: Limits, offsets: LogOffsets, now_ms: int, most: int | None = None
) -> bool:
    """Whether `due` would read timestamps of a segment from its files, or of its records.

    After a start none is in memory.
    """
    oldest_kept_ms = limits.kept_from_ms(now_ms)
    if oldest_kept_ms is None:
        return False
    copied_end = _copied_end(offsets, limits)
    for segment in islice(segments, most):
        end = segments.end_of(segment)
        if end is not None and end > copied_end:
            break
        if segment.indexes.known_largest is None:
            return segment.size > 0
        if (
            segment.indexes.largest.timestamp >= oldest_kept_ms
            and _time_ms(segment, limits, now_ms) >= oldest_kept_ms
        ):
            break
        if not limits.must_be_copied and segment.waits_for_times(oldest_kept_ms):
            if segment.times.known.position < segment.size:
                return True
            if segment.times.known.largest >= oldest_kept_ms:
                break
    return False


def warm_up(reader: LogReader, *, limits: Limits, now_ms: int, most: int | None = None) -> None:
    """Read into the page cache what `due` reads. Changes nothing. [any thread]

    Raises KafkaStorageError for a failing disk.
    """
    oldest_kept_ms = limits.kept_from_ms(now_ms)
    if oldest_kept_ms is not None:
        reader.warm_up_times(
            oldest_kept_ms,
            go_by_file=partial(limits.go_by_file, now_ms=now_ms),
            of_records=not limits.must_be_copied,
            most=most,
        )


def due(
    segments: Segments, *, limits: Limits, offsets: LogOffsets, now_ms: int, most: int | None = None
) -> Retention:
    """The segments of the first rule (log start offset, size, age) that finds any. Call again until there are none.

    Only the first `most` segments are examined, at 8 us each.

    Removes nothing that is not copied while `offsets.remote_end_offset` is unknown, if the limits ask for copies.
    """
    log_start_offset = offsets.log_start_offset
    copied_end = _copied_end(offsets, limits)

    def leading(is_due: Callable[[Segment], bool], reason: str) -> Retention:
        found: list[Segment] = []
        for segment in islice(segments, most):
            is_active = segment is segments.active
            end = offsets.log_end_offset if is_active else segments.end_of(segment)
            assert end is not None, segment
            if offsets.high_watermark < end or (is_active and not segment.size):
                break
            is_copied = end <= copied_end
            if not (is_copied or is_active) or not is_due(segment):
                break
            if is_copied:
                found.append(segment)
            if is_active:
                return Retention(found, reason, rolls_active=True)
        return Retention(found, reason)

    def is_before_start(segment: Segment) -> bool:
        end = segments.end_of(segment)
        return end is not None and end <= log_start_offset

    found = leading(is_before_start, f"they end before the log start offset {log_start_offset}")
    if found.is_empty and limits.retention_bytes is not None:
        assert limits.retention_bytes >= 0, limits
        excess = segments.size_bytes - limits.retention_bytes

        def is_excess(segment: Segment) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        if excess >= 0:
            reason = f"the log is longer than {limits.prefix}retention.bytes {limits.retention_bytes}"
            found = leading(is_excess, reason)
    oldest_kept_ms = limits.kept_from_ms(now_ms)
    if found.is_empty and oldest_kept_ms is not None:
        reason = f"they are older than {limits.prefix}retention.ms {limits.retention_ms}"
        found = leading(
            # Not what is copied: it is deleted here only.
            (lambda segment: _time_ms(segment, limits, now_ms) < oldest_kept_ms)
            if limits.must_be_copied
            else (lambda segment: segment.is_older_than(oldest_kept_ms)),
            reason,
        )
    return found
