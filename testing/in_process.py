"""One life of a node in this process: a thread, an event loop, a clock and files of its own.

    start --stop--> its logs are closed, as by SIGTERM
          --kill--> as by SIGKILL: connections break, files are closed as they are, locks are released
          --the node fails--> the same as a kill; `failure` has the reason, a sentence

A node that is paused stands still as a whole, as after SIGSTOP: its connections stay open, and no request is answered.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from ottla.broker.network import Dispatch
from ottla.broker.node import Node
from ottla.broker.roles.hooks import Hooks
from ottla.config.broker_config import BrokerConfig
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.runtime.loop_thread import LoopThread
from ottla.runtime.movable_clock import MovableLoop
from ottla.testing.disk import Disk
from ottla.testing.mortal_files import MortalFiles
from ottla.testing.network import Clock, Network, NodeRuntime
from ottla.testing.tier import Tier

T = TypeVar("T")


class Surroundings(NamedTuple):
    """The surroundings of a node in all of its lives, where faults are injected."""

    around_requests: Callable[[Dispatch], Dispatch]
    #: Called with the store, and with a function that returns whether the process of this life has ended.
    around_store: Callable[[RemoteStorageManager, Callable[[], bool]], RemoteStorageManager]
    tiers: Sequence[Tier]
    disk: Disk
    network: Network
    clock: Clock


class NodeLife:
    """A node from its start to its stop or its death."""

    def __init__(
        self,
        config: BrokerConfig,
        around: Surroundings,
        *,
        name: str,
        on_failure: "Callable[[NodeLife], None]" = lambda _: None,
    ) -> None:
        """Start the node; returns when it serves. Raises CannotStart, and then nothing is left.

        `on_failure` is called in a thread of its own, with this life, when the node has ended because it could not
        continue.
        """
        self.files = MortalFiles(around.disk)
        #: The reason for which the node has ended by itself; None: it has not.
        self.failure: str | None = None
        self._on_failure = on_failure
        self._ending = threading.Lock()
        self._has_ended = False
        self._resumed: threading.Event | None = None
        self._network, self._tiers = around.network, around.tiers
        self._thread = LoopThread(
            name=name,
            new_loop=lambda: MovableLoop(ahead_s=around.clock.ahead_s),
            new_runtime=lambda: NodeRuntime(around.network),
        )
        try:
            self.node = self.call(self._start(config, around))
        except BaseException:
            self._thread.stop()
            self._release()
            raise

    async def _start(self, config: BrokerConfig, around: Surroundings) -> Node:
        node = await Node.start(
            self._thread.runtime,
            config,
            hooks=Hooks(
                files=self.files,
                around_requests=around.around_requests,
                around_store=lambda store: around.around_store(store, lambda: self.files.is_dead),
            ),
        )
        node.failure.add_done_callback(self._failed)
        self._runtime.break_accepted = node.break_connections
        return node

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop, and wait for its result."""
        return self._thread.call(work)

    def ask(self, look: Callable[[], T]) -> T:
        """Call a function on the node's loop, and return its result."""

        async def call() -> T:
            return look()

        return self.call(call())

    def stop(self) -> None:
        """Stop the node cleanly; one that has failed or was killed has stopped."""
        self.resume()
        with self._ending:
            if self._has_ended:
                return
            self._has_ended = True
            try:
                self.call(self._stop())
            finally:
                self._thread.stop()
                self._release()

    async def _stop(self) -> None:
        """Stop the node; one that fails meanwhile ends as it is, as a process would."""
        stopping = asyncio.ensure_future(self.node.stop())
        ends: list[asyncio.Future[Any]] = [stopping, self.node.failure]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            stopping.result()
        else:
            self._runtime.kill()
            self.files.die()
            self._break_connections()
            stopping.cancel()

    def kill(self) -> None:
        """End the node at once: nothing more is written, and who waits for an answer loses the connection."""
        with self._ending:
            if self._has_ended:
                return
            self._has_ended = True
            self._thread.kill(first=self._die, last=self._break_connections)
            self._release()

    def _die(self) -> None:
        self._runtime.kill()
        self.files.die()
        for tier in self._tiers:
            tier.wake()
        self.resume()

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

    @property
    def is_paused(self) -> bool:
        """Whether the node stands still."""
        return self._resumed is not None

    def isolate(self) -> None:
        """Break all connections, and refuse new ones until `heal`."""
        self._network.is_isolated = True

        async def break_all() -> None:
            self._break_connections()

        if self.is_paused:
            self._loop.call_soon_threadsafe(self._break_connections)
        else:
            self.call(break_all())

    def advance(self, duration_s: float) -> "Future[None]":
        """Move the node's clock forward; the future is done when timers that are due by then have run.

        The clock of a paused node moves when it goes on.
        """

        async def advance() -> None:
            self._loop.advance(duration_s)
            # Its own timer is behind all that are due, whose callbacks have run when it does.
            await asyncio.sleep(0.001)
            await self.node.run_due_maintenance()

        return self._thread.submit(advance())

    @property
    def _loop(self) -> MovableLoop:
        loop = self._thread.loop
        assert isinstance(loop, MovableLoop)
        return loop

    @property
    def _runtime(self) -> NodeRuntime:
        runtime = self._thread.runtime
        assert isinstance(runtime, NodeRuntime)
        return runtime

    def _break_connections(self) -> None:
        self._runtime.break_outgoing()
        self.node.break_connections()

    def _release(self) -> None:
        """Close the files that the node has left open."""
        self.files.die()
        self.files.release()

    def _failed(self, failure: "asyncio.Future[str]") -> None:
        """Note the reason, and end the node, as Kafka does: at once, since its disk may not respond."""
        if failure.cancelled() or self._has_ended:
            return
        self.failure = failure.result()
        threading.Thread(target=self._end_failed, name="ottla-failed-node", daemon=True).start()

    def _end_failed(self) -> None:
        self.kill()
        self._on_failure(self)
