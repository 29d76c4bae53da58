"""Listener dispatch: committed batches from memory if this node has appended them, else from the log.

    high watermark --> the batches before it, in order ---.
    snapshot       --> all records in it -----------------+--> Listeners
    leader         --> at once; on the leader itself -----'
                       only after its epoch's first record

Records are read and decoded in another thread, once for all listeners, a mebibyte at a time. Listeners are
notified of as many batches in a turn of the event loop as `runtime/turns.py` says: a mebibyte may have twenty
thousand records. Raft does nothing else meanwhile, so a step has many of the small batches: a turn should end
by the clock, not by its number of steps.
Source: KafkaRaftClient.ListenerContext, BatchAccumulator of Kafka 4.3.1.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.record_batches import DecodedBatch
from ottla.controller.quorum.listeners import UNKNOWN_LEADER, Listeners
from ottla.controller.raft.types import LeaderAndEpoch, OffsetAndEpoch
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import in_turns

logger: Final = logging.getLogger(__name__)

#: Uncommitted batches of this node are kept in memory up to so many bytes; those beyond are read from the log
#: when they are committed.
MAX_APPENDED_BYTES: Final = 64 * 1024 * 1024
#: So much of the log is read and decoded at a time, before listeners are notified of it.
READ_BYTES: Final = 1024 * 1024
#: Listeners are notified of so many records without a pause, or of one batch: up to a millisecond.
RECORDS_OF_STEP: Final = 100


class ListenerDispatcher:
    """Notifies the listeners. Used by the driver, one call at a time; only `appended` may be called in between."""

    def __init__(
        self,
        log: MetadataLog,
        listeners: Listeners,
        *,
        node_id: int,
        epoch_start_offset: Callable[[], int | None],
        runtime: Runtime,
    ) -> None:
        """`epoch_start_offset`: where the epoch that this node leads starts; None while it does not lead."""
        self._log = log
        self._listeners = listeners
        self._node_id = node_id
        self._epoch_start_offset = epoch_start_offset
        self._runtime = runtime
        #: Batches appended in this epoch and not yet dispatched; those beyond MAX_APPENDED_BYTES are missing.
        self._appended: deque[DecodedBatch] = deque()
        self._appended_bytes = 0
        #: The leader as far as this node knows; listeners may be notified later.
        self.leader = UNKNOWN_LEADER

    def appended(self, batch: DecodedBatch) -> None:
        """Keep a batch that this node has appended as the leader, until it is committed."""
        if self._appended_bytes + batch.size_bytes <= MAX_APPENDED_BYTES:
            self._appended.append(batch)
            self._appended_bytes += batch.size_bytes

    async def dispatch_committed(self, high_watermark: int) -> None:
        """Everything before the high watermark is committed: notify listeners. Raises InvalidMetadata."""
        while (start_offset := self._listeners.end_offset) < high_watermark:
            while self._appended and self._appended[0].base_offset < start_offset:
                self._take_appended()
            if self._appended and self._appended[0].base_offset == start_offset:
                if self._appended[0].end_offset > high_watermark:
                    break
                await in_turns(
                    self._runtime, self._commit_each(self._next_appended(high_watermark)), goes_first=True
                )
                continue
            end_offset = high_watermark
            if self._appended:
                end_offset = min(end_offset, self._appended[0].base_offset)
            batches = await self._runtime.run_blocking(
                self._read, start_offset, end_offset, pool=Pool.METADATA
            )
            await in_turns(self._runtime, self._commit_each(batches), goes_first=True)

    def _next_appended(self, high_watermark: int) -> Iterator[DecodedBatch]:
        """The batches in memory that are next, each of them once listeners are notified of the one before."""
        while (
            self._appended
            and self._appended[0].base_offset == self._listeners.end_offset
            and self._appended[0].end_offset <= high_watermark
        ):
            yield self._take_appended()

    def _take_appended(self) -> DecodedBatch:
        batch = self._appended.popleft()
        self._appended_bytes -= batch.size_bytes
        return batch

    def _clear_appended(self) -> None:
        self._appended.clear()
        self._appended_bytes = 0

    def _read(self, start_offset: int, end_offset: int) -> list[DecodedBatch]:
        """Some of the batches from `start_offset` on, at least one. [any thread]"""
        found: list[DecodedBatch] = []
        size = 0
        for batch in self._log.decoded_batches(start_offset, end_offset):
            found.append(batch)
            size += batch.size_bytes
            if size >= READ_BYTES:
                break
        return found

    def _commit_each(self, batches: Iterable[DecodedBatch]) -> Iterator[None]:
        """Notify of the batches, in steps of RECORDS_OF_STEP records or a little more."""
        count = 0
        for batch in batches:
            self._listeners.notify_commit(batch)
            self._notify_leader_when_due()
            count += batch.end_offset - batch.base_offset
            if count >= RECORDS_OF_STEP:
                count = 0
                yield

    async def load_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """The log starts at the end of this snapshot: notify listeners. Raises InvalidMetadata, OSError."""
        self._clear_appended()
        batches = await self._runtime.run_blocking(
            lambda: list(self._log.snapshot_records(snapshot)), pool=Pool.METADATA
        )
        self._listeners.notify_snapshot(batches, snapshot)

    def change_leader(self, leader: LeaderAndEpoch) -> None:
        """Notify listeners of a new epoch, of the leader of the epoch, or of its resignation."""
        logger.info("metadata quorum: epoch %d, leader %s", leader.epoch, leader.leader_id)
        # Batches that this node appended in an earlier epoch may be truncated; those that stay are read from the log.
        self._clear_appended()
        self.leader = leader
        self._notify_leader_when_due()

    def _notify_leader_when_due(self) -> None:
        """Notify of the leader; on the leader itself only after everything before its epoch, and its first record."""
        if self.leader.leader_id == self._node_id:
            start_offset = self._epoch_start_offset()
            if start_offset is None or self._listeners.end_offset <= start_offset:
                return
        self._listeners.notify_leader(self.leader)

    def end(self) -> None:
        """Notify listeners that there is no leader: this node stops."""
        self.leader = LeaderAndEpoch(None, self.leader.epoch)
        self._listeners.notify_leader(self.leader)
