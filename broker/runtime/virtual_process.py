"""A process of a simulation: what was started in it can be killed as a whole, or stopped for a while.

    process = Process("n1")
    process.create_task(loop, a_node())  # and all that it starts: tasks, timers, callbacks of its connections
    process.pause(); process.resume()    # SIGSTOP, SIGCONT: meanwhile time goes on, and the network carries
    process.kill()                       # SIGKILL: nothing of it ever runs again, no `finally` either

A context variable says whose code is running. asyncio hands contexts on to tasks, timers and callbacks, so that
each of them knows its process; the loop (`VirtualLoop`) asks it before anything runs.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_AWAITS_IN_CLEANUP = 20

#: Whose code this is; None for the world around the processes.
CURRENT: "ContextVar[Process | None]" = ContextVar("CURRENT", default=None)


class Process:
    """See the module."""

    __slots__ = ("_context", "_held", "_tasks", "is_alive", "is_paused", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self._context = Context()
        self._context.run(CURRENT.set, self)
        #: What came due while it was paused, in order.
        self._held: list[asyncio.Handle] = []
        # A dead process's tasks stay referenced: the garbage collector would run their `finally` at any moment.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def create_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]
    ) -> asyncio.Task[T]:
        """Run it in this process."""
        return loop.create_task(coroutine, name=self.name, context=self._context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """The loop tells of each task that code of this process has started."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether this may run now; what may run later is kept."""
        if not self.is_alive:
            return False
        if self.is_paused:
            self._held.append(handle)
            return False
        return True

    def pause(self) -> None:
        """Nothing of it runs until `resume`."""
        self.is_paused = True

    def resume(self) -> list[asyncio.Handle]:
        """What has come due meanwhile, for the loop to run (`VirtualLoop.resume`)."""
        self.is_paused = False
        held, self._held = self._held, []
        return held

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.is_alive = False
        self._held.clear()

    def bury(self) -> list[asyncio.Task[Any]]:
        """At the end of the simulation: close a dead process's coroutines, outside the loop and whatever they say.

        Their tasks, which stay pending for ever.
        """
        assert not self.is_alive, self.name
        tasks = list(self._tasks)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is pending, and is to be
            _close(task.get_coro())
        return tasks


def _close(coroutine: Any) -> None:  # noqa: ANN401 whatever a task runs
    for _ in range(_MAX_AWAITS_IN_CLEANUP):
        try:
            coroutine.close()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S112 - "coroutine ignored GeneratorExit": its clean-up waits for something
            continue
        return


class ProcessHandle(asyncio.Handle):
    """A callback that its process can hold back."""

    __slots__ = ("_process",)

    def __init__(self, process: Process, *args: Any, **named: Any) -> None:  # noqa: ANN401 (asyncio's)
        super().__init__(*args, **named)
        self._process = process

    def _run(self) -> None:
        if self._process.admits(self):
            super()._run()


class ProcessTimerHandle(asyncio.TimerHandle):
    """The same, at a time."""

    __slots__ = ("_process",)

    def __init__(self, process: Process, *args: Any, **named: Any) -> None:  # noqa: ANN401 (asyncio's)
        super().__init__(*args, **named)
        self._process = process

    def _run(self) -> None:
        if self._process.admits(self):
            super()._run()
