"""Read slots: the reads from the remote tier that run at a time, and those that wait (remote.log.reader.*).

    enter --a slot is free--> running --leave--> the first one that waits is running
          --none is---------> waiting, in the order of arrival; refused beyond remote.log.reader.max.pending.tasks

Reads ahead take at most half of the slots, and none while a consumer waits for one.

Source: RemoteStorageThreadPool of Kafka 4.3.1, a pool with a bounded queue.
"""

from asyncio import Future
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ottla.remote.errors import RemoteStorageError
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.runtime import Runtime


class TooManyRemoteReads(RemoteStorageError):
    """The queue is full: remote.log.reader.max.pending.tasks reads are waiting already."""


class ReadSlots:
    """A bounded number of slots for reads that run, and a bounded queue of those that wait. Both sizes may change."""

    def __init__(self, runtime: Runtime, settings: Callable[[], RemoteReadSettings]) -> None:
        self._runtime = runtime
        self._settings = settings
        self.running_count = 0
        #: At most remote.log.reader.max.pending.tasks.
        self._waiting: deque[Future[None]] = deque()

    @property
    def waiting_count(self) -> int:
        """The number of reads that wait for a slot (RemoteLogReaderTaskQueueSize)."""
        return len(self._waiting)

    @property
    def idle_ratio(self) -> float:
        """The share of free slots (RemoteLogReaderAvgIdlePercent), from 0 to 1."""
        return max(0.0, 1 - self.running_count / max(1, self._settings().reader_threads))

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Run the context with a slot, once there is one. Raises TooManyRemoteReads."""
        settings = self._settings()
        if self.running_count < settings.reader_threads and not self._waiting:
            self.running_count += 1
        elif len(self._waiting) >= settings.max_pending_reads:
            raise TooManyRemoteReads(
                f"{len(self._waiting)} reads from the remote tier are waiting (remote.log.reader.max.pending.tasks)"
            )
        else:
            await self._wait()
        try:
            yield
        finally:
            self.leave()

    def try_enter_ahead(self) -> bool:
        """Take a slot for a read ahead, if there is one to spare; return whether. The caller calls `leave`."""
        if self._waiting or self.running_count >= max(1, self._settings().reader_threads // 2):
            return False
        self.running_count += 1
        return True

    async def _wait(self) -> None:
        granted: Future[None] = self._runtime.loop.create_future()
        self._waiting.append(granted)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled():
                self.leave()  # granted in the turn in which this task was cancelled
            elif granted in self._waiting:
                self._waiting.remove(granted)
            raise

    def leave(self) -> None:
        """Free a slot: the first read that waits begins."""
        self.running_count -= 1
        assert self.running_count >= 0, self.running_count
        self.grant()

    def grant(self) -> None:
        """Begin the reads that wait, while a slot is free: to be called when remote.log.reader.threads has changed."""
        while self._waiting and self.running_count < self._settings().reader_threads:
            granted = self._waiting.popleft()
            if not granted.done():
                self.running_count += 1
                granted.set_result(None)
