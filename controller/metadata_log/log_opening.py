"""Opening the metadata log: its start offset, and recovery from gaps that a crash left.

    [ snapshot ]   [ segment ][ segment ]     (gap)     [ segment ]
         |         |                     |              |
         '- start -'                     '--- closed ---'

Only file names record where a log begins, and a crash may leave a gap between two segments.
Source: KafkaRaftLog of Kafka 4.3.1, KIP-630.
"""

from itertools import pairwise
from pathlib import Path

from ottla.config.log_config import LogConfig
from ottla.controller.metadata_log.log_cleaning import MAX_BATCH_BYTES, MetadataLogSettings
from ottla.controller.metadata_log.snapshot_store import SnapshotStore
from ottla.metadata.image import InvalidMetadata
from ottla.storage import file_names
from ottla.storage.files import Files
from ottla.storage.log import Log


def config_of(settings: MetadataLogSettings) -> LogConfig:
    """The log's configuration, without retention by age or size: `MetadataLog.clean` moves the log's start."""
    return LogConfig(
        retention_ms=None,
        retention_bytes=None,
        segment_bytes=settings.log_segment_bytes,
        segment_ms=settings.log_segment_ms,
        max_message_bytes=MAX_BATCH_BYTES,
    )


def find_start_offset(directory: Path, store: SnapshotStore, files: Files) -> int:
    """The log start offset, which is not stored: 0, or the first snapshot that is not before the first segment.

    Without such a snapshot it is the first segment's base offset, which `check_start` refuses.
    """
    if not files.is_dir(directory):
        return 0
    names = (name for name in files.list(directory) if name.endswith(file_names.LOG))
    first = min((at for at in map(file_names.offset_of, names) if at is not None), default=0)
    return min((each.offset for each in store.ids if each.offset >= first), default=first) if first else 0


def close_gap(log: Log, store: SnapshotStore, *, is_clean: bool, now_ms: int) -> None:
    """Close a gap between segments, which a crash may leave. Raises InvalidMetadata.

    Invariant: afterwards the offsets of the log have no gap, as Raft requires.
    Either a snapshot covers the gap, because the segments before it were being removed: the log then begins there.
    Or the segments before it lost unflushed records: the log is truncated at the gap. After a clean stop nothing can
    be unflushed, so that is damage.
    """
    # Decided here, not later as in a partition's log: otherwise `first_gap_offset` would hold the high watermark back
    # at the gap indefinitely.
    log.offsets.ignore_gap()
    gap: tuple[int, int] | None = None
    for earlier, later in pairwise(log.segments):
        end = max(earlier.reader.next_offset(), log.log_start_offset)
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
    """Check that a snapshot holds everything before the log's start. Raises InvalidMetadata."""
    start = log.log_start_offset
    if start > 0 and not any(each.offset >= start for each in store.ids):
        raise InvalidMetadata(
            f"{log.directory} begins at offset {start}, and no snapshot holds what was before. Restore the "
            "snapshot; or, if other controllers have the metadata, start the node without the directory; remove a "
            "controller from the quorum first."
        )
