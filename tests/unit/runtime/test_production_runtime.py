"""The production runtime on real sockets."""

import asyncio
import resource
import socket
import threading
import time
from contextlib import ExitStack
from itertools import pairwise

import pytest

from ottla.runtime import Pool, SocketOptions, accepting, production
from ottla.runtime.accepting import ACCEPTS_PER_TURN
from ottla.runtime.pools import THREADS
from ottla.runtime.production import ProductionRuntime, allow_open_files, run
from tests.harness.waiting import until


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Collect(asyncio.Protocol):
    def __init__(self):
        self.done = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.done.set_result(data)


def test_listen_connect_and_echo():
    async def main(runtime: ProductionRuntime):
        assert type(runtime.loop).__module__ == "uvloop"
        listening = await runtime.listen("127.0.0.1", 0, Echo)
        transport, client = await runtime.connect(listening.host, listening.port, Collect)
        transport.write(b"hello")
        assert await client.done == b"hello"
        transport.close()
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            await runtime.connect(listening.host, listening.port, Collect)

    run(main)


def test_the_clock_is_the_loops_with_a_finer_resolution():
    async def main(runtime):
        readings = {runtime.monotonic() for _ in range(1000)}
        assert min(readings) == pytest.approx(runtime.loop.time(), abs=1)
        assert len(readings) > 10

    run(main)


@pytest.mark.parametrize("host", [None, "", "localhost", "0.0.0.0"])
def test_hosts_are_reachable_by_ipv4(host):
    async def main(runtime):
        listening = await runtime.listen(host, 0, Echo)
        transport, _ = await runtime.connect("127.0.0.1", listening.port, Collect)
        transport.close()
        listening.close()

    run(main)


def test_connections_that_arrive_at_once_leave_turns_to_others():
    async def main(runtime):
        accepted = []
        listening = await runtime.listen("127.0.0.1", 0, lambda: accepted.append(None) or Echo())
        clients = [
            socket.create_connection(("127.0.0.1", listening.port)) for _ in range(4 * ACCEPTS_PER_TURN)
        ]
        by_turn = [0]
        while len(accepted) < len(clients):
            await asyncio.sleep(0)
            by_turn.append(len(accepted))
        assert max(after - before for before, after in pairwise(by_turn)) == ACCEPTS_PER_TURN
        for client in clients:
            client.close()
        listening.close()

    run(main)


@pytest.mark.logs("the remaining descriptors are for files")
def test_connections_leave_descriptors_to_files(monkeypatch):
    async def main(runtime):
        accepted = []
        listening = await runtime.listen("127.0.0.1", 0, lambda: accepted.append(None) or Echo())
        monkeypatch.setattr(accepting, "RETRY_S", 0.01)
        with monkeypatch.context() as patch:
            patch.setattr(accepting, "_may_keep", lambda _socket: False)
            with socket.create_connection(("127.0.0.1", listening.port)) as refused:
                assert await runtime.loop.run_in_executor(None, refused.recv, 1) == b""
            assert not accepted
        with socket.create_connection(("127.0.0.1", listening.port)):
            await until(lambda: accepted)
        listening.close()

    run(main)


@pytest.mark.logs("the remaining descriptors are for files")
@pytest.mark.parametrize("is_of_files", [True, False])
def test_connections_have_their_part_of_the_descriptors_also_where_files_have_more_than_theirs(
    monkeypatch, is_of_files
):
    """Seven eighths of the limit are in use: of files, a connection is accepted; of connections, none is."""

    async def main(runtime):
        listening = await runtime.listen("127.0.0.1", 0, Echo)
        await runtime.loop.run_in_executor(None, int)  # starts the thread
        # A process that has opened less than 32 descriptors has no seven eighths that are more than three quarters.
        for _ in range(32):
            others.enter_context(socket.socket())
        with socket.socket() as lowest_free:
            in_use = lowest_free.fileno()
        limit = in_use * 8 // 7 + 6
        monkeypatch.setattr(accepting.resource, "getrlimit", lambda _kind: (limit, limit))
        monkeypatch.setattr(accepting, "_connections", set() if is_of_files else set(range(in_use)))
        with socket.create_connection(("127.0.0.1", listening.port)) as client:
            if is_of_files:
                client.sendall(b"x")
            assert await runtime.loop.run_in_executor(None, client.recv, 1) == (b"x" if is_of_files else b"")
        listening.close()

    with ExitStack() as others:
        run(main)


def test_a_port_in_use_is_refused():
    async def main(runtime):
        listening = await runtime.listen("127.0.0.1", 0, Echo)
        with pytest.raises(OSError, match="in use"):
            await runtime.listen("127.0.0.1", listening.port, Echo)
        listening.close()

    run(main)


def test_accepted_connections_have_the_listeners_options():
    accepted = []

    class Keep(Echo):
        def connection_made(self, transport):
            super().connection_made(transport)
            accepted.append(transport)

    async def main(runtime):
        options = SocketOptions(send_buffer_bytes=70_000, receive_buffer_bytes=90_000)
        listening = await runtime.listen("127.0.0.1", 0, Keep, options)
        transport, client = await runtime.connect("127.0.0.1", listening.port, Collect)
        transport.write(b"x")
        await client.done
        inner = accepted[0].get_extra_info("socket")
        assert inner.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert inner.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 140_000  # Linux doubles
        assert inner.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 180_000
        transport.close()
        listening.close()

    run(main)


def test_blocking_work_runs_in_a_thread_and_close_waits_for_it():
    ended = threading.Event()

    def work(started: threading.Event):
        started.set()
        ended.wait(60)
        return threading.current_thread() is not threading.main_thread()

    async def main(runtime):
        started = threading.Event()
        task = asyncio.ensure_future(runtime.run_blocking(work, started, pool=Pool.READS))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        ended.set()
        assert await task

    run(main)


@pytest.mark.parametrize("pool", Pool)
@pytest.mark.logs("does not end; the runtime closes without it")
def test_the_end_has_a_limit_for_every_pool(monkeypatch, pool):
    """A store or a disk that does not answer, or a search that takes long."""
    monkeypatch.setattr(production, "_STORES_S", 0.05)
    monkeypatch.setattr(production, "_DISKS_S", 0.05)
    answers = threading.Event()
    try:

        async def main(runtime: ProductionRuntime):
            name = "blocking work"
            begun = threading.Event()

            def read():
                begun.set()
                answers.wait(60)

            runtime.create_task(runtime.run_blocking(read, pool=pool), name=name)
            await asyncio.sleep(0)
            assert await asyncio.to_thread(begun.wait, 30)

        began = time.monotonic()
        run(main)
        assert time.monotonic() - began < 30
    finally:
        answers.set()


def test_clocks():
    async def main(runtime):
        assert abs(runtime.now_ms() - time.time() * 1000) < 60_000
        assert runtime.monotonic() <= runtime.monotonic()
        assert runtime.random.random() != runtime.random.random()

    run(main)


def test_a_failed_task_is_reported_and_the_rest_is_cancelled_at_the_end(caplog):
    reported = []
    cancelled = []

    async def fail():
        raise ValueError("lost?")

    async def forever():
        try:
            await asyncio.sleep(10**6)
        finally:
            cancelled.append(True)

    async def main(runtime):
        runtime.on_task_failure(reported.append)
        failing = runtime.create_task(fail(), name="failing")
        runtime.create_task(forever(), name="forever")
        await asyncio.wait([failing])
        await asyncio.sleep(0)

    run(main)
    assert [failure.task_name for failure in reported] == ["failing"]
    assert cancelled == [True]
    assert "failing" in caplog.text


def test_as_many_files_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_run_parallel_is_as_wide_as_it_may_be():
    """Two groups of two at a time: four meet, a fifth has to wait."""
    meeting = threading.Barrier(4, timeout=60)
    lock = threading.Lock()
    running, most = [0, 0], [0, 0]

    def work(group):
        with lock:
            running[group] += 1
            most[group] = max(most[group], running[group])
        meeting.wait()
        with lock:
            running[group] -= 1

    async def main(runtime):
        groups = [[lambda at=at: work(at)] * 6 for at in range(2)]
        await runtime.run_blocking(
            lambda: runtime.run_parallel([*groups, []], threads_per_group=2), pool=Pool.LOGS
        )

    run(main)
    assert (running, most) == ([0, 0], [2, 2])


def test_run_parallel_raises_and_leaves_the_rest():
    done = []

    def bad():
        raise ValueError("a log")

    async def main(runtime):
        jobs = [bad, *[lambda at=at: done.append(at) for at in range(100)]]
        with pytest.raises(ValueError, match="a log"):
            await runtime.run_blocking(
                lambda: runtime.run_parallel([jobs], threads_per_group=1), pool=Pool.LOGS
            )

    run(main)
    assert done == []


@pytest.mark.parametrize("busy", Pool)
def test_a_pool_whose_threads_are_all_busy_delays_no_other_pool(busy):
    """One pool of eight threads for everything: eight cold reads stopped Raft's votes and flushes."""
    release = threading.Event()

    async def main(runtime):
        waiting = [asyncio.ensure_future(runtime.run_blocking(release.wait, pool=busy)) for _ in range(50)]
        try:
            for other in set(Pool) - {busy}:
                name = await asyncio.wait_for(
                    runtime.run_blocking(lambda: threading.current_thread().name, pool=other), 30
                )
                assert name.startswith(other.value)
            started = [each.name for each in threading.enumerate() if each.name.startswith(busy.value)]
            assert len(started) == THREADS[busy]
        finally:
            release.set()
        await asyncio.gather(*waiting)

    run(main)


def test_work_that_is_cancelled_while_it_waits_for_a_thread_does_not_run():
    release = threading.Event()
    done = []

    async def main(runtime):
        busy = [
            asyncio.ensure_future(runtime.run_blocking(release.wait, pool=Pool.READS))
            for _ in range(THREADS[Pool.READS])
        ]
        late = asyncio.ensure_future(runtime.run_blocking(done.append, 1, pool=Pool.READS))
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait([late])
        await asyncio.sleep(0)  # the executor's future is cancelled by a callback
        release.set()
        await asyncio.gather(*busy)

    run(main)
    assert not done
