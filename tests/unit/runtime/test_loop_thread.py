"""A thread with a loop and a runtime of its own: results, errors, its end."""

import asyncio
import threading

import pytest

from ottla.runtime import Pool
from ottla.runtime.loop_thread import LoopThread


def test_coroutines_of_any_thread_run_on_its_loop():
    thread = LoopThread(name="loop-thread-of-a-test")

    async def where():
        return threading.current_thread().name, await thread.runtime.run_blocking(lambda: 7, pool=Pool.LOGS)

    assert thread.call(where()) == ("loop-thread-of-a-test", 7)
    assert thread.submit(asyncio.sleep(0, "done")).result() == "done"
    thread.stop()
    thread.stop()
    assert "loop-thread-of-a-test" not in {each.name for each in threading.enumerate()}


def test_an_error_is_raised_where_it_was_called():
    thread = LoopThread(name="errors")

    async def fail():
        raise LookupError("nothing")

    with pytest.raises(LookupError, match="nothing"):
        thread.call(fail())
    thread.stop()


def test_a_runtime_that_cannot_be_made_is_an_error_of_the_caller():
    def none():
        raise OSError("no descriptors")

    with pytest.raises(OSError, match="no descriptors"):
        LoopThread(name="none", new_runtime=none)
    assert "none" not in {each.name for each in threading.enumerate()}


def test_a_caller_does_not_wait_for_a_loop_that_has_ended():
    """A coroutine is submitted while the loop ends: nothing runs it any more."""
    thread = LoopThread(name="ending")
    ending, submitted = threading.Event(), threading.Event()

    def hold():
        ending.set()
        submitted.wait(10)

    thread.loop.call_soon_threadsafe(thread._stopping.set)
    thread.loop.call_soon_threadsafe(hold)  # before the turn in which the loop stops
    ending.wait(10)
    futures = [thread.submit(asyncio.sleep(3600)) for _ in range(3)]
    submitted.set()
    thread.stop()
    assert all(future.cancelled() for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        thread.call(asyncio.sleep(0))


def test_what_fails_at_a_kill_is_not_reported(caplog):
    thread = LoopThread(name="killed")
    ended = threading.Event()

    async def wait_without_end():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
            raise LookupError("while it ends")

    thread.submit(wait_without_end())
    thread.call(asyncio.sleep(0))
    thread.kill(first=lambda: None, last=lambda: None)
    assert ended.is_set()
    assert caplog.messages == []
