"""What a node takes from outside: time, chance, connections, blocking work, supervised tasks.

A node gets one `Runtime` and asks it for everything that a test must be able to decide. `production`
answers with uvloop, the system's clock, sockets and threads; `simulated` with virtual time, a seeded
random source and a network in memory, so that a whole node runs without waiting and the same way
every time. Outside this package nobody touches `time`, module-level `random`, sockets or threads.

A production runtime is made inside a running loop (`run` starts one). Which of the two is in use is
nobody's business but the one who made it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from broker.runtime.pools import Pool
from broker.runtime.supervision import TaskFailure

__all__ = ["Listening", "Pool", "ProtocolFactory", "Runtime", "SocketOptions", "TaskFailure"]

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

#: Makes the protocol of one accepted connection.
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
        #: None leaves the operating system's own (self-tuning) size.
        self.send_buffer_bytes = send_buffer_bytes
        self.receive_buffer_bytes = receive_buffer_bytes


class Listening(Protocol):
    """A listening address; `port` is the real one where 0 was asked for."""

    @property
    def host(self) -> str:
        """The address that was bound, as text."""

    @property
    def port(self) -> int:
        """The port that was bound."""

    def resume(self) -> None:
        """Ask again whether the connection that `admits` has refused may be accepted, and go on accepting if so."""

    def close(self) -> None:
        """Stop accepting. Accepted connections live on, those that wait are reset."""


class Runtime(Protocol):
    """Clock, chance, loop, connections, blocking work and tasks of one node."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the whole node runs."""

    @property
    def random(self) -> random.Random:
        """Jitter and ids. Seeded in a simulation; never for secrets."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since 1970, for timestamps that people or peers see."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, for durations; equals `loop.time()`."""

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: object
    ) -> asyncio.TimerHandle:
        """Call once, `delay_s` seconds from now, unless the handle is cancelled before."""

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a piece of work that runs in the background: it stays referenced, and what it raises is logged.

        An exception ends that task only, and is reported to `on_task_failure`. For work that has an end, and that
        the caller can do without it, or starts it again; a service is for `supervise`.
        """

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a service: `run()`, and after each unexpected exception `run()` again, until it returns.

        Each failure is logged with its stack, counted, and reported to `on_task_failure`; before the next run is a
        pause that doubles, up to a bound, with jitter. What is to be done must outlive a run that fails.
        """

    @property
    def task_failures(self) -> Mapping[str, int]:
        """How often each background task has failed, by its name."""

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Have `listener` called for each failure of a background task."""

    async def run_blocking(self, function: Callable[..., T], *args: object, pool: Pool) -> T:
        """Run a function that may wait for a disk in a thread of `pool`, and wait for its result.

        Costs some 60 µs (a thread and two switches): for fsync, cold reads and compaction, never
        for what a request does every time. The function must not touch the loop. Cancelled, it does not run if it has
        not begun; else it runs to its end.
        """

    def run_parallel(self, groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
        """Run all functions of all groups, of each group a few at a time; returns when all are done.

        For a thread of `run_blocking`, and for work that waits for disks: opening and closing logs, a group for
        each log directory. The first exception is raised when what has begun by then is done; the rest is left.
        """

    def pause_thread(self, delay_s: float) -> None:
        """Stop the thread of a `run_blocking` for a while. Never on the loop."""

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

        `admits` is called when a connection has arrived, just before `factory`. When it returns False, this
        connection and those behind it wait, in the system's backlog, until `Listening.resume`. A connection that
        breaks before `connection_made` gets `connection_lost` alone. Raises OSError if the address cannot be bound.
        """

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], options: SocketOptions | None = None
    ) -> tuple[asyncio.Transport, P]:
        """Open a connection. Raises OSError if the port is closed. Of the options only the buffer sizes count."""

    async def close(self) -> None:
        """Cancel the background tasks, wait for them, and end the threads."""
