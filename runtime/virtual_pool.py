"""Thread pools of a simulated node: bounded as the real ones, with every order drawn from the seed.

Without `Interleaving.is_on` a piece of work is done in one turn of the loop, without a thread. With it, most work runs
in a thread that pauses at some of the disk's operations, so that it overlaps the loop's turns and other work.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ottla.runtime.outcomes import as_error
from ottla.runtime.virtual_threads import Job, VirtualThreads

T = TypeVar("T")

#: The probability that work is done in one turn although threads are on, as by a fast thread.
_IS_FAST = 0.25
#: Average numbers of operations between two pauses of a thread, if the disk is not slow; one is drawn at each pause.
_OPERATIONS = (1, 1, 3, 10)
#: The probability that a thread continues during a disk operation of the loop, before its pause is over.
_GOES_ON = 0.1
#: The lengths of a pause in seconds; 0: the rest of the loop's turn. The network takes 50 to 500 us.
_PAUSES_S = (0.0, 0.0, 0.0, 100e-6, 300e-6, 1e-3, 5e-3)


class Interleaving:
    """Decides when the threads of one node pause, and for how long."""

    def __init__(self, threads: VirtualThreads, random: Random) -> None:
        self.threads = threads
        self.random = random
        #: Whether work runs beside the loop.
        self.is_on = False
        #: Draws the duration in seconds of a piece of work, once before it and once after it; None: no time.
        self.blocking_s: Callable[[], float] | None = None
        #: Draws the duration in seconds of an operation (of `Files`) on a slow disk; None: the disk is not slow.
        self.operation_s: Callable[[str, Path], float] | None = None
        #: Operations until a thread pauses.
        self._left = 0
        #: Called where the loop itself waits for the disk (an fsync outside of blocking work).
        self.on_loop_wait: Callable[[Path], None] = lambda path: None
        #: Whether a piece of work runs on the loop, in place of a thread that does not pause.
        self.is_at_work = False
        #: The jobs in threads, in the order of their start.
        self._jobs: dict[Job, None] = {}

    def start(self, function: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Run `function` in a thread; `on_end` is called in that thread afterwards."""

        def end() -> None:
            del self._jobs[job]
            on_end()

        job = Job(function, end)
        self._jobs[job] = None
        self.threads.start(job)

    def runs_in_thread(self) -> bool:
        """Whether the next piece of work runs in a thread; drawn for each."""
        self._left = 0
        return self.is_on and (self.operation_s is not None or self.random.random() >= _IS_FAST)

    def on_operation(self, operation: str, path: Path) -> None:
        """The simulated disk is about to carry out an operation, or has done so. A thread may pause here.

        On the loop, a thread may continue: the loop's own operations wait for the disk without the interpreter's lock.
        """
        if self.threads.current is None:
            if operation == "fsync" and not self.is_at_work and not self.threads.is_paused:
                self.on_loop_wait(path)
            if self._jobs and not self.threads.is_paused and self.random.random() < _GOES_ON:
                self._let_one_go_on()
            return
        if self.operation_s is not None and (delay_s := self.operation_s(operation, path)):
            self.threads.pause(delay_s)
        elif self._left > 0:
            self._left -= 1
        else:
            random = self.random.random
            self._left = int(2 * random() * _OPERATIONS[int(random() * len(_OPERATIONS))])
            self.threads.pause(_PAUSES_S[int(random() * len(_PAUSES_S))])

    def _let_one_go_on(self) -> None:
        job = self.random.choice(list(self._jobs))
        if job.handle is not None:
            self.threads.resume(job)

    def pause(self, delay_s: float) -> None:
        """Pause the calling thread for `delay_s` virtual seconds; on the loop, return at once."""
        if self.threads.current is not None:
            self.threads.pause(delay_s)

    def run_parallel(self, groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
        """Run all functions of all groups, `threads_per_group` of each at a time; on the loop one after the other."""
        if self.threads.current is not None:
            self.threads.run_all(groups, threads_per_group=threads_per_group)
            return
        for group in groups:
            for function in group:
                function()


class _Work:
    """A piece of work for a thread, and the future of its caller."""

    __slots__ = ("context", "error", "function", "future", "result")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.function = function
        self.future = future
        #: The context of the process that has submitted it.
        self.context: Context = copy_context()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (raised where the future is awaited, as by an executor)
            self.error = as_error(error)


class VirtualPool:
    """Runs `threads` pieces of work at a time; further ones wait in the order of their submission."""

    def __init__(self, interleaving: Interleaving, *, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._interleaving = interleaving
        self._loop = loop
        self.threads = threads
        #: Negative while more run than the pool has since it was resized.
        self._free = threads
        #: Bounded by the callers, as `ottla.runtime.pools` states for each pool.
        self._waiting: deque[_Work] = deque()
        #: As `Interleaving.blocking_s`, of this pool alone.
        self.blocking_s: Callable[[], float] | None = None

    def submit(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the function in one of the threads. If the future is cancelled before, the function does not run."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append(_Work(lambda: function(*args), future))
        self._begin_next()
        return future

    @property
    def busy_count(self) -> int:
        """The number of pieces of work that run."""
        return self.threads - self._free

    @property
    def waiting_count(self) -> int:
        """The number of pieces of work that wait."""
        return len(self._waiting)

    def resize(self, threads: int) -> None:
        """Run at most `threads` pieces of work at a time from now on; work that runs is finished."""
        assert threads >= 1, threads
        self._free += threads - self.threads
        self.threads = threads
        self._begin_next()

    def _begin_next(self) -> None:
        while self._free > 0 and self._waiting:
            self._free -= 1
            work = self._waiting.popleft()
            self._after_delay(self._run, work)

    def _after_delay(self, callback: Callable[[_Work], None], work: _Work) -> None:
        delay_s = self.blocking_s or self._interleaving.blocking_s
        if delay_s is None:
            self._loop.call_soon(callback, work, context=work.context)
        else:
            self._loop.call_later(delay_s(), callback, work, context=work.context)

    def _run(self, work: _Work) -> None:
        if work.future.cancelled():
            self._end(work)
        elif self._interleaving.runs_in_thread():
            self._interleaving.start(work.run, lambda: self._after_delay(self._end, work))
        else:
            self._interleaving.is_at_work = True
            work.run()
            self._interleaving.is_at_work = False
            if self.blocking_s is None and self._interleaving.blocking_s is None:
                self._end(work)
            else:
                self._after_delay(self._end, work)

    def _end(self, work: _Work) -> None:
        if not work.future.done():
            if work.error is not None:
                work.future.set_exception(work.error)
            else:
                work.future.set_result(work.result)
        self._free += 1
        self._begin_next()
