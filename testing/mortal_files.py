"""The files of one life of a broker, whose process can be killed, and whose disk can be full, slow or broken.

Faults are those of `ottla.testing.disk`. `die` is the end of the process: no operation succeeds any more, and what was
open is closed, locks included, as the kernel does it.
"""

import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from ottla.runtime.outcomes import ProcessKilled
from ottla.storage.files import Buffer, Files
from ottla.testing.disk import Disk


class MortalFiles(Files):
    """The operating system's files, for one life of a broker in a process that goes on afterwards."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._is_dead = False
        #: Opened now: at the end of the process there may be no descriptor for it.
        self._nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        #: The mappings, each of which has a descriptor of its own.
        self._mappings: WeakSet[mmap.mmap] = WeakSet()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended. [any thread]"""
        return self._is_dead

    def die(self) -> None:
        """End the life of the process: its files are closed and its locks are released. [any thread]

        Their descriptors stay taken until `release`: a thread that is about to write by one of them must not find
        another file there.
        """
        with self._lock:
            self._is_dead = True
            for fd in self._open:
                os.dup2(self._nowhere, fd, inheritable=False)
        self._disk.wake()

    def release(self) -> None:
        """Release the descriptors of a dead process; none of its threads runs any more. [any thread]"""
        with self._lock:
            assert self._is_dead
            opened, self._open = self._open | {self._nowhere}, set()
            self._nowhere = -1
        for fd in opened - {-1}:
            os.close(fd)
        for mapping in list(self._mappings):
            with suppress(BufferError):  # lent to a response, with which it will be closed
                mapping.close()

    # -- open files -------------------------------------------------------------------------------------

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Open a file by a descriptor that `die` closes."""
        self._check(path)
        if create and not path.exists():
            self._check_writing(path)
        with self._lock:
            self._check_life()
            fd = super().open(path, write=write, create=create)
            self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close the descriptor; after the end of the process `release` does it."""
        with self._lock:
            if self._is_dead:
                return
            self._open.discard(fd)
            super().close(fd)

    def pread(self, fd: int, size: int, position: int, *, may_block: bool = True) -> bytes:
        """Read from the file, unless the disk is broken."""
        self._check(None)
        return super().pread(fd, size, position, may_block=may_block)

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """Write to the file, unless the disk is full or broken."""
        self._check_writing()
        super().pwrite(fd, data, position)

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write to the file, unless the disk is full or broken."""
        self._check_writing()
        super().writev(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        """Truncate or extend the file, unless the disk is broken."""
        self._check(None)
        super().truncate(fd, size)

    def size(self, fd: int) -> int:
        """Return the size of the file in bytes."""
        self._check(None)
        return super().size(fd)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the file, unless the disk is broken."""
        self._check(None)
        mapping = super().map(fd, size)
        self._mappings.add(mapping)
        return mapping

    def copy_prefix(self, source_fd: int, target_fd: int, size: int) -> None:
        """Copy the beginning of a file, unless the disk is full or broken."""
        self._check_writing()
        super().copy_prefix(source_fd, target_fd, size)

    def fsync(self, fd: int) -> None:
        """Flush the file, unless the disk is broken."""
        self._check(None)
        self._disk.delay(lambda: self._is_dead)
        self._check_life()
        super().fsync(fd)

    # -- by path ----------------------------------------------------------------------------------------

    def read(self, path: Path) -> bytes:
        """Read the whole file, unless the disk is broken."""
        self._check(path)
        return super().read(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename the file, unless the disk is broken."""
        self._check(source)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Delete the file, unless the disk is broken."""
        self._check(path)
        super().unlink(path)

    def make_dir(self, path: Path) -> bool:
        """Create the directory, unless the disk is full or broken."""
        self._check_writing(path)
        return super().make_dir(path)

    def remove_tree(self, path: Path) -> None:
        """Remove the directory, unless the disk is broken."""
        self._check(path)
        super().remove_tree(path)

    def _check_writing(self, path: Path | None = None) -> None:
        self._check_life()
        self._disk.meet_write(path)
        self._disk.delay(lambda: self._is_dead)
        self._check_life()

    def _check(self, path: Path | None) -> None:
        self._check_life()
        self._disk.meet_any(path)

    def _check_life(self) -> None:
        if self._is_dead:
            raise ProcessKilled
