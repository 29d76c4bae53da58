"""Splitting segments whose offsets reach further from their base than an index can say (KAFKA-6264).

Brokers before Kafka 1.1 could make them, and their folders may have come down to us: offsets of a segment are
2^31 and more apart, while both indexes hold 31 bits. Nothing that we write is so; `Log.open` looks for them, so that
all else need not.

    4711.log         [ ====== | ======== | === ]       a bar: 2^31 offsets further on
    4711.log.cleaned [ ====== ]                        1. copies, with indexes, flushed
    ....log.cleaned           [ ======== ]
    *.log.swap       [ ====== ][ ======== ][ === ]     2. renamed, the last one first: a crash before the first one
                                                          is renamed leaves the source as it was
    *.log            [ ====== ][ ======== ][ === ]     3. by storage/recovery.py, as after a crash in a compaction

Source: LocalLog.splitOverflowedSegment and LogLoader.retryOnOffsetOverflow of Kafka 4.3.1.
"""

from collections.abc import Iterator
from logging import getLogger
from pathlib import Path

from protocol.records.batch import BatchHeader
from storage import file_names
from storage.files import Files
from storage.index import MAX_RELATIVE_OFFSET, CorruptIndex
from storage.segment import Segment
from storage.segment_files import SegmentSettings
from storage.segments import Segments
from storage.transaction_index import AbortedTransaction

#: Bytes that are collected before they are written.
WRITE_BYTES = 1024 * 1024

_LOG = getLogger(__name__)


def overflowed(segments: Segments, log_end_offset: int) -> list[Segment]:
    """The segments that must be split. Cost: no I/O, but for one that ends more than 2^31 offsets after its base."""
    ends = [*(segment.base_offset for segment in segments), log_end_offset][1:]
    return [
        segment
        for segment, end in zip(segments, ends, strict=True)
        if end - segment.base_offset > MAX_RELATIVE_OFFSET + 1 and segment.has_overflow()
    ]


def overflowed_in(directory: Path, *, settings: SegmentSettings, files: Files, now_ms: int) -> list[Segment]:
    """The same, of a directory that is not open yet. Cost: reads the headers of all batches."""
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


def split(segment: Segment, *, files: Files, now_ms: int) -> None:
    """Put segments without overflow in the place of this one, up to the `.swap` files that opening the log finishes.

    Only one at a time: recovery takes all `.swap` files for what replaces everything between the first and the last.
    The log must not be open. Batches are copied as they are; what is behind the last whole one is left out.
    Raises OSError; the source is as before then.
    """
    _LOG.info("%s: offsets too far from the base: it is split", segment)
    pieces = _copy(segment, files, now_ms)
    for piece in reversed(pieces):
        piece.change_suffix(file_names.SWAP)
        piece.close_files()
    files.fsync_dir(segment.directory)
    segment.close_files()


def _copy(segment: Segment, files: Files, now_ms: int) -> list[Segment]:
    """`.cleaned` segments with all batches, on the disk. The first one has the source's base: it replaces its files."""
    aborted = _aborted_in(segment)
    modified_ms = segment.modified_ms()
    pieces: list[Segment] = []
    try:
        base_offset = segment.base_offset
        for headers, data in _runs(segment):
            if headers and headers[-1].last_offset - base_offset > MAX_RELATIVE_OFFSET:
                # Compaction may have left nothing near the base; the first piece is empty then.
                base_offset = headers[0].base_offset
            if not pieces or pieces[-1].base_offset != base_offset:
                pieces.append(
                    Segment.create(
                        segment.directory,
                        base_offset,
                        settings=segment.settings._replace(preallocated_bytes=None),
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
                    piece.transactions.append(transaction)
            piece.close_to_appends()
            piece.flush()
            piece.set_modified_ms(modified_ms)
    except BaseException:
        for piece in pieces:
            piece.delete_files()
        raise
    return pieces


def _runs(segment: Segment) -> Iterator[tuple[list[BatchHeader], memoryview]]:
    """First nothing, for the piece at the base; then neighbouring batches, none 2^31 offsets after the first of its piece."""
    yield [], memoryview(b"")
    base_offset = segment.base_offset
    run: list[BatchHeader] = []
    start = size = 0
    for header, position in segment.sound_headers():
        is_beyond = header.last_offset - base_offset > MAX_RELATIVE_OFFSET
        if is_beyond:
            base_offset = header.base_offset
        if run and (is_beyond or size + header.size_bytes > WRITE_BYTES):
            yield run, segment.read_bytes(start, size)
            run, size = [], 0
        if not run:
            start = position
        run.append(header)
        size += header.size_bytes
    if run:
        yield run, segment.read_bytes(start, size)


def _aborted_in(segment: Segment) -> list[AbortedTransaction]:
    try:
        return list(segment.transactions.entries)
    except CorruptIndex as error:
        # As Kafka, which never keeps them here: opening the log replays what was not flushed.
        _LOG.warning("%s: %s", segment, error)
        return []
