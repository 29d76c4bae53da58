"""An asyncio event loop on virtual time: it advances the clock to the next timer instead of waiting.

`asyncio.BaseEventLoop` does all the work; the selector (which would wait) and the clock are replaced.
There are no sockets, subprocesses, signals or threads: calls that would start one use the in-memory
network, run at once, or raise.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context
from typing import Any, TypeVar

from ottla.runtime.memory_network import MemoryListening, MemoryNetwork
from ottla.runtime.virtual_process import CURRENT, Process, ProcessHandle, ProcessTimerHandle

T = TypeVar("T")


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
