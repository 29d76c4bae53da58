"""What listeners are told, and from where: from memory what this node has appended itself, else from the log.

    high watermark --> the batches before it, in order   --'
    snapshot       --> all that is in it                 --+--> Listeners
    leader         --> at once, but to the leader itself --'
                       only behind its epoch's first record

Records are read and decoded in another thread, once for all listeners, a mebibyte at a time.
Source: KafkaRaftClient.ListenerContext of Kafka 4.3.1.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from controller.metadata_batches import Chunk
from controller.metadata_log import MetadataLog
from controller.raft.listeners import NOBODY_YET, Listeners
from controller.raft.types import LeaderAndEpoch, OffsetAndEpoch

logger: Final = logging.getLogger(__name__)

#: Batches of this node that are not committed yet are kept in memory up to so many bytes; those beyond are read from
#: the log when they are committed.
MAX_APPENDED_BYTES: Final = 64 * 1024 * 1024
#: So much of the log is read and decoded at a time, before listeners are told of it.
READ_BYTES: Final = 1024 * 1024


class Telling:
    """The one who tells. Used by the quorum's worker, one call at a time, but for `appended`."""

    def __init__(
        self,
        log: MetadataLog,
        listeners: Listeners,
        *,
        node_id: int,
        epoch_start_offset: Callable[[], int | None],
        run_blocking: Callable[..., Awaitable[Any]],
    ) -> None:
        """`epoch_start_offset`: where the epoch of this node begins, while it leads."""
        self._log = log
        self._listeners = listeners
        self._node_id = node_id
        self._epoch_start_offset = epoch_start_offset
        self._run_blocking = run_blocking
        #: Appended in this epoch and not yet dispatched; perhaps not all of it.
        self._appended: deque[Chunk] = deque()
        self._appended_bytes = 0
        #: As far as this node knows; listeners may hear of it later.
        self.leader = NOBODY_YET

    def appended(self, chunk: Chunk) -> None:
        """This node has appended a batch as the leader."""
        if self._appended_bytes + chunk.size_bytes <= MAX_APPENDED_BYTES:
            self._appended.append(chunk)
            self._appended_bytes += chunk.size_bytes

    async def commits(self, high_watermark: int) -> None:
        """Everything before it is committed. Raises InvalidMetadata."""
        while (start_offset := self._listeners.end_offset) < high_watermark:
            while self._appended and self._appended[0].base_offset < start_offset:
                self._take_appended()
            if self._appended and self._appended[0].base_offset == start_offset:
                if self._appended[0].end_offset > high_watermark:
                    break
                self._commit(self._take_appended())
                continue
            end_offset = high_watermark
            if self._appended:
                end_offset = min(end_offset, self._appended[0].base_offset)
            for chunk in await self._run_blocking(self._read, start_offset, end_offset):
                self._commit(chunk)

    def _take_appended(self) -> Chunk:
        chunk = self._appended.popleft()
        self._appended_bytes -= chunk.size_bytes
        return chunk

    def _forget_appended(self) -> None:
        self._appended.clear()
        self._appended_bytes = 0

    def _read(self, start_offset: int, end_offset: int) -> list[Chunk]:
        """Some of the batches from `start_offset` on, at least one. [any thread]"""
        found: list[Chunk] = []
        size = 0
        for chunk in self._log.chunks(start_offset, end_offset):
            found.append(chunk)
            size += chunk.size_bytes
            if size >= READ_BYTES:
                break
        return found

    def _commit(self, chunk: Chunk) -> None:
        self._listeners.tell_commit(chunk)
        self._tell_leader_when_due()

    async def load_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """The log begins behind this snapshot. Raises InvalidMetadata, OSError."""
        self._forget_appended()
        chunks = await self._run_blocking(lambda: list(self._log.snapshot_records(snapshot)))
        self._listeners.tell_snapshot(chunks, snapshot)

    def change_leader(self, leader: LeaderAndEpoch) -> None:
        """There is a new epoch, or a leader of it, or its leader has given up."""
        logger.info("metadata quorum: epoch %d, leader %s", leader.epoch, leader.leader_id)
        # What an earlier epoch of ours has left in the log may be cut off: if it stays, it is read from there.
        self._forget_appended()
        self.leader = leader
        self._tell_leader_when_due()

    def _tell_leader_when_due(self) -> None:
        """A leader hears of it when all that was committed before its epoch is told, its first record included."""
        if self.leader.leader_id == self._node_id:
            start_offset = self._epoch_start_offset()
            if start_offset is None or self._listeners.end_offset <= start_offset:
                return
        self._listeners.tell_leader(self.leader)

    def end(self) -> None:
        """Nobody leads any more, as far as listeners are concerned."""
        self.leader = LeaderAndEpoch(None, self.leader.epoch)
        self._listeners.tell_leader(self.leader)
