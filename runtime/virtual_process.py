"""A simulated process: its tasks, timers and callbacks can be killed or paused as a whole.

    process = Process("n1")
    process.create_task(loop, a_node())  # and all that it starts: tasks, timers, callbacks of its connections
    process.pause(); process.resume()    # SIGSTOP, SIGCONT: meanwhile time advances, and the network delivers
    process.kill()                       # SIGKILL: none of its code runs again, no `finally` either

A context variable holds the process of the running code. asyncio passes contexts on to tasks, timers and callbacks,
so that each belongs to a process; the loop (`VirtualLoop`) checks that process before a callback runs.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_AWAITS_IN_CLEANUP = 20

#: The process of the running code; None outside of all processes.
CURRENT: "ContextVar[Process | None]" = ContextVar("CURRENT", default=None)


class Process:
    """A simulated process: its tasks, timers and callbacks can be killed or paused as a whole."""

    __slots__ = ("_context", "_held", "_tasks", "is_alive", "is_paused", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self._context = Context()
        self._context.run(CURRENT.set, self)
        #: Callbacks that became due while it was paused, in order.
        self._held: list[asyncio.Handle] = []
        # A killed process's tasks stay referenced: the garbage collector would run their `finally` at any moment.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def create_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]
    ) -> asyncio.Task[T]:
        """Run the coroutine in this process."""
        return loop.create_task(coroutine, name=self.name, context=self._context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that code of this process has started; called by the loop."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether this callback may run now; while the process is paused, it is kept for `resume`."""
        if not self.is_alive:
            return False
        if self.is_paused:
            self._held.append(handle)
            return False
        return True

    def pause(self) -> None:
        """Stop the process: none of its code runs until `resume`."""
        self.is_paused = True

    def resume(self) -> list[asyncio.Handle]:
        """Continue the process; returns the callbacks that became due meanwhile, for `VirtualLoop.resume` to run."""
        self.is_paused = False
        held, self._held = self._held, []
        return held

    def kill(self) -> None:
        """Kill the process: none of its code runs any more."""
        self.is_alive = False
        self._held.clear()

    def bury(self) -> list[asyncio.Task[Any]]:
        """Close the coroutines of a killed process, outside the loop; their exceptions are ignored.

        For the end of the simulation. Returns their tasks, which stay pending indefinitely.
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
        except BaseException:  # noqa: BLE001, S112 - "coroutine ignored GeneratorExit": its clean-up awaits something
            continue
        return


class ProcessHandle(asyncio.Handle):
    """A callback that runs only while its process does."""

    __slots__ = ("_process",)

    def __init__(self, process: Process, *args: Any, **named: Any) -> None:  # noqa: ANN401 (asyncio's)
        super().__init__(*args, **named)
        self._process = process

    def _run(self) -> None:
        if self._process.admits(self):
            super()._run()


class ProcessTimerHandle(asyncio.TimerHandle):
    """A timer that fires only while its process runs."""

    __slots__ = ("_process",)

    def __init__(self, process: Process, *args: Any, **named: Any) -> None:  # noqa: ANN401 (asyncio's)
        super().__init__(*args, **named)
        self._process = process

    def _run(self) -> None:
        if self._process.admits(self):
            super()._run()
