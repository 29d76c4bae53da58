"""Consumers' reads of what is in the remote tier only (KIP-405): the second half of `read_from_log`.

A Fetch that needs a chunk which is not in memory waits in the purgatory `RemoteFetch`
(`DelayedRemoteFetch`), then all of its partitions are read again: so the partition's role, its log start
and its copies are checked after the wait. A look-up by timestamp waits in `RemoteListOffsets`
(`delayed_remote_list_offsets.py`).

| the read | the partition's row |
|---|---|
| is not complete, or throttled (KIP-956); the metadata of copies is still being read | no records, no error |
| has failed; there are too many reads | UNKNOWN_SERVER_ERROR |
| finds no copy, as the offset was deleted meanwhile | OFFSET_OUT_OF_RANGE |

A consumer that gets no records asks again. UNKNOWN_SERVER_ERROR is Kafka 4.3.1's: KIP-405's
TIERED_STORAGE_NOT_AVAILABLE does not exist.

Source: Kafka's ReplicaManager.handleOffsetOutOfRangeError and processRemoteFetches.
"""

from asyncio import sleep
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from typing import Final, NamedTuple

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.delayed_remote_list_offsets import DelayedRemoteListOffsets, OffsetLookUp
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory
from ottla.protocol.errors import KafkaError, UnknownServerError
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.special_timestamps import MAX_TIMESTAMP
from ottla.remote.errors import MetadataNotReady, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.reading.chunk_reads import ChunkReads, FetchQuota, PendingRead, RemoteReadsThrottled
from ottla.remote.reading.read_slots import ReadSlots
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.tiered_partition import id_of
from ottla.runtime import Runtime
from ottla.storage.index import TimestampOffset

#: Between the attempts of a look-up by timestamp.
_PAUSES_S: Final = (0.05, 0.2)

_LOG = getLogger(__name__)


class RemoteRecords(NamedTuple):
    """Records of one partition; `aborted` is None for read_uncommitted consumers."""

    records: memoryview
    aborted: list[AbortedTransaction] | None


class LocalFrom(NamedTuple):
    """The remote tier has no batches before this offset, where the local log starts."""

    offset: int


class RemoteReads:
    """Reads and look-ups in the remote tier, for consumers; one per broker with `remote.log.storage.system.enable`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        reader: RemoteLogReader,
        settings: Callable[[], RemoteReadSettings],
        quota: FetchQuota,
    ) -> None:
        self.runtime = runtime
        self.reader = reader
        self.settings = settings
        self.slots = ReadSlots(runtime, settings)
        self._chunks = ChunkReads(
            reader,
            runtime=runtime,
            slots=self.slots,
            quota=quota,
            wait_ms=lambda: settings().fetch_max_wait_ms,
        )
        make_purgatory = partial(
            DelayedOperationPurgatory,
            call_later=runtime.call_later,
            call_soon=runtime.loop.call_soon,
            turns=runtime.turns,
        )
        #: Fetches that wait for chunks: under the reads and the partitions.
        self.fetch_purgatory = make_purgatory()
        #: ListOffsets requests that wait for look-ups: under the look-ups and the partitions.
        self.list_offsets_purgatory = make_purgatory()
        #: Fetches that were answered after remote.fetch.max.wait.ms without all of their records.
        self.expired_fetch_count = 0
        #: Look-ups that were not complete after their time.
        self.expired_list_offsets_count = 0
        self._chunks.on_done = self.fetch_purgatory.signal

    def close(self) -> None:
        """Stop the periodic removal of chunks and streams that are not used any more."""
        self._chunks.close()

    def has_metadata(self, partition: Partition) -> bool:
        """Whether the metadata of the partition's copies is read."""
        return self.reader.metadata.is_ready(id_of(partition))

    def on_role(self, partition: Partition) -> None:
        """Drop the partition's chunks after a change of role, leader epoch or configuration, or after its
        removal.
        """
        self._chunks.forget(partition)
        self.fetch_purgatory.signal(partition)
        self.list_offsets_purgatory.signal(partition)

    # -- offsets by time ---------------------------------------------------------------------------

    def look_up(self, partition: Partition, timestamp: int) -> OffsetLookUp:
        """Begin to search both tiers for a time in ms, or for the largest timestamp (MAX_TIMESTAMP)."""
        look_up = OffsetLookUp(partition)
        look_up.begin(
            self.runtime.create_task(
                self._look_up(look_up, timestamp), name=f"remote look-up of {partition.topic_partition}"
            )
        )
        return look_up

    async def _look_up(self, look_up: OffsetLookUp, timestamp: int) -> None:
        partition = look_up.partition
        try:
            async with self.slots.enter():
                look_up.is_waiting = False
                look_up.found = await self._find(look_up, timestamp)
        except Exception as error:  # noqa: BLE001 (a store's plugin may raise anything; logged)
            look_up.error = error
            is_known = isinstance(error, (KafkaError, RemoteStorageError, OSError))
            _LOG.warning(
                "%s: the remote tier cannot be searched for timestamp %d: %s",
                partition,
                timestamp,
                error,
                exc_info=None if is_known else error,
            )
        look_up.is_done = True
        self.list_offsets_purgatory.signal(look_up)

    async def _find(self, look_up: OffsetLookUp, timestamp: int) -> TimestampOffset | None:
        """The result of the first attempt that succeeds. Raises the error of the last one."""
        for pause_s in (*_PAUSES_S, None):
            try:
                if timestamp == MAX_TIMESTAMP:
                    return await self.reader.max_timestamp_offset(
                        look_up.partition, is_cancelled=lambda: look_up.is_cancelled
                    )
                return await self.reader.offset_for_timestamp(
                    look_up.partition, timestamp, is_cancelled=lambda: look_up.is_cancelled
                )
            except RetriableRemoteStorageError:
                if pause_s is None or look_up.is_cancelled:
                    raise
                await sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def wait_for(self, look_ups: Sequence[OffsetLookUp], *, timeout_ms: int | None) -> None:
        """Wait until all have a result, or for `timeout_ms` (None: remote.list.offsets.request.timeout.ms)."""
        if timeout_ms is None:
            timeout_ms = self.settings().list_offsets_timeout_ms
        delayed = DelayedRemoteListOffsets(self.runtime.loop, look_ups)
        waiting = delayed.try_complete_else_watch(self.list_offsets_purgatory, timeout_ms=timeout_ms)
        if waiting is not None:
            await waiting
        self.expired_list_offsets_count += delayed.expired_count

    # -- records -----------------------------------------------------------------------------------

    def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_bytes: int,
        max_offset: int,
        is_read_committed: bool,
        min_one_message: bool,
        has_waited: bool,
    ) -> RemoteRecords | LocalFrom | PendingRead | None:
        """Batches from the one that holds `offset` on, of one copy, none that ends behind `max_offset`.

        A PendingRead is to be waited for; if the request `has_waited`, there is no result yet. None: throttled, or the
        metadata of copies is still being read, after a start.
        Raises OffsetOutOfRange, UnknownServerError.
        """
        at = offset
        while at < partition.log.offsets.local_log_start_offset:
            try:
                chunk = self._chunks.get(
                    partition,
                    at,
                    max_bytes=max_bytes,
                    is_read_committed=is_read_committed,
                    has_waited=has_waited,
                )
            except (RemoteReadsThrottled, MetadataNotReady):
                return None
            except RemoteStorageError as error:
                raise UnknownServerError(str(error)) from error
            if isinstance(chunk, PendingRead):
                if has_waited and chunk.error is not None:
                    raise _as_kafka_error(chunk.error) from chunk.error
                return chunk
            found = chunk.read(
                at, max_bytes=max_bytes, max_offset=max_offset, min_one_message=min_one_message
            )
            if found.end_offset == at:
                return RemoteRecords(found.records, [] if is_read_committed else None)
            self._chunks.on_consumed(partition, chunk, at, found, is_read_committed=is_read_committed)
            if found.records:
                aborted = None
                if is_read_committed:
                    aborted = [
                        AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                        for each in chunk.aborted_in(
                            first_offset=found.base_offset, end_offset=found.end_offset
                        )
                    ]
                return RemoteRecords(found.records, aborted)
            at = found.end_offset
        return LocalFrom(at)


def _as_kafka_error(error: Exception) -> KafkaError:
    """Return the error of a partition's row: a KafkaError as it is, any other as UnknownServerError."""
    return error if isinstance(error, KafkaError) else UnknownServerError(str(error))
