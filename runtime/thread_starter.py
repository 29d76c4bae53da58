"""Starts threads, in a thread: `Thread.start` waits until the new thread runs.

On a machine whose processors are busy that takes the scheduler some milliseconds, 24 under a follower that
catches up: a loop that starts a thread would wait for so long, and all its connections with it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

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
