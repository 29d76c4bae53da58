"""One life of a node in this process: a thread, an event loop, a clock and files of its own.

    start --stop--> its logs are closed, as by SIGTERM
          --kill--> as by SIGKILL: connections break, files are closed as they are, locks are released

A node that is paused stands still as a whole, as after SIGSTOP: its connections stay open, and no request is answered.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.broker.node import Node
from ottla.config.broker_config import BrokerConfig
from ottla.runtime.loop_thread import LoopThread
from ottla.runtime.movable_clock import MovableLoop, movable_runtime
from ottla.testing.faults import Faults
from ottla.testing.mortal_files import MortalFiles

T = TypeVar("T")


class NodeLife:
    """A node from its start to its stop or its death."""

    def __init__(self, config: BrokerConfig, faults: Faults, *, name: str) -> None:
        """Start the node; returns when it serves. Raises CannotStart, and then nothing is left."""
        self.files = MortalFiles()
        self._thread = LoopThread(name=name, new_loop=MovableLoop, new_runtime=movable_runtime)
        self._resumed: threading.Event | None = None
        try:
            self.node = self.call(
                Node.start(self._thread.runtime, config, files=self.files, around_requests=faults.around)
            )
        except BaseException:
            self._thread.stop()
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop, and wait for its result."""
        return self._thread.call(work)

    def stop(self) -> None:
        """Stop the node cleanly."""
        self.resume()
        try:
            self.call(self.node.stop())
        finally:
            self._thread.stop()

    def kill(self) -> None:
        """End the node at once: nothing more is written, and who waits for an answer loses the connection."""
        self.files.die()
        self.resume()
        self._thread.kill(self.node.break_connections)

    def pause(self) -> None:
        """Let the node stand still until `resume`."""
        if self._resumed is None:
            self._resumed = threading.Event()
            self._loop.call_soon_threadsafe(self._resumed.wait)

    def resume(self) -> None:
        """Let a paused node go on."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def advance(self, duration_s: float) -> None:
        """Move the node's clock forward; returns when timers that are due by then have run."""

        async def advance() -> None:
            self._loop.advance(duration_s)
            # Its own timer is behind all that are due, whose callbacks have run when it does.
            await asyncio.sleep(0.001)
            await self.node.run_due_maintenance()

        self.call(advance())

    @property
    def _loop(self) -> MovableLoop:
        loop = self._thread.loop
        assert isinstance(loop, MovableLoop)
        return loop
