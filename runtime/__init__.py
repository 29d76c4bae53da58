"""Runtime: clock, random source, connections, threads for blocking work, and supervised tasks of a node.

A node has one `Runtime` and uses it for everything that a test must be able to control. `production`
uses uvloop, the system's clock, sockets and threads; `simulated` uses virtual time, a seeded random
source and a network in memory, so that a whole node runs without real waiting and reproducibly.
Other packages use neither `time`, module-level `random`, sockets nor threads.

A production runtime is created inside a running loop (`run` starts one). Only the code that creates the
runtime knows which of the two is in use.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ottla.runtime.pools import Pool
from ottla.runtime.supervision import TaskFailure
from ottla.runtime.turns import LoopTurns
from ottla.runtime.workers import Worker

__all__ = [
    "Listening",
    "LoopStalls",
    "Pool",
    "PoolUsage",
    "ProtocolFactory",
    "Runtime",
    "SocketOptions",
    "TaskFailure",
]

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

#: Creates the protocol of one accepted connection.
ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class SocketOptions:
    """Options of a connection's socket, or of a listening one, whose connections inherit them."""

    __slots__ = ("backlog", "receive_buffer_bytes", "send_buffer_bytes")

    def __init__(
        self,
        *,
        backlog: int = 50,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        self.backlog = backlog
        #: None keeps the operating system's own (self-tuning) size.
        self.send_buffer_bytes = send_buffer_bytes
        self.receive_buffer_bytes = receive_buffer_bytes


class Listening(Protocol):
    """A listening address; `port` is the bound one if 0 was requested."""

    @property
    def host(self) -> str:
        """The bound address, as text."""

    @property
    def port(self) -> int:
        """The bound port, also if port 0 was requested."""

    def resume(self) -> None:
        """Call `admits` again for the connection that it has refused; if it is admitted, continue to accept."""

    def close(self) -> None:
        """Stop accepting. Accepted connections stay open, those in the backlog are reset."""


class PoolUsage(NamedTuple):
    """The present load of a thread pool: its threads, those that work, and the work that waits."""

    threads: int
    busy_count: int
    waiting_count: int


class LoopStalls(Protocol):
    """Turns of the event loop above a bound (`ottla.runtime.stalls`)."""

    count: int
    #: The longest of them, in seconds.
    longest_s: float

    def running_s(self) -> float:
        """For how long the loop's thread has run, in seconds of processor time."""


class Runtime(Protocol):
    """Clock, random source, loop, connections, blocking work and tasks of one node."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the whole node runs."""

    @property
    def turns(self) -> LoopTurns:
        """The turns of the event loop, which all long work shares."""

    @property
    def random(self) -> random.Random:
        """The random source for jitter and ids. Seeded in a simulation; not for secrets."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since 1970, for timestamps in logs and messages."""

    def monotonic(self) -> float:
        """Seconds on a monotonic clock, for durations: that of `loop.time()`, which may have a coarser resolution."""

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: object
    ) -> asyncio.TimerHandle:
        """Call `callback` once, in `delay_s` seconds, unless the handle is cancelled before."""

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a background task: it stays referenced, and its exception is logged.

        An exception ends that task only, and is reported to the listeners of `on_task_failure`. For work that ends,
        and whose caller does not depend on its outcome or starts it again; services use `supervise`.
        """

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a service: `run()`, and after each unexpected exception `run()` again, until it returns.

        Each failure is logged with its stack, counted, and reported to the listeners of `on_task_failure`; the next
        run starts after a bounded exponential backoff with jitter. Pending work must be kept outside of a run.
        """

    @property
    def task_failures(self) -> Mapping[str, int]:
        """The number of failures of each background task, by name."""

    @property
    def loop_stalls(self) -> LoopStalls | None:
        """The turns of the loop that took too long; None where time is virtual."""

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Call `listener` for each failure of a background task."""

    async def run_blocking(self, function: Callable[..., T], *args: object, pool: Pool) -> T:
        """Run a function that may wait for a disk in a thread of `pool`, and wait for its result.

        Costs some 60 µs (a thread and two switches): for fsync, cold reads and compaction, not for
        work of every request. The function must not touch the loop. If this is cancelled, a function that has not
        begun does not run; a function that has begun runs to its end. What the function raises is an error for the
        caller, never its cancellation or the end of the loop (`ottla.runtime.outcomes`).
        """

    def resize_pool(self, pool: Pool, threads: int) -> None:
        """Run at most `threads` functions of the pool at a time, at least 1, from now on.

        Functions that run already are not stopped.
        """

    def pool_usage(self, pool: Pool) -> PoolUsage:
        """The threads that the pool may have, those that work, and the work that waits for one."""

    def run_parallel(self, groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
        """Run all functions of all groups, `threads_per_group` of each at a time; returns when all are done.

        Called in a thread of `run_blocking`, for work that waits for disks: opening and closing logs, one group for
        each log directory. After an exception no further function starts; it is raised when the running ones end.
        """

    def worker(self, module: str, setup: object) -> Worker | None:
        """A process of its own for work that would disturb the loop even from a thread; see `ottla.runtime.workers`.

        It executes `python -m module` with a low priority, and ends with the runtime. None: this runtime has no other
        processes, as a simulation; the caller does the work itself, in a thread.
        """

    def pause_thread(self, delay_s: float) -> None:
        """Pause the thread of a `run_blocking` for `delay_s` seconds. Not on the loop's thread."""

    async def listen(
        self,
        host: str | None,
        port: int,
        factory: ProtocolFactory,
        options: SocketOptions | None = None,
        *,
        admits: Callable[[], bool] = lambda: True,
    ) -> Listening:
        """Accept connections at `host` (None or "": every address) and `port` (0: any free one).

        `admits` is called when a connection has arrived, just before `factory`. If it returns False, this
        connection and those behind it wait, in the system's backlog, until `Listening.resume`. For a connection that
        breaks before `connection_made`, only `connection_lost` is called. Raises OSError if it cannot bind the address.
        """

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], options: SocketOptions | None = None
    ) -> tuple[asyncio.Transport, P]:
        """Open a connection. Raises OSError if the port is closed. Only the buffer sizes of `options` apply."""

    async def close(self) -> None:
        """Cancel the background tasks, wait for them, and end the threads."""
