"""An exception of any kind that a function raises in a thread is an error for its caller, on both runtimes."""

import asyncio
import concurrent.futures

import pytest

from ottla.runtime import Pool
from ottla.runtime.outcomes import WorkFailed
from ottla.runtime.production import run
from ottla.runtime.simulated import SimulatedRuntime


class Strange(BaseException):
    pass


RAISED = [
    asyncio.CancelledError("a loop of its own"),
    concurrent.futures.CancelledError("a pool of its own"),
    SystemExit(3),
    GeneratorExit(),
    StopIteration(7),
    StopAsyncIteration(),
    Strange("x"),
    ValueError("x"),
    TimeoutError("x"),
]


async def failures_of(runtime, raised):
    """The caller's exception, once in a task of its own and once here."""

    def function():
        raise raised

    async def call():
        await runtime.run_blocking(function, pool=Pool.UPKEEP)

    task = runtime.loop.create_task(call())
    async with asyncio.timeout(60):
        await asyncio.wait([task])
    assert not task.cancelled()
    with pytest.raises(Exception) as found:  # noqa: PT011 (of any kind)
        await call()
    assert await runtime.run_blocking(lambda: 1, pool=Pool.UPKEEP) == 1
    return [task.exception(), found.value]


def check(raised, failures):
    for each in failures:
        if isinstance(raised, (ValueError, TimeoutError, StopAsyncIteration)):
            assert type(each) is type(raised)
        else:
            assert isinstance(each, WorkFailed)
            assert each.__cause__ is raised
            assert type(raised).__name__ in str(each)


@pytest.mark.parametrize("raised", RAISED, ids=lambda each: type(each).__qualname__)
def test_in_production(raised):
    check(raised, run(lambda runtime: failures_of(runtime, raised)))


@pytest.mark.parametrize("is_in_thread", [False, True])
@pytest.mark.parametrize("raised", RAISED, ids=lambda each: type(each).__qualname__)
def test_in_a_simulation(raised, is_in_thread):
    runtime = SimulatedRuntime(seed=1)
    runtime.interleaving.is_on = is_in_thread
    runtime.interleaving.operation_s = lambda operation, path: 0.0
    check(raised, runtime.run(failures_of(runtime, raised)))
    runtime.simulation.close()
