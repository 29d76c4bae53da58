"""RemoteIndexCache: indexes of remote segments on the local disk, so that a read of a segment asks the store once.

    absent --use--> being fetched --> present --use--> present, as the newest one
                          |               |
                          v               +--too many bytes, unused for long, its segment is deleted--> absent
                       absent             +--damaged--> being fetched
                  (the store fails)

An index that is being fetched is awaited by all who use it. An index in use is not removed. What an earlier
process has left is used again, after its checksum was verified; within one process it is verified once.

Bounds: remote.log.index.file.cache.total.size.bytes, by blocks of the disk, and
remote.log.index.file.cache.ttl.ms since the last use; both may change at any time. Only indexes in use may exceed them.

Source: RemoteIndexCache of Kafka 4.3.1. Differs: each index is fetched when it is needed, not all three of a
segment; the least recently used goes first, there it is W-TinyLFU; files have checksums.
"""

from asyncio import Future, TimerHandle, shield
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from logging import getLogger
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.remote.reading.index_cache_files import CachedIndex, IndexFiles
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType
from ottla.runtime import Pool, Runtime

_LOG = getLogger(__name__)

#: A file occupies whole blocks of the disk, and so does the file with its checksum.
_BLOCK_BYTES: Final = 4096
#: The time between two searches for indexes that were not used for long.
_SWEEP_INTERVAL_MS: Final = 30_000

_Key = tuple[UUID, IndexType]


class _Entry:
    """An index file of the cache on the disk."""

    __slots__ = ("is_verified", "key", "path", "size_bytes", "use_count", "used_ms")

    def __init__(self, index: CachedIndex, *, is_verified: bool, now_ms: float) -> None:
        self.key: _Key = (index.segment_id, index.index_type)
        self.path = index.path
        blocks = -(-index.size_bytes // _BLOCK_BYTES) + 1
        self.size_bytes = blocks * _BLOCK_BYTES
        self.is_verified = is_verified
        self.use_count = 0
        self.used_ms = now_ms


class IndexCache:
    """The cache of remote segments' indexes on the local disk.

    Belongs to the event loop; disk and store are used in threads.
    """

    def __init__(
        self, files: IndexFiles, *, runtime: Runtime, settings: Callable[[], RemoteReadSettings]
    ) -> None:
        self.files = files
        self._runtime = runtime
        self._settings = settings
        #: Indexes, the least recently used first. Bound: index_cache_bytes of the settings.
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._size_bytes = 0
        #: Indexes that are being fetched or verified; at most one for each reading thread.
        self._loading: dict[_Key, Future[None]] = {}
        #: Files that are being removed: a new file of the same name must wait.
        self._removing: dict[_Key, Future[None]] = {}
        self._sweep_timer: TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        """The disk space of all indexes in the cache, in whole blocks."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._entries)

    async def start(self) -> None:
        """Add the indexes that an earlier process has left on the disk. Raises OSError."""
        for found in await self._runtime.run_blocking(self.files.open, pool=Pool.REMOTE_READS):
            self._add(_Entry(found, is_verified=False, now_ms=self._now_ms()))
        self.resize()

    def close(self) -> None:
        """Stop the periodic removal of unused indexes. The files stay for the next process."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    @asynccontextmanager
    async def use(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> AsyncIterator[Path]:
        """Yield the file of an index, fetched from the store if it is not here; it stays during the context.

        Raises RemoteStorageError, and OSError if the disk fails. Concurrent uses of one index fetch it once.
        """
        entry = await self._entry(copy, index_type)
        entry.use_count += 1
        try:
            yield entry.path
        except OSError:
            self._distrust(entry.path.parent)
            raise
        finally:
            entry.use_count -= 1
            if not entry.use_count:
                self.resize()

    def discard(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> None:
        """Remove an index that contradicts its segment: the next use fetches it again. Called after the use."""
        entry = self._entries.get((copy.segment_id.id, index_type))
        if entry is not None and not entry.use_count:
            self._remove([entry])

    def _distrust(self, directory: Path) -> None:
        """Mark each index in a directory as unverified, after a file there could not be read.

        It is verified, or fetched again, before it is used.
        """
        for entry in self._entries.values():
            if entry.path.parent == directory:
                entry.is_verified = False

    def remove_segments(self, segment_ids: Collection[UUID]) -> None:
        """Remove the indexes of segments that are deleted; those in use stay."""
        keys = [
            (each, index_type)
            for each in segment_ids
            for index_type in (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION)
        ]
        found = [self._entries.get(key) for key in keys]
        self._remove([each for each in found if each is not None and not each.use_count])

    def resize(self) -> None:
        """Remove the least recently used indexes until the present size limit is kept."""
        limit = self._settings().index_cache_bytes
        if self._size_bytes <= limit:
            return
        size, removed = self._size_bytes, []
        for entry in self._entries.values():
            if size <= limit:
                break
            if not entry.use_count:
                removed.append(entry)
                size -= entry.size_bytes
        self._remove(removed)

    # -- one index ---------------------------------------------------------------------------------

    async def _entry(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> _Entry:
        """Return the index, present and verified, as the most recently used one."""
        key = (copy.segment_id.id, index_type)
        while True:
            entry = self._entries.get(key)
            if entry is not None and entry.is_verified:
                entry.used_ms = self._now_ms()
                self._entries.move_to_end(key)
                return entry
            loading = self._loading.get(key)
            if loading is None:
                loading = self._begin_loading(copy, index_type)
            # The use that began it may have been cancelled; others still wait.
            await shield(loading)

    def _begin_loading(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> Future[None]:
        key = (copy.segment_id.id, index_type)
        loading: Future[None] = self._runtime.loop.create_future()
        # Retrieved here, since everyone who waits may have been cancelled.
        loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._loading[key] = loading

        async def run() -> None:
            try:
                await self._load(copy, index_type)
            except Exception as error:  # noqa: BLE001 (raised to all that wait for the index)
                loading.set_exception(error)
            else:
                loading.set_result(None)
            finally:
                del self._loading[key]
                if not loading.done():
                    loading.cancel()

        self._runtime.create_task(run(), name=f"index of {copy.segment_id}")
        return loading

    async def _load(self, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> None:
        """Verify the index of an earlier process, or fetch it."""
        key = (copy.segment_id.id, index_type)
        entry = self._entries.get(key)
        if entry is not None:
            try:
                is_valid = await self._runtime.run_blocking(
                    self.files.is_valid, entry.path, pool=Pool.REMOTE_READS
                )
            except OSError:
                # Its directory has failed: the file is left there, for the next start.
                if self._entries.get(key) is entry:
                    del self._entries[key]
                    self._size_bytes -= entry.size_bytes
            else:
                if is_valid:
                    entry.is_verified = True
                    return
                _LOG.warning("%s is damaged: the index is fetched again", entry.path)
                if self._entries.get(key) is entry:
                    self._remove([entry])
        if (removing := self._removing.get(key)) is not None:
            await shield(removing)
        found = await self._runtime.run_blocking(self.files.fetch, copy, index_type, pool=Pool.REMOTE_READS)
        entry = _Entry(found, is_verified=True, now_ms=self._now_ms())
        # Kept while others make room for it: those who wait for it use it in this turn of the loop or the next ones.
        entry.use_count += 1
        self._add(entry)
        self.resize()
        entry.use_count -= 1

    def _add(self, entry: _Entry) -> None:
        assert entry.key not in self._entries, entry.key
        self._entries[entry.key] = entry
        self._size_bytes += entry.size_bytes
        if self._sweep_timer is None:
            self._schedule_sweep()

    # -- removal -----------------------------------------------------------------------------------

    def _remove(self, entries: Collection[_Entry]) -> None:
        if not entries:
            return
        removing: Future[None] = self._runtime.loop.create_future()
        for entry in entries:
            del self._entries[entry.key]
            self._size_bytes -= entry.size_bytes
            self._removing[entry.key] = removing
        assert self._size_bytes >= 0, self._size_bytes

        async def run() -> None:
            try:
                await self._runtime.run_blocking(
                    self.files.remove, [entry.path for entry in entries], pool=Pool.REMOTE_READS
                )
            except OSError as error:
                # They are found again, and removed, at the next start.
                _LOG.warning("Indexes in %s cannot be removed: %s", self.files.directory, error)
            finally:
                for entry in entries:
                    del self._removing[entry.key]
                removing.set_result(None)

        self._runtime.create_task(run(), name="removal of remote indexes")

    def _schedule_sweep(self) -> None:
        self._sweep_timer = self._runtime.call_later(_SWEEP_INTERVAL_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """Remove the indexes whose last use is longer ago than remote.log.index.file.cache.ttl.ms."""
        self._sweep_timer = None
        ttl_ms = self._settings().index_cache_ttl_ms
        if ttl_ms is not None:
            expired, now_ms = [], self._now_ms()
            for entry in self._entries.values():
                if now_ms - entry.used_ms < ttl_ms:
                    break
                if not entry.use_count:
                    expired.append(entry)
            self._remove(expired)
        self.resize()
        if self._entries:
            self._schedule_sweep()

    def _now_ms(self) -> float:
        return self._runtime.monotonic() * 1000
