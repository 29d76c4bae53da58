"""Which segments of a log may go: by its start, its size, its age. Decides only; see Log.apply_retention.

Only segments from the beginning go, one after the other until one must stay, and none that reaches the
high watermark: the log start offset can never pass it. The active segment goes, too, when it is due (a
new one is begun first), unless it is empty or only the log start asks for it.

Source: UnifiedLog.deleteOldSegments of Kafka 4.3.1.
"""

from collections.abc import Callable
from typing import NamedTuple

from storage.log_config import LogConfig
from storage.segment import Segment
from storage.segments import Segments


class Retention(NamedTuple):
    """Segments to remove, oldest first, and why."""

    segments: list[Segment]
    reason: str


def due(
    segments: Segments,
    *,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> Retention:
    """The segments that the first rule that finds any lets go. Ask again until there are none.

    With `cleanup.policy=compact`, or none, only what lies before the log start offset goes.
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
    if config.retention_ms is not None:
        oldest_kept_ms = now_ms - config.retention_ms
        found = leading(lambda segment: segment.largest_timestamp_ms() < oldest_kept_ms)
        return Retention(found, f"they are older than retention.ms {config.retention_ms}")
    return Retention([], "")
