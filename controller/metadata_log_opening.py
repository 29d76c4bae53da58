"""What is found when a metadata log is opened: where it begins, and what a crash has left of it.

    [ snapshot ]   [ segment ][ segment ]     (gap)     [ segment ]
         |         |                     |              |
         '- start -'                     '--- closed ---'

Nothing but file names says where a log begins, and a crash may leave segments that do not follow on each other.
Source: KafkaRaftLog of Kafka 4.3.1, KIP-630.
"""

from itertools import pairwise
from pathlib import Path

from controller.log_cleaning import MAX_BATCH_BYTES, MetadataLogSettings
from controller.snapshot_store import SnapshotStore
from protocol.metadata.image import InvalidMetadata
from storage import file_names
from storage.files import Files
from storage.log import Log
from storage.log_config import LogConfig


def config_of(settings: MetadataLogSettings) -> LogConfig:
    """Nothing is deleted by age or size of its own: `MetadataLog.clean` moves the log's start."""
    return LogConfig(
        retention_ms=None,
        retention_bytes=None,
        segment_bytes=settings.log_segment_bytes,
        segment_ms=settings.log_segment_ms,
        max_message_bytes=MAX_BATCH_BYTES,
    )


def start_of(directory: Path, store: SnapshotStore, files: Files) -> int:
    """Where the log begins, which is not written down: 0, or the first snapshot that is not before all segments."""
    if not files.is_dir(directory):
        return 0
    names = (name for name in files.list(directory) if name.endswith(file_names.LOG))
    first = min((at for at in map(file_names.offset_of, names) if at is not None), default=0)
    return min((each.offset for each in store.ids if each.offset >= first), default=first) if first else 0


def close_gap(log: Log, store: SnapshotStore, *, is_clean: bool, now_ms: int) -> None:
    """Offsets of a Raft log have no gaps; a crash may leave one between segments. Raises InvalidMetadata.

    Either the segments before it were removed for a snapshot, which is there, or they have lost what nobody
    had flushed, and nothing behind it counts. After a clean stop it is damage.
    """
    # Not for others to judge, as a partition's log has it: it would hold the high watermark back at the gap for ever.
    log.doubtful_from = None
    gap: tuple[int, int] | None = None
    for earlier, later in pairwise(log.segments):
        end = max(earlier.next_offset(), log.log_start_offset)
        if end < later.base_offset:
            gap = end, later.base_offset
    if gap is None:
        return
    end, begin = gap
    covering = [each for each in store.ids if begin <= each.offset <= log.log_end_offset]
    if covering:
        start = min(each.offset for each in covering)
        log.update_high_watermark(start)
        log.maybe_increment_log_start_offset(start, reason="the log has a gap before it")
        log.apply_retention(now_ms)
    elif is_clean:
        raise InvalidMetadata(f"{log.directory} lacks the offsets from {end} to {begin}")
    else:
        log.truncate_to(end, now_ms=now_ms)
        close_gap(log, store, is_clean=is_clean, now_ms=now_ms)  # there may be another one before it


def check_start(log: Log, store: SnapshotStore) -> None:
    """What was before the log's start must be in a snapshot. Raises InvalidMetadata."""
    start = log.log_start_offset
    if start > 0 and not any(each.offset >= start for each in store.ids):
        raise InvalidMetadata(
            f"{log.directory} begins at offset {start}, and no snapshot holds what was before. Restore the snapshot; or, "
            "if other controllers have the metadata, let the node begin without the directory: a controller after it "
            "was removed from the quorum."
        )
