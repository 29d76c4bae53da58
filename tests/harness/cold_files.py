"""Files whose pages are not in memory until a thread has read them: finds what waits for the disk on the event loop.

The loop is the thread that has made the object. There a `pread` of a page that is not in memory fails the test; with
`may_block=False` it raises WouldBlock, as where the file system knows RWF_NOWAIT.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ottla.storage.files import Buffer, Files, WouldBlock

_PAGE_BYTES = 4096


class ColdFiles(Files):
    """Files whose pages must be read from the disk, except for those that were written since the last
    `drop_caches`."""

    may_map = False

    def __init__(self) -> None:
        self._loop_thread_id = threading.get_ident()
        #: (inode, page) that the kernel would have in memory.
        self._pages: set[tuple[int, int]] = set()

    def drop_caches(self) -> None:
        """Remove all pages from memory, like `echo 3 > /proc/sys/vm/drop_caches`."""
        self._pages.clear()

    @property
    def _is_loop(self) -> bool:
        return threading.get_ident() == self._loop_thread_id

    def pread(self, fd: int, size: int, position: int, *, may_block: bool = True) -> bytes:
        pages = set(_pages(fd, size, position))
        if missing := pages - self._pages:
            if not may_block:
                raise WouldBlock(missing)
            assert not self._is_loop, f"The loop waits for {_name(fd)} at {position}"
            self._pages |= pages
        return super().pread(fd, size, position)

    def is_cached(self, fd: int, size: int, position: int, *, step: int = 128 * 1024) -> bool:
        return self._pages.issuperset(_pages(fd, size, position))

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        super().pwrite(fd, data, position)
        self._pages.update(_pages(fd, len(data), position))

    def fsync(self, fd: int) -> None:
        assert not self._is_loop, f"The loop waits for an fsync of {_name(fd)}"
        super().fsync(fd)


def _pages(fd: int, size: int, position: int) -> Iterator[tuple[int, int]]:
    """The pages that the file has in this range."""
    found = os.fstat(fd)
    end = min(position + size, found.st_size)
    return ((found.st_ino, page) for page in range(position // _PAGE_BYTES, -(-end // _PAGE_BYTES)))


def _name(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()
