"""Log loading and recovery: opens a log's directory, and repairs what a crash has left.

    1. files      files that were being deleted or cleaned are removed; a finished `.swap` replaces its sources
    2. segments   an index that is missing or impossible is rebuilt from the log
    3. batches    after an unclean shutdown: from the recovery point on, every batch is checked (CRC, length,
                  offsets); the log is truncated before the first bad one. Indexes, epochs, producers and
                  aborted transactions of the checked part are rebuilt
    4. epochs     must agree with the batches, else they are read from the batches
    5. producers  the newest good snapshot, and the batches after it

Opening a second time changes nothing. I/O errors are raised to the caller, which takes the directory offline.

Source: LogLoader and LogSegment.recover of Kafka 4.3.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from logging import DEBUG, INFO, getLogger
from pathlib import Path

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, crc_is_valid, read_header
from ottla.storage import file_names
from ottla.storage.files import Files
from ottla.storage.index import MAX_RELATIVE_OFFSET, CorruptIndex
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.log_offsets import LogOffsets, start_offsets
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.segment import Segment
from ottla.storage.segment_indexes import SegmentSettings
from ottla.storage.segments import Segments
from ottla.storage.snapshot_files import SnapshotFiles, replay, replay_headers

#: Bytes of one read.
CHUNK_BYTES = 4 * 1024 * 1024

#: The recovery of a segment of this size takes a while, and is logged as INFO.
LOGGED_BYTES = 64 * 1024 * 1024

_LOG = getLogger(__name__)
_NOT_A_BATCH = (CorruptMessage, UnsupportedForMessageFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The input of `load`: what is known before a log's directory is opened."""

    directory: Path
    files: Files
    settings: SegmentSettings
    now_ms: int
    #: Whether the directory has just been created, so that it has no files to load.
    is_new: bool = False
    #: Whether the log was closed by a clean shutdown.
    is_clean: bool
    #: From the checkpoint: everything before it was flushed.
    recovery_point: int
    #: From the checkpoint; the first segment may begin later.
    log_start_offset: int
    #: Whether records before the first segment may be in the remote tier.
    is_tiered: bool
    is_compacted: bool
    epochs: LeaderEpochCache
    producers: ProducerStateManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The result of `load`: the contents of a log's directory."""

    is_new: bool
    segments: Segments
    snapshots: SnapshotFiles
    offsets: LogOffsets
    epochs: LeaderEpochCache
    producers: ProducerStateManager


def load(loading: Loading) -> Loaded:
    """Open the directory in the five steps of the module's docstring."""
    assert loading.recovery_point >= 0, (loading.directory, loading.recovery_point)
    assert loading.log_start_offset >= 0, (loading.directory, loading.log_start_offset)
    names = [] if loading.is_new else _finish_swaps(loading, _remove_temporary(loading))
    snapshots = SnapshotFiles(loading.directory, loading.files, _offsets(names, file_names.PRODUCER_SNAPSHOT))
    segments = _load_segments(loading, names)
    snapshots.remove_stray([segment.base_offset for segment in segments] or [0])
    gap = None
    if not loading.is_clean and segments:
        segments, gap = _recover(loading, segments, snapshots)
    end_offset = _end_offset(segments[-1]) if segments else 0
    if not segments or end_offset < loading.log_start_offset:
        segments = [_restart_empty(loading, segments)]
        end_offset = loading.log_start_offset
    log_start_offset, local_log_start_offset = start_offsets(
        log_start_offset=loading.log_start_offset,
        first_segment_offset=segments[0].base_offset,
        is_tiered=loading.is_tiered,
    )
    if gap is not None and gap < local_log_start_offset:
        local_log_start_offset = gap  # so that a follower's high watermark is not beyond it
    _check_epochs(loading, segments, end_offset)
    # In this order: an epoch that is moved to the start of an empty log has no batch; the next opening would remove it.
    loading.epochs.truncate_from_start(log_start_offset)
    loading.epochs.truncate_from_end(end_offset)
    if loading.is_clean or loading.producers.map_end_offset != end_offset:
        first_offset = segments[0].base_offset
        snapshots.load(
            loading.producers, first_offset=first_offset, end_offset=end_offset, now_ms=loading.now_ms
        )
        replay_headers(
            loading.producers, segments, end_offset=end_offset, files=loading.files, snapshots=snapshots
        )
    for offset in [at for at in snapshots.offsets if at > end_offset]:
        snapshots.remove(offset)
    _rebuild_transaction_indexes(loading, segments, set(names))
    snapshots.write(loading.producers)
    assert loading.producers.map_end_offset == end_offset, (loading.directory, end_offset)
    assert segments[-1].base_offset <= end_offset, (loading.directory, segments, end_offset)
    # Records that were deleted do not come back.
    assert log_start_offset >= loading.log_start_offset, (loading.directory, log_start_offset)
    segments[-1].reopen_to_appends()
    for segment in segments:
        # Opened again at the next use; most of ten thousand partitions are idle.
        segment.close_files()
    # Compaction leaves gaps, too.
    has_gap = gap is not None and gap < end_offset and not loading.is_compacted
    return Loaded(
        is_new=loading.is_new,
        segments=Segments(segments),
        snapshots=snapshots,
        offsets=LogOffsets(
            log_start_offset=log_start_offset,
            local_log_start_offset=local_log_start_offset,
            log_end_offset=end_offset,
            # Only a flush may move it: what has just been recovered may not be on the disk yet.
            recovery_point=end_offset if loading.is_clean else min(loading.recovery_point, end_offset),
            first_unstable_offset=loading.producers.first_unstable_offset,
            first_gap_offset=gap if has_gap else None,
        ),
        epochs=loading.epochs,
        producers=loading.producers,
    )


# -- 1. files ------------------------------------------------------------------------------------------


def _offsets(names: list[str], ending: str) -> list[int]:
    found = (file_names.offset_of(name) for name in names if name.endswith(ending))
    return [offset for offset in found if offset is not None]


def _remove_temporary(loading: Loading) -> list[str]:
    """Remove the files that were being deleted or written; returns the names of the others."""
    kept = []
    names = loading.files.list(loading.directory)
    cleaned_from = min(_offsets(names, file_names.CLEANED), default=None)
    for name in names:
        offset = file_names.offset_of(name)
        is_temporary = name.endswith((file_names.DELETED, file_names.CLEANED, ".tmp")) and (
            offset is not None or name.endswith(".tmp")
        )
        # KRaft snapshots that are being deleted are removed by the metadata log.
        is_temporary = is_temporary and not name.endswith(".checkpoint.deleted")
        # Kafka splits a segment whose offsets overflow into several, the last one first: a `.swap` at or after
        # the lowest `.cleaned` offset belongs to an incomplete split.
        is_half_split = (
            name.endswith(file_names.SWAP)
            and cleaned_from is not None
            and offset is not None
            and offset >= cleaned_from
        )
        if is_temporary or is_half_split:
            _LOG.info("Removing %s", loading.directory / name)
            loading.files.unlink(loading.directory / name)
        else:
            kept.append(name)
    return kept


def _finish_swaps(loading: Loading, names: list[str]) -> list[str]:
    """Replace the sources of finished compacted segments (`.swap`); returns the names of the files afterwards."""
    swaps = _offsets(names, file_names.LOG + file_names.SWAP)
    if not any(name.endswith(file_names.SWAP) for name in names):
        return names
    directory, files = loading.directory, loading.files
    if swaps:
        start, end = min(swaps), max(_swap_end(loading, offset) for offset in swaps)
        for name in names:
            offset = file_names.offset_of(name)
            if offset is not None and start <= offset < end and name.endswith(file_names.SEGMENT_EXTENSIONS):
                _LOG.info("Removing %s: its compacted segment replaces it", directory / name)
                files.unlink(directory / name)
    for name in names:
        if name.endswith(file_names.SWAP) and file_names.offset_of(name) is not None:
            files.rename(directory / name, directory / name.removesuffix(file_names.SWAP))
    files.fsync_dir(directory)
    return files.list(directory)


def _swap_end(loading: Loading, offset: int) -> int:
    segment = _load_segment(loading, offset, suffix=file_names.SWAP)
    try:
        return max(segment.reader.next_offset(), offset + 1)
    except _NOT_A_BATCH as error:
        _LOG.warning("Cannot read the end of %s: %s", segment, error)
        return offset + 1
    finally:
        segment.close_files()


# -- 2. segments ---------------------------------------------------------------------------------------


def _load_segment(loading: Loading, offset: int, suffix: str = "") -> Segment:
    return Segment.load(
        loading.directory,
        offset,
        settings=loading.settings,
        files=loading.files,
        now_ms=loading.now_ms,
        suffix=suffix,
    )


def _load_segments(loading: Loading, names: list[str]) -> list[Segment]:
    offsets = sorted(_offsets(names, file_names.LOG))
    bases = set(offsets)
    for name in names:
        if name.endswith(file_names.INDEX_EXTENSIONS) and file_names.offset_of(name) not in bases:
            _LOG.warning("Removing %s: its segment does not exist", loading.directory / name)
            loading.files.unlink(loading.directory / name)
    segments = [_load_segment(loading, offset) for offset in offsets]
    for segment in segments:
        is_trusted = loading.is_clean or _is_flushed(loading, segment, segments)
        if is_trusted and not segment.indexes.have_possible_sizes():
            _reindex(segment)
    return segments


def _is_flushed(loading: Loading, segment: Segment, segments: list[Segment]) -> bool:
    """Whether the segment ends at or before the recovery point."""
    return any(segment.base_offset < other.base_offset <= loading.recovery_point for other in segments)


def _reindex(segment: Segment) -> None:
    """Rebuild the indexes of a trusted segment from its headers; a damaged segment is truncated at the damage."""
    try:
        segment.indexes.rebuild()
    except _NOT_A_BATCH as error:
        _LOG.error("%s is damaged: %s", segment, error)
        _recover_segment(segment, None, None)


def _end_offset(segment: Segment) -> int:
    damage: Exception | str
    try:
        end_offset = segment.reader.next_offset()
        if end_offset > segment.base_offset or not segment.size:
            return end_offset
        damage = f"its last batch ends at offset {end_offset}"  # no CRC covers a base offset
    except _NOT_A_BATCH as error:
        damage = error
    # It was closed cleanly, and yet its end cannot be read: the data has changed on the disk.
    _LOG.error("%s is damaged: %s", segment, damage)
    return _recover_segment(segment, None, None)[0]


def _restart_empty(loading: Loading, segments: list[Segment]) -> Segment:
    if segments:
        _LOG.warning(
            "%s ends before its log start offset %d: removing its segments, the log restarts empty",
            loading.directory,
            loading.log_start_offset,
        )
        loading.epochs.clear()
    for segment in segments:
        segment.delete_files()
    return Segment.create(
        loading.directory,
        loading.log_start_offset,
        settings=loading.settings,
        files=loading.files,
        now_ms=loading.now_ms,
        is_alone=loading.is_new,
    )


# -- 3. batches ----------------------------------------------------------------------------------------


def _recover(
    loading: Loading, segments: list[Segment], snapshots: SnapshotFiles
) -> tuple[list[Segment], int | None]:
    """Check everything from the recovery point on; returns the remaining segments and the offset of the first gap.

    Invariant: the remaining unflushed segments do not overlap, and hold sound batches only. A gap does not end the
    log, as a compacted log has gaps too (see README.md, "After a crash").
    """
    unflushed = [segment for segment in segments if not _is_flushed(loading, segment, segments)]
    start = unflushed[0].base_offset
    producers = loading.producers
    snapshots.load(
        producers,
        first_offset=segments[0].base_offset,
        end_offset=start,
        now_ms=loading.now_ms,
    )
    replay_headers(producers, segments, end_offset=start, files=loading.files)
    end_offset, epoch = start, -1
    gap: int | None = None
    if loading.is_tiered and start not in snapshots.offsets:
        # Nothing shows that what is before the first segment was copied, and not lost: the producers there are unknown.
        end_offset = min(start, loading.recovery_point)
    for number, segment in enumerate(unflushed):
        if segment.base_offset < end_offset:
            # Left from before a truncation: its removal is not on the disk, so what has replaced it was not flushed.
            _remove_from(number, unflushed, segments)
            break
        if gap is None and segment.base_offset > max(end_offset, loading.log_start_offset):
            gap = max(end_offset, loading.log_start_offset)
            _LOG.warning("%s begins after a gap: no segment has the offsets from %d on", segment, gap)
        level = INFO if segment.size >= LOGGED_BYTES else DEBUG
        _LOG.log(level, "Recovering %s (%d of %d)", segment, number + 1, len(unflushed))
        producers.map_end_offset = max(producers.map_end_offset, segment.base_offset)
        snapshots.write(producers)
        size = segment.size
        end_offset, epoch = _recover_segment(segment, loading.epochs, producers, epoch)
        if segment.size < size:
            _LOG.warning(
                "%s: %d bytes from position %d on are not valid batches, truncated: the log ends at offset %d",
                segment, size - segment.size, segment.size, end_offset,
            )  # fmt: skip
            _remove_from(number + 1, unflushed, segments)
            break
    assert segments[-1].base_offset <= end_offset, (loading.directory, segments, end_offset)
    assert gap is None or gap >= loading.log_start_offset, (loading.directory, gap)
    return segments, gap


def _remove_from(number: int, unflushed: list[Segment], segments: list[Segment]) -> None:
    for later in unflushed[number:]:
        _LOG.warning("Removing %s: the log ends before it", later)
        later.delete_files()
        segments.remove(later)


def _recover_segment(
    segment: Segment, epochs: LeaderEpochCache | None, producers: ProducerStateManager | None, epoch: int = -1
) -> tuple[int, int]:
    """Check and index every batch, and truncate the segment before the first bad one.

    `epoch` is the last one of the batches before the segment. Returns the next offset and the last epoch.
    """
    segment.indexes.begin_rebuild()
    if producers is not None:
        segment.indexes.transactions.reset()
    end, next_offset = 0, segment.base_offset
    for header, position, batch in valid_batches(segment, epoch):
        segment.indexes.add_batch(header, position)
        end, next_offset = position + header.size_bytes, header.next_offset
        epoch = max(epoch, header.partition_leader_epoch)
        if epochs is not None and epoch >= 0 and (epochs.latest_epoch is None or epoch > epochs.latest_epoch):
            epochs.assign(epoch, start_offset=header.base_offset)
        if producers is not None:
            replay(producers, header, batch, segment.indexes.transactions)
    if end < segment.size:
        segment.truncate_at(end)
    assert segment.size == end, (str(segment), segment.size, end)
    assert next_offset >= segment.base_offset, (str(segment), next_offset)
    segment.indexes.close_to_appends()
    return next_offset, epoch


def valid_batches(segment: Segment, epoch: int = -1) -> Iterator[tuple[BatchHeader, int, memoryview]]:
    """The batches, with their positions, from the segment's beginning up to the first incomplete or corrupt one.

    A batch of an older epoch than the batch before it, or than `epoch`, ends them too: it is left from before
    a truncation that did not reach the disk. Invariant: offsets grow, and known epochs never decrease.
    Cost: one read per 4 MiB, CRC at 34 us per MiB, 2 us per batch.
    """
    next_offset = segment.base_offset
    for header, position, batch in walk(segment):
        if (
            header.base_offset < next_offset
            or 0 <= header.partition_leader_epoch < epoch
            or header.last_offset_delta < 0
            or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or not crc_is_valid(batch)
        ):
            return
        yield header, position, batch
        next_offset = header.next_offset
        epoch = max(epoch, header.partition_leader_epoch)


def walk(segment: Segment) -> Iterator[tuple[BatchHeader, int, memoryview]]:
    """The batches by their length fields, up to the first invalid header or incomplete batch; CRCs are not checked."""
    position, size = 0, segment.size
    chunk, chunk_start = memoryview(b""), 0
    while position + HEADER_SIZE_BYTES <= size:
        at = position - chunk_start
        if at + HEADER_SIZE_BYTES > len(chunk):
            chunk, chunk_start, at = segment.log.read_bytes(position, size_bytes=CHUNK_BYTES), position, 0
        try:
            header = read_header(chunk, at)
        except _NOT_A_BATCH:
            return
        if position + header.size_bytes > size:
            return
        if at + header.size_bytes > len(chunk):
            chunk = segment.log.read_bytes(position, size_bytes=max(CHUNK_BYTES, header.size_bytes))
            chunk_start, at = position, 0
        yield header, position, chunk[at : at + header.size_bytes]
        position += header.size_bytes


# -- 4. epochs -----------------------------------------------------------------------------------------


def _check_epochs(loading: Loading, segments: list[Segment], end_offset: int) -> None:
    """Rebuild the epoch cache unless it has the newest batch's epoch and begins at or before the oldest batch."""
    epochs = loading.epochs
    first = next((segment for segment in segments if segment.size), None)
    last = next((segment for segment in reversed(segments) if segment.size), None)
    if first is None or last is None:
        return
    try:
        oldest = newest = first.log.header_at(0)
        # Not the batch of the last offset: compaction may have emptied the end.
        for found in last.log.headers(last.reader.start_of(end_offset)):
            newest = found.header
    except _NOT_A_BATCH as error:
        _LOG.error("%s is damaged: %s", loading.directory, error)
        return
    if newest.last_offset < loading.log_start_offset:
        return  # no batch is left, so no epoch has to be known
    earliest = epochs.earliest
    if newest.partition_leader_epoch < 0 or (
        earliest is not None
        and earliest.start_offset <= max(oldest.base_offset, loading.log_start_offset)
        and epochs.epoch_for_offset(newest.base_offset) == newest.partition_leader_epoch
    ):
        return
    _LOG.warning(
        "%s: leader-epoch-checkpoint disagrees with the batches: rebuilding it from them", loading.directory
    )
    known, rebuilt = epochs.latest, LeaderEpochCache()
    for segment in segments:
        for header, _ in segment.log.valid_headers():
            epoch = header.partition_leader_epoch
            if header.base_offset < segment.base_offset:
                continue  # damaged: no CRC covers a base offset
            if epoch >= 0 and (rebuilt.latest_epoch is None or epoch > rebuilt.latest_epoch):
                rebuilt.assign(epoch, start_offset=header.base_offset)
    if known is not None and (rebuilt.latest_epoch is None or known.epoch > rebuilt.latest_epoch):
        rebuilt.assign(known.epoch, start_offset=max(known.start_offset, end_offset))
    epochs.replace(rebuilt.entries)


# -- 5. producers --------------------------------------------------------------------------------------


def _rebuild_transaction_indexes(loading: Loading, segments: list[Segment], names: set[str]) -> None:
    """Rebuild corrupt transaction indexes from the producer state at the start of their segments."""
    for segment in segments:
        if file_names.of_offset(segment.base_offset, file_names.TRANSACTION_INDEX) not in names:
            continue  # there is none, or it has just been rebuilt
        try:
            segment.indexes.transactions.check()
            continue
        except CorruptIndex as error:
            _LOG.warning("%s: rebuilding the transaction index: %s", segment, error)
        producers = ProducerStateManager()
        producers.reset(segments[0].base_offset)
        replay_headers(producers, segments, end_offset=segment.base_offset, files=loading.files)
        segment.indexes.transactions.reset()
        for header, position in segment.log.valid_headers():
            is_needed = header.is_control and header.has_producer_id
            batch = loading.files.pread(segment.log.fd, header.size_bytes, position) if is_needed else b""
            replay(producers, header, batch, segment.indexes.transactions)
