"""Cold segments: a thread reads what a look-up on the event loop needs, so that it is in memory.

`LogReader.read(may_block=False)` raises WouldBlock instead of waiting for the disk. A segment belongs to the loop's
thread, which may append to it, truncate it, close or delete it meanwhile. So the thread reads the same files as a
segment of its own, and only the page cache is changed.
"""

from contextlib import suppress

from protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from protocol.records.batch import HEADER_SIZE_BYTES
from storage.files import Files
from storage.index import CorruptIndex
from storage.segment import Segment


def warm_up(segment: Segment, offset: int, *, max_bytes: int, files: Files) -> None:
    """Read what `segment.read` reads for `offset`: index, headers, at most `max_bytes` but one batch. [any thread]

    Damage is left to the segment's own read, which reports or repairs it. Raises OSError; FileNotFoundError if the files
    are gone: none is made.
    """
    beside = Segment.load(
        segment.directory, segment.base_offset, settings=segment.settings, files=files, now_ms=0, suffix=segment.suffix
    )  # fmt: skip
    try:
        beside.open_existing()
        # The index of an active segment lacks its newest entries on the disk: a few headers more are read.
        with suppress(CorruptIndex, CorruptMessage, UnsupportedForMessageFormat):
            found = beside.find_by_index(offset)
            if found is not None:
                size = max(max_bytes, found.header.size_bytes, HEADER_SIZE_BYTES)
                beside.read_bytes(found.position, size)
    finally:
        beside.close_files()
