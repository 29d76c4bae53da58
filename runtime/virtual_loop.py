"""An asyncio event loop on virtual time, and the simulated processes whose code it runs.

`VirtualLoop` advances the clock to the next timer instead of waiting. `asyncio.BaseEventLoop` does all the work; the
selector (which would wait) and the clock are replaced. There are no sockets, subprocesses, signals or threads: calls
that would start one use the in-memory network, run at once, or raise.

A simulated process can be killed or paused as a whole, with its tasks, timers and callbacks:

    process = Process("n1")
    process.create_task(loop, a_node())  # and all that it starts: tasks, timers, callbacks of its connections
    process.pause(); process.resume()    # SIGSTOP, SIGCONT: meanwhile time advances, and the network delivers
    process.kill()                       # SIGKILL: none of its code runs again, no `finally` either

A context variable holds the process of the running code. asyncio passes contexts on to tasks, timers and callbacks,
so that each belongs to a process; the loop checks that process before a callback runs.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from ottla.runtime.memory_network import MemoryListening, MemoryNetwork

T = TypeVar("T")

_MAX_AWAITS_IN_CLEANUP = 20

#: The process of the running code; None outside of all processes.
CURRENT: "ContextVar[Process | None]" = ContextVar("CURRENT", default=None)


class Stalled(AssertionError):
    """No callback is ready, no timer is set, and a task still waits: it would wait indefinitely."""


class _JumpingSelector:
    """Replaces the loop's selector: it advances the clock instead of waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[object]:
        if timeout is None:
            raise Stalled("every task waits, and no callback or timer is left")
        self.now += max(0.0, timeout)
        return []


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


def _close(coroutine: Coroutine[Any, Any, Any] | Generator[Any, Any, Any]) -> None:
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


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in order; when none is ready, the clock advances to the next timer at once."""

    # Read and set by BaseEventLoop, which does not declare them.
    _selector: _JumpingSelector
    _clock_resolution: float
    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._selector = _JumpingSelector()
        # Timers within a microsecond are due together: rounding of floats must not determine an order.
        self._clock_resolution = 1e-6
        self.network: MemoryNetwork | None = None
        # In the order in which they were killed.
        self._dead: list[Process] = []

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._selector.now

    # -- processes -----------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Kill the process: none of its code runs any more."""
        process.kill()
        self._dead.append(process)

    def resume(self, process: Process) -> None:
        """Resume a paused process, with all callbacks that became due meanwhile."""
        self._ready.extend(process.resume())

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Create a task, as asyncio does; the simulated process keeps a reference to its task."""
        task = super().create_task(coro, name=name, context=context)
        if (process := CURRENT.get() if context is None else context.get(CURRENT)) is not None:
            process.adopt(task)
        return task

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call `callback` at a time of the loop, as asyncio does; not if its process was killed by then."""
        if when > self.time():
            # Otherwise code that waits for the rest of a deadline, a rounding error, would loop without time advancing.
            when = max(when, self.time() + self._clock_resolution)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        timer = ProcessTimerHandle(process, when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # as BaseEventLoop does
        return timer

    def _call_soon(
        self, callback: Callable[..., object], args: Sequence[Any], context: Context | None
    ) -> asyncio.Handle:
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is None:
            handle = asyncio.Handle(callback, args, self, context)
        else:
            handle = ProcessHandle(process, callback, args, self, context)
        self._ready.append(handle)
        return handle

    # -- the rest ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Cancel all tasks and run until they have ended."""
        buried = [task for process in self._dead for task in process.bury()]
        tasks = sorted(asyncio.all_tasks(self).difference(buried), key=asyncio.Task.get_name)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.run_until_complete(self.shutdown_asyncgens())

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        """Run `func` at once: with a thread the run would depend on the machine."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (raised where the future is awaited, as by an executor)
            future.set_exception(error)
        return future

    async def create_connection(  # type: ignore[override]  # the few parameters that mean anything here
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, Any]:
        """Connect in memory, so that `asyncio.open_connection` and asyncio clients work in a simulation."""
        assert self.network is not None
        return await self.network.connect(host, port, protocol_factory)

    async def create_server(  # type: ignore[override]  # the few parameters that mean anything here
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: object
    ) -> "MemoryListening":
        """Listen in memory, so that `asyncio.start_server` works in a simulation."""
        assert self.network is not None
        return self.network.listen(host, port, protocol_factory)

    async def getaddrinfo(self, host: Any, port: Any, **_: object) -> list[Any]:  # noqa: ANN401
        """Resolve a name in the simulation: every name is its own address."""
        return [(2, 1, 6, "", (host, port))]

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Does nothing: the selector never waits, so `call_soon_threadsafe` need not wake it."""
