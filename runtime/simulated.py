"""The simulated runtime: virtual time, a seeded random source, an in-memory network, threads that take turns.

    runtime = SimulatedRuntime(seed=1)
    runtime.run(a_whole_scenario(runtime))  # sleeps of hours take no time
    assert runtime.trace == trace_of_another_run_with_the_same_seed

The seed and the code under test determine all events: the loop runs callbacks in the order in which they
became due, and time advances only when no callback is ready, directly to the next timer. One `Simulation`
(a loop, a network, a random source) may hold several nodes, each with a `SimulatedRuntime` with its own
host name and clock error.

Not determined: the iteration order of sets and of dicts keyed by `id`. The hashes of strings are the same
within one process; in code under test no order may depend on memory addresses.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

from ottla.runtime import Listening, LoopStalls, Pool, PoolUsage, ProtocolFactory, SocketOptions, TaskFailure
from ottla.runtime.memory_network import WILDCARDS, MemoryNetwork
from ottla.runtime.pools import THREADS
from ottla.runtime.supervision import Supervisor
from ottla.runtime.turns import LoopTurns
from ottla.runtime.virtual_loop import VirtualLoop
from ottla.runtime.virtual_pool import Interleaving, VirtualPool
from ottla.runtime.virtual_threads import VirtualThreads

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

#: Wall clock at virtual time 0: 2026-01-01 00:00 UTC.
EPOCH_MS = 1_767_225_600_000


class Simulation:
    """The shared part of simulated nodes: loop, network, random source, and the trace of events."""

    def __init__(self, *, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        #: The events: (virtual seconds, event). Equal in two runs with the same seed.
        self.trace: list[tuple[float, str]] = []
        self.loop = VirtualLoop()
        self.threads = VirtualThreads(self.loop)
        # Separate random streams: one more draw of a node does not change every latency.
        self.network = MemoryNetwork(self.loop, random.Random(self.random.getrandbits(64)), self.record)
        self.loop.network = self.network
        #: Background tasks that failed and exceptions that reached the loop; `run` raises them.
        self.failures: list[BaseException] = []
        self.loop.set_exception_handler(self._on_loop_exception)

    def record(self, event: str) -> None:
        """Add an event to the trace."""
        self.trace.append((self.loop.time(), event))

    def runtime(self, host: str, *, clock_error_ms: int = 0) -> "SimulatedRuntime":
        """A node's runtime; `host` is its address on the network, `clock_error_ms` its wall clock's error."""
        return SimulatedRuntime(simulation=self, host=host, clock_error_ms=clock_error_ms)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end; then raise the exceptions of background tasks and callbacks, if any.

        Raises `Stalled` if `main` waits for an event that can no longer occur.
        """
        try:
            result = self.loop.run_until_complete(main)
        except BaseException as error:
            for failure in self.failures:
                error.add_note(f"also failed: {failure!r}")
            raise
        if self.failures:
            failures, self.failures = self.failures, []
            raise BaseExceptionGroup("failures in the background", failures)
        return result

    def close(self) -> None:
        """Cancel all running tasks and close the loop."""
        self.threads.kill_all()
        self.loop.drain()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_loop_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or RuntimeError(context["message"]))


class SimulatedRuntime:
    """The simulated `Runtime` of one node of a `Simulation` (a new one unless one is given)."""

    def __init__(
        self,
        *,
        seed: int = 0,
        simulation: Simulation | None = None,
        host: str = "127.0.0.1",
        clock_error_ms: int = 0,
    ) -> None:
        self.simulation = simulation or Simulation(seed=seed)
        self.host = host
        self.loop = self.simulation.loop
        self.random = random.Random(self.simulation.random.getrandbits(64))
        self.monotonic = self.loop.time
        self.call_later = self.loop.call_later
        self.turns = LoopTurns(self)
        #: The wall clock's error, ms; may be changed at any time, as when an operator sets a clock.
        self.clock_error_ms = clock_error_ms
        # A separate random stream: draws of threads change nothing for a node without threads.
        order = random.Random(f"{self.simulation.seed} {host} {self.loop.time()}")
        #: How the node's threads and the loop are interleaved.
        self.interleaving = Interleaving(self.simulation.threads, order)
        #: The threads for blocking work.
        self.pools = {
            pool: VirtualPool(self.interleaving, loop=self.loop, threads=threads)
            for pool, threads in THREADS.items()
        }
        self._tasks = Supervisor(self.loop, self.random)
        self._tasks.on_task_failure(lambda failure: self.simulation.failures.append(failure.exception))

    @property
    def blocking_s(self) -> Callable[[], float] | None:
        """Draws the duration in seconds of blocking work, once before it and once after it; None: no time."""
        return self.interleaving.blocking_s

    @blocking_s.setter
    def blocking_s(self, draw: Callable[[], float] | None) -> None:
        self.interleaving.blocking_s = draw

    @property
    def trace(self) -> list[tuple[float, str]]:
        """The events of the whole simulation up to now, as (virtual time in seconds, event)."""
        return self.simulation.trace

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end; then raise the exceptions of background tasks and callbacks, if any."""
        return self.simulation.run(main)

    def now_ms(self) -> int:
        """Wall clock, ms: virtual time since `EPOCH_MS`, plus this node's clock error."""
        # Through microseconds: 45 timers of 1 s may add up to 44.9999999 s.
        return EPOCH_MS + self.clock_error_ms + round(self.loop.time() * 1e6) // 1000

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a background task; its failure also makes `run` raise."""
        return self._tasks.create_task(coroutine, name=name)

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a service; each of its failures also makes `run` raise."""
        return self._tasks.supervise(run, name=name)

    @property
    def task_failures(self) -> Mapping[str, int]:
        """The number of failures of each background task, by name."""
        return self._tasks.failures

    @property
    def loop_stalls(self) -> LoopStalls | None:
        """None, since a turn of the simulated loop takes no time."""
        return None

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Call `listener` for each background task that fails."""
        self._tasks.on_task_failure(listener)

    async def run_blocking(self, function: Callable[..., T], *args: object, pool: Pool) -> T:
        """Run `function` in a turn of the loop, or in a thread; see `Interleaving.is_on`."""
        return await self.pools[pool].submit(function, *args)

    def resize_pool(self, pool: Pool, threads: int) -> None:
        """Run at most `threads` functions of the pool at a time, at least 1, from now on."""
        self.pools[pool].resize(threads)

    def pool_usage(self, pool: Pool) -> PoolUsage:
        """The threads that the pool may have, those that work, and the work that waits for one."""
        virtual = self.pools[pool]
        return PoolUsage(virtual.threads, virtual.busy_count, virtual.waiting_count)

    def run_parallel(self, groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
        """Run the functions one after the other in a fixed order; in threads, if the caller runs in one."""
        self.interleaving.run_parallel(groups, threads_per_group=threads_per_group)

    def worker(self, module: str, setup: object) -> None:
        """Return no worker, since a simulation has one process."""

    def pause_thread(self, delay_s: float) -> None:
        """Other threads and the loop run meanwhile; without threads no time passes."""
        self.interleaving.pause(delay_s)

    async def listen(
        self,
        host: str | None,
        port: int,
        factory: ProtocolFactory,
        options: SocketOptions | None = None,
        *,
        admits: Callable[[], bool] = lambda: True,
    ) -> Listening:
        """Listen at `port` of the in-memory network; no host or a wildcard means this node's host."""
        own = self.host if host is None or host in WILDCARDS else host
        backlog = (options or SocketOptions()).backlog
        return self.simulation.network.listen(own, port, factory, backlog=backlog, admits=admits)

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], options: SocketOptions | None = None
    ) -> tuple[asyncio.Transport, P]:
        """Connect through the in-memory network. Raises ConnectionRefusedError without a listener."""
        return await self.simulation.network.connect(host, port, factory, source=self.host)

    async def close(self) -> None:
        """Cancel the background tasks and wait for them."""
        await self._tasks.close()
