"""Threads: work in order, as many at a time as the size says, also after it has changed; on virtual time likewise."""

import asyncio
import threading
from concurrent.futures import CancelledError, wait

import pytest

from ottla.runtime import Pool
from ottla.runtime.production import run
from ottla.runtime.simulated import Simulation
from ottla.runtime.thread_pool import Threads, ThreadStarter

_PATIENCE_S = 30


class Gate:
    """Work that waits to be let through; counts how many run at a time."""

    def __init__(self):
        self._lock = threading.Condition()
        self.running = 0
        self._passes = 0

    def work(self):
        with self._lock:
            self.running += 1
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._passes, _PATIENCE_S)
            self._passes -= 1
            self.running -= 1
            self._lock.notify_all()

    def let_through(self, count):
        with self._lock:
            self._passes += count
            self._lock.notify_all()

    def is_running(self, count):
        """Whether so many run, soon; more would be noticed by the next call."""
        with self._lock:
            return self._lock.wait_for(lambda: self.running == count, _PATIENCE_S)


class NoThreads(ThreadStarter):
    """The system has no thread left after the first `count`."""

    def __init__(self, count):
        super().__init__()
        self._left = count

    def start(self, thread, on_failure):
        self._left -= 1
        if self._left < 0:
            thread.start = refuse
        super().start(thread, on_failure)


def refuse():
    raise RuntimeError("can't start new thread")


@pytest.fixture
def starter():
    starter = ThreadStarter()
    yield starter
    starter.close()


@pytest.fixture
def pool(starter):
    threads = Threads(2, name="pool-of-a-test", starter=starter)
    yield threads
    starter.close()
    threads.shutdown()


@pytest.fixture
def runtime():
    with Simulation(seed=1) as simulation:
        yield simulation.runtime("127.0.0.1")


def count_threads():
    return sum(each.name == "pool-of-a-test" for each in threading.enumerate())


def test_results_errors_and_order(starter):
    pool = Threads(1, name="pool-of-a-test", starter=starter)
    done = []
    futures = [pool.submit(done.append, at) for at in range(100)]
    failed = pool.submit(lambda: 1 / 0)
    after = pool.submit(lambda a, b: a + b, 1, b=2)
    starter.close()
    pool.shutdown()
    assert done == list(range(100))
    assert [future.result() for future in futures] == [None] * 100
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert after.result() == 3
    assert count_threads() == 0


def test_a_thread_is_started_only_when_none_is_idle(pool):
    for _ in range(20):
        wait([pool.submit(int)])
    # The first one may not have been idle again when the second work came.
    assert 1 <= count_threads() <= 2


def test_it_grows_while_all_threads_are_busy(pool):
    gate = Gate()
    futures = [pool.submit(gate.work) for _ in range(6)]
    assert gate.is_running(2)
    pool.resize(5)
    assert gate.is_running(5)
    gate.let_through(6)
    assert not wait(futures, _PATIENCE_S).not_done
    assert count_threads() == 5


def test_it_shrinks_when_work_ends(pool):
    gate = Gate()
    pool.resize(4)
    futures = [pool.submit(gate.work) for _ in range(8)]
    assert gate.is_running(4)
    pool.resize(1)
    gate.let_through(3)
    assert gate.is_running(1)
    gate.let_through(1)
    wait(futures[:4], _PATIENCE_S)
    assert gate.is_running(1)
    gate.let_through(4)
    assert not wait(futures, _PATIENCE_S).not_done
    assert count_threads() == 1


def test_idle_threads_end_when_it_shrinks(pool):
    gate = Gate()
    pool.resize(3)
    futures = [pool.submit(gate.work) for _ in range(3)]
    assert gate.is_running(3)
    gate.let_through(3)
    wait(futures, _PATIENCE_S)
    pool.resize(1)
    assert pool.submit(lambda: 5).result(_PATIENCE_S) == 5
    for thread in [each for each in threading.enumerate() if each.name == "pool-of-a-test"]:
        if count_threads() > 1:
            thread.join(0.5)
    assert count_threads() == 1


def test_submit_does_not_wait_until_a_thread_is_started(starter):
    gate = Gate()
    slow = threading.Thread(target=int)
    slow.start = gate.work
    starter.start(slow, lambda error: None)
    assert gate.is_running(1)
    pool = Threads(1, name="pool-of-a-test", starter=starter)
    late = pool.submit(int)
    assert pool.usage() == (0, 1)
    gate.let_through(1)
    assert late.result(_PATIENCE_S) == 0
    starter.close()
    pool.shutdown()


def test_without_further_threads_the_others_do_the_work():
    starter, gate = NoThreads(1), Gate()
    pool = Threads(3, name="pool-of-a-test", starter=starter)
    futures = [pool.submit(gate.work) for _ in range(3)]
    starter.close()
    assert gate.is_running(1)
    assert pool.usage() == (1, 2)
    gate.let_through(3)
    assert not wait(futures, _PATIENCE_S).not_done
    pool.shutdown()
    assert count_threads() == 0


@pytest.mark.parametrize("is_closed", [False, True])
def test_without_any_thread_the_work_fails(is_closed):
    starter, gate = NoThreads(1), Gate()
    slow = threading.Thread(target=int)
    slow.start = gate.work
    starter.start(slow, lambda error: None)
    assert gate.is_running(1)
    pool = Threads(2, name="pool-of-a-test", starter=starter)
    if is_closed:
        gate.let_through(1)
        starter.close()
        failed = pool.submit(int)
    else:
        cancelled, failed = pool.submit(int), pool.submit(int)
        cancelled.cancel()
        gate.let_through(1)
        starter.close()
        assert cancelled.cancelled()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        failed.result(_PATIENCE_S)
    assert pool.usage() == (0, 0)
    pool.shutdown()


def test_work_that_comes_after_the_end_of_the_starter_is_done(starter):
    pool = Threads(2, name="pool-of-a-test", starter=starter)
    starter.close()
    starter.close()
    assert pool.submit(int).result(_PATIENCE_S) == 0
    pool.shutdown()
    assert count_threads() == 0


def test_a_thread_that_is_not_started_yet_does_not_end_another_one(starter):
    gate, slow = Gate(), Gate()
    pool = Threads(2, name="pool-of-a-test", starter=starter)
    first = pool.submit(gate.work)
    assert gate.is_running(1)
    blocking = threading.Thread(target=int)
    blocking.start = slow.work
    starter.start(blocking, lambda error: None)
    assert slow.is_running(1)
    second = pool.submit(int)
    pool.resize(1)
    gate.let_through(1)
    assert second.result(_PATIENCE_S) == 0
    assert first.done()
    slow.let_through(1)
    starter.close()
    pool.shutdown()
    assert count_threads() == 0


def test_a_shutdown_that_cancels(starter):
    gate = Gate()
    pool = Threads(1, name="pool-of-a-test", starter=starter)
    begun, waiting = pool.submit(gate.work), pool.submit(int)
    assert gate.is_running(1)
    starter.close()
    pool.shutdown(wait=False, cancel_futures=True)
    gate.let_through(1)
    pool.shutdown()
    assert begun.done()
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(RuntimeError, match="no work is accepted"):
        pool.submit(int)


def test_the_production_runtime_resizes_a_pool_before_and_after_its_first_use():
    async def main(runtime):
        gate = Gate()
        runtime.resize_pool(Pool.REMOTE_READS, 1)
        first = [
            asyncio.ensure_future(runtime.run_blocking(gate.work, pool=Pool.REMOTE_READS)) for _ in range(4)
        ]
        await asyncio.sleep(0)
        assert await runtime.run_blocking(gate.is_running, 1, pool=Pool.READS)
        runtime.resize_pool(Pool.REMOTE_READS, 3)
        assert await runtime.run_blocking(gate.is_running, 3, pool=Pool.READS)
        gate.let_through(4)
        await asyncio.gather(*first)

    run(main)


@pytest.mark.parametrize(("sizes", "seconds"), [
    ([],           2),  # ten threads: 20 pieces of work of a second
    ([20],         1),
    ([2],          10),
    ([5, 4],       5),
    ([2, 10],      2),
])  # fmt: skip
def test_the_simulated_runtime_resizes_a_pool(sizes, seconds, runtime):
    runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.5

    async def main():
        for size in sizes:
            runtime.resize_pool(Pool.REMOTE_READS, size)
        await asyncio.gather(*(runtime.run_blocking(int, pool=Pool.REMOTE_READS) for _ in range(20)))
        assert runtime.monotonic() == pytest.approx(seconds)

    runtime.run(main())


def test_a_simulated_pool_that_shrinks_while_it_is_busy(runtime):
    runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.5

    async def main():
        work = [asyncio.ensure_future(runtime.run_blocking(int, pool=Pool.REMOTE_READS)) for _ in range(12)]
        await asyncio.sleep(0.1)
        runtime.resize_pool(Pool.REMOTE_READS, 1)
        await asyncio.gather(*work)
        assert runtime.monotonic() == pytest.approx(3)  # ten at once, then one after the other

    runtime.run(main())
