"""Lane: runs one kind of task for many partitions, a bounded number of them at a time.

    WAITING --due, or woken--> READY --a permit is free--> RUNNING --ended--> WAITING for the interval
                                 ^                            |-----more to do--> READY, behind the others
                                 |                            '-----failed------> WAITING for the back-off
                                 ^                            '-----cancelled---> READY: the service starts again
                                 '-- nothing to run: `prepare` returned None --> WAITING for the interval

A partition is in one of these states, so at most one task of a lane runs for it at a time. Idle partitions
have no timer and no asyncio task: one service looks at those that are due, `prepare` decides on the loop's
thread, and only work that waits becomes a task. A failure is logged when it is the first one in a row, and
every failure is followed by a retry.

Source: RLMScheduledThreadPool of Kafka 4.3.1, with a thread and a timer for each task.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from logging import DEBUG, ERROR, WARNING, getLogger
from typing import Any, Final, Generic, TypeVar

from ottla.protocol.errors import KafkaError
from ottla.remote.errors import (
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
    TransferCancelled,
)
from ottla.remote.log_manager.backoff import backoff_ms, longest_backoff_ms
from ottla.remote.log_manager.segment_transfers import TransferAbandoned
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metadata_cache import IllegalStateTransition
from ottla.runtime import Runtime
from ottla.runtime.supervision import is_cancelled
from ottla.runtime.turns import MAX_STEPS, TURN_S

_LOG: Final = getLogger(__name__)

#: The interval at which permits are counted while partitions wait for one. A task that ends wakes the lane; a larger
#: pool, or the end of a call that was abandoned (`segment_transfers`), does not.
_PERMITS_S: Final = 1.0

K = TypeVar("K", bound=Hashable)

#: A task that waits; returns whether there is more to do at once.
Work = Coroutine[Any, Any, bool]


class NotYet(Exception):
    """A task cannot run yet, for a reason that is no failure; it is tried again later, without a log line."""


class _State(Enum):
    WAITING = auto()
    READY = auto()
    RUNNING = auto()


@dataclass(slots=True)
class _Entry:
    state: _State
    #: The time at which a WAITING partition becomes ready. A timer of the heap with another time is out of date.
    due_s: float = 0.0
    #: The number of failures in a row, `NotYet` included.
    failures: int = 0
    is_failing: bool = False
    #: Whether it was woken, or removed, while its task was running.
    is_woken: bool = False
    is_removed: bool = False


class Lane(Generic[K]):
    """Runs one task for each of many partitions, periodically and when woken, with a bounded number of tasks at a time.

    Belongs to the event loop.
    """

    def __init__(
        self,
        name: str,
        *,
        runtime: Runtime,
        settings: Callable[[], RemoteLogManagerSettings],
        permits: Callable[[], int],
        prepare: Callable[[K], Work | None],
    ) -> None:
        """`prepare` decides for a partition; None: nothing to do before the next interval.

        `name` appears in log lines.
        """
        self._name = name
        self._runtime = runtime
        self._settings = settings
        self._permits = permits
        self._prepare = prepare
        self._entries: dict[K, _Entry] = {}
        #: At most the partitions; each is there once.
        self._ready: deque[K] = deque()
        #: (when, number, partition): the number decides between equal times. At most one valid timer for each
        #: partition.
        self._timers: list[tuple[float, int, K]] = []
        self._timer_number = 0
        self._running: dict[K, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def __contains__(self, key: K) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not entry.is_removed

    @property
    def running(self) -> int:
        """The number of tasks of the lane that run now."""
        return len(self._running)

    @property
    def failing(self) -> int:
        """The number of partitions whose last task has failed."""
        return sum(entry.is_failing for entry in self._entries.values())

    # -- partitions --------------------------------------------------------------------------------

    def add(self, key: K) -> None:
        """Add a partition, whose task runs at once and then in each interval; one that was added before is woken."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(_State.READY)
            self._ready.append(key)
            self._changed.set()
        else:
            entry.is_removed = False
            entry.failures = 0
            self.wake(key)

    def wake(self, key: K) -> None:
        """Run the partition's task at once, or once more if it is running. An unknown partition is ignored."""
        entry = self._entries.get(key)
        if entry is None or entry.is_removed:
            return
        match entry.state:
            case _State.WAITING:
                self._make_ready(key, entry)
            case _State.RUNNING:
                entry.is_woken = True
            case _State.READY:
                pass

    def remove(self, key: K) -> None:
        """Stop running the partition's task. One that is running ends by itself: it checks whether it still may run."""
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.state is _State.RUNNING:
            entry.is_removed = True
        else:
            # Timers and the queue are cleaned when they are read.
            del self._entries[key]

    # -- the service -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the service until it is cancelled; then it cancels its tasks."""
        try:
            while True:
                self._changed.clear()
                pause_s = await self._step()
                if not self._changed.is_set():
                    await self._wait(pause_s)
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _wait(self, pause_s: float | None) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _step(self) -> float | None:
        """Start the tasks that are due, in turns.

        Returns the seconds until the next step; None: until something changes.
        """
        now_s = self._runtime.monotonic()
        self._move_due(now_s)
        count, end_s = 0, now_s + TURN_S
        while self._ready and len(self._running) < self._permits():
            self._start(self._ready.popleft())
            count += 1
            if count >= MAX_STEPS or self._runtime.monotonic() >= end_s:
                await asyncio.sleep(0)
                count, end_s = 0, self._runtime.monotonic() + TURN_S
        while self._timers and not self._is_valid(self._timers[0]):
            heappop(self._timers)
        pause_s = max(0.0, self._timers[0][0] - self._runtime.monotonic()) if self._timers else None
        if self._ready:
            pause_s = _PERMITS_S if pause_s is None else min(pause_s, _PERMITS_S)
        return pause_s

    def _move_due(self, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            timer = heappop(self._timers)
            if self._is_valid(timer):
                self._make_ready(timer[2], self._entries[timer[2]])

    def _is_valid(self, timer: tuple[float, int, K]) -> bool:
        entry = self._entries.get(timer[2])
        return entry is not None and entry.state is _State.WAITING and entry.due_s == timer[0]

    def _make_ready(self, key: K, entry: _Entry) -> None:
        assert entry.state is not _State.READY, (self._name, key)
        entry.state = _State.READY
        self._ready.append(key)
        self._changed.set()

    def _wait_for(self, key: K, entry: _Entry, pause_ms: int) -> None:
        assert entry.state is not _State.WAITING, (self._name, key)
        entry.state = _State.WAITING
        entry.due_s = self._runtime.monotonic() + pause_ms / 1000
        self._timer_number += 1
        heappush(self._timers, (entry.due_s, self._timer_number, key))

    def _start(self, key: K) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.state is not _State.READY:
            return  # removed, or removed and added again: it is in the queue twice
        try:
            work = self._prepare(key)
        except Exception as error:  # noqa: BLE001 (of any kind: the other partitions are independent of it)
            self._fail(key, entry, error)
            return
        if work is None:
            self._succeed(key, entry)
            self._wait_for(key, entry, self._settings().task_interval_ms)
            return
        # Two tasks of one partition would copy a segment twice, or delete what the other one copies.
        assert key not in self._running, (self._name, key)
        entry.state = _State.RUNNING
        task = self._running[key] = self._runtime.create_task(
            self._run(key, entry, work), name=f"{self._name} {key}"
        )
        task.add_done_callback(
            lambda task: self._on_cancelled(key, entry, work) if task.cancelled() else None
        )

    def _on_cancelled(self, key: K, entry: _Entry, work: Work) -> None:
        """Make the partition ready again after its task was cancelled, by the service or by itself, perhaps
        before it began.
        """
        work.close()
        self._running.pop(key, None)
        if entry.is_removed:
            del self._entries[key]
        else:
            self._make_ready(key, entry)

    async def _run(self, key: K, entry: _Entry, work: Work) -> None:
        failure: BaseException | None = None
        has_more = False
        try:
            has_more = await work
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            failure = error  # something that the work has awaited was cancelled, not the work
        except Exception as error:  # noqa: BLE001 (of any kind: it is retried)
            failure = error
        assert entry.state is _State.RUNNING, (self._name, key, entry.state)
        del self._running[key]
        self._changed.set()
        if entry.is_removed:
            del self._entries[key]
            return
        is_woken, entry.is_woken = entry.is_woken, False
        if failure is not None:
            self._fail(key, entry, failure)
            return
        self._succeed(key, entry)
        if has_more or is_woken:
            self._make_ready(key, entry)
        else:
            self._wait_for(key, entry, self._settings().task_interval_ms)

    def _succeed(self, key: K, entry: _Entry) -> None:
        if entry.is_failing:
            _LOG.info("%s of %s succeeds again after %d failures", self._name, key, entry.failures)
            entry.is_failing = False
        entry.failures = 0

    def _fail(self, key: K, entry: _Entry, error: BaseException) -> None:
        entry.failures += 1
        if _is_permanent(error):
            pause_ms = longest_backoff_ms(self._settings(), self._runtime.random)
        else:
            pause_ms = backoff_ms(entry.failures, self._settings(), self._runtime.random)
        if isinstance(error, NotYet):
            _LOG.debug("%s of %s waits: %s", self._name, key, error)
        else:
            self._log(key, entry, error, pause_ms)
            entry.is_failing = True
        self._wait_for(key, entry, pause_ms)

    def _log(self, key: K, entry: _Entry, error: BaseException, pause_ms: int) -> None:
        """Log a failure: the first one in a row as a warning, or as an error if it is permanent.

        An error of an unknown kind is logged with its stack.
        """
        _LOG.log(
            DEBUG if entry.is_failing else ERROR if _is_permanent(error) else WARNING,
            "%s of %s has failed, the next attempt is in %d ms: %s",
            self._name,
            key,
            pause_ms,
            error,
            exc_info=None if isinstance(error, RemoteStorageError | KafkaError) else error,
        )


def _is_permanent(error: BaseException) -> bool:
    """Whether a repetition is likely to fail: the store refuses the request, or its contents, or a segment is damaged.

    Not an object or a state that another leader has changed meanwhile, nor a call that has not ended in time.
    """
    passing = (
        RetriableRemoteStorageError,
        RemoteResourceNotFound,
        IllegalStateTransition,
        TransferAbandoned,
        TransferCancelled,
    )
    return isinstance(error, RemoteStorageError) and not isinstance(error, passing)
