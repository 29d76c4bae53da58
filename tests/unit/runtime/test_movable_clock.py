"""The clock that can be moved forward: what is due then runs, in order, and nothing else."""

import asyncio

import pytest

from ottla.runtime.loop_thread import LoopThread
from ottla.runtime.movable_clock import MovableLoop, MovableRuntime

DAY_S = 24 * 3600.0


@pytest.fixture
def thread():
    thread = LoopThread(name="movable", new_loop=MovableLoop, new_runtime=MovableRuntime)
    yield thread
    thread.stop()


def test_timers_that_are_due_run_in_their_order(thread):
    async def main():
        loop, ran = asyncio.get_running_loop(), []
        for delay_s in (3 * DAY_S, 2 * DAY_S, 1 * DAY_S):
            loop.call_later(delay_s, ran.append, delay_s / DAY_S)
        before = loop.time()
        loop.advance(2 * DAY_S)
        assert loop.time() - before >= 2 * DAY_S
        assert ran == []  # in the next turn, not within the call
        await asyncio.sleep(0.001)
        assert ran == [1, 2]
        loop.advance(DAY_S)
        await asyncio.sleep(0.001)
        assert ran == [1, 2, 3]

    thread.call(main())


def test_sleeps_and_time_limits_end(thread):
    async def main():
        loop = asyncio.get_running_loop()
        sleeping = asyncio.create_task(asyncio.sleep(DAY_S))
        waiting = asyncio.create_task(asyncio.wait_for(loop.create_future(), DAY_S))
        await asyncio.sleep(0)
        loop.advance(DAY_S + 1)
        await sleeping
        with pytest.raises(TimeoutError):
            await waiting

    thread.call(main())


def test_cancelled_timers_do_not_run_even_if_they_are_due(thread, caplog):
    async def main():
        loop, ran = asyncio.get_running_loop(), []
        later = loop.call_later(DAY_S, ran.append, "later")
        loop.call_later(DAY_S / 2, later.cancel)
        loop.advance(DAY_S)
        await asyncio.sleep(0.001)
        assert ran == []

    thread.call(main())
    assert caplog.messages == []


def test_both_clocks_of_the_runtime_move(thread):
    async def main():
        loop, runtime = asyncio.get_running_loop(), thread.runtime
        wall_ms, monotonic_s = runtime.now_ms(), runtime.monotonic()
        loop.advance(DAY_S)
        assert runtime.now_ms() - wall_ms >= DAY_S * 1000
        assert runtime.monotonic() - monotonic_s >= DAY_S
        with pytest.raises(AssertionError):
            loop.advance(-1)

    thread.call(main())


def test_the_time_that_passes_is_the_systems(thread):
    async def main():
        loop, ran = asyncio.get_running_loop(), []
        loop.call_later(0.02, ran.append, "second")
        loop.call_later(0.01, ran.append, "first")
        await asyncio.sleep(0.03)
        assert ran == ["first", "second"]

    thread.call(main())
