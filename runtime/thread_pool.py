"""Threads: an executor whose number of threads can change while it works; and ThreadStarter, which starts its threads.

A thread is started when work arrives and none is idle; a thread that is one too many ends after its current
work. The threads of `concurrent.futures` cannot be reduced, and are increased only through a private attribute.

`Thread.start` waits until the new thread runs. On a machine whose processors are busy that takes the scheduler some
milliseconds, 24 under a follower that catches up: a loop that starts a thread would wait for so long, and all its
connections with it. So threads are started by a thread.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from ottla.runtime.outcomes import as_error

T = TypeVar("T")
P = ParamSpec("P")

#: A thread, and what is called with the error if the system cannot start it.
_Wanted = tuple[threading.Thread, Callable[[Exception], None]]


class ThreadStarter:
    """Starts threads, in a thread of its own. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        #: None: the end. Bounded by the threads that the pools may have.
        self._wanted: SimpleQueue[_Wanted | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="thread-starter", daemon=True)
        self._thread.start()

    def start(self, thread: threading.Thread, on_failure: Callable[[Exception], None]) -> None:
        """Start the thread, in the starter's thread; after `close` at once, in this one."""
        with self._lock:
            if not self._is_closed:
                self._wanted.put((thread, on_failure))
                return
        _start(thread, on_failure)

    def close(self) -> None:
        """Wait until all requested threads are started. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._wanted.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            _start(*wanted)
            del wanted  # an idle starter keeps nothing of a pool


def _start(thread: threading.Thread, on_failure: Callable[[Exception], None]) -> None:
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        on_failure(error)


class Threads(Executor):
    """An executor whose number of threads can change while it works. Any thread may call its methods."""

    def __init__(self, size: int, *, name: str, starter: ThreadStarter) -> None:
        """Create an executor of at most `size` threads, which are called `name`."""
        assert size >= 1, size
        self._size = size
        self._name = name
        self._starter = starter
        self._changed = threading.Condition()
        #: Bounded by the callers, as `ottla.runtime.pools` states for each pool.
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        #: The threads that run, and the threads that were requested and do not run yet.
        self._threads: set[threading.Thread] = set()
        self._starting: set[threading.Thread] = set()
        self._idle_count = 0
        self._is_shut_down = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run the function in a thread, after what was submitted before. A cancelled future's function does not run."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_shut_down:
                raise RuntimeError(f"{self._name}: no work is accepted after the shutdown")
            self._waiting.append((future, lambda: function(*args, **kwargs)))
            self._start_or_wake()
        return future

    def resize(self, size: int) -> None:
        """Have at most `size` threads from now on; work that runs is finished."""
        assert size >= 1, size
        with self._changed:
            self._size = size
            for _ in range(len(self._waiting)):
                self._start_or_wake()
            self._changed.notify_all()

    def usage(self) -> tuple[int, int]:
        """The number of threads that work, and of pieces of work that wait for one."""
        with self._changed:
            return len(self._threads) - self._idle_count, len(self._waiting)

    def shutdown(
        self, wait: bool = True, *, cancel_futures: bool = False, timeout_s: float | None = None
    ) -> None:
        """End the threads when all work is done, or, with `cancel_futures`, the work that has begun.

        The starter must be closed before, so that all threads can be waited for.
        A thread that does not end within `timeout_s` is left behind; None: all of them are waited for.
        """
        with self._changed:
            self._is_shut_down = True
            if cancel_futures:
                for future, _ in self._waiting:
                    future.cancel()
                self._waiting.clear()
            self._changed.notify_all()
            threads = [*self._threads, *self._starting]
        if wait:
            ends_at = None if timeout_s is None else time.monotonic() + timeout_s
            for thread in threads:
                thread.join(None if ends_at is None else max(0.0, ends_at - time.monotonic()))

    def _start_or_wake(self) -> None:
        if self._idle_count >= len(self._waiting):
            self._changed.notify()
        elif len(self._threads) + len(self._starting) < self._size:
            # A daemon: a process that ends without `shutdown` does not wait for a store that does not answer.
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._starting.add(thread)
            self._starter.start(thread, partial(self._on_not_started, thread))

    def _on_not_started(self, thread: threading.Thread, error: Exception) -> None:
        """The system cannot start the thread: the others do the work. Without any, what waits fails."""
        with self._changed:
            self._starting.discard(thread)
            has_others = self._threads or self._starting
            failed = [] if has_others else list(self._waiting)
            if failed:
                self._waiting.clear()
        for future, _ in failed:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _work(self) -> None:
        with self._changed:
            thread = threading.current_thread()
            self._starting.discard(thread)
            self._threads.add(thread)
        while (work := self._next()) is not None:
            _run(*work)
            del work  # an idle thread keeps nothing of it

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for the next piece of work; None: this thread ends."""
        with self._changed:
            while True:
                if len(self._threads) > self._size or (self._is_shut_down and not self._waiting):
                    self._threads.discard(threading.current_thread())
                    return None
                if self._waiting:
                    return self._waiting.popleft()
                self._idle_count += 1
                self._changed.wait()
                self._idle_count -= 1


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 (raised where the future is awaited)
        future.set_exception(as_error(error))
    else:
        future.set_result(result)
