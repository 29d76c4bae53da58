"""Warming of cold segments: a thread reads what a look-up on the event loop needs into the page cache.

`LogReader.read(may_block=False)` raises WouldBlock instead of waiting for the disk. A segment belongs to the event
loop's thread, which may append to it, truncate, close or delete it meanwhile. So the thread opens the same files as a
Segment object of its own, and changes nothing but the page cache.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import HEADER_SIZE_BYTES
from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex
from ottla.storage.segment import Segment

_DAMAGE: Final = (CorruptIndex, CorruptMessage, UnsupportedForMessageFormat)


def warm_up(segment: Segment, offset: int, *, max_bytes: int, files: Files) -> None:
    """Read what `segment.read` reads for `offset`: index, headers, `max_bytes` or at least one batch. [any thread]

    Damage is ignored: the segment's own read reports or repairs it. Raises OSError; FileNotFoundError if the files
    do not exist: none is created.
    """
    # The index file of an active segment lacks its newest entries: some more headers are read.
    with _separate_segment(segment, files) as separate, suppress(*_DAMAGE):
        found = separate.reader.find_by_index(offset)
        if found is not None:
            size = max(max_bytes, found.header.size_bytes, HEADER_SIZE_BYTES)
            separate.log.read_bytes(found.position, size_bytes=size)


def warm_up_times(
    segments: Iterable[Segment],
    *,
    kept_from_ms: int,
    go_by_file: Callable[[int], bool],
    of_records: bool,
    files: Files,
) -> None:
    """Read the largest timestamps of the oldest segments up to the first that ends at or after `kept_from_ms`.

    It reads what `segment.indexes.largest` reads. A segment whose largest timestamp is one to `go_by_file` ends when
    its file was last written. With `of_records` also the timestamps of their records, where these decide
    (`ottla.storage.segment_times`).

    [any thread] Raises as `warm_up`.
    """
    for segment in segments:
        if segment.indexes.known_largest is not None:
            timestamp = segment.indexes.largest.timestamp
        else:
            timestamp = -1
            with _separate_segment(segment, files) as separate, suppress(*_DAMAGE):
                timestamp, offset, _ = separate.indexes.time_index.last
                if timestamp >= 0:
                    separate.reader.find_by_index(offset)
        if timestamp >= kept_from_ms and not (
            go_by_file(timestamp) and segment.files.modified_ms() < kept_from_ms
        ):
            return
        if of_records and segment.waits_for_times(kept_from_ms):
            end = segment.size
            with _separate_segment(segment, files) as separate:
                largest = segment.times.read(separate.log, end=end)
            if largest >= kept_from_ms:
                return


def read_first_timestamp(segment: Segment, files: Files) -> int:
    """Read the largest timestamp of the segment's first batch, for `Segment.set_first_timestamp`. [any thread]

    Negative without one.

    Raises as `warm_up`.
    """
    with _separate_segment(segment, files) as separate, suppress(*_DAMAGE):
        return separate.log.header_at(0).max_timestamp
    return -1


@contextmanager
def _separate_segment(segment: Segment, files: Files) -> Iterator[Segment]:
    """The segment's files as a Segment object of this thread."""
    separate = Segment.load(
        segment.files.directory,
        segment.base_offset,
        settings=segment.indexes.settings,
        files=files,
        now_ms=0,
        suffix=segment.files.suffix,
    )
    try:
        separate.open_existing()
        yield separate
    finally:
        separate.close_files()
