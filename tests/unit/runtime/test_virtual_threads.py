"""Threads of a simulation: beside the loop, one at a time, in an order that the seed decides."""

import asyncio
from pathlib import Path

import pytest

from ottla.runtime import Pool
from ottla.runtime.pools import THREADS
from ottla.runtime.simulated import Simulation
from ottla.runtime.virtual_loop import Process
from ottla.runtime.virtual_threads import ThreadKilled, VirtualLock

A_FILE = Path("/a")


def threaded(simulation, host="p", *, operation_s=1.0):
    """A runtime whose disk takes so long for each operation; and the operation."""
    runtime = simulation.runtime(host)
    runtime.interleaving.is_on = True
    runtime.interleaving.operation_s = lambda operation, path: operation_s
    return runtime, lambda: runtime.interleaving.on_operation("read", A_FILE)


def in_thread(runtime, function, *args):
    return runtime.run_blocking(function, *args, pool=Pool.READS)


@pytest.fixture
def simulation():
    with Simulation(seed=1) as made:
        yield made


def test_the_loop_runs_while_a_thread_waits_for_the_disk(simulation):
    runtime, operate = threaded(simulation)
    order = []

    def work():
        for number in range(3):
            order.append(f"thread {number} at {runtime.monotonic():.1f}")
            operate()
        return "done"

    async def ticks():
        for number in range(3):
            await asyncio.sleep(0.5 if number == 0 else 1)
            order.append(f"loop {number}")

    async def scenario():
        _, result = await asyncio.gather(ticks(), in_thread(runtime, work))
        return result

    assert simulation.run(scenario()) == "done"
    assert order == ["thread 0 at 0.0", "loop 0", "thread 1 at 1.0", "loop 1", "thread 2 at 2.0", "loop 2"]


def test_an_operation_of_the_loop_does_not_stop(simulation):
    _, operate = threaded(simulation)

    async def scenario():
        operate()

    simulation.run(scenario())
    assert simulation.loop.time() == 0


def test_a_wait_of_the_loop_for_the_disk_is_reported(simulation):
    runtime, _ = threaded(simulation)
    waits = []
    runtime.interleaving.on_loop_wait = waits.append

    async def scenario():
        for operation in ("read", "fsync"):
            runtime.interleaving.on_operation(operation, A_FILE)
        for _ in range(8):  # in a thread, or in a turn of its own
            await in_thread(runtime, runtime.interleaving.on_operation, "fsync", A_FILE)
        runtime.interleaving.operation_s = None
        for _ in range(8):
            await in_thread(runtime, runtime.interleaving.on_operation, "fsync", A_FILE)

    simulation.run(scenario())
    assert waits == [A_FILE]


def test_the_seed_decides_the_order():
    def order_of(seed):
        order = []
        with Simulation(seed=seed) as simulation:
            runtime, operate = threaded(simulation)
            runtime.interleaving.operation_s = None

            def work(name):
                for number in range(10):
                    order.append((name, number))
                    operate()

            async def scenario():
                await asyncio.gather(*(in_thread(runtime, work, name) for name in "abc"))

            simulation.run(scenario())
        return order

    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(5)}) == 5


def test_work_waits_where_all_threads_of_a_pool_wait(simulation):
    runtime, operate = threaded(simulation)
    ended = []

    async def one(number):
        await in_thread(runtime, operate)
        ended.append((number, round(runtime.monotonic())))

    async def scenario():
        await asyncio.gather(*map(one, range(10)))

    simulation.run(scenario())
    assert [at for _, at in ended] == [1] * 8 + [2] * 2
    assert {number for number, _ in ended[8:]} == {8, 9}


def test_what_is_cancelled_before_it_begins_is_not_done(simulation):
    runtime, operate = threaded(simulation)
    done = []

    async def scenario():
        running = [asyncio.ensure_future(in_thread(runtime, operate)) for _ in range(8)]
        waiting = asyncio.ensure_future(in_thread(runtime, done.append, "waiting"))
        begun = asyncio.ensure_future(in_thread(runtime, lambda: (operate(), done.append("begun"))))
        await asyncio.sleep(0.1)
        running[0].cancel()  # its thread goes on
        waiting.cancel()
        await asyncio.sleep(1.5)
        begun.cancel()
        await asyncio.sleep(5)

    simulation.run(scenario())
    assert done == ["begun"]


def test_errors_of_a_thread_are_raised_where_it_is_awaited(simulation):
    runtime, operate = threaded(simulation)

    def fail():
        operate()
        raise OSError("disk")

    async def scenario():
        with pytest.raises(OSError, match="disk"):
            await in_thread(runtime, fail)

    simulation.run(scenario())


def test_parallel_work_of_a_thread_overlaps(simulation):
    runtime, operate = threaded(simulation)
    done = []

    def work():
        runtime.run_parallel([[operate] * 4, [lambda: done.append(runtime.monotonic())]], threads_per_group=2)

    def fail():
        runtime.run_parallel([[operate, lambda: 1 / 0, operate]], threads_per_group=1)

    async def scenario():
        await in_thread(runtime, work)
        assert runtime.monotonic() == pytest.approx(2)
        assert done == [0]
        with pytest.raises(ZeroDivisionError):
            await in_thread(runtime, fail)
        assert runtime.monotonic() == pytest.approx(3)

    simulation.run(scenario())


def test_a_thread_pauses_by_itself(simulation):
    runtime, _ = threaded(simulation)

    async def scenario():
        await in_thread(runtime, runtime.pause_thread, 5)

    simulation.run(scenario())
    assert simulation.loop.time() == pytest.approx(5)


def test_a_pool_has_its_own_threads(simulation):
    runtime, operate = threaded(simulation)

    async def scenario():
        reads = [asyncio.ensure_future(in_thread(runtime, operate)) for _ in range(2 * THREADS[Pool.READS])]
        await runtime.run_blocking(operate, pool=Pool.METADATA)
        assert runtime.monotonic() == pytest.approx(1)
        await asyncio.gather(*reads)
        assert runtime.monotonic() == pytest.approx(2)

    simulation.run(scenario())


@pytest.mark.parametrize("ends_by", ["kill", "end of the simulation"])
def test_a_thread_of_a_dead_process_does_nothing_more(ends_by):
    done = []
    with Simulation(seed=1) as simulation:
        runtime, operate = threaded(simulation)
        process = Process("p")

        def work():
            done.append("begun")
            try:
                operate()
                done.append("went on")
            except ThreadKilled:
                done.append("unwound")
                raise

        async def scenario():
            task = process.create_task(simulation.loop, in_thread(runtime, work))
            await asyncio.sleep(0.5)
            if ends_by == "kill":
                simulation.loop.kill(process)
                await asyncio.sleep(10)
            assert not task.done()

        simulation.run(scenario())
        assert done == ["begun"]
    assert done == ["begun", "unwound"]


def test_a_thread_of_a_stopped_process_does_not_run(simulation):
    runtime, operate = threaded(simulation)
    process = Process("p")

    async def scenario():
        task = process.create_task(simulation.loop, in_thread(runtime, operate))
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(5)
        assert not task.done()
        simulation.loop.resume(process)
        await asyncio.sleep(0.1)
        assert task.done()

    simulation.run(scenario())


def test_a_mutex_is_held_over_pauses(simulation):
    runtime, operate = threaded(simulation)
    mutex = VirtualLock(simulation.threads)
    order = []

    def work(name):
        with mutex:
            order.append(f"{name} holds it")
            operate()
            order.append(f"{name} lets it go")

    async def scenario():
        working = asyncio.gather(*(in_thread(runtime, work, name) for name in "ab"))
        await asyncio.sleep(0.5)
        with mutex:  # the loop stands still until a thread lets it go
            order.append("loop holds it")
        await working

    simulation.run(scenario())
    assert order == ["a holds it", "a lets it go", "loop holds it", "b holds it", "b lets it go"]
