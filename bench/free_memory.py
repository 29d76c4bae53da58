"""The kernel's free memory, used once before anything is measured.

A virtual machine gets a page of memory from its host when it first writes to it. On a machine that was started a short while
ago `pwrite` then takes 2.4 to 3.8 s/GB instead of 0.4: whichever server comes first would pay for it, in the figures.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: More than the loads of a minute write; it takes a minute on a machine that was just started.
MOST_BYTES: Final = 16 << 30
#: Of free memory; the kernel begins to take pages back from others before all of it is used.
_SHARE: Final = 0.9
_PIECE_BYTES: Final = 1 << 20
_MEMINFO: Final = Path("/proc/meminfo")


def free_bytes(meminfo: Path = _MEMINFO) -> int:
    """Memory that nothing is in, not even files: what has been in use before was touched then."""
    [line] = [line for line in meminfo.read_text().splitlines() if line.startswith("MemFree:")]
    return int(line.split()[1]) * 1024


def touch_free_memory(
    folder: Path, *, say: Callable[[str], None], free: Callable[[], int] = free_bytes
) -> int:
    """Write to free memory once, most of it; returns how many bytes. `folder` is on a disk.

    A file without content is read. The kernel puts its zeros into pages of the page cache, which are free again once the
    file is deleted. Nothing goes to the disk, and a program that needs the memory meanwhile gets it.
    Cost: 0.1 to 0.2 s/GB; 2 to 4 s/GB where the host has to find the memory.
    """
    size = min(int(free() * _SHARE), MOST_BYTES) // _PIECE_BYTES * _PIECE_BYTES
    say(f"free memory is used once: {size / 1e9:.1f} GB")
    piece = bytearray(_PIECE_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.truncate(size)
        while file.readinto(piece):
            pass
    return size
