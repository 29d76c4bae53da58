"""Leader epochs and producer state of a log's tiered part, read from the indexes of a copy (KIP-405, "Follower Replication").

    find    in the metadata: the copy that has the record before the leader's local log start     no wait
    read    its LEADER_EPOCH and PRODUCER_SNAPSHOT from the store, in a thread; both are checked  waits for the store

Waits are bounded: `read` fails after `READ_TIMEOUT_S`, also while it waits for a permit. A thread whose store does not
answer keeps its permit until the store gives up, so that never more than `PERMITS` pieces of work are in the pool.

Source: TierStateMachine.buildRemoteLogAuxState of Kafka 4.3.1, which truncates the log before it reads, and does not check
what it has read.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from protocol.remote.records import RemoteLogSegmentState
from remote.errors import (
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from remote.metadata_manager import RemoteLogMetadataManager
from remote.metrics import RemoteStorageMetrics
from remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from remote.storage_manager import IndexType, RemoteStorageManager
from runtime import Pool, Runtime
from runtime.pools import THREADS
from storage import leader_epoch_cache
from storage.checkpoints import CorruptCheckpoint
from storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from storage.producer_snapshot import CorruptSnapshot
from storage.remote_restart import RemoteState

#: How long one read may take, with the wait for a permit; then the follower sends its Fetch again.
READ_TIMEOUT_S: Final = 30.0
#: Reads at a time: one for each thread.
PERMITS: Final = THREADS[Pool.REMOTE_AUXILIARY]
#: The largest index that is read, in bytes: the snapshot of 1.6 million producers.
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """There is a copy, and whether it is part of the leader's log depends on where the leader's `epoch` ends."""

    epoch: int


class AuxiliaryStates:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        runtime: Runtime,
        metrics: RemoteStorageMetrics,
    ) -> None:
        self.metrics = metrics
        self._store = store
        self._metadata = metadata
        self._runtime = runtime
        self._permits = asyncio.Semaphore(PERMITS)

    def find(
        self,
        partition: TopicIdPartition,
        *,
        local_log_start_offset: int,
        previous_epoch: int,
        leader_ends: Mapping[int, int | None],
    ) -> RemoteLogSegmentMetadata | Unconfirmed:
        """The finished copy that has the record before `local_log_start_offset`, which is of `previous_epoch`.

        `leader_ends`: where epochs end in the leader's log; None: it has no record of that epoch. Raises
        RemoteStorageError: there is no such copy, or this broker has not read its metadata yet.
        """
        if not self._metadata.is_ready(partition):
            raise RetriableRemoteStorageError(f"{partition}: the metadata of its copies is not read yet")
        offset = local_log_start_offset - 1
        found = self._metadata.remote_log_segment_metadata(partition, epoch=previous_epoch, offset=offset)
        # The cache returns one of several copies; the others are listed only if it is of another branch.
        candidates = () if found is None else (found,)
        result = choose(candidates, local_log_start_offset=local_log_start_offset, leader_ends=leader_ends)
        if result is None and found is not None:
            result = choose(
                self._copies(partition, epoch=previous_epoch, offset=offset),
                local_log_start_offset=local_log_start_offset,
                leader_ends=leader_ends,
            )
        if result is None:
            raise RemoteResourceNotFound(
                f"{partition}: no finished copy of the leader's log has offset {offset} of epoch {previous_epoch}"
            )
        return result

    def _copies(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """All finished copies with this record. Cost: O(copies of the epoch)."""
        for copy in self._metadata.list_remote_log_segments(partition, epoch=epoch):
            start, end = copy.epoch_range(epoch) or (0, 0)
            if copy.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and start <= offset < end:
                yield copy

    async def read(self, copy: RemoteLogSegmentMetadata, *, log_start_offset: int) -> RemoteState:
        """The state of a log with local segments from the copy's end on, and the leader's log start offset.

        Raises RemoteStorageError, RetriableRemoteStorageError after `READ_TIMEOUT_S`.
        """
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                epochs, snapshot = await self._read_indexes(copy)
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"{copy.segment_id}: the store did not return the leader epochs within {READ_TIMEOUT_S:g} s"
            ) from None
        return _checked(copy, epochs, snapshot, log_start_offset=log_start_offset)

    async def _read_indexes(self, copy: RemoteLogSegmentMetadata) -> tuple[bytes, bytes]:
        def read() -> tuple[bytes, bytes] | RemoteStorageError:
            try:
                return (
                    _read_index(self._store, copy, IndexType.LEADER_EPOCH),
                    _read_index(self._store, copy, IndexType.PRODUCER_SNAPSHOT),
                )
            except RemoteStorageError as error:
                return error  # not raised in the task, whose caller may have given up

        await self._permits.acquire()
        reading = self._runtime.create_task(
            self._runtime.run_blocking(read, pool=Pool.REMOTE_AUXILIARY),
            name=f"auxiliary state of {copy.segment_id}",
        )
        reading.add_done_callback(lambda _: self._permits.release())
        result = await asyncio.shield(reading)
        if isinstance(result, RemoteStorageError):
            raise result
        return result


def choose(
    copies: Iterable[RemoteLogSegmentMetadata],
    *,
    local_log_start_offset: int,
    leader_ends: Mapping[int, int | None],
) -> RemoteLogSegmentMetadata | Unconfirmed | None:
    """The first of these copies that is part of the leader's log; None: none is.

    All of them have the record before `local_log_start_offset`, with the leader's epoch. So a copy that ends there is part
    of its log. One that ends later is, if the leader's log has the epoch of the copy's last record up to its end.
    """
    unconfirmed: Unconfirmed | None = None
    for copy in copies:
        epoch = copy.leader_epochs[-1].epoch
        if copy.end_offset == local_log_start_offset:
            return copy
        if epoch not in leader_ends:
            unconfirmed = unconfirmed or Unconfirmed(epoch=epoch)
        elif (leader_ends[epoch] or 0) >= copy.end_offset:
            return copy
    return unconfirmed


def _read_index(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
    """One index. Raises RemoteStorageError. [any thread]"""
    chunks: list[bytes] = []
    left = MAX_INDEX_BYTES
    try:
        stream = store.fetch_index(copy, index_type)
        try:
            while chunk := stream.read(left + 1):
                chunks.append(chunk)
                left -= len(chunk)
                if left < 0:
                    raise RemoteStorageError(
                        f"{copy.segment_id}: its {index_type.value} is larger than {MAX_INDEX_BYTES} bytes"
                    )
        finally:
            stream.close()
    except RemoteStorageError:
        raise
    except Exception as error:
        # A plugin may raise errors of its own: the follower retries, as Kafka's does.
        raise RemoteStorageError(f"{copy.segment_id}: {index_type.value}: {error!r}") from error
    return b"".join(chunks)


def _checked(
    copy: RemoteLogSegmentMetadata, epochs: bytes, snapshot: bytes, *, log_start_offset: int
) -> RemoteState:
    """The state in the two indexes. Raises RemoteStorageError if they are not those of the copy."""
    last = copy.leader_epochs[-1]
    try:
        cache = LeaderEpochCache(_growing(leader_epoch_cache.decode(epochs)))
        state = RemoteState.of(
            offset=copy.end_offset,
            log_start_offset=log_start_offset,
            leader_epochs=cache.entries,
            producer_snapshot=snapshot,
        )
        state.producers()
    except (CorruptCheckpoint, CorruptSnapshot) as error:
        raise RemoteStorageError(f"{copy.segment_id}: an index is corrupt: {error}") from error
    for offset in (last.start_offset, copy.end_offset - 1):
        if (epoch := cache.epoch_for_offset(offset)) != last.epoch:
            raise RemoteStorageError(
                f"{copy.segment_id}: offset {offset} is in epoch {epoch} of its leader epochs, in {last.epoch} of its metadata"
            )
    return state


def _growing(entries: Sequence[EpochEntry]) -> Sequence[EpochEntry]:
    """Raises CorruptCheckpoint unless epochs and offsets grow."""
    for before, after in pairwise(entries):
        if not (before.epoch < after.epoch and before.start_offset < after.start_offset):
            raise CorruptCheckpoint(f"{before}, then {after}")
    return entries
