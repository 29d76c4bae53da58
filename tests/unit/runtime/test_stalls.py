"""The watch over the event loop: turns that take too long, with the code that took the time."""

import asyncio
import logging
import time

import pytest

from broker.runtime import Pool
from broker.runtime.production import run
from broker.runtime.stalls import BOUND_VARIABLE, StallWatch


@pytest.fixture
def bound_ms(monkeypatch):
    monkeypatch.setenv(BOUND_VARIABLE, "20")
    return 20


def block_for(duration_s):
    time.sleep(duration_s)


async def reports(caplog, count):
    """The WARNINGs, as soon as there are so many: the thread writes them when the turn is over."""
    found = []
    while len(found) < count:
        await asyncio.sleep(0.001)
        found = [each for each in caplog.records if each.getMessage().startswith("One turn")]
    return [each.getMessage() for each in found]


def test_a_blocked_loop_is_reported_with_the_stack_of_what_blocks_it(bound_ms, caplog):
    async def main(runtime):
        for _ in range(2):
            await asyncio.sleep(0)  # a turn ends
            block_for(0.1)
        first, *_ = await reports(caplog, 1)
        assert "block_for(0.1)" in first
        assert "time.sleep(duration_s)" in first
        assert runtime.stalls.count >= 1
        assert 0.02 <= runtime.stalls.longest_s < 10

    run(main)


def test_what_a_thread_waits_for_is_no_stall_of_the_loop(bound_ms, caplog):
    async def main(runtime):
        await runtime.run_blocking(block_for, 0.1, pool=Pool.READS)
        return [each for each in caplog.records if "block_for" in each.getMessage()]

    assert run(main) == []


def test_many_stalls_are_one_report(caplog):
    async def main(runtime):
        watch = StallWatch(runtime.loop, bound_s=0.01, report_interval_s=3600)
        watch.start()
        while watch.count < 3:
            await asyncio.sleep(0)
            block_for(0.03)
        watch.stop()
        await asyncio.get_running_loop().run_in_executor(None, watch.join)
        assert len([each for each in caplog.records if "block_for" in each.getMessage()]) == 1

    run(main)


def test_the_bound_is_that_of_production_unless_a_test_asks_for_another(monkeypatch, caplog):
    monkeypatch.delenv(BOUND_VARIABLE, raising=False)

    async def main(runtime):
        assert runtime.stalls._bound_s == 0.1
        assert runtime.stalls._report_interval_s == 10

    with caplog.at_level(logging.WARNING):
        run(main)
