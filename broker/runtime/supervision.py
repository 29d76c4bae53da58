"""Background tasks that cannot be lost: referenced until they end, their exceptions logged and told."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskFailure:
    """A background task ended with an exception."""

    task_name: str
    exception: BaseException


class Supervisor:
    """The background tasks of one node.

    asyncio keeps only weak references to tasks, and prints an exception that nobody fetched when the
    garbage collector gets to it, which may be never. Both are how a background task gets lost.
    """

    __slots__ = ("_listeners", "_loop", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # A dict, since a set of tasks iterates in order of addresses: a simulation must not.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._listeners: list[Callable[[TaskFailure], None]] = []

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start `coroutine`; see `Runtime.create_task`."""
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Have `listener` called for each task that ends with an exception."""
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

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        exception = task.exception()
        if exception is None:
            return
        log.error("background task %s failed", task.get_name(), exc_info=exception)
        failure = TaskFailure(task_name=task.get_name(), exception=exception)
        for listener in self._listeners:
            listener(failure)
