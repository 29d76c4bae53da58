"""Background tasks that are not lost: referenced until they end, exceptions logged and counted, services started again.

    create_task  a piece of work. An exception ends it; what has started it works without its outcome, or begins it again
    supervise    a service. An exception ends one run of it; it is started again after a back-off, until it returns or
                 is cancelled

A service keeps what it has to do outside of its run, so that the next run finds it: an ISR that is proposed, a partition
that is followed, a log that is wanted. What a node cannot live without is neither of them: a failure of the Raft actor,
or of a listener of the metadata log, stops the node (`controller.raft.quorum`, `broker.node`).

Source: FaultHandler and ShutdownableThread of Kafka 4.3.1; there most background threads end with their first exception.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The first pause before a service is started again; each further failure doubles it.
FIRST_BACKOFF_S: Final = 0.1
#: The longest pause. A service that has run for longer than this begins with the first pause again.
MAX_BACKOFF_S: Final = 10.0
#: Each pause is this much shorter or longer by chance: what has failed together is not tried again together.
JITTER: Final = 0.2


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskFailure:
    """A background task, or a run of a service, ended with an exception."""

    task_name: str
    exception: BaseException


class Supervisor:
    """The background tasks of one node.

    asyncio keeps only weak references to tasks, and prints an exception that nobody fetched when the
    garbage collector gets to it, which may be never. Both are how a background task gets lost.
    """

    __slots__ = ("_listeners", "_loop", "_random", "_tasks", "failures")

    def __init__(self, loop: asyncio.AbstractEventLoop, random: random.Random) -> None:
        self._loop = loop
        self._random = random
        # A dict, since a set of tasks iterates in order of addresses: a simulation must not.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._listeners: list[Callable[[TaskFailure], None]] = []
        #: How often each task has failed, by its name.
        self.failures: Counter[str] = Counter()

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start `coroutine`; see `Runtime.create_task`."""
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a service; see `Runtime.supervise`."""
        return self.create_task(self._keep_running(run, name), name=name)

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Have `listener` called for each failure of a task or a service."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Cancel every task but the calling one and wait until all of them have ended.

        Tasks that are started by the clean-up of others are cancelled too.
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
                if _is_cancelled():
                    raise
                # A future that it waited for was cancelled: without this the service would end in silence.
                failure: BaseException = error
            except Exception as error:
                if _is_cancelled():
                    raise  # the clean-up of a cancelled run has failed: the service is over all the same
                failure = error
            if self._loop.time() - started_at > MAX_BACKOFF_S:
                failures_in_a_row = 0
            pause_s = min(FIRST_BACKOFF_S * 2**failures_in_a_row, MAX_BACKOFF_S)
            pause_s *= 1 + JITTER * (2 * self._random.random() - 1)
            failures_in_a_row = min(failures_in_a_row + 1, 20)
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
        if exception is None:
            return
        log.error("background task %s failed", task.get_name(), exc_info=exception)
        self._note(TaskFailure(task_name=task.get_name(), exception=exception))

    def _note(self, failure: TaskFailure) -> None:
        self.failures[failure.task_name] += 1
        for listener in self._listeners:
            listener(failure)


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that runs this."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
