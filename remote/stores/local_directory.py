"""LocalDirectory: a directory as remote tier, in the layout of Kafka's LocalTieredStorage.

    <dir>/kafka-tiered-storage/<key>            the keys of `ottla.remote.stores.object_storage`

A folder whose name is longer than a file system allows, as with a topic's name of more than 230 characters,
is two: the first 200 characters and a tilde, which no name of a topic has, and in it the rest.

Brokers of Kafka with LocalTieredStorage may share the directory. A file is written under its final name: it is not read
before its metadata says that the copy is finished, and by then all of it is flushed to the disk: the files of
a copy together, as one at a time costs a commit of the file system's journal for each.

Only a broker that has had no remote tier before creates the directory (`create`). Where it is missing later
its file system is not mounted: each operation fails with RetriableRemoteStorageError until it is back. Files
that were written below the mount point would be hidden by the next mount, and files that count as deleted
would be back, without metadata.

Source: LocalTieredStorage of Kafka 4.3.1's tests. Differs: files are flushed, and the directory of a
partition is removed with its last segment.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO, Final

from ottla.protocol.errors import InvalidConfig
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, LogSegmentData, RemoteStream
from ottla.remote.stores.metered_body import PIECE_BYTES
from ottla.remote.stores.object_storage import Action, ListedObject, ObjectStorage, Source, key_of

#: The directory of the tier, as `ottla.remote.plugins` has it, which imports no store.
ROOT: Final = "kafka-tiered-storage"
#: The setting that names the directory: `rsm.config.dir`.
DIR: Final = "dir"

#: The parts of a key: a folder and a name.
_KEY_PARTS: Final = 2
#: NAME_MAX of Linux; the part of a longer name that is the outer folder's.
_MAX_NAME_BYTES: Final = 255
_OUTER_BYTES: Final = 200
_OUTER_END: Final = "~"
#: How often a file is created, where other brokers remove its directory meanwhile, since their last file was in it.
_ATTEMPTS: Final = 5
#: A full disk may have room later; a directory that was removed by another broker is created again.
_TRANSIENT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT)
#: `copy_file_range` is not for these two files: they are on different kinds of file systems, or one is not a file.
_NOT_COPIED: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


class LocalDirectory(ObjectStorage):
    """A storage manager that keeps segments as files below a directory, as Kafka's LocalTieredStorage."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Configure the directory: the setting `dir`. Raises InvalidConfig."""
        directory = configs.get(DIR)
        if not isinstance(directory, str) or not directory:
            raise InvalidConfig(
                f"rsm.config.{DIR} is {directory!r}: set it to a directory that all brokers share, outside of log.dirs"
            )
        self._root = Path(directory) / ROOT

    def create(self) -> None:
        """Create the directory of the tier, if it is missing. Raises InvalidConfig."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig(
                f"rsm.config.{DIR} is {str(self._root.parent)!r}, which cannot be created: {error}"
            ) from error

    def open(self) -> None:
        """Open the store, if its directory is there. Raises RetriableRemoteStorageError."""
        with _opened(self._root):
            super().open()

    def open_store(self) -> "DirectoryStore":
        """Return the store of files below the directory."""
        return DirectoryStore(self._root)

    def explain(self, error: RemoteStorageError, action: Action) -> str:
        """The sentence about a check that has failed: the setting, its value, the reason and the remedy."""
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.strerror is None or isinstance(cause, FileNotFoundError):
            return f"rsm.config.{DIR} is {str(self._root.parent)!r}: {error}"
        remedy = (
            "free space on its file system"
            if cause.errno in (errno.ENOSPC, errno.EDQUOT)
            else "let the broker's user write it"
        )
        return (
            f"rsm.config.{DIR} is {str(self._root.parent)!r}, in which files cannot be {action.value} "
            f"({cause.strerror}): {remedy}, or name another directory"
        )

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy the segment and its indexes, and flush all files together. Raises RemoteStorageError."""
        super().copy_log_segment_data(metadata, data)
        without = IndexType.TRANSACTION if data.transaction_index is None else None
        keys = (key_of(metadata), *(key_of(metadata, each) for each in IndexType if each is not without))
        _flush([_path_of(self._root, key) for key in keys])


class DirectoryStore:
    """An object store of files below a directory: a key is a folder and a name."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, source: Source) -> None:
        """Write the file, without flushing it. A copy that fails leaves a part of it, until it is deleted."""
        path = self._path(key)
        with _opened(self._root), _storage_errors(key):
            for attempt in range(_ATTEMPTS):
                try:
                    target = self._created(path)
                    break
                except FileNotFoundError:
                    if attempt == _ATTEMPTS - 1:
                        raise
        with target:
            for start, end in _pieces(source):
                with _storage_errors(key):
                    _copy(source.file, target, start, end)

    def _created(self, path: Path) -> FileIO:
        """Create the file and its directories. Raises FileNotFoundError if another broker removes one meanwhile."""
        if not path.parent.exists():
            outer = list(_outer(path.parent, self._root))
            for directory in (*reversed(outer[:-1]), path.parent):
                directory.mkdir(exist_ok=True)
            for directory in outer:
                _fsync(directory)
        return FileIO(path, "wb")

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> RemoteStream:
        """Return a stream of the file's bytes [start, end)."""
        path = self._path(key).relative_to(self._root)
        with _opened(self._root) as root, _storage_errors(key):
            file = FileIO(str(path), opener=lambda name, flags: os.open(name, flags, dir_fd=root))
            file.seek(start)
        return _FileStream(key, file, None if end is None else end - start)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove the files, and their directories if they are empty then."""
        directories = set()
        with _opened(self._root) as root:
            for key in keys:
                path = self._path(key)
                directories.add(path.parent)
                with _storage_errors(key), suppress(FileNotFoundError):
                    os.unlink(path.relative_to(self._root), dir_fd=root)
        for directory in directories:
            with _storage_errors(str(directory)), suppress(FileNotFoundError):
                for each in (directory, *_outer(directory, self._root)):
                    if each == self._root or not _remove_if_empty(each):
                        break

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """Yield all files that are there now; those that are removed meanwhile are left out."""
        with _opened(self._root), _storage_errors(prefix):
            for folder, directory in _folders(self._root):
                if f"{folder}/".startswith(prefix[: prefix.find("/") + 1]):
                    for path in _files_in(directory):
                        key = f"{folder}/{path.name}"
                        with suppress(FileNotFoundError):
                            if key.startswith(prefix):
                                found = path.stat()
                                yield ListedObject(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    def _path(self, key: str) -> Path:
        """Return the path of a key. Raises RemoteStorageError unless it is a name in a folder of the store."""
        parts = key.split("/")
        if len(parts) != _KEY_PARTS or "\0" in key or any(each in ("", ".", "..") for each in parts):
            raise RemoteStorageError(f"{key!r} is no name of an object in a directory")
        return _path_of(self._root, key)


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    """Yield a descriptor of the root, whose file system stays mounted meanwhile.

    Raises RetriableRemoteStorageError if the root is missing.
    """
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RetriableRemoteStorageError(
            f"the remote tier's directory {root} is missing: mount its file system, or create it for an empty tier"
        ) from error
    except OSError as error:
        raise _translated(str(root), error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _path_of(root: Path, key: str) -> Path:
    folder, name = key.split("/")
    if len(folder.encode()) <= _MAX_NAME_BYTES:
        return root / folder / name
    return root / f"{folder[:_OUTER_BYTES]}{_OUTER_END}" / folder[_OUTER_BYTES:] / name


def _outer(directory: Path, root: Path) -> Iterator[Path]:
    """Yield the folders that hold `directory`, up to the root."""
    while directory != root:
        directory = directory.parent
        yield directory


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folders by their names in keys, in order."""
    found = {each.name: each for each in root.iterdir()}
    for name in [each for each in found if each.endswith(_OUTER_END)]:
        outer = found.pop(name)
        found |= {f"{name.removesuffix(_OUTER_END)}{inner.name}": inner for inner in _files_in(outer)}
    yield from sorted(found.items())


def _files_in(directory: Path) -> list[Path]:
    """Return the files of a directory; none if it is no directory, or is removed meanwhile.

    Any broker may remove it, with a partition's last segment.
    """
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _flush(paths: Sequence[Path]) -> None:
    """Flush the files of one folder, and the folder, to the disk."""
    for path in (*paths, paths[0].parent):
        with _storage_errors(str(path)):
            _fsync(path)


class _FileStream:
    """A stream of the next bytes of a file, at most `left`, or all."""

    def __init__(self, key: str, file: FileIO, left: int | None) -> None:
        self._key = key
        self._file = file
        self._left = left

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, or all that remain; empty at the end only. Raises RemoteStorageError."""
        if self._left is not None:
            size = self._left if size < 0 else min(size, self._left)
        with _storage_errors(self._key):
            data = self._file.read(size)
        if self._left is not None:
            self._left -= len(data)
        return data

    def readinto1(self, buffer: memoryview, /) -> int:
        """Read into the buffer; return the number of bytes, 0 at the end only. Raises RemoteStorageError."""
        with _storage_errors(self._key):
            size = self._file.readinto(buffer if self._left is None else buffer[: self._left])
        if self._left is not None:
            self._left -= size
        return size

    def close(self) -> None:
        """Close the file of the stream."""
        self._file.close()


def _pieces(source: Source) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end) of the file, each after it was reported."""
    for start in range(0, source.size_bytes, PIECE_BYTES):
        end = min(start + PIECE_BYTES, source.size_bytes)
        source.on_bytes(end - start)
        yield start, end


def _copy(file: BinaryIO, target: FileIO, start: int, end: int) -> None:
    """Copy the bytes [start, end): by the kernel, which may share the blocks of the file system, or through memory."""
    while start < end:
        copied = _copy_in_kernel(file, target, start, end)
        if copied is None:
            file.seek(start)
            target.seek(start)
            copied = target.write(file.read(end - start))
        if not copied:
            raise RemoteStorageError(f"the file ended at {start}: it changed during its copy")
        start += copied


def _copy_in_kernel(file: BinaryIO, target: FileIO, start: int, end: int) -> int | None:
    """Return the number of bytes copied, 0 at the file's end; None: the kernel does not copy between these files."""
    if isinstance(file, BytesIO):
        return None
    try:
        return os.copy_file_range(
            file.fileno(), target.fileno(), end - start, offset_src=start, offset_dst=start
        )
    except OSError as error:
        if error.errno in _NOT_COPIED:
            return None
        raise


def _remove_if_empty(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        _fsync(directory)
        return False
    _fsync(directory.parent)
    return True


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _storage_errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translated(key, error) from error


def _translated(key: str, error: OSError) -> RemoteStorageError:
    if isinstance(error, FileNotFoundError):
        return RemoteResourceNotFound(f"{key}: {error}")
    kind = RetriableRemoteStorageError if error.errno in _TRANSIENT else RemoteStorageError
    return kind(f"{key}: {error}")
