"""Leader epochs and producer state of a log's tiered part, from a copy's indexes (KIP-405, "Follower Replication").

    find    in the metadata: the copy that has the record before the leader's local log start     no wait
    read    its LEADER_EPOCH and PRODUCER_SNAPSHOT from the store, in a thread; both are checked  waits for the store

A copy that is part of the leader's log up to its end gives the state there. Of a copy of another branch only
the beginning is part of it, up to the leader's local log start at least; the producer state there is that of
an earlier copy, with the batches in between (`ottla.remote.producer_replay`). This happens only after an
unclean election:

    leader's log     e0 [0, 100)  e5 [100, 170)     local log start 100
    its copies       [0, 80) e0@0    [80, 120) e0@80    by the former leader: offset 99 is copied, and not again

Waits are bounded: the one for a permit, and that for the store. A thread whose store does not answer keeps
its permit until the store gives up, so that never more than `PERMITS` pieces of work are in the pool. A new
broker with 1,000 partitions needs 15 s, with 30 ms for each object: that is why there are two bounds.

Source: TierStateMachine.buildRemoteLogAuxState of Kafka 4.3.1, which truncates the log before it reads, does
not check what it has read, and continues at the end of the copy of the other branch.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import getLogger
from typing import Final, TypeVar

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.copied_state import read_epochs, read_snapshot
from ottla.remote.errors import (
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.producer_replay import replay_segment
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.runtime import Pool, Runtime
from ottla.runtime.pools import THREADS
from ottla.storage import producer_snapshot
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.remote_restart import RemoteState

_LOG: Final = getLogger(__name__)

#: The time for which a read waits for a permit, then for the store's indexes, or for the batches of a copy,
#: at most a segment; after that the follower sends its Fetch again.
PERMIT_TIMEOUT_S: Final = 300.0
READ_TIMEOUT_S: Final = 30.0
REPLAY_TIMEOUT_S: Final = 600.0
#: The time for which a follower waits for the metadata of its copies, and the pause between two checks, at first
#: and at most. A broker that has just started reads them for some hundred milliseconds.
READY_TIMEOUT_S: Final = 5.0
_FIRST_LOOK_S: Final = 0.01
_MAX_LOOK_S: Final = 0.2
#: Reads at a time: one for each thread.
PERMITS: Final = THREADS[Pool.REMOTE_AUXILIARY]

#: The log that reads the snapshot decides which producers have expired.
_NEVER_MS: Final = 2**62

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A copy, and the offset up to which it is part of the leader's log: the log restarts there."""

    copy: RemoteLogSegmentMetadata
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """A copy exists, and whether it is part of the leader's log depends on where the leader's `epoch` ends."""

    epoch: int


class AuxiliaryStates:
    """Finds the copy at which a follower's log restarts, and reads leader epochs and producers from its indexes.

    Belongs to the event loop.
    """

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

    # -- the copy ----------------------------------------------------------------------------------

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether this broker has read the metadata of the partition's copies."""
        return self._metadata.is_ready(partition)

    async def until_ready(self, partition: TopicIdPartition, *, is_wanted: Callable[[], bool]) -> None:
        """Wait until `is_ready`, for `READY_TIMEOUT_S` at most, or until the answer is not wanted any more."""
        pause_s, end_s = _FIRST_LOOK_S, self._runtime.monotonic() + READY_TIMEOUT_S
        while not self.is_ready(partition) and is_wanted() and self._runtime.monotonic() < end_s:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_LOOK_S)

    def find(
        self,
        partition: TopicIdPartition,
        *,
        end_offset: int,
        previous_epoch: int,
        leader_ends: Mapping[int, int | None],
    ) -> Found | Unconfirmed:
        """Return the finished copy that has the record before `end_offset`, which is of `previous_epoch`.

        `leader_ends`: where epochs end in the leader's log; None: it has no record of that epoch. Raises
        RemoteStorageError: there is no such copy, or this broker has not read its metadata yet.
        """
        if not self._metadata.is_ready(partition):
            raise RetriableRemoteStorageError(f"{partition}: the metadata of its copies is not read yet")
        offset = end_offset - 1
        copy = self._metadata.remote_log_segment_metadata(partition, epoch=previous_epoch, offset=offset)
        if copy is None:
            raise RemoteResourceNotFound(
                f"{partition}: no finished copy has offset {offset} of epoch {previous_epoch}"
            )
        # The cache returns one of several copies; the others are listed only if it is of another branch.
        found = choose((copy,), end_offset=end_offset, leader_ends=leader_ends)
        return found or (
            choose(
                self._copies(partition, epoch=previous_epoch, offset=offset),
                end_offset=end_offset,
                leader_ends=leader_ends,
            )
            or Found(copy=copy, offset=end_offset)
        )

    def _copies(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield all finished copies that have the record at `offset` of `epoch`. Cost: O(copies of the epoch)."""
        for copy in self._metadata.list_remote_log_segments(partition, epoch=epoch):
            start, end = copy.epoch_range(epoch) or (0, 0)
            if copy.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and start <= offset < end:
                yield copy

    def _copy_before(self, found: Found, epochs: LeaderEpochCache) -> RemoteLogSegmentMetadata | None:
        """Return the copy before `found.copy`, if its producer state is one of the leader's log; else None."""
        copy = found.copy
        epoch = epochs.epoch_for_offset(copy.start_offset - 1)
        if epoch is None or copy.start_offset == 0:
            return None
        before = self._metadata.remote_log_segment_metadata(
            copy.partition, epoch=epoch, offset=copy.start_offset - 1
        )
        if before is None or before.end_offset > found.offset:
            return None
        is_within = epochs.epoch_for_offset(before.end_offset - 1) == before.leader_epochs[-1].epoch
        return before if is_within else None

    # -- its indexes -------------------------------------------------------------------------------

    async def read(self, found: Found, *, log_start_offset: int) -> RemoteState:
        """Return the state of a log with local segments from `found.offset` on, and the leader's log start offset.

        Raises RemoteStorageError, RetriableRemoteStorageError at a deadline.
        """
        copy, store = found.copy, self._store

        # Checked and decoded in the thread, too: a snapshot may have a million producers.
        def state(epochs: LeaderEpochCache, snapshot: bytes) -> RemoteState:
            return RemoteState.of(
                offset=found.offset,
                log_start_offset=log_start_offset,
                leader_epochs=epochs.entries,
                producer_snapshot=snapshot,
            )

        if found.offset == copy.end_offset:
            return await self._run(
                lambda: state(read_epochs(store, copy), read_snapshot(store, copy)),
                copy,
                timeout_s=READ_TIMEOUT_S,
            )
        epochs = await self._run(lambda: read_epochs(store, copy), copy, timeout_s=READ_TIMEOUT_S)
        before = self._copy_before(found, epochs)
        return await self._run(
            lambda: state(epochs, _replayed_snapshot(store, found, before)), copy, timeout_s=REPLAY_TIMEOUT_S
        )

    async def _run(self, read: Callable[[], T], copy: RemoteLogSegmentMetadata, *, timeout_s: float) -> T:
        """Run `read` in a thread of the pool, with a bounded wait for it. Raises RemoteStorageError."""

        def run() -> T | RemoteStorageError:
            try:
                return read()
            except RemoteStorageError as error:
                return error  # not raised in the task, whose caller may have given up
            except BaseException as error:  # noqa: BLE001 (a plugin may raise anything; Kafka's follower retries, too)
                return RemoteStorageError(f"{copy.segment_id}: {error!r}")

        try:
            async with asyncio.timeout(PERMIT_TIMEOUT_S):
                await self._permits.acquire()
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"{copy.segment_id}: {PERMITS} other reads occupy the threads, since {PERMIT_TIMEOUT_S:g} s"
            ) from None
        reading = self._runtime.create_task(
            self._runtime.run_blocking(run, pool=Pool.REMOTE_AUXILIARY),
            name=f"auxiliary state of {copy.segment_id}",
        )
        reading.add_done_callback(lambda _: self._permits.release())
        try:
            async with asyncio.timeout(timeout_s):
                result = await asyncio.shield(reading)
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"{copy.segment_id}: the store did not return its indexes within {timeout_s:g} s"
            ) from None
        if isinstance(result, RemoteStorageError):
            raise result
        return result


def choose(
    copies: Iterable[RemoteLogSegmentMetadata],
    *,
    end_offset: int,
    leader_ends: Mapping[int, int | None],
) -> Found | Unconfirmed | None:
    """Return the first of these copies that is part of the leader's log up to its end; None: none is.

    All of them have the record before `end_offset`, with the leader's epoch. So a copy that ends there is part
    of its log. One that ends later is, if the leader's log has the epoch of the copy's last record up to its end.
    """
    unconfirmed: Unconfirmed | None = None
    for copy in copies:
        epoch = copy.leader_epochs[-1].epoch
        if copy.end_offset == end_offset:
            return Found(copy=copy, offset=copy.end_offset)
        if epoch not in leader_ends:
            unconfirmed = unconfirmed or Unconfirmed(epoch=epoch)
        elif (leader_ends[epoch] or 0) >= copy.end_offset:
            return Found(copy=copy, offset=copy.end_offset)
    return unconfirmed


# -- in a thread -----------------------------------------------------------------------------------------


def _replayed_snapshot(
    store: RemoteStorageManager, found: Found, before: RemoteLogSegmentMetadata | None
) -> bytes:
    """Return the producer snapshot at `found.offset`: the one of the copy before it, with the batches since.

    Raises RemoteStorageError.
    """
    copy = found.copy
    producers = ProducerStateManager(producer_id_expiration_ms=lambda: _NEVER_MS)
    if before is not None:
        states = producer_snapshot.decode(read_snapshot(store, before))
        producers.load(states, offset=before.end_offset, now_ms=0)
    else:
        if copy.start_offset > 0:
            _LOG.info("%s: no producer state is known at its start", copy.segment_id)
        producers.reset(copy.start_offset)
    stream = store.fetch_log_segment(copy, start_position=0)
    try:
        replay_segment(stream, producers, end_offset=found.offset, name=str(copy.segment_id))
    finally:
        stream.close()
    return producer_snapshot.encode(producers.producers)
