"""The file system: the only module of storage that calls the operating system.

Everything else in `storage/` takes a `Files` and calls nothing of `os`, so that a test can inject faults here:
torn writes, loss of unflushed data, a full disk.

Descriptors are plain integers. `OSError`s are raised to the caller: the log notifies its manager, which takes the
directory offline. No method retries.
"""

import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock

#: The types that can be written.
Buffer = bytes | bytearray | memoryview

#: Linux's bound on the buffers of one writev.
MAX_WRITEV_BUFFERS = 1024
#: Bytes of one read of a whole file.
READ_BYTES = 64 * 1024
_NANOSECONDS_IN_MS = 1_000_000


#: Descriptors that files which stay open leave free: for the metadata log, and for files that are open for one
#: use, as checkpoints.
RESERVED_DESCRIPTORS = 64
#: With a low limit, this part of all is reserved.
_RESERVED_PART = 8


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether a file or socket could not be opened because this process, or the system, has too many.

    That is no fault of a disk.
    """
    return error.errno in (errno.EMFILE, errno.ENFILE)


def _with_place(error: OSError, fd: int, *, size: int) -> OSError:
    """The error of a write of `size` bytes; that of a full disk with the file, the bytes and the remedy."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    text = f"{os.strerror(error.errno)}: {size} bytes cannot be written"
    if error.errno != errno.EFBIG:
        with suppress(OSError):  # of a file system that has failed altogether: the write's error remains
            system = os.fstatvfs(fd)
            text += f", since {system.f_bavail * system.f_frsize} are free"
        text += "; free space, and start the broker again"
    path = None
    with suppress(OSError):  # of another system than Linux
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
    return OSError(error.errno, text, *([] if path is None else [path]))


class OutOfDescriptors(OSError):
    """No descriptor is free beyond the reserved ones. Nothing was changed: the operation may be repeated."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(errno.EMFILE, os.strerror(errno.EMFILE), *([] if path is None else [str(path)]))


class WouldBlock(Exception):
    """The data is not in memory: repeat the read in a thread that may wait for the disk."""


class Files:
    """The operating system's file system. Subclass it to inject faults."""

    #: False: files must not be mapped any more, since a disk may be failing.
    may_map = True

    # -- open files ------------------------------------------------------------------------------

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """A descriptor for positional reads and, with `write`, writes. `create` creates a missing file."""
        flags = os.O_RDWR if write else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def open_to_keep(self, path: Path) -> int:
        """Open a file to read and write it, by a descriptor that stays open.

        Raises OutOfDescriptors if only the reserve is left.
        """
        try:
            fd = self.open(path, write=True)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise OutOfDescriptors(path) from error
            raise
        if fd >= _unreserved():
            self.close(fd)
            raise OutOfDescriptors(path)
        return fd

    def require_descriptor(self) -> None:
        """Raise OutOfDescriptors if only the reserve is left: before an operation that must not fail half way.

        Cost: 10 us.
        """
        try:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise OutOfDescriptors from error
        os.close(fd)
        if fd >= _unreserved():
            raise OutOfDescriptors

    def close(self, fd: int) -> None:
        """Close the descriptor; nothing is flushed."""
        os.close(fd)

    def pread(self, fd: int, size: int, position: int, *, may_block: bool = True) -> bytes:
        """Read `size` bytes at `position`; fewer only at the end of the file.

        With `may_block=False` raises WouldBlock instead of waiting for the disk (`pread_from_memory`).
        """
        if not may_block:
            return self.pread_from_memory(fd, size, position)
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        have = len(data)
        while have < size and (data := os.pread(fd, size - have, position + have)):
            pieces.append(data)
            have += len(data)
        return b"".join(pieces)

    def pread_from_memory(self, fd: int, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`; fewer only at the end of the file.

        Raises WouldBlock instead of waiting for the disk, if the file system supports RWF_NOWAIT.
        """
        data = bytearray(size)
        try:
            have = os.preadv(fd, [data], position, os.RWF_NOWAIT)
            if have == size:  # nearly always: 0.7 us less
                return bytes(data)
            with memoryview(data) as view:
                # A read ends at the first page that is not in memory.
                while have < size and (count := os.preadv(fd, [view[have:]], position + have, os.RWF_NOWAIT)):
                    have += count
        except BlockingIOError:
            raise WouldBlock(f"{size} bytes at {position}") from None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return self.pread(fd, size, position)
        return bytes(data[:have])

    def is_cached(self, fd: int, size: int, position: int, *, step: int = 128 * 1024) -> bool:
        """Whether reading [position, position + size) would probably not wait for the disk.

        One byte is read in every `step` (the kernel's read-ahead unit), and the last one: 1.2 us each.
        True where the file system does not support RWF_NOWAIT.
        """
        byte = bytearray(1)
        try:
            for at in (*range(position, position + size, step), position + size - 1):
                os.preadv(fd, [byte], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        return True

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. After an error any prefix of it may have been written.

        The error of a full disk names the file and the bytes.
        """
        try:
            written = os.pwrite(fd, data, position)
            if written != len(data):
                rest = memoryview(data)[written:]
                while rest:
                    position += written
                    written = os.pwrite(fd, rest, position)
                    rest = rest[written:]
        except OSError as error:
            raise _with_place(error, fd, size=len(data)) from error

    def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers`, one after the other, as `pwrite`."""
        for start in range(0, len(buffers), MAX_WRITEV_BUFFERS):
            some = buffers[start : start + MAX_WRITEV_BUFFERS]
            size = sum(map(len, some))
            try:
                written = os.pwritev(fd, some, position)
            except OSError as error:
                raise _with_place(error, fd, size=size) from error
            if written != size:
                self.pwrite(fd, b"".join(some)[written:], position + written)
            position += size

    def truncate(self, fd: int, size: int) -> None:
        """Truncate the file, or extend it by a hole of zeros."""
        assert size >= 0, size
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        """Bytes in the file."""
        return os.fstat(fd).st_size

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the first `size` bytes, read-only. An access beyond the end of a truncated file is SIGBUS.

        A mapping has a descriptor of its own. Raises OutOfDescriptors if only the reserve is left.
        """
        self.require_descriptor()
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)

    def fsync(self, fd: int) -> None:
        """Wait until the file's data is on the disk."""
        os.fdatasync(fd)

    # -- by path -----------------------------------------------------------------------------------

    def fsync_path(self, path: Path) -> None:
        """Flush a file by a new descriptor: safe while another thread uses, renames or closes the file.

        A missing file is ignored.
        """
        try:
            fd = self.open(path)
        except FileNotFoundError:
            return
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def fsync_dir(self, path: Path) -> None:
        """Wait until creations, renames and deletions in the directory are on the disk."""
        self.fsync_path(path)

    def read(self, path: Path) -> bytes:
        """The whole file; raises FileNotFoundError."""
        # Without Python's file objects, which are slower: three small files of each log are read when it is opened.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while data := os.read(fd, READ_BYTES):
                pieces.append(data)
            return b"".join(pieces)
        finally:
            os.close(fd)

    def write_atomically(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Replace the file by one with this content: after a crash either the old or the new file exists.

        Without `durable` this holds for a crash of the process only.
        """
        temporary = path.with_name(path.name + ".tmp")
        fd = self.open(temporary, write=True, create=True)
        try:
            self.truncate(fd, 0)
            self.pwrite(fd, data, 0)
            if durable:
                self.fsync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.fsync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file over another, or a directory, in one step."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Delete the file; a missing one is ignored."""
        path.unlink(missing_ok=True)

    def exists(self, path: Path) -> bool:
        """Whether the path exists."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """Whether the path is a directory."""
        return path.is_dir()

    def list(self, directory: Path) -> list[str]:
        """The names in the directory, sorted."""
        return sorted(os.listdir(directory))  # noqa: PTH208 (names are wanted; Paths cost 5 us each)

    def size_of(self, path: Path) -> int | None:
        """The size of the file in bytes, None if it does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def modified_ms(self, path: Path) -> int:
        """Modification time of the file."""
        return path.stat().st_mtime_ns // _NANOSECONDS_IN_MS

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        """Set the modification time (compacted segments keep that of their sources)."""
        os.utime(path, ns=(modified_ms * _NANOSECONDS_IN_MS, modified_ms * _NANOSECONDS_IN_MS))

    def make_dir(self, path: Path) -> bool:
        """Create the directory and its parents, if missing; returns whether this call has created it."""
        try:
            os.mkdir(path)  # noqa: PTH102 (a thousand logs are created at once: 2 us less each)
        except FileExistsError:
            return False
        except FileNotFoundError:
            path.mkdir(parents=True, exist_ok=True)
        return True

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and everything in it; a missing one is ignored."""
        with suppress(FileNotFoundError):
            shutil.rmtree(path)

    def copy_prefix(self, source_fd: int, target_fd: int, size: int) -> None:
        """Copy the first `size` bytes to the beginning of the other file, inside the kernel."""
        assert size >= 0, size
        position = 0
        while position < size:
            copied = os.sendfile(target_fd, source_fd, position, size - position)
            if not copied:
                raise OSError(errno.EIO, f"The file ends at {position}, not at {size}")
            position += copied

    def usage(self, path: Path) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def new_mutex(self) -> AbstractContextManager[object]:
        """A lock between threads of this process. If it is held during a write, other threads wait for the disk."""
        return Lock()

    def lock(self, path: Path) -> int | None:
        """Lock the file until the descriptor is closed; None if another process has the lock.

        Both a flock and an fcntl lock, as Java's FileChannel.lock is an fcntl lock: Kafka itself is locked out, too.
        """
        fd = self.open(path, write=True, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close(fd)
            return None
        except PermissionError:  # raised by some systems for an fcntl lock that is held
            self.close(fd)
            return None
        return fd


def _unreserved() -> int:
    """The first reserved descriptor: the system assigns the lowest free one, so that all before are in use then."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(RESERVED_DESCRIPTORS, limit // _RESERVED_PART)
