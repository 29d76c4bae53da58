"""The production runtime: uvloop, the system's clock, sockets, and thread pools."""

import asyncio
import logging
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from ottla.runtime import Listening, LoopStalls, Pool, PoolUsage, ProtocolFactory, SocketOptions, TaskFailure
from ottla.runtime.accepting import SocketListening
from ottla.runtime.pools import THREADS, WAITING_FOR_STORES, WITHOUT_LOSS
from ottla.runtime.stalls import StallWatch
from ottla.runtime.supervision import Supervisor
from ottla.runtime.thread_pool import Threads, ThreadStarter
from ottla.runtime.turns import LoopTurns
from ottla.runtime.workers import Worker

if TYPE_CHECKING:
    from ottla.runtime.spawned_worker import SpawnedWorker

_LOG = logging.getLogger(__name__)

#: Of workers, see nice(2): on a busy machine they get a tenth of what the loop gets.
_WORKER_NICENESS = 10
#: How long the end of the runtime waits for the threads of each pool of `WAITING_FOR_STORES`, and of `WITHOUT_LOSS`.
_STORES_S = 2.0
#: How long it waits for those of the other pools, together: their work is for a disk, which may not answer, either.
_DISKS_S = 20.0

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)


def run(main: Callable[["ProductionRuntime"], Awaitable[T]]) -> T:
    """Run `main(runtime)` on a uvloop loop of its own, and close the runtime afterwards."""

    async def body() -> T:
        runtime = ProductionRuntime()
        try:
            return await main(runtime)
        finally:
            await runtime.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(body())


def allow_open_files() -> None:
    """Raise the limit of open files to the user's hard limit, as a JVM does.

    The default of 1,024 suffices for less than a thousand partitions; beyond, logs are not created and connections
    not accepted.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the limit stays as it was
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wall_clock_ms() -> int:
    """Wall clock, ms since 1970; for commands that run no loop."""
    return time.time_ns() // 1_000_000


def random_bytes(count: int) -> bytes:
    """Cryptographically random bytes, for ids and salts of commands that run no loop."""
    return os.urandom(count)


def free_ports(count: int) -> list[int]:
    """`count` ports of 127.0.0.1 without a listener at the moment."""
    with ExitStack() as probes:
        ports = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


class ProductionRuntime:
    """The production `Runtime`: uvloop, the system's clock, sockets, and thread pools.

    Created inside the running loop of the node.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.random = random.Random()
        #: Bound once, since each request reads it several times. The loop's own clock counts whole milliseconds
        #: with uvloop, in which most requests take no time, and a reading costs more than twice as much.
        self.monotonic = monotonic
        #: Wall clock, ms since 1970. Bound, too.
        self.now_ms = now_ms
        self.call_later = self.loop.call_later
        self.turns = LoopTurns(self)
        self._tasks = Supervisor(self.loop, self.random)
        self._starter = ThreadStarter()
        self._executors: dict[Pool, Threads] = {}
        self._sizes = dict(THREADS)
        self._listenings: list[SocketListening] = []
        self._workers: list[SpawnedWorker] = []
        self.stalls = StallWatch.from_environment(self.loop)
        self.stalls.start()

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a background task: it stays referenced, and its exception is logged."""
        return self._tasks.create_task(coroutine, name=name)

    def supervise(self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Start a service that is started again when it fails."""
        return self._tasks.supervise(run, name=name)

    @property
    def task_failures(self) -> Mapping[str, int]:
        """The number of failures of each background task, by name."""
        return self._tasks.failures

    @property
    def loop_stalls(self) -> LoopStalls:
        """The turns of the loop that took too long, as the stall watch has counted them."""
        return self.stalls

    def on_task_failure(self, listener: Callable[[TaskFailure], None]) -> None:
        """Call `listener` for each background task that fails."""
        self._tasks.on_task_failure(listener)

    async def run_blocking(self, function: Callable[..., T], *args: object, pool: Pool) -> T:
        """Run `function` in a thread of the pool; threads are started by the calls that need them."""
        executor = self._executors.get(pool)
        if executor is None:
            executor = Threads(self._sizes[pool], name=pool.value, starter=self._starter)
            self._executors[pool] = executor
        return await self.loop.run_in_executor(executor, function, *args)

    def resize_pool(self, pool: Pool, threads: int) -> None:
        """Run at most `threads` functions of the pool at a time, at least 1, from now on."""
        assert threads >= 1, (pool, threads)
        self._sizes[pool] = threads
        if (executor := self._executors.get(pool)) is not None:
            executor.resize(threads)

    def pool_usage(self, pool: Pool) -> PoolUsage:
        """The threads that the pool may have, those that work, and the work that waits for one.

        No thread is started before the pool's first function.
        """
        executor = self._executors.get(pool)
        busy_count, waiting_count = (0, 0) if executor is None else executor.usage()
        return PoolUsage(self._sizes[pool], busy_count, waiting_count)

    def run_parallel(self, groups: Sequence[Sequence[Callable[[], None]]], *, threads_per_group: int) -> None:
        """Run all functions of all groups, `threads_per_group` of each at a time; returns when all are done.

        Each group has threads of its own, which end with the call.
        """
        has_failed = False

        def work(left: Iterator[Callable[[], None]]) -> None:
            nonlocal has_failed
            # Not a future for each function: with thousands of short functions, these would be half of the cost.
            for function in left:
                if has_failed:
                    return
                try:
                    function()
                except BaseException:
                    has_failed = True
                    raise

        with ExitStack() as pools:
            running: list[Future[None]] = []
            for group in groups:
                left = iter(group)
                threads = min(threads_per_group, len(group))
                if threads:
                    pool = pools.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="parallel"))
                    running += [pool.submit(work, left) for _ in range(threads)]
            wait(running)
        for future in running:
            future.result()

    def worker(self, module: str, setup: object) -> Worker | None:
        """A process of its own for work that would disturb the loop even from a thread; started by its first call."""
        from ottla.runtime.spawned_worker import SpawnedWorker  # imported here: multiprocessing takes 4 ms

        worker = SpawnedWorker(module, setup, niceness=_WORKER_NICENESS)
        self._workers.append(worker)
        return worker

    def pause_thread(self, delay_s: float) -> None:
        """Sleep in the calling thread; the loop continues."""
        time.sleep(delay_s)

    async def listen(
        self,
        host: str | None,
        port: int,
        factory: ProtocolFactory,
        options: SocketOptions | None = None,
        *,
        admits: Callable[[], bool] = lambda: True,
    ) -> Listening:
        """Bind and accept. Raises OSError if the address cannot be bound."""
        options = options or SocketOptions()
        bound = await self._bind(host, port, options)
        listening = SocketListening(self.loop, bound, factory, backlog=options.backlog, admits=admits)
        self._listenings.append(listening)
        return listening

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], options: SocketOptions | None = None
    ) -> tuple[asyncio.Transport, P]:
        """Connect. Raises OSError if the port is closed."""
        if options is None:
            transport, protocol = await self.loop.create_connection(factory, host, port)
        else:
            connected = await self._connected(host, port, options)
            transport, protocol = await self.loop.create_connection(factory, sock=connected)
        return transport, protocol

    async def close(self) -> None:
        """Stop listening, cancel the tasks, then end the threads: work that runs in them is finished.

        Work that waits for a remote store, or that has no client any more, is given `_STORES_S` to end, other work
        `_DISKS_S`; then it is left behind.

        The owners of connections must close them: where warnings are errors, closing uvloop's loop
        does not complete while a transport or listener is open.
        """
        for listening in self._listenings:
            listening.close()
        for listening in self._listenings:
            await listening.wait_closed()
        await self._tasks.close()
        for worker in self._workers:
            # Before the threads, which wait for its calls.
            await self.loop.run_in_executor(None, worker.close)
        await self.loop.run_in_executor(None, self._starter.close)
        executors, self._executors = self._executors, {}
        disks_end_at = self.monotonic() + _DISKS_S
        for pool, executor in executors.items():
            # Waiting for the threads on the loop would stop callbacks that they may be waiting for.
            is_for_disks = pool not in WAITING_FOR_STORES and pool not in WITHOUT_LOSS
            timeout_s = max(0.0, disks_end_at - self.monotonic()) if is_for_disks else _STORES_S
            end = partial(executor.shutdown, cancel_futures=not is_for_disks, timeout_s=timeout_s)
            await self.loop.run_in_executor(None, end)
            if is_for_disks and executor.usage()[0]:
                _LOG.error(
                    "The work of the threads %r does not end; the runtime closes without it", pool.value
                )
        self.stalls.stop()
        await self.loop.run_in_executor(None, self.stalls.join)

    async def _connected(self, host: str, port: int, options: SocketOptions) -> socket.socket:
        """A socket connected to the first address of `host` that accepts; its buffer sizes are set before."""
        failure: OSError | None = None
        for family, kind, _, _, address in await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connecting = socket.socket(family, kind)
            try:
                connecting.setblocking(False)
                _set_buffers(connecting, options)
                await self.loop.sock_connect(connecting, address)
            except OSError as error:
                connecting.close()
                failure = error
            except BaseException:
                connecting.close()
                raise
            else:
                return connecting
        raise failure or OSError(f"{host} has no address")

    async def _bind(self, host: str | None, port: int, options: SocketOptions) -> socket.socket:
        """A socket bound to one address of `host`, IPv4 before IPv6; Kafka also binds only one."""
        if host:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = min(found, key=lambda row: row[0] != socket.AF_INET)
        elif socket.has_dualstack_ipv6():
            family, address = socket.AF_INET6, ("::", port)
        else:
            family, address = socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 (every address was requested)
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            _set_options(bound, options)
            if family == socket.AF_INET6 and not host:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
        return bound


def _set_options(bound: socket.socket, options: SocketOptions) -> None:
    """Set the options of the listening socket; on Linux accepted connections inherit all of them."""
    bound.setblocking(False)
    if sys.platform != "win32":  # there it means that two processes may share the port
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set_buffers(bound, options)


def _set_buffers(opened: socket.socket, options: SocketOptions) -> None:
    """Set the buffer sizes, before listen() or connect(): the first packet determines the TCP window scale."""
    if options.receive_buffer_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
    if options.send_buffer_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
