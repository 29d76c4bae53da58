"""Warming of cold segments: a thread reads what a look-up on the event loop needs into the page cache.

`LogReader.read(may_block=False)` raises WouldBlock instead of waiting for the disk. A segment belongs to the event
loop's thread, which may append to it, truncate, close or delete it meanwhile. So the thread opens the same files as a
Segment object of its own, and changes nothing but the page cache.
"""

from contextlib import suppress

from protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from protocol.records.batch import HEADER_SIZE_BYTES
from storage.files import Files
from storage.index import CorruptIndex
from storage.segment import Segment


def warm_up(segment: Segment, offset: int, *, max_bytes: int, files: Files) -> None:
    """Read what `segment.read` reads for `offset`: index, headers, `max_bytes` or at least one batch. [any thread]

    Damage is ignored: the segment's own read reports or repairs it. Raises OSError; FileNotFoundError if the files
    do not exist: none is created.
    """
    beside = Segment.load(
        segment.directory, segment.base_offset, settings=segment.settings, files=files, now_ms=0, suffix=segment.suffix
    )  # fmt: skip
    try:
        beside.open_existing()
        # The index file of an active segment lacks its newest entries: some more headers are read.
        with suppress(CorruptIndex, CorruptMessage, UnsupportedForMessageFormat):
            found = beside.find_by_index(offset)
            if found is not None:
                size = max(max_bytes, found.header.size_bytes, HEADER_SIZE_BYTES)
                beside.read_bytes(found.position, size)
    finally:
        beside.close_files()
