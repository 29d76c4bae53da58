"""Supervisor of background tasks: keeps references, logs and counts exceptions, restarts services.

    create_task  a piece of work. An exception ends it; its caller does not depend on its outcome, or starts it again
    supervise    a service. An exception ends one run of it; it is restarted after a backoff, until it returns or
                 is cancelled

A service keeps its pending work outside of its run, so that the next run finds it: a proposed ISR, a followed
partition, a log to be created. Work that a node cannot do without uses neither: a failure of the Raft actor, or of a
listener of the metadata log, stops the node (`ottla.controller.quorum.driver`, `ottla.broker.node`).

Source: FaultHandler and ShutdownableThread of Kafka 4.3.1; there most background threads end at the first exception.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ottla.runtime.jitter import jittered

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The first pause before a service is restarted; each further failure doubles it.
FIRST_BACKOFF_S: Final = 0.1
#: The longest pause. After a run that was longer than this, the backoff starts with the first pause again.
MAX_BACKOFF_S: Final = 10.0


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskFailure:
    """A background task, or a run of a service, ended with an exception."""

    task_name: str
    exception: BaseException


class Supervisor:
    """The background tasks of one node.

    asyncio keeps only weak references to tasks, and prints an unretrieved exception only when the task is
    garbage-collected, which may never happen. In both ways a background task would be lost.
    """

    __slots__ = ("_listeners", "_loop", "_random", "_tasks", "failures", "is_silent")

    def __init__(self, loop: asyncio.AbstractEventLoop, random: random.Random) -> None:
        self._loop = loop
        self._random = random
        # A dict, since a set of tasks iterates in order of addresses: a simulation must be reproducible.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._listeners: list[Callable[[TaskFailure], None]] = []
        #: The number of failures of each task, by name.
        self.failures: Counter[str] = Counter()
        #: Whether failures are neither logged nor repeated, since a test has killed the process of the tasks.
        self.is_silent = False

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a background task: it stays referenced, and its exception is logged and reported."""
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a service: `run()`, and after each unexpected exception `run()` again, until it returns."""
        return self.create_task(self._keep_running(run, name), name=name)

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Call `listener` for each failure of a task or a service."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Cancel all tasks except the calling one and wait until they have ended.

        Tasks that the clean-up of others starts are cancelled too.
        """
        own = asyncio.current_task()
        while others := [task for task in self._tasks if task is not own]:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    async def _keep_running(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        failures_in_a_row = 0
        while True:
            started_at = self._loop.time()
            try:
                await run()
                return
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                # A future that it awaited was cancelled, not the service: without this it would end silently.
                failure: BaseException = error
            except Exception as error:
                if is_cancelled():
                    raise  # the clean-up of a cancelled run has failed: the service ends all the same
                failure = error
            if self._loop.time() - started_at > MAX_BACKOFF_S:
                failures_in_a_row = 0
            pause_s = min(FIRST_BACKOFF_S * 2**failures_in_a_row, MAX_BACKOFF_S)
            pause_s = jittered(pause_s, self._random)
            failures_in_a_row = min(failures_in_a_row + 1, 20)
            if self.is_silent:
                return
            log.error(
                "background task %s failed; it is started again in %.1f s", name, pause_s, exc_info=failure
            )
            self._note(TaskFailure(task_name=name, exception=failure))
            await asyncio.sleep(pause_s)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        exception = task.exception()
        if exception is None or self.is_silent:
            return
        log.error("background task %s failed", task.get_name(), exc_info=exception)
        self._note(TaskFailure(task_name=task.get_name(), exception=exception))

    def _note(self, failure: TaskFailure) -> None:
        self.failures[failure.task_name] += 1
        for listener in self._listeners:
            listener(failure)


def is_cancelled() -> bool:
    """Whether the current task was cancelled; a CancelledError without that is of something that it has awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
