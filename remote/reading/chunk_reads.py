"""Chunk reads: chunks of the remote tier that consumers need, in memory or being read.

    absent --get--> reading --ok--> in the cache, until it is consumed, displaced or expired
                       |
                       +--fails--> repeated, with backoff, while a request waits --> failed
                                                  failed --get--> reading, after a backoff

A read goes on when the request that began it does not wait any longer, and answers the next one: with a store that is
slower than remote.fetch.max.wait.ms consumers make progress nevertheless. A read that has failed keeps its error for
requests that come while it is repeated, so that they get the error and not only no records. A read that the store does
not answer for READ_DEADLINE_MS has an error, too; its thread is occupied until the store gives up.

Bounds: `ReadSlots` for reads that run and wait, CHUNKS_BYTES for kept chunks, MAX_READS for reads that are repeated.

Source: RemoteLogReader of Kafka 4.3.1. Differs: Kafka cancels a read, or drops its result, when its request expires; it
reads nothing ahead.
"""

from asyncio import TimerHandle, sleep
from collections.abc import Callable, Coroutine
from logging import DEBUG, WARNING, getLogger
from traceback import clear_frames
from typing import Any, Final, NamedTuple, Protocol

from ottla.protocol.errors import KafkaError, OffsetOutOfRange
from ottla.remote.errors import MetadataNotReady, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.reading.chunk import Chunk, ChunkRead
from ottla.remote.reading.chunk_cache import ChunkCache
from ottla.remote.reading.copy_reader import Continuation
from ottla.remote.reading.read_ahead import ReadAhead
from ottla.remote.reading.read_slots import ReadSlots, TooManyRemoteReads
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.tiered_partition import TieredPartition, id_of
from ottla.runtime import Runtime

_LOG = getLogger(__name__)

#: Memory for chunks; 10 reading threads have at most 40 MiB besides.
CHUNKS_BYTES: Final = 64 * 1024 * 1024
#: The backoff between two attempts of one read: twice as long after each, with jitter, until the last request
#: that waits for it times out (KIP-405).
_BACKOFF_MS: Final = 50
#: The pause between a read that has failed and the next one, at first and at most.
_FAILED_BACKOFF_MS: Final = 500
_FAILED_BACKOFF_MAX_MS: Final = 5_000
#: A read that has not ended after this time, in which it may have waited for a slot, is reported as an error.
READ_DEADLINE_MS: Final = 60_000
#: The most reads that run, wait or have failed.
MAX_READS: Final = 2_000
#: A failure is forgotten after this time without a request.
_FAILURE_TTL_MS: Final = 60_000
_SWEEP_INTERVAL_MS: Final = 15_000


class FetchQuota(Protocol):
    """The bound on bytes per second that are read from the remote tier (KIP-956).

    `ottla.remote.quota.TransferQuota` is one.
    """

    def try_take(self, size_bytes: int) -> bool:
        """Count the bytes and return True, if the rate is within its bound."""

    def record(self, size_bytes: int) -> None:
        """Count bytes that were read from the remote tier."""

    def record_wait(self, waited_s: float) -> None:
        """Record a time in which nothing was read because of the bound."""


class RemoteReadsThrottled(Exception):
    """The rate exceeds remote.log.manager.fetch.max.bytes.per.second: nothing more is read now."""


class _Key(NamedTuple):
    partition: TopicIdPartition
    offset: int
    is_read_committed: bool


class PendingRead:
    """A read of a chunk that has not ended, or has failed."""

    __slots__ = (
        "began_ms",
        "data_bytes",
        "error",
        "failure_count",
        "is_done",
        "is_reported",
        "is_wanted",
        "key",
        "used_ms",
    )

    def __init__(self, key: _Key) -> None:
        self.key = key
        #: Whether the read has ended: then `get` returns its chunk, or raises.
        self.is_done = False
        #: The size of the chunk's batches, once the read has succeeded.
        self.data_bytes = 0
        #: The error of the last attempt, or that it does not end; None: no attempt has failed.
        self.error: Exception | None = None
        self.failure_count = 0
        #: Whether a consumer has received the error of the read that has ended.
        self.is_reported = False
        #: Whether a consumer has requested the chunk; False: it is read ahead.
        self.is_wanted = False
        self.began_ms = self.used_ms = 0.0


class ChunkReads:
    """Reads chunks for consumers, keeps them for the next requests, and reads ahead for sequential readers.

    Belongs to the event loop.
    """

    def __init__(
        self,
        reader: RemoteLogReader,
        *,
        runtime: Runtime,
        slots: ReadSlots,
        quota: FetchQuota,
        wait_ms: Callable[[], int],
    ) -> None:
        """`wait_ms`: the longest time that a request waits for a read."""
        self._wait_ms = wait_ms
        self._reader = reader
        self._runtime = runtime
        self._slots = slots
        self._quota = quota
        self._cache = ChunkCache(limit_bytes=CHUNKS_BYTES)
        self._ahead = ReadAhead(memory_bytes=CHUNKS_BYTES)
        #: Bound: MAX_READS.
        self._reads: dict[_Key, PendingRead] = {}
        self._sweep_timer: TimerHandle | None = None
        #: The first read that was refused by the quota since the last one that was not; None: none was.
        self._throttled_since_ms: float | None = None
        #: Called when a read has ended.
        self.on_done: Callable[[PendingRead], None] = lambda read: None

    def close(self) -> None:
        """Stop the periodic removal of chunks, streams and failures that are not used any more."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    # -- requests ----------------------------------------------------------------------------------

    def get(
        self,
        partition: TieredPartition,
        offset: int,
        *,
        max_bytes: int,
        is_read_committed: bool,
        has_waited: bool,
    ) -> Chunk | PendingRead:
        """Return the chunk that holds `offset`, or the read to wait for.

        A read that has failed is begun again, unless the request `has_waited`: then it responds with the `error`.
        Raises OffsetOutOfRange if no copy holds `offset`, RemoteReadsThrottled, TooManyRemoteReads.
        """
        key = _Key(id_of(partition), offset, is_read_committed)
        read = self._reads.get(key)
        if read is None or read.is_done:
            chunk = self._kept(partition, offset, is_read_committed=is_read_committed)
            if chunk is not None:
                return chunk
        if read is None or (read.is_done and (read.is_reported or not has_waited)):
            size = self._ahead.first_chunk_bytes(key.partition, offset, max_bytes=max_bytes)
            read = self._new_read(key) if read is None else read
            self._begin(read, partition, max_bytes=size)
        read.is_wanted = True
        read.is_reported = read.is_done
        read.used_ms = self._now_ms()
        if not read.is_done and read.error is None and read.used_ms - read.began_ms >= READ_DEADLINE_MS:
            self._on_late(read)
        return read

    def on_consumed(
        self,
        partition: TieredPartition,
        chunk: Chunk,
        offset: int,
        found: ChunkRead,
        *,
        is_read_committed: bool,
    ) -> None:
        """Record that a consumer was given `found`, a part of `chunk`, for a request at `offset`, and read ahead."""
        now_ms = self._now_ms()
        self._cache.touch(chunk, is_read_to_end=found.end_offset >= chunk.end_offset, now_ms=now_ms)
        stream = self._ahead.advance(
            id_of(partition),
            offset=offset,
            end_offset=found.end_offset,
            size_bytes=len(found.records),
            now_ms=now_ms,
        )
        if not stream.is_sequential or stream.ahead_of == chunk.end_offset:
            return
        size = self._ahead.next_chunk_bytes(stream)
        if self._read_ahead(partition, chunk, size, is_read_committed=is_read_committed):
            stream.chunk_bytes, stream.ahead_of = size, chunk.end_offset

    def forget(self, partition: TieredPartition) -> None:
        """Forget the partition's chunks: its role has changed, or it is not here any more.

        Its log may have been truncated.
        """
        self._cache.remove_partition(id_of(partition))

    # -- one read ----------------------------------------------------------------------------------

    def _kept(self, partition: TieredPartition, offset: int, *, is_read_committed: bool) -> Chunk | None:
        """Return the chunk in the cache that holds `offset`, if it is still part of the log."""
        try:
            found = self._reader.find_copy(partition, offset)
        except MetadataNotReady:
            raise
        except RemoteStorageError:
            return None  # the read will report it, and be repeated
        if found is None:
            raise self._reader.no_copy(partition, offset)
        chunk = self._cache.find(found.copy.segment_id.id, offset)
        if chunk is None or chunk.end_offset > found.end_offset:
            return None
        return None if is_read_committed and chunk.aborted is None else chunk

    def _new_read(self, key: _Key) -> PendingRead:
        if not self._quota.try_take(0):
            if self._throttled_since_ms is None:
                self._throttled_since_ms = self._now_ms()
            raise RemoteReadsThrottled
        if self._throttled_since_ms is not None:
            self._quota.record_wait((self._now_ms() - self._throttled_since_ms) / 1000)
            self._throttled_since_ms = None
        if len(self._reads) >= MAX_READS:
            raise TooManyRemoteReads(f"{len(self._reads)} reads from the remote tier are running or failing")
        read = self._reads[key] = PendingRead(key)
        if self._sweep_timer is None:
            self._schedule_sweep()
        return read

    def _read_ahead(
        self, partition: TieredPartition, chunk: Chunk, size_bytes: int, *, is_read_committed: bool
    ) -> bool:
        """Begin to read the batches behind the chunk, unless they are in memory or local; return whether it began."""
        offset = chunk.end_offset
        key = _Key(id_of(partition), offset, is_read_committed)
        if key in self._reads or offset >= partition.log.offsets.local_log_start_offset:
            return False
        try:
            found = self._reader.find_copy(partition, offset)
            if found is None or self._kept(partition, offset, is_read_committed=is_read_committed):
                return False
        except (KafkaError, RemoteStorageError):
            return False  # of no interest before a consumer asks for it
        if not self._cache.reserve(size_bytes):
            return False
        if not self._slots.try_enter_ahead():
            self._cache.release(size_bytes)
            return False
        try:
            read = self._new_read(key)
        except (RemoteStorageError, RemoteReadsThrottled):
            self._cache.release(size_bytes)
            self._slots.leave()
            return False
        continuation = None
        if found.copy.segment_id.id == chunk.segment_id:
            continuation = Continuation(offset, chunk.end_position)
        self._begin(read, partition, max_bytes=size_bytes, is_ahead=True, continuation=continuation)
        return True

    def _begin(
        self,
        read: PendingRead,
        partition: TieredPartition,
        *,
        max_bytes: int,
        is_ahead: bool = False,
        continuation: Continuation | None = None,
    ) -> None:
        read.is_done = read.is_reported = False
        read.began_ms = read.used_ms = self._now_ms()

        async def attempt() -> Chunk:
            return await self._reader.read(
                partition,
                read.key.offset,
                max_bytes=max_bytes,
                is_read_committed=read.key.is_read_committed,
                continuation=continuation,
            )

        async def attempt_with_room() -> Chunk:
            try:
                return await attempt()
            finally:
                self._cache.release(max_bytes)

        if is_ahead:
            run = self._run_ahead(read, partition, attempt_with_room())
        else:
            run = self._run(read, partition, self._repeated(read, attempt))
        self._runtime.create_task(run, name=f"remote read of {partition.topic_partition}")

    async def _run_ahead(
        self, read: PendingRead, partition: TieredPartition, chunk: Coroutine[Any, Any, Chunk]
    ) -> None:
        try:
            await self._run(read, partition, chunk)
        finally:
            self._slots.leave()

    async def _run(
        self, read: PendingRead, partition: TieredPartition, chunk: Coroutine[Any, Any, Chunk]
    ) -> None:
        """Carry the read out, and keep its chunk or its error."""
        leader_epoch = partition.leader_epoch
        try:
            found = await chunk
        except Exception as error:  # noqa: BLE001 (a store's plugin may raise anything; logged)
            self._on_failed(read, error)
            # It may be kept for long, and its frames have the memory that was to be filled.
            clear_frames(error.__traceback__)
        else:
            self._quota.record(found.data_bytes)
            self._ahead.on_read(found.data_bytes, took_ms=self._now_ms() - read.began_ms)
            del self._reads[read.key]
            read.data_bytes, read.error = found.data_bytes, None
            # Of an older leader epoch, it may have records that were truncated meanwhile: it is read again.
            if partition.leader_epoch == leader_epoch and not partition.is_deleted:
                self._cache.add(read.key.partition, found, now_ms=self._now_ms())
        read.is_done = True
        self.on_done(read)

    async def _repeated(self, read: PendingRead, attempt: Callable[[], Coroutine[Any, Any, Chunk]]) -> Chunk:
        """Return the result of the first attempt that succeeds.

        Raises the error of the last one that a request waits for.
        """
        if read.failure_count:
            await sleep(self._backoff_ms(_FAILED_BACKOFF_MS, read.failure_count) / 1000)
        attempts = 0
        while True:
            try:
                async with self._slots.enter():
                    return await attempt()
            except RetriableRemoteStorageError as error:
                attempts += 1
                pause_ms = self._backoff_ms(_BACKOFF_MS, attempts)
                if self._now_ms() + pause_ms > read.used_ms + self._wait_ms():
                    raise
                read.error = error
                clear_frames(error.__traceback__)
            await sleep(pause_ms / 1000)

    def _backoff_ms(self, first_ms: int, number: int) -> float:
        doubled_ms: float = min(_FAILED_BACKOFF_MAX_MS, first_ms * 2 ** min(number - 1, 20))
        return doubled_ms * (0.8 + 0.4 * self._runtime.random.random())

    def _on_late(self, read: PendingRead) -> None:
        read.error = RetriableRemoteStorageError(f"the store has not answered within {READ_DEADLINE_MS} ms")
        _LOG.warning(
            "%s: offset %d cannot be read from the remote tier: %s",
            read.key.partition,
            read.key.offset,
            read.error,
        )

    def _on_failed(self, read: PendingRead, error: Exception) -> None:
        key = read.key
        read.error = error
        read.failure_count += 1
        if not read.is_wanted or isinstance(error, OffsetOutOfRange):
            del self._reads[key]
        if not read.is_wanted or isinstance(error, KafkaError):
            return
        if isinstance(error, (RemoteStorageError, OSError)):
            # Once for each offset: a consumer asks again and again while the store is down.
            level = WARNING if read.failure_count == 1 else DEBUG
            _LOG.log(
                level,
                "%s: offset %d cannot be read from the remote tier: %s",
                key.partition,
                key.offset,
                error,
            )
        else:
            _LOG.error(
                "%s: reading offset %d from the remote tier", key.partition, key.offset, exc_info=error
            )

    # -- what is not wanted any more ---------------------------------------------------------------

    def _schedule_sweep(self) -> None:
        self._sweep_timer = self._runtime.call_later(_SWEEP_INTERVAL_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now_ms = self._now_ms()
        self._cache.expire(now_ms=now_ms)
        self._ahead.expire(now_ms=now_ms)
        self._reader.trim_memory()
        for key, read in list(self._reads.items()):
            if read.is_done and now_ms - read.used_ms >= _FAILURE_TTL_MS:
                del self._reads[key]
        if self._reads or len(self._cache) or len(self._ahead):
            self._schedule_sweep()

    def _now_ms(self) -> float:
        return self._runtime.monotonic() * 1000
