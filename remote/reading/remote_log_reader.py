"""RemoteLogReader: reads of a log's remote tier: chunks of batches, aborted transactions and offsets by time.

    read       offset -> copy -> index -> range of bytes -> chunk -> its aborted transactions, if they are asked for
    look-ups   timestamp -> the first copy that may have it -> time index -> record; or on in the local tier

Metadata is read on the event loop, the store and the disk in threads. In between, segments may be deleted in either
tier, and the log may be truncated: a look-up begins again where the local log started meanwhile, and the reader of a
chunk decides again whether it is part of the log (`ottla.broker.replicas.reading.remote_reads`).

Source: RemoteLogManager.read, findOffsetByTimestamp and collectAbortedTransactions of Kafka 4.3.1. Differs: the largest
timestamp (ListOffsets -3) is that of both tiers, from the log start on; a copy that goes on after the log's
epochs is not read beyond them.
"""

from asyncio import sleep
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from ottla.protocol.errors import OffsetOutOfRange
from ottla.remote.errors import MetadataNotReady, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.reading.chunk import Chunk, CorruptCopy
from ottla.remote.reading.copies_of_log import FoundCopy, agreed_end, find_copy
from ottla.remote.reading.copy_reader import MAX_BATCH_BYTES, Continuation, CopyReader
from ottla.remote.reading.index_cache import IndexCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import IndexType, RemoteStorageManager
from ottla.remote.tiered_partition import TieredPartition, id_of
from ottla.runtime import Pool, Runtime
from ottla.storage.index import CorruptIndex, TimestampOffset
from ottla.storage.time_search import TimeSearch
from ottla.storage.transaction_index import AbortedTransaction

#: Copies whose metadata is read in one turn of the loop, at some 15 us each.
_COPIES_IN_TURN: Final = 100
#: Copies whose index or batches were damaged at the last read.
_MAX_SUSPECTED: Final = 100

T = TypeVar("T")


class _Stretch(NamedTuple):
    """The offsets of the log that a copy has, from `start_offset` on."""

    start_offset: int
    found: FoundCopy


def _later(one: TimestampOffset | None, other: TimestampOffset | None) -> TimestampOffset | None:
    """Return the record with the larger timestamp; of equal ones the first."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda each: (each.timestamp, -each.offset))


class RemoteLogReader:
    """Reads batches, aborted transactions and offsets by time from the remote tier. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        index_cache: IndexCache,
        metrics: RemoteStorageMetrics,
        runtime: Runtime,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """`max_batch_bytes`: no larger batch is in the store, as far as no index says so."""
        self.metadata = metadata
        self.index_cache = index_cache
        self.metrics = metrics
        self._runtime = runtime
        self._copy_reader = CopyReader(store, index_cache.files, max_batch_bytes=max_batch_bytes)
        #: Segments whose next read does not use their index. At most `_MAX_SUSPECTED`.
        self._suspected: dict[UUID, None] = {}

    def find_copy(self, partition: TieredPartition, offset: int) -> FoundCopy | None:
        """Return the copy that holds `offset` of the partition's log, and its end in the log; None: there is none.

        Raises MetadataNotReady if the metadata that is read so far has none. A new leader answers its
        consumers from the metadata that it read as a follower while it reads the rest: a copy deleted since
        is an error of the store.
        """
        found = find_copy(self.metadata, id_of(partition), partition.log, offset)
        if found is None and not self.metadata.is_ready(id_of(partition)):
            raise MetadataNotReady(f"The metadata of {partition.topic_partition} is still being read")
        return found

    def trim_memory(self) -> None:
        """Free the memory of chunks that are not in use any more."""
        self._copy_reader.memory.trim()

    def no_copy(self, partition: TieredPartition, offset: int) -> OffsetOutOfRange:
        """Return the error for an offset before the local log start that no copy holds."""
        return OffsetOutOfRange(f"{partition.topic_partition}: no copy in the remote tier holds {offset}")

    # -- records -----------------------------------------------------------------------------------

    async def read(
        self,
        partition: TieredPartition,
        offset: int,
        *,
        max_bytes: int,
        is_read_committed: bool,
        continuation: Continuation | None = None,
    ) -> Chunk:
        """Return batches of one copy, from the one that holds `offset` on: at most `max_bytes`, but at least one batch.

        The chunk has no batches if the rest of the copy has none. `continuation`, if known, is the position in the copy
        that holds `offset`. Raises OffsetOutOfRange if no copy holds `offset`, RemoteStorageError, OSError.
        """
        self.metrics.on_fetch_requested(partition.topic_partition.topic)
        try:
            chunk = await self._read(partition, offset, max_bytes=max_bytes, continuation=continuation)
            if is_read_committed:
                chunk = await self.with_aborted(partition, chunk)
        except Exception:
            self.metrics.on_fetch_failed(partition.topic_partition.topic)
            raise
        self.metrics.on_fetched(partition.topic_partition.topic, chunk.data_bytes)
        return chunk

    async def _read(
        self, partition: TieredPartition, offset: int, *, max_bytes: int, continuation: Continuation | None
    ) -> Chunk:
        found = self.find_copy(partition, offset)
        if found is None:
            raise self.no_copy(partition, offset)
        copy, end_offset = found
        # Either the batches or the index were damaged at the last read. The index was fetched again; this time the
        # batches decide, from the beginning of the copy on.
        use_index = copy.segment_id.id not in self._suspected
        self._suspected.pop(copy.segment_id.id, None)

        def read(path: Path | None) -> Chunk | None:
            return self._copy_reader.read(
                copy,
                path,
                offset=offset,
                end_offset=end_offset,
                continuation=continuation,
                max_bytes=max_bytes,
            )

        try:
            async with self.index_cache.use(copy, IndexType.OFFSET) as path:
                chunk = await self._in_thread(read, path if use_index else None)
        except (CorruptIndex, CorruptCopy) as error:
            self.index_cache.discard(copy, IndexType.OFFSET)
            if use_index:
                self._suspected[copy.segment_id.id] = None
                if len(self._suspected) > _MAX_SUSPECTED:
                    del self._suspected[next(iter(self._suspected))]
            raise RetriableRemoteStorageError(str(error)) from error
        if chunk is None:
            # The last offsets of a segment may have no batch.
            chunk = Chunk.empty(copy, start_offset=offset, end_offset=end_offset)
        return chunk

    # -- aborted transactions ----------------------------------------------------------------------

    async def with_aborted(self, partition: TieredPartition, chunk: Chunk) -> Chunk:
        """Return the chunk with the aborted transactions that have records in it (KIP-98). Raises as `read`.

        They are in the transaction indexes of its segment, and of later segments in both tiers, as an index has the
        transactions that end in its segment. All of them have ended: the segments of the remote tier are before the
        last stable offset.
        """
        if not len(chunk):
            return chunk.with_aborted(())
        aborted = await self._aborted(partition, chunk.first_offset, chunk.end_offset)
        return chunk.with_aborted(tuple(sorted(aborted, key=lambda each: each.last_offset)))

    async def _aborted(
        self, partition: TieredPartition, first_offset: int, end_offset: int
    ) -> set[AbortedTransaction]:
        """Return the aborted transactions with records in [first_offset, end_offset)."""
        aborted: set[AbortedTransaction] = set()
        at = first_offset
        while True:
            local_start = partition.log.offsets.local_log_start_offset
            while at < local_start:
                found = self._next_with_transaction_index(partition, at)
                if found is None or found.copy.start_offset >= local_start:
                    break
                some, is_complete = await self._aborted_of_copy(found, first_offset, end_offset)
                aborted.update(some)
                if is_complete:
                    return aborted
                at = found.end_offset
            local = await self._runtime.run_blocking(
                partition.log.reader.aborted_transactions, first_offset, end_offset, pool=Pool.READS
            )
            if partition.log.offsets.local_log_start_offset <= max(local_start, at):
                return aborted.union(local)

    async def _aborted_of_copy(
        self, found: FoundCopy, first_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        def read(path: Path) -> tuple[list[AbortedTransaction], bool]:
            return self._copy_reader.aborted_transactions(
                found.copy,
                path,
                first_offset=first_offset,
                end_offset=end_offset,
                agreed_end=found.end_offset,
            )

        try:
            async with self.index_cache.use(found.copy, IndexType.TRANSACTION) as path:
                return await self._in_thread(read, path)
        except CorruptIndex as error:
            self.index_cache.discard(found.copy, IndexType.TRANSACTION)
            raise RetriableRemoteStorageError(str(error)) from error

    def _next_with_transaction_index(self, partition: TieredPartition, offset: int) -> FoundCopy | None:
        """Return the first copy that ends behind `offset` and has aborted transactions (KIP-1058)."""
        log, at = partition.log, id_of(partition)
        entries = log.leader_epochs.entries
        for number, entry in enumerate(entries):
            end = (
                entries[number + 1].start_offset if number + 1 < len(entries) else log.offsets.log_end_offset
            )
            if end <= offset:
                continue
            start = max(entry.start_offset, offset)
            copy = self.metadata.next_segment_with_transaction_index(at, epoch=entry.epoch, offset=start)
            if copy is not None and copy.start_offset < end:
                start = max(start, copy.start_offset)
                agreed = agreed_end(copy, entries, offset=start, log_end_offset=log.offsets.log_end_offset)
                if agreed > start:
                    return FoundCopy(copy, agreed)
        return None

    # -- offsets by time ---------------------------------------------------------------------------

    async def offset_for_timestamp(
        self, partition: TieredPartition, timestamp: int, *, is_cancelled: Callable[[], bool]
    ) -> TimestampOffset | None:
        """Return the first record of the log, in either tier, that is not older than `timestamp`; None: there is none.

        Raises RemoteStorageError, OSError, KafkaStorageError. Cost: a look-up in the metadata for each copy, one or two
        indexes and a part of one segment.
        """
        async with aclosing(self._walk(partition, timestamp, is_cancelled=is_cancelled)) as walk:
            async for part in walk:
                if not isinstance(part, _Stretch):
                    return part
                if part.found.copy.max_timestamp_ms >= timestamp:
                    record = await self._search(
                        part.found, timestamp, start_offset=part.start_offset, is_cancelled=is_cancelled
                    )
                    if record is not None:
                        return record
        return None

    async def max_timestamp_offset(
        self, partition: TieredPartition, *, is_cancelled: Callable[[], bool]
    ) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of both tiers (ListOffsets -3).

        The metadata of a copy bounds the timestamps of its records. Reads all of a copy's part of the log, if no record
        there has the copy's largest timestamp: of a copy that is in the log in part only. Raises RemoteStorageError,
        OSError, KafkaStorageError.
        """
        stretches: list[_Stretch] = []
        latest: TimestampOffset | None = None
        async with aclosing(self._walk(partition, None, is_cancelled=is_cancelled)) as walk:
            async for part in walk:
                if isinstance(part, _Stretch):
                    stretches.append(part)
                else:
                    latest = part
        for start, found in sorted(
            stretches, key=lambda each: each.found.copy.max_timestamp_ms, reverse=True
        ):
            at_most = found.copy.max_timestamp_ms
            if is_cancelled() or at_most < 0 or (latest is not None and at_most < latest.timestamp):
                break
            record = await self._search(found, at_most, start_offset=start, is_cancelled=is_cancelled)
            if record is None:
                largest = await self._largest_of(found, start_offset=start, is_cancelled=is_cancelled)
                if largest >= 0:
                    record = await self._search(found, largest, start_offset=start, is_cancelled=is_cancelled)
            latest = _later(latest, record)
        return latest

    async def _walk(
        self, partition: TieredPartition, timestamp: int | None, *, is_cancelled: Callable[[], bool]
    ) -> AsyncGenerator[_Stretch | TimestampOffset | None]:
        """Yield the stretch of each copy in the order of the log, and at last the result of the local search.

        Local retention may remove segments meanwhile, perhaps before the local search has read them: then the walk
        goes on with their copies. It ends without a result if it is cancelled. Raises as `find_copy`.
        """
        offsets = partition.log.offsets
        reached = count = 0
        while not is_cancelled():
            while (reached := max(reached, offsets.log_start_offset)) < offsets.local_log_start_offset:
                found = self._copy_in_walk(partition, reached)
                yield _Stretch(reached, found)
                reached = found.end_offset
                count += 1
                if not count % _COPIES_IN_TURN:
                    await sleep(0)
                    if is_cancelled():
                        return
            reached = max(reached, offsets.local_log_start_offset)
            local = await self._search_locally(partition, timestamp, is_cancelled=is_cancelled)
            if offsets.local_log_start_offset <= reached:
                yield local
                return

    async def _search_locally(
        self, partition: TieredPartition, timestamp: int | None, *, is_cancelled: Callable[[], bool]
    ) -> TimestampOffset | None:
        search = TimeSearch(partition.log.reader, timestamp, is_cancelled=is_cancelled)
        while not await self._runtime.run_blocking(search.step, pool=Pool.LOOK_UPS):
            pass
        return search.found

    def _copy_in_walk(self, partition: TieredPartition, offset: int) -> FoundCopy:
        """Return the copy that holds `offset`, which is not before the log start. Raises RemoteStorageError, too."""
        found = self.find_copy(partition, offset)
        if found is None:
            raise RemoteStorageError(
                f"{partition.topic_partition}: no copy in the remote tier holds {offset}"
            )
        return found

    async def _search(
        self, found: FoundCopy, timestamp: int, *, start_offset: int, is_cancelled: Callable[[], bool]
    ) -> TimestampOffset | None:
        def find(index: Path, times: Path) -> TimestampOffset | None:
            return self._copy_reader.find_timestamp(
                found.copy,
                index,
                times,
                timestamp,
                start_offset=start_offset,
                end_offset=found.end_offset,
                is_cancelled=is_cancelled,
            )

        return await self._with_indexes(found.copy, find)

    async def _largest_of(
        self, found: FoundCopy, *, start_offset: int, is_cancelled: Callable[[], bool]
    ) -> int:
        def find(index: Path, _: Path) -> int:
            return self._copy_reader.largest_timestamp(
                found.copy,
                index,
                start_offset=start_offset,
                end_offset=found.end_offset,
                is_cancelled=is_cancelled,
            )

        return await self._with_indexes(found.copy, find)

    async def _with_indexes(self, copy: RemoteLogSegmentMetadata, find: Callable[[Path, Path], T]) -> T:
        """Call `find` in a thread with the paths of the copy's offset and time index, and return its result."""
        try:
            async with (
                self.index_cache.use(copy, IndexType.OFFSET) as index,
                self.index_cache.use(copy, IndexType.TIMESTAMP) as times,
            ):
                return await self._in_thread(find, index, times)
        except (CorruptIndex, CorruptCopy) as error:
            self.index_cache.discard(copy, IndexType.OFFSET)
            self.index_cache.discard(copy, IndexType.TIMESTAMP)
            raise RetriableRemoteStorageError(str(error)) from error

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        return await self._runtime.run_blocking(function, *args, pool=Pool.REMOTE_READS)
