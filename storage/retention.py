"""Retention: which segments of a log are due for removal, by log start offset, size or age.

Decides only; `Log.apply_retention` removes them.
Only segments from the beginning are removed, up to the first one that must stay, and none that ends after
the high watermark: the log start offset never passes it. The active segment is removed, too, when it is due
(the log is rolled first), unless it is empty or due by the log start offset only.

Source: UnifiedLog.deleteOldSegments of Kafka 4.3.1.
"""

from collections.abc import Callable
from typing import NamedTuple

from storage.log_config import LogConfig
from storage.log_reader import LogReader
from storage.segment import Segment
from storage.segments import Segments


class Retention(NamedTuple):
    """Segments to remove, oldest first, and the reason."""

    segments: list[Segment]
    reason: str


def kept_from_ms(config: LogConfig, now_ms: int) -> int | None:
    """The oldest timestamp that `retention.ms` keeps; None if nothing is removed by age."""
    return now_ms - config.retention_ms if config.is_deleting and config.retention_ms is not None else None


def waits_for_disk(segments: Segments, *, config: LogConfig, now_ms: int) -> bool:
    """Whether `due` would read the timestamp of a segment from its files: after a start, none is in memory."""
    oldest_kept_ms = kept_from_ms(config, now_ms)
    if oldest_kept_ms is None:
        return False
    for segment in segments:
        if segment.indexes.known_largest is None:
            return segment.size > 0
        if segment.indexes.largest.timestamp >= oldest_kept_ms:
            break
    return False


def warm_up(reader: LogReader, *, config: LogConfig, now_ms: int) -> None:
    """Read into the page cache what `due` reads. Changes nothing. [any thread]

    Raises KafkaStorageError for a failing disk.
    """
    oldest_kept_ms = kept_from_ms(config, now_ms)
    if oldest_kept_ms is not None:
        reader.warm_up_times(oldest_kept_ms)


def due(
    segments: Segments,
    *,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> Retention:
    """The segments of the first rule (log start offset, size, age) that finds any. Call again until there are none.

    With `cleanup.policy=compact`, or none, only segments before the log start offset are removed.
    """

    def leading(is_due: Callable[[Segment], bool], *, with_active: bool = True) -> list[Segment]:
        found = []
        for segment in segments:
            end = segments.end_of(segment)
            is_active = end is None
            if is_active and (not with_active or not segment.size):
                break
            if high_watermark < (log_end_offset if end is None else end) or not is_due(segment):
                break
            found.append(segment)
        return found

    def is_before_start(segment: Segment) -> bool:
        end = segments.end_of(segment)
        return end is not None and end <= log_start_offset

    if found := leading(is_before_start, with_active=False):
        return Retention(found, f"they end before the log start offset {log_start_offset}")
    if not config.is_deleting:
        return Retention([], "")
    if config.retention_bytes is not None:
        excess = segments.size_bytes - config.retention_bytes

        def is_excess(segment: Segment) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        if excess >= 0 and (found := leading(is_excess)):
            return Retention(found, f"the log is longer than retention.bytes {config.retention_bytes}")
    oldest_kept_ms = kept_from_ms(config, now_ms)
    if oldest_kept_ms is not None:
        found = leading(lambda segment: segment.largest_timestamp_ms() < oldest_kept_ms)
        return Retention(found, f"they are older than retention.ms {config.retention_ms}")
    return Retention([], "")
