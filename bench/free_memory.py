"""Use of the kernel's free memory before anything is measured.

A virtual machine gets a page of memory from its host when it first writes to it. On a machine that was
started a short while ago `pwrite` then takes 2.4 to 3.8 s/GB instead of 0.4: whichever server comes first
would pay for it, in the figures.

Some machines return free memory to the host (free page reporting, a balloon): a few seconds after the topic
of one load was deleted, the next load gets new pages again, if it writes more than what is left. There the
server that comes second would pay: a follower that catches up wrote 1,090 to 1,260 MB/s or 310 to 330. So
memory is also used once directly before each load that writes much.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

#: The most memory that is used: more than the loads of a minute write; it takes a minute on a machine that
#: was just started.
MOST_BYTES: Final = 16 << 30
#: The memory that `held` leaves free: a JVM takes 1.3 GB.
LEFT_BYTES: Final = 4 << 30
#: The share of free memory that is used; the kernel begins to take pages back from others before all of it is
#: used.
_SHARE: Final = 0.9
_PIECE_BYTES: Final = 1 << 20
_MEMINFO: Final = Path("/proc/meminfo")


def free_bytes(meminfo: Path = _MEMINFO) -> int:
    """Return the memory without any contents, even of files: memory that was in use before was touched then."""
    [line] = [line for line in meminfo.read_text().splitlines() if line.startswith("MemFree:")]
    return int(line.split()[1]) * 1024


def touch_free_memory(
    folder: Path, *, say: Callable[[str], None], free: Callable[[], int] = free_bytes
) -> int:
    """Write to most of the free memory once; return how many bytes. `folder` is on a disk.

    Cost: 0.1 to 0.2 s/GB; 2 to 4 s/GB where the host has to find the memory.
    """
    size = _bounded(MOST_BYTES, free)
    say(f"free memory is used once: {size / 1e9:.1f} GB")
    _touch(folder, size)
    return size


def touch(folder: Path, size_bytes: float, *, free: Callable[[], int] = free_bytes) -> int:
    """Write to `size_bytes` of free memory once; return how many bytes.

    The kernel hands out next the pages that were freed last.
    """
    size = _bounded(size_bytes, free)
    _touch(folder, size)
    return size


@contextmanager
def held(size_bytes: float, *, free: Callable[[], int] = free_bytes) -> Iterator[None]:
    """Use so much memory until the block ends, so that the host does not take it back.

    It is for a load that begins some seconds later.

    Nothing where the processes that are started meanwhile may need it.
    """
    size = _bounded(size_bytes, free)
    if not size or size + LEFT_BYTES > free():
        yield
        return
    # Private: shared memory has no huge pages, without which it takes 0.2 s/GB to release it, beside the load.
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        piece = bytes(_PIECE_BYTES)
        for _ in range(size // _PIECE_BYTES):
            memory.write(piece)
        yield


def _bounded(size_bytes: float, free: Callable[[], int]) -> int:
    return int(min(free() * _SHARE, size_bytes, MOST_BYTES)) // _PIECE_BYTES * _PIECE_BYTES


def _touch(folder: Path, size: int) -> None:
    # A file without content is read. The kernel puts its zeros into pages of the page cache, which are free
    # again once the file is deleted. Nothing goes to the disk, and a program that needs the memory meanwhile
    # gets it.
    piece = bytearray(_PIECE_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.truncate(size)
        while file.readinto(piece):
            pass
