"""Starts threads, in a thread: `Thread.start` waits until the new thread runs.

On a machine whose processors are busy that takes the scheduler some milliseconds, 24 under a follower that catches up: a loop
that starts a thread would wait for so long, and all its connections with it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class ThreadStarter:
    """See the module. `start` may be called by any thread."""

    def __init__(self) -> None:
        #: None: the end. Bounded by the threads that the pools may have.
        self._wanted: SimpleQueue[tuple[threading.Thread, Callable[[RuntimeError], None]] | None] = (
            SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="thread-starter", daemon=True)
        self._thread.start()

    def start(self, thread: threading.Thread, on_failure: Callable[[RuntimeError], None]) -> None:
        """Start the thread soon; `on_failure` is called, in the starter's thread, if the system has none left."""
        self._wanted.put((thread, on_failure))

    def close(self) -> None:
        """Wait until all these threads are started, and end; nothing is started afterwards. A second call does nothing."""
        self._wanted.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            thread, on_failure = wanted
            try:
                thread.start()
            except RuntimeError as error:
                on_failure(error)
            del wanted, thread, on_failure  # an idle starter keeps nothing of a pool
