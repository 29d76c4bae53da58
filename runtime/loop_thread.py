"""A thread with an event loop and a production runtime of its own: for callers that have another loop, or none."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import uvloop

from ottla.runtime.production import ProductionRuntime

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of any thread on an event loop in a thread of its own, until `stop`."""

    def __init__(
        self,
        *,
        name: str,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        new_runtime: Callable[[], ProductionRuntime] = ProductionRuntime,
    ) -> None:
        """Start the thread, and wait until its loop runs; `new_runtime` is called on that loop."""
        self._new_loop, self._new_runtime = new_loop, new_runtime
        self._started: Future[tuple[asyncio.AbstractEventLoop, ProductionRuntime]] = Future()
        self._stopping: asyncio.Event | None = None
        #: The results that callers wait for; none of them is completed once the loop has ended.
        self._pending: set[Future[Any]] = set()
        self._has_ended = False
        # A daemon: a program that ends without `stop` does not wait for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        try:
            self.loop, self.runtime = self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. [any thread]

        The future is cancelled if the loop ends before the coroutine. Raises RuntimeError if it has ended.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._has_ended:
            future.cancel()
        return future

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result. [any thread but the loop's]

        A wait that is interrupted, by Ctrl-C for instance, cancels the coroutine. Raises RuntimeError if the loop ends
        meanwhile.
        """
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError as error:
            raise RuntimeError(f"The thread {self._thread.name} has ended.") from error
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Close the runtime and the loop, and wait for the thread. A second call does nothing. [any other thread]"""
        if self._thread.is_alive() and self._stopping is not None:
            self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def kill(self, *, first: Callable[[], object], last: Callable[[], object]) -> None:
        """Call `first` here and `last` on the loop, and stop. [any other thread]

        Exceptions that nothing handles are not reported from now on.
        """
        self.loop.set_exception_handler(lambda _loop, _context: None)
        first()
        self.loop.call_soon_threadsafe(last)
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except (OSError, RuntimeError, MemoryError) as error:
            if self._started.done():
                raise
            self._started.set_exception(error)  # no descriptor is left for a loop
        finally:
            self._has_ended = True
            for future in list(self._pending):
                future.cancel()

    async def _serve(self) -> None:
        try:
            runtime = self._new_runtime()
        except (OSError, RuntimeError, MemoryError) as error:  # no descriptor or no thread is left
            self._started.set_exception(error)
            return
        self._stopping = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), runtime))
        try:
            await self._stopping.wait()
        finally:
            await runtime.close()
