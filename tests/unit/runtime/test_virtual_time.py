"""The simulated runtime's clock, tasks and determinism."""

import asyncio

import pytest

from ottla.runtime import Pool
from ottla.runtime.simulated import EPOCH_MS, SimulatedRuntime, Simulation
from ottla.runtime.virtual_loop import Stalled


@pytest.fixture
def runtime():
    with Simulation(seed=7) as simulation:
        yield simulation.runtime("127.0.0.1")


def test_a_year_passes_at_once(runtime):
    async def scenario():
        await asyncio.sleep(365 * 24 * 3600)
        return runtime.monotonic(), runtime.now_ms()

    assert runtime.run(scenario()) == (pytest.approx(365 * 86400), EPOCH_MS + 365 * 86_400_000)


def test_wall_clock_has_no_rounding_gap_after_many_small_sleeps(runtime):
    async def scenario():
        for _ in range(450):
            await asyncio.sleep(0.1)
        return runtime.now_ms()

    assert runtime.run(scenario()) == EPOCH_MS + 45_000


def test_timers_run_in_order_of_their_time(runtime):
    async def scenario():
        order = []
        for delay in (3, 1, 2, 1.5):
            runtime.call_later(delay, order.append, delay)
        cancelled = runtime.call_later(1.2, order.append, "cancelled")
        cancelled.cancel()
        await asyncio.sleep(2.5)
        return order

    assert runtime.run(scenario()) == [1, 1.5, 2]


def test_timeouts_and_futures_work(runtime):
    async def scenario():
        future = runtime.loop.create_future()
        runtime.call_later(5, future.set_result, "late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(future)
        assert runtime.monotonic() == pytest.approx(1)
        return await future

    assert runtime.run(scenario()) == "late"


def test_waiting_for_nothing_fails_instead_of_hanging(runtime):
    async def scenario():
        await runtime.loop.create_future()

    with pytest.raises(Stalled):
        runtime.run(scenario())


def test_blocking_work_runs_inline_and_lets_others_go_first(runtime):
    async def scenario():
        order = []
        runtime.loop.call_soon(order.append, "other")
        result = await runtime.run_blocking(lambda a: order.append("work") or a + 1, 41, pool=Pool.READS)
        return result, order

    assert runtime.run(scenario()) == (42, ["other", "work"])


def test_blocking_work_raises_to_the_caller(runtime):
    def fail():
        raise OSError("disk")

    async def scenario():
        with pytest.raises(OSError, match="disk"):
            await runtime.run_blocking(fail, pool=Pool.READS)
        with pytest.raises(OSError, match="disk"):
            await runtime.loop.run_in_executor(None, fail)

    runtime.run(scenario())


def test_a_failed_background_task_is_logged_reported_and_raised(runtime, caplog):
    reported = []

    async def fail():
        raise ValueError("lost?")

    async def scenario():
        runtime.on_task_failure(reported.append)
        runtime.create_task(fail(), name="flusher")
        await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as caught:
        runtime.run(scenario())
    assert [str(error) for error in caught.value.exceptions] == ["lost?"]
    assert [(failure.task_name, str(failure.exception)) for failure in reported] == [("flusher", "lost?")]
    assert "flusher" in caplog.text


def test_an_exception_in_a_timer_is_raised(runtime):
    async def scenario():
        runtime.call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(BaseExceptionGroup) as caught:
        runtime.run(scenario())
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_close_cancels_tasks_and_those_they_start(runtime):
    ended = []

    async def forever(name):
        try:
            await asyncio.sleep(10**9)
        finally:
            ended.append(name)
            if name == "first":
                runtime.create_task(forever("second"), name="second")

    async def scenario():
        runtime.create_task(forever("first"), name="first")
        await asyncio.sleep(0)
        await runtime.close()

    runtime.run(scenario())
    assert ended == ["first", "second"]


def test_nodes_of_one_simulation_share_time_but_not_clocks():
    with Simulation(seed=1) as simulation:
        exact, wrong = simulation.runtime("a"), simulation.runtime("b", clock_error_ms=-250)

        async def scenario():
            await asyncio.sleep(1)
            assert exact.monotonic() == wrong.monotonic()
            return exact.now_ms() - wrong.now_ms(), exact.random.random() != wrong.random.random()

        assert simulation.run(scenario()) == (250, True)


async def chatter(runtime):
    """A little of each: timers, tasks, connections, random draws."""

    async def serve(reader, writer):
        while data := await reader.read(100):
            await asyncio.sleep(runtime.random.random())
            writer.write(data.upper())
        writer.close()

    async def ask(number):
        reader, writer = await asyncio.open_connection("localhost", 9092)
        for turn in range(5):
            writer.write(f"client {number} turn {turn}".encode())
            runtime.simulation.record(f"{number} got {await reader.read(100)!r}")
        writer.close()

    server = await asyncio.start_server(serve, "localhost", 9092)
    await asyncio.gather(*(ask(number) for number in range(4)))
    server.close()
    await asyncio.sleep(1)


def run_chatter(seed):
    runtime = SimulatedRuntime(seed=seed)
    with runtime.simulation:
        runtime.run(chatter(runtime))
    return runtime.trace


def test_the_same_seed_gives_the_same_trace_and_another_another():
    first = run_chatter(3)
    assert len(first) > 40
    assert first == run_chatter(3)
    assert first != run_chatter(4)
