"""The snapshots of one metadata log: which exist, how they are read, written and deleted (KIP-630).

    (nothing) --begin: `.part`--> being written --freeze: checked, flushed, renamed--> `.checkpoint` --add--> served
                                       '--delete--> (nothing)                               |
                                                          served --delete: `.deleted`--> --60 s--> (nothing)

File names are in `ottla.controller.metadata_log.snapshots`. After a crash a snapshot is complete or absent; `.part` and
`.deleted` files that it leaves are removed at the next start.
Source: Snapshots, FileRawSnapshotWriter and KafkaRaftLog of Kafka 4.3.1.
"""

from collections.abc import Iterable, Sequence
from logging import getLogger
from pathlib import Path
from typing import Final

from ottla.controller.metadata_log import snapshots
from ottla.controller.metadata_log.log_cleaning import DELETE_DELAY_MS
from ottla.controller.raft.types import OffsetAndEpoch
from ottla.metadata.image import InvalidMetadata
from ottla.storage.files import Files
from ottla.storage.log_files import DeletedFiles

_PART: Final = ".part"
_DELETED: Final = ".deleted"
_LOG = getLogger(__name__)


class RawSnapshotWriter:
    """A snapshot that is being written, this node's own or a download from the leader. One thread at a time."""

    def __init__(self, directory: Path, snapshot: OffsetAndEpoch, files: Files, *, origin: str) -> None:
        self.snapshot = snapshot
        self._path = directory / snapshots.file_name(snapshot)
        stem = self._path.name.removesuffix(snapshots.SUFFIX)
        # Two may be written at a time: the leader's, and this node's own.
        self._part = directory / f"{stem}-{origin}{snapshots.SUFFIX}{_PART}"
        self._files = files
        self._size = 0
        self._fd: int | None = files.open(self._part, write=True, create=True)
        files.truncate(self._fd, 0)

    @property
    def size(self) -> int:
        """The number of bytes that are written so far: the position of the next chunk."""
        return self._size

    def append(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        assert self._fd is not None, f"{self._part} is closed"
        self._files.pwrite(self._fd, data, self._size)
        self._size += len(data)

    def freeze(self) -> None:
        """Check and rename the file, durably; `add` it to the store afterwards. [any thread]

        Raises KafkaError if it is damaged, and OSError; it is deleted then.
        """
        assert self._fd is not None, f"{self._part} is closed"
        try:
            for _ in snapshots.valid_batches(self._part, self._files):
                pass
            self._files.fsync(self._fd)
            self._close()
            self._files.rename(self._part, self._path)
        except Exception:
            self.delete()
            raise
        self._files.fsync_dir(self._path.parent)

    def delete(self) -> None:
        """Discard the file. Does nothing after `freeze`."""
        self._close()
        self._files.unlink(self._part)

    def _close(self) -> None:
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None


class SnapshotStore:
    """The snapshots of one metadata log: which exist, how they are read, written and deleted (KIP-630).

    Belongs to the event loop, but for `path`.
    """

    def __init__(self, directory: Path, files: Files, ids: Iterable[OffsetAndEpoch]) -> None:
        self._directory = directory
        self._files = files
        #: The ids of the snapshots, ordered by epoch and then offset.
        self._ids = sorted(ids)
        #: Snapshots that are deleted, whose files are not removed yet.
        self.deleted: list[DeletedFiles] = []

    @classmethod
    def open(cls, directory: Path, files: Files) -> "SnapshotStore":
        """The snapshots in the directory; files that were being written or removed are deleted."""
        names = files.list(directory) if files.is_dir(directory) else []
        for name in names:
            if name.endswith((snapshots.SUFFIX + _PART, snapshots.SUFFIX + _DELETED)):
                _LOG.info(
                    "deleting %s, an incomplete or deleted snapshot of the previous process", directory / name
                )
                files.unlink(directory / name)
        return cls(directory, files, filter(None, map(snapshots.id_of, names)))

    @property
    def ids(self) -> Sequence[OffsetAndEpoch]:
        """The ids of all snapshots, the oldest first."""
        return self._ids

    @property
    def latest(self) -> OffsetAndEpoch | None:
        """The id of the newest snapshot; None if there is no snapshot."""
        return self._ids[-1] if self._ids else None

    @property
    def earliest(self) -> OffsetAndEpoch | None:
        """The id of the oldest snapshot; None if there is no snapshot."""
        return self._ids[0] if self._ids else None

    def path(self, snapshot: OffsetAndEpoch) -> Path:
        """The path of a snapshot's file. [any thread]"""
        return self._directory / snapshots.file_name(snapshot)

    def size_of(self, snapshot: OffsetAndEpoch) -> int:
        """The size of a snapshot's file in bytes. Raises InvalidMetadata if the file is missing."""
        size = self._files.size_of(self.path(snapshot))
        if size is None:
            raise InvalidMetadata(
                f"{self.path(snapshot)} was deleted by another process while this node was running"
            )
        return size

    def chunk(self, snapshot: OffsetAndEpoch, *, position: int, max_bytes: int) -> tuple[bytes, int] | None:
        """Bytes from `position` on and the size of all; None if there is no such snapshot. Raises OSError."""
        if snapshot not in self._ids:
            return None
        fd = self._files.open(self.path(snapshot))
        try:
            size = self._files.size(fd)
            # Beyond the end there is nothing to read, and the system refuses offsets that no file can have.
            return self._files.pread(fd, max_bytes, position) if position < size else b"", size
        finally:
            self._files.close(fd)

    def begin_download(self, snapshot: OffsetAndEpoch) -> RawSnapshotWriter | None:
        """Begin to write a snapshot from the leader. None if it is stored already."""
        return self._begin(snapshot, "fetched")

    def begin_own(self, snapshot: OffsetAndEpoch) -> RawSnapshotWriter | None:
        """Begin to write this node's own. None if it is stored already."""
        return self._begin(snapshot, "own")

    def _begin(self, snapshot: OffsetAndEpoch, origin: str) -> RawSnapshotWriter | None:
        if snapshot in self._ids:
            return None
        return RawSnapshotWriter(self._directory, snapshot, self._files, origin=origin)

    def add(self, snapshot: OffsetAndEpoch) -> None:
        """Add a snapshot whose file is frozen, and thus durable."""
        if snapshot not in self._ids:
            self._ids = sorted((*self._ids, snapshot))

    def delete_before(self, snapshot: OffsetAndEpoch, *, now_ms: int) -> bool:
        """Delete all snapshots older than `snapshot`; returns whether there were any.

        Files are removed later; see `deleted`.
        """
        old = [each for each in self._ids if each < snapshot]
        for each in old:
            _LOG.info("deleting snapshot %s: a later snapshot exists", self.path(each))
            self._rename_deleted(each, now_ms)
        self._ids = [each for each in self._ids if each >= snapshot]
        return bool(old)

    def _rename_deleted(self, snapshot: OffsetAndEpoch, now_ms: int) -> None:
        path = self.path(snapshot)
        renamed = path.with_name(path.name + _DELETED)
        files = self._files
        files.rename(path, renamed)
        self.deleted.append(DeletedFiles(now_ms + DELETE_DELAY_MS, lambda: files.unlink(renamed)))
