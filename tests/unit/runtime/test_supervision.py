"""Background tasks that fail: pieces of work end, services start again, and nothing is lost in silence."""

import asyncio

import pytest

from ottla.runtime.jitter import JITTER
from ottla.runtime.production import run
from ottla.runtime.simulated import SimulatedRuntime
from ottla.runtime.supervision import MAX_BACKOFF_S
from tests.harness.waiting import until


class Service:
    """Fails so many times, after so many seconds each; then it runs on."""

    def __init__(self, runtime, *, failures, lives_s=0.0):
        self.runtime = runtime
        self.failures_left = failures
        self.lives_s = lives_s
        self.starts = []

    async def run(self):
        self.starts.append(self.runtime.monotonic())
        if self.failures_left:
            self.failures_left -= 1
            await asyncio.sleep(self.lives_s)
            raise ValueError("a bug")
        await asyncio.Event().wait()

    @property
    def pauses(self):
        return [
            after - before - self.lives_s for before, after in zip(self.starts, self.starts[1:], strict=False)
        ]


def simulated(scenario):
    """Run the scenario; the failures of its tasks, which a simulation raises."""
    runtime = SimulatedRuntime(seed=3)

    async def main():
        await scenario(runtime)
        await runtime.close()

    try:
        runtime.run(main())
    except BaseExceptionGroup as group:
        return [str(each) for each in group.exceptions]
    finally:
        runtime.simulation.close()
    return []


def test_a_service_starts_again_after_pauses_that_double_up_to_a_bound(caplog):
    async def scenario(runtime):
        service = Service(runtime, failures=12)
        task = runtime.supervise(service.run, name="cleaner")
        await asyncio.sleep(100)
        assert len(service.starts) == 13
        expected = [min(0.1 * 2**count, MAX_BACKOFF_S) for count in range(12)]
        assert service.pauses == pytest.approx(expected, rel=JITTER)
        assert service.pauses != pytest.approx(expected, rel=0.001)
        assert not task.done()
        assert runtime.task_failures == {"cleaner": 12}
        assert "cleaner failed; it is started again in" in caplog.text
        assert "ValueError: a bug" in caplog.text
        assert "Traceback" in caplog.text

    assert simulated(scenario) == ["a bug"] * 12


@pytest.mark.logs("failed; it is started again in")
def test_a_service_that_has_run_for_long_begins_with_a_short_pause_again():
    async def scenario(runtime):
        service = Service(runtime, failures=8, lives_s=MAX_BACKOFF_S + 1)
        runtime.supervise(service.run, name="cleaner")
        await asyncio.sleep(1_000)
        assert service.pauses == pytest.approx([0.1] * 8, rel=JITTER)

    assert len(simulated(scenario)) == 8


def test_a_service_that_returns_is_over():
    async def scenario(runtime):
        calls = []

        async def once():
            calls.append(1)

        task = runtime.supervise(once, name="once")
        await asyncio.sleep(100)
        assert task.done()
        assert calls == [1]

    assert simulated(scenario) == []


@pytest.mark.parametrize("is_in_pause", [False, True])
@pytest.mark.logs("failed; it is started again in")
def test_a_service_that_is_cancelled_ends(is_in_pause):
    async def scenario(runtime):
        service = Service(runtime, failures=1 if is_in_pause else 0)
        task = runtime.supervise(service.run, name="cleaner")
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(100)
        assert task.cancelled()
        assert len(service.starts) == 1

    simulated(scenario)


@pytest.mark.logs("background task")
def test_a_service_whose_clean_up_fails_when_it_is_cancelled_ends():
    """Started again it would be beyond reach: it was cancelled already, and its owner waits for its end."""

    async def scenario(runtime):
        starts = []

        async def run():
            starts.append(1)
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("not closed")

        task = runtime.supervise(run, name="fetcher")
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(100)
        assert task.done()
        assert starts == [1]
        assert runtime.task_failures == {"fetcher": 1}

    assert simulated(scenario) == ["not closed"]


@pytest.mark.logs("failed; it is started again in")
def test_a_service_whose_awaited_future_is_cancelled_has_failed():
    """asyncio ends the task as cancelled, without a word."""

    async def scenario(runtime):
        future = runtime.loop.create_future()
        starts = []

        async def waits():
            starts.append(1)
            await (future if len(starts) == 1 else asyncio.Event().wait())

        runtime.supervise(waits, name="waits")
        await asyncio.sleep(0)
        future.cancel()
        await asyncio.sleep(10)
        assert len(starts) == 2
        assert runtime.task_failures == {"waits": 1}

    assert simulated(scenario) == [""]


@pytest.mark.logs("background task")
def test_a_piece_of_work_is_not_begun_again():
    async def scenario(runtime):
        service = Service(runtime, failures=1)
        runtime.create_task(service.run(), name="work")
        await asyncio.sleep(100)
        assert len(service.starts) == 1
        assert runtime.task_failures == {"work": 1}

    assert simulated(scenario) == ["a bug"]


@pytest.mark.logs("failed; it is started again in")
def test_services_of_a_real_node():
    async def main(runtime):
        reported = []
        runtime.on_task_failure(reported.append)
        service = Service(runtime, failures=1)
        runtime.supervise(service.run, name="cleaner")
        await until(lambda: len(service.starts) == 2)
        assert [each.task_name for each in reported] == ["cleaner"]
        assert runtime.task_failures == {"cleaner": 1}

    run(main)
