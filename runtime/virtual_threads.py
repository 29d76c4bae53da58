"""Simulated threads: they run beside the loop, one at a time, in an order that the seed determines.

    threads.start(job)     # the loop continues; the job runs in a thread of its own
    threads.pause(0.2)     # in the job: the loop and other jobs run; this one continues 0.2 s of virtual time later

A job is a function in a real thread. It stops at each `pause`; the simulated disk calls that at its operations. Exactly
one thread runs at any time, the loop's or a job's, and switches are explicit: the operating system determines no order.
A callback of the loop resumes a suspended job, in the context of its process: a process that is paused (SIGSTOP) also
pauses its threads, and the threads of a killed process never continue. At the end of the simulation these are unwound
by `ThreadKilled`.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from threading import Lock, Thread


class ThreadKilled(BaseException):
    """The process of this thread was killed: no code of it may continue."""


class Job:
    """A function that runs in a thread; `on_end` is called in that thread when it has ended, unless it was killed."""

    __slots__ = (
        "_context",
        "_function",
        "_on_end",
        "handle",
        "is_ended",
        "is_killed",
        "wake_context",
        "worker",
    )

    def __init__(self, function: Callable[[], None], on_end: Callable[[], None]) -> None:
        """`function` raises nothing. It runs in a copy of the current context."""
        self._function = function
        self._on_end = on_end
        self._context = copy_context()
        #: The context of the callbacks that resume it: a context cannot be entered twice, and the job runs in its own.
        self.wake_context = copy_context()
        #: The callback that resumes it; None while it runs, and while it waits for a lock or for other jobs.
        self.handle: asyncio.Handle | None = None
        self.worker: _Worker | None = None
        self.is_ended = False
        self.is_killed = False

    def run(self) -> None:
        """Run the function. [in the job's thread]"""
        try:
            self._context.run(self._function)
        except ThreadKilled:
            assert self.is_killed
        self.is_ended = True
        if not self.is_killed:
            self._on_end()


class _Worker:
    """A thread that runs one job after the other. `_go` lets the thread run, `_back` the caller of `run`."""

    __slots__ = ("_back", "_go", "_job", "_thread")

    def __init__(self) -> None:
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        self._job: Job | None = None
        self._thread = Thread(target=self._work, name="virtual", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self._go.acquire()
            if self._job is None:
                return
            self._job.run()
            self._back.release()

    def run(self, job: Job) -> bool:
        """Let the thread run until the job pauses or ends; returns whether it has ended."""
        self._job = job
        self._go.release()
        self._back.acquire()
        return job.is_ended

    def hand_back(self) -> None:
        """Let the caller of `run` continue, and wait until `run` is called again; called in the thread."""
        self._back.release()
        self._go.acquire()

    def end(self) -> None:
        """End the thread; its job has ended."""
        self._job = None
        self._go.release()
        self._thread.join()


class VirtualThreads:
    """Simulated threads, which run beside the loop, one at a time, in an order that the seed determines."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._current: Job | None = None
        self._idle: list[_Worker] = []
        # In order of creation, in which they are unwound.
        self._alive: dict[Job, None] = {}
        #: Whether an observer runs, see `paused`.
        self.is_paused = False

    @property
    def current(self) -> Job | None:
        """The job of the calling thread; None on the loop's thread."""
        return self._current

    def start(self, job: Job) -> None:
        """Start the job in the next turn of the loop, or earlier by `resume`."""
        self._alive[job] = None
        self.wake(job)

    def wake(self, job: Job, delay_s: float = 0.0) -> None:
        """Schedule a suspended job to continue in `delay_s` virtual seconds, or in the next turn of the loop."""
        assert job.handle is None, job
        if delay_s > 0:
            job.handle = self._loop.call_later(delay_s, self.resume, job, context=job.wake_context)
        else:
            job.handle = self._loop.call_soon(self.resume, job, context=job.wake_context)

    def resume(self, job: Job) -> None:
        """Let the job run now, until it pauses or ends; called by the loop, or by code that waits for the job."""
        if job.is_ended:
            return  # it was unwound meanwhile
        if job.handle is not None:
            job.handle.cancel()
            job.handle = None
        if job.worker is None:
            job.worker = self._idle.pop() if self._idle else _Worker()
        before, self._current = self._current, job
        is_ended = job.worker.run(job)
        self._current = before
        if is_ended:
            del self._alive[job]
            self._idle.append(job.worker)
            job.worker = None

    def pause(self, delay_s: float) -> None:
        """Let the loop and other jobs run for `delay_s` virtual seconds, or for the rest of this turn.

        Called in a job. Raises ThreadKilled.
        """
        assert self._current is not None
        if not self._current.is_killed:
            self.wake(self._current, delay_s)
        self.suspend()

    def suspend(self) -> None:
        """Stop the calling job until a call of `wake` or `resume`. Raises ThreadKilled."""
        job = self._current
        assert job is not None
        assert job.worker is not None
        if not job.is_killed:
            job.worker.hand_back()
        if job.is_killed:
            raise ThreadKilled

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Continue no thread, and let no time pass, within this context: for an observer, which a job may call."""
        before = self._current, self.is_paused
        self._current, self.is_paused = None, True
        try:
            yield
        finally:
            self._current, self.is_paused = before

    def run_all(self, groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
        """Run the functions, `threads_per_group` of each group at a time, while the calling job waits."""
        waiting = self._current
        assert waiting is not None
        errors: list[BaseException] = []
        running = 0

        def on_end() -> None:
            nonlocal running
            running -= 1
            if not running and waiting.handle is None:
                self.wake(waiting)

        for group in groups:
            left = iter(group)

            def work(left: Iterator[Callable[[], None]] = left) -> None:
                for function in left:
                    if errors:
                        return
                    try:
                        function()
                    except ThreadKilled:
                        raise
                    except BaseException as error:  # noqa: BLE001 (raised below, in the thread that waits)
                        errors.append(error)

            for _ in range(min(threads_per_group, len(group))):
                running += 1
                self.start(Job(work, on_end))
        while running:
            self.suspend()
        if errors:
            raise errors[0]

    def kill_all(self) -> None:
        """Unwind suspended jobs, and end the threads: the end of the simulation."""
        assert self._current is None
        while self._alive:
            job = next(iter(self._alive))
            job.is_killed = True
            if job.worker is None:  # it has not begun
                del self._alive[job]
            else:
                self.resume(job)
        while self._idle:
            self._idle.pop().end()


class VirtualLock:
    """A mutex for the loop and the threads of a simulation. While the loop waits for it, its holder runs at once."""

    __slots__ = ("_holder", "_is_held", "_threads", "_waiting")

    def __init__(self, threads: VirtualThreads) -> None:
        self._threads = threads
        self._is_held = False
        self._holder: Job | None = None
        self._waiting: list[Job] = []

    def __enter__(self) -> bool:
        job = self._threads.current
        while self._is_held:
            if job is None:
                assert self._holder is not None, "the loop's thread waits for itself"
                self._threads.resume(self._holder)
            else:
                self._waiting.append(job)
                self._threads.suspend()
        self._is_held, self._holder = True, job
        return True

    def __exit__(self, *_: object) -> None:
        self._is_held, self._holder = False, None
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._threads.wake(job)
