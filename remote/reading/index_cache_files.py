"""The files of the index cache: `remote-log-index-cache` in a log directory, named as Kafka names them.

    <start offset>_<segment id>.index .timeindex .txnindex              the index, as the store has it
    <start offset>_<segment id>.index.crc32c ...                        its checksum and size, as text

The checksum is written before the index gets its name: an index without one was not completely written. Nothing is
flushed: after a crash a file that the disk has lost does not have its checksum.

The first log directory has them. When it fails, the next one that works takes new ones: the indexes of
healthy directories' partitions must not depend on it.

Everything here waits for the disk or for the store: it runs in threads.

Source: RemoteIndexCache of Kafka 4.3.1, which has no checksums, and ignores these files.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from logging import getLogger
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from ottla.protocol.checksum import crc32c
from ottla.protocol.kafka_uuid import TEXT_LENGTH, from_text, to_text
from ottla.remote.errors import RemoteResourceNotFound, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, RemoteStorageManager
from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex, OffsetIndex, TimeIndex
from ottla.storage.transaction_index import TransactionIndex

_LOG = getLogger(__name__)

DIRECTORY: Final = "remote-log-index-cache"

_CHECKSUM: Final = ".crc32c"
_TEMPORARY: Final = ".tmp"
_NAME: Final = re.compile(
    rf"[0-9]{{1,19}}_(?P<id>[a-zA-Z0-9_-]{{{TEXT_LENGTH}}})\.(?P<type>index|timeindex|txnindex)"
)
_I = TypeVar("_I", OffsetIndex, TimeIndex)

#: Bytes of an index in memory while it is copied to the disk.
_PIECE_BYTES: Final = 256 * 1024
#: An index is never larger than its segment, but for a short segment of few records.
_MAX_EXTRA_BYTES: Final = 4096


class CachedIndex(NamedTuple):
    """An index that was found on the disk, or written."""

    segment_id: UUID
    index_type: IndexType
    path: Path
    size_bytes: int


class IndexFiles:
    """Fetches, verifies, opens and removes the files of the index cache. [any thread]"""

    def __init__(self, directory: Path, *others: Path, files: Files, store: RemoteStorageManager) -> None:
        """`directory` is the cache's own, and created by `open`; `others`: where it moves when that fails."""
        #: The first one has new indexes.
        self._directories: tuple[Path, ...] = (directory, *others)
        self.files = files
        self._store = store

    @property
    def directory(self) -> Path:
        """The directory in which new indexes are written."""
        return self._directories[0]

    def open(self) -> list[CachedIndex]:
        """Return the indexes that an earlier process has left, the oldest first. Raises OSError.

        Incomplete files are removed, other folders stay. Of several files for one index, as a copied
        directory may have under other start offsets, the newest is kept. Files in another directory, written
        while this one had failed, are removed.

        Of several files for one index, as a copied directory may have under other start offsets, the newest
        is kept. What was written to another directory, while this one had failed, is removed.
        """
        files, directory = self.files, self.directory
        files.make_dir(directory)
        for other in self._directories[1:]:
            with suppress(OSError):
                files.remove_tree(other)
        names = files.list(directory)
        known = set(names)
        found: dict[tuple[UUID, IndexType], tuple[int, CachedIndex]] = {}
        for name in names:
            path = directory / name
            index = name.removesuffix(_CHECKSUM)
            match = _NAME.fullmatch(index)
            if files.is_dir(path):
                if match is not None:
                    files.remove_tree(path)  # an index, or its checksum, has this name
            elif match is None or index not in known or index + _CHECKSUM not in known:
                files.unlink(path)
            elif name == index:
                entry = CachedIndex(
                    from_text(match["id"]), IndexType(match["type"]), path, files.size_of(path) or 0
                )
                self._keep_newest(found, files.modified_ms(path), entry)
        return [entry for _, entry in sorted(found.values(), key=lambda each: each[0])]

    def _keep_newest(
        self,
        found: dict[tuple[UUID, IndexType], tuple[int, CachedIndex]],
        modified_ms: int,
        entry: CachedIndex,
    ) -> None:
        key = (entry.segment_id, entry.index_type)
        kept, removed = (modified_ms, entry), found.get(key)
        if removed is not None:
            kept, removed = sorted((kept, removed), key=lambda each: each[0], reverse=True)
            _LOG.warning("%s is removed: %s is an index of the same segment", removed[1].path, kept[1].path)
            self.remove([removed[1].path])
        found[key] = kept

    def is_valid(self, path: Path) -> bool:
        """Whether the file's content agrees with its stored checksum.

        Cost: reads all of it, 0.2 ms per MiB from memory.
        """
        try:
            checksum = self.files.read(path.with_name(path.name + _CHECKSUM))
            data = self.files.read(path)
        except FileNotFoundError:
            return False
        return checksum == _checksum_text(crc32c(data), len(data))

    def fetch(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> CachedIndex:
        """Copy an index from the store, into the first directory that works. Raises RemoteStorageError, OSError.

        A transaction index that the store does not have counts as empty: metadata of Kafka before 3.9 does not say
        whether there is one.
        """
        directories, failure = self._directories, None
        for directory in directories:
            try:
                if failure is not None:
                    self.files.make_dir(directory)
                found = self._fetch_into(directory, copy, index_type)
            except OSError as error:
                failure = failure or error
                continue
            if failure is not None:
                others = [each for each in directories if each != directory]
                self._directories = (directory, *others)
                _LOG.warning(
                    "%s fails: indexes of the remote tier are written to %s from now on: %s",
                    directories[0],
                    directory,
                    failure,
                )
            return found
        assert failure is not None, directories
        raise failure

    def _fetch_into(
        self, directory: Path, copy: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> CachedIndex:
        path = directory / f"{copy.start_offset}_{to_text(copy.segment_id.id)}.{index_type.value}"
        temporary, checksum = (path.with_name(path.name + suffix) for suffix in (_TEMPORARY, _CHECKSUM))
        try:
            size_bytes, crc = self._fetch(copy, index_type, temporary)
            self.files.write_atomically(checksum, _checksum_text(crc, size_bytes), durable=False)
            self.files.rename(temporary, path)
        except BaseException:
            # It counts towards no limit of the cache, and its segment may be deleted before the next attempt.
            for left in (temporary, checksum.with_name(checksum.name + _TEMPORARY), checksum):
                with suppress(OSError):
                    self.files.unlink(left)
            raise
        return CachedIndex(copy.segment_id.id, index_type, path, size_bytes)

    def _fetch(self, copy: RemoteLogSegmentMetadata, index_type: IndexType, path: Path) -> tuple[int, int]:
        """Write an index from the store to a new file, and check it; return its size and checksum."""
        try:
            size_bytes, crc = self._download(copy, index_type, path)
        except RemoteResourceNotFound:
            if index_type is not IndexType.TRANSACTION:
                raise
            size_bytes, crc = 0, 0
        try:
            self._check(copy, index_type, path)
        except CorruptIndex as error:
            raise RetriableRemoteStorageError(
                f"{copy.segment_id}: the store's {index_type.value} is damaged: {error}"
            ) from error
        return size_bytes, crc

    def _download(self, copy: RemoteLogSegmentMetadata, index_type: IndexType, path: Path) -> tuple[int, int]:
        """Write an index from the store to a new file; return its size and checksum."""
        fd = self.files.open(path, write=True, create=True)
        try:
            self.files.truncate(fd, 0)
            size_bytes = crc = 0
            with closing(self._pieces(copy, index_type)) as pieces:
                for data in pieces:
                    self.files.pwrite(fd, data, size_bytes)
                    size_bytes += len(data)
                    crc = crc32c(data, crc)
                    if size_bytes > copy.segment_size_bytes + _MAX_EXTRA_BYTES:
                        raise RetriableRemoteStorageError(
                            f"{copy.segment_id}: its {index_type.value} is larger than the segment"
                        )
            return size_bytes, crc
        finally:
            self.files.close(fd)

    def _pieces(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> Generator[bytes, None, None]:
        """Yield the store's bytes of an index. An OSError, as of a plug-in's socket, is no failure of this disk."""
        try:
            with closing(self._store.fetch_index(copy, index_type)) as stream:
                while data := stream.read(_PIECE_BYTES):
                    yield data
        except OSError as error:
            raise RetriableRemoteStorageError(f"{copy.segment_id}: {error!r}") from error

    def _check(self, copy: RemoteLogSegmentMetadata, index_type: IndexType, path: Path) -> None:
        """Raise CorruptIndex for content that is impossible."""
        match index_type:
            case IndexType.OFFSET:
                with closing(self.offset_index(copy, path)) as offsets:
                    last = offsets.entry(offsets.count - 1) if offsets.count else None
                if last is not None and not (
                    last.offset < copy.end_offset and last.position < copy.segment_size_bytes
                ):
                    raise CorruptIndex(f"{path}: {last} is behind the segment")
            case IndexType.TIMESTAMP:
                with closing(self.time_index(copy, path)) as times:
                    if times.last.offset >= copy.end_offset:
                        raise CorruptIndex(f"{path}: {times.last} is behind the segment")
            case IndexType.TRANSACTION:
                self.transaction_index(copy, path).check()
            case _:
                raise AssertionError(f"{index_type} is not cached")

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove indexes with their checksums; what is missing is ignored. Raises OSError."""
        for path in paths:
            self.files.unlink(path)
            self.files.unlink(path.with_name(path.name + _CHECKSUM))

    # -- look-ups ----------------------------------------------------------------------------------

    def offset_index(self, copy: RemoteLogSegmentMetadata, path: Path) -> OffsetIndex:
        """Open the offset index; the caller closes it. Raises CorruptIndex, FileNotFoundError."""
        index = OffsetIndex(
            path,
            base_offset=copy.start_offset,
            max_bytes=copy.segment_size_bytes,
            files=self.files,
            is_new=False,
        )
        return _loaded(index)

    def time_index(self, copy: RemoteLogSegmentMetadata, path: Path) -> TimeIndex:
        """Open the time index; the caller closes it. Raises CorruptIndex, FileNotFoundError."""
        index = TimeIndex(
            path,
            base_offset=copy.start_offset,
            max_bytes=copy.segment_size_bytes,
            files=self.files,
            is_new=False,
        )
        return _loaded(index)

    def transaction_index(self, copy: RemoteLogSegmentMetadata, path: Path) -> TransactionIndex:
        """Open the transaction index; it holds no descriptor."""
        return TransactionIndex(path, base_offset=copy.start_offset, files=self.files, is_new=False)


def _loaded(index: _I) -> _I:
    # Before `load`, which would create a missing file.
    index.open_existing()
    try:
        index.load()
    except BaseException:
        index.close()
        raise
    return index


def _checksum_text(crc: int, size_bytes: int) -> bytes:
    return f"{crc:08x} {size_bytes}\n".encode()
