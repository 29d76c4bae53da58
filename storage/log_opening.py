"""Opening of a log's directory: recovery, repeated after each split of a segment whose offsets overflow (KAFKA-6264).

Brokers before Kafka 1.1 could write segments whose offsets are too far from their base for an index, and their
directories may still be in use: offsets of a segment are 2^31 and more apart, while both indexes hold 31 bits. This
broker never writes such segments; `Log.open` looks for them, so that no other code has to.

    4711.log         [ ====== | ======== | === ]       a bar: 2^31 offsets later
    4711.log.cleaned [ ====== ]                        1. copies, with indexes, flushed
    ....log.cleaned           [ ======== ]
    *.log.swap       [ ====== ][ ======== ][ === ]     2. renamed, the last one first: a crash before the first one
                                                          is renamed leaves the source as it was
    *.log            [ ====== ][ ======== ][ === ]     3. by storage/recovery.py, as after a crash in a compaction

Source: LogLoader.retryOnOffsetOverflow and LocalLog.splitOverflowedSegment of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import BatchHeader
from ottla.storage import file_names, leader_epoch_cache, partition_metadata, recovery
from ottla.storage.files import Files
from ottla.storage.index import MAX_RELATIVE_OFFSET, CorruptIndex
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.log_files import segment_settings
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.recovery import Loaded, Loading
from ottla.storage.segment import OffsetOverflow, Segment
from ottla.storage.segment_indexes import SegmentSettings
from ottla.storage.segments import Segments
from ottla.storage.transaction_index import AbortedTransaction

#: Bytes of a split that are buffered before a write.
_WRITE_BYTES = 1024 * 1024

_LOG = getLogger(__name__)


def load_directory(
    directory: Path,
    *,
    config: LogConfig,
    files: Files,
    now_ms: int,
    is_clean: bool,
    recovery_point: int,
    log_start_offset: int,
    is_tiered: bool,
    producer_id_expiration_ms: Callable[[], int],
) -> Loaded:
    """Load the log in this directory, which is created if missing; see `Log.open`. Raises OSError. [any thread]"""
    # The directory's entry is flushed with the first flush: 1,000 new partitions do not wait 1,000 times for the disk.
    is_new = files.make_dir(directory)
    epochs_path = directory / leader_epoch_cache.FILE_NAME
    epochs = (
        LeaderEpochCache(path=epochs_path, files=files)
        if is_new
        else LeaderEpochCache.open(epochs_path, files)
    )
    loading = Loading(
        directory=directory,
        files=files,
        settings=segment_settings(config),
        now_ms=now_ms,
        is_new=is_new,
        is_clean=is_clean,
        # From checkpoint files, which have no checksum.
        recovery_point=max(recovery_point, 0),
        log_start_offset=max(log_start_offset, 0),
        is_tiered=is_tiered,
        is_compacted=config.is_compacted,
        epochs=epochs,
        producers=ProducerStateManager(producer_id_expiration_ms=producer_id_expiration_ms),
    )
    while True:
        try:
            loaded = recovery.load(loading)
            found = _overflowed(loaded.segments, loaded.offsets.log_end_offset)
        except OffsetOverflow:
            found = _overflowed_in(directory, settings=loading.settings, files=files, now_ms=now_ms)
            assert found, directory
        if not found:
            return loaded
        _split(found[0], files=files, now_ms=now_ms)


def read_topic_id(directory: Path, files: Files) -> UUID | None:
    """The topic id in `partition.metadata`; None if the file is missing or not valid. Raises OSError. [any thread]"""
    try:
        return partition_metadata.read(directory, files)
    except ValueError as error:
        _LOG.warning("%s: partition.metadata is not valid and will be rewritten: %s", directory, error)
        return None


# -- segments that overflow ----------------------------------------------------------------------------


def _overflowed(segments: Segments, log_end_offset: int) -> list[Segment]:
    """The segments that must be split. Cost: no I/O, unless one ends more than 2^31 offsets after its base."""
    ends = [*(segment.base_offset for segment in segments), log_end_offset][1:]
    return [
        segment
        for segment, end in zip(segments, ends, strict=True)
        if end - segment.base_offset > MAX_RELATIVE_OFFSET + 1 and segment.has_overflow()
    ]


def _overflowed_in(directory: Path, *, settings: SegmentSettings, files: Files, now_ms: int) -> list[Segment]:
    """The segments that must be split, in the directory of a log that is not open yet.

    Cost: reads the headers of all batches.
    """
    offsets = [file_names.offset_of(name) for name in files.list(directory) if name.endswith(file_names.LOG)]
    segments = [
        Segment.load(directory, offset, settings=settings, files=files, now_ms=now_ms)
        for offset in offsets
        if offset is not None
    ]
    found = [segment for segment in segments if segment.has_overflow()]
    for segment in segments:
        segment.close_files()
    return found


def _split(segment: Segment, *, files: Files, now_ms: int) -> None:
    """Write the segments that replace this one as `.swap` files; opening the log completes the replacement.

    Only one segment at a time: recovery replaces everything between the first and the last `.swap` file.
    The log must not be open. Batches are copied unchanged; bytes after the last whole one are dropped.
    Raises OSError; then the source is unchanged.
    """
    _LOG.info("Splitting %s: it has offsets too far from its base offset", segment)
    pieces = _copy(segment, files, now_ms)
    assert pieces[0].base_offset == segment.base_offset, (str(segment), pieces)
    assert sum(piece.size for piece in pieces) <= segment.size, (str(segment), pieces)
    for piece in reversed(pieces):
        piece.change_suffix(file_names.SWAP)
        piece.close_files()
    files.fsync_dir(segment.files.directory)
    segment.close_files()


def _copy(segment: Segment, files: Files, now_ms: int) -> list[Segment]:
    """Copy the batches of a segment into `.cleaned` segments, which are flushed.

    The first has the source's base offset, and replaces its files.
    """
    aborted = _aborted_in(segment)
    modified_ms = segment.files.modified_ms()
    pieces: list[Segment] = []
    try:
        base_offset = segment.base_offset
        for headers, data in _runs(segment):
            if headers and headers[-1].last_offset - base_offset > MAX_RELATIVE_OFFSET:
                # Compaction may have removed all batches near the base: then the first piece is empty.
                base_offset = headers[0].base_offset
            if not pieces or pieces[-1].base_offset != base_offset:
                pieces.append(
                    Segment.create(
                        segment.files.directory,
                        base_offset,
                        settings=segment.indexes.settings._replace(preallocated_bytes=None),
                        files=files,
                        now_ms=now_ms,
                        suffix=file_names.CLEANED,
                    )
                )
            if headers:
                pieces[-1].append(headers, (data,), len(data))
        bounds = [*(piece.base_offset for piece in pieces[1:]), None]
        for piece, end in zip(pieces, bounds, strict=True):
            for transaction in aborted:
                if piece.base_offset <= transaction.last_offset and (
                    end is None or transaction.last_offset < end
                ):
                    piece.indexes.transactions.add(transaction)
            piece.close_to_appends()
            piece.flush()
            piece.files.set_modified_ms(modified_ms)
    except BaseException:
        for piece in pieces:
            piece.delete_files()
        raise
    return pieces


def _runs(segment: Segment) -> Iterator[tuple[list[BatchHeader], memoryview]]:
    """An empty run for the piece at the base; then runs of adjacent batches, without overflow within a piece."""
    yield [], memoryview(b"")
    base_offset = segment.base_offset
    run: list[BatchHeader] = []
    start = size = 0
    for header, position in segment.log.valid_headers():
        is_beyond = header.last_offset - base_offset > MAX_RELATIVE_OFFSET
        if is_beyond:
            base_offset = header.base_offset
        if run and (is_beyond or size + header.size_bytes > _WRITE_BYTES):
            yield run, segment.log.read_bytes(start, size_bytes=size)
            run, size = [], 0
        if not run:
            start = position
        run.append(header)
        size += header.size_bytes
    if run:
        yield run, segment.log.read_bytes(start, size_bytes=size)


def _aborted_in(segment: Segment) -> list[AbortedTransaction]:
    try:
        return list(segment.indexes.transactions.entries)
    except CorruptIndex as error:
        # As in Kafka, which never keeps them here: opening the log replays the unflushed part.
        _LOG.warning("%s: the transaction index is not kept: %s", segment, error)
        return []
