"""A delayed response is sent at once, when its condition holds, or at the deadline; and exactly once."""

import asyncio

import pytest

from broker.groups.delayed_join import DelayedGroupResponse
from broker.purgatory.delayed_operation import DelayedOperationPurgatory
from broker.purgatory.delayed_response import DelayedResponse
from runtime.simulated import Simulation


class Waiting(DelayedResponse[str]):
    def __init__(self, loop, *, is_ready=False, error=None):
        super().__init__(loop)
        self.is_ready = is_ready
        self.error = error
        self.responses_count = 0

    def watch_keys(self):
        return ("p",)

    def can_complete(self):
        return self.is_ready

    def respond(self):
        self.responses_count += 1
        if self.error is not None:
            raise self.error
        return "ready" if self.is_ready else "timed out"


@pytest.fixture
def runtime():
    with Simulation(seed=1) as simulation:
        yield simulation.runtime("broker")


@pytest.fixture
def purgatory(runtime):
    return DelayedOperationPurgatory(call_later=runtime.call_later, call_soon=runtime.loop.call_soon)


def test_the_condition_is_checked_before_the_request_waits(runtime, purgatory):
    waiting = Waiting(runtime.loop, is_ready=True)
    assert waiting.try_complete_else_watch(purgatory, timeout_ms=1000) == "ready"
    assert waiting.is_done
    assert purgatory.delayed_count == 0


@pytest.mark.parametrize(("is_ready", "response"), [(True, "ready"), (False, "timed out")])
def test_a_future_has_the_response(runtime, purgatory, is_ready, response):
    async def main():
        waiting = Waiting(runtime.loop)
        future = waiting.try_complete_else_watch(purgatory, timeout_ms=1000)
        waiting.is_ready = is_ready
        purgatory.signal("p")
        assert await future == response
        assert waiting.responses_count == 1
        assert not waiting.force_complete()

    runtime.simulation.run(main())


def test_an_exception_is_raised_where_the_future_is_awaited(runtime, purgatory):
    async def main():
        future = Waiting(runtime.loop, error=ValueError("a bug")).watch(purgatory, timeout_ms=1)
        with pytest.raises(ValueError, match="a bug"):
            await future

    runtime.simulation.run(main())


@pytest.mark.parametrize("is_signalled", [True, False])
def test_a_cancelled_future_cancels_the_operation(runtime, purgatory, is_signalled):
    async def main():
        waiting = Waiting(runtime.loop)
        future = waiting.watch(purgatory, timeout_ms=1000)
        waiting.is_ready = True
        if is_signalled:
            purgatory.signal("p")  # its check comes first
        future.cancel()
        await asyncio.sleep(0)
        assert waiting.is_done
        assert waiting.responses_count == 0
        assert purgatory.delayed_count == 0

    runtime.simulation.run(main())


# JoinGroup and SyncGroup


def test_a_group_returns_a_waiter_once(runtime):
    async def main():
        waiter = DelayedGroupResponse(runtime.loop)
        future = waiter.answer()
        waiter.complete_with("joined")
        assert await future == "joined"
        with pytest.raises(AssertionError):
            waiter.complete_with("joined again")

    runtime.simulation.run(main())


def test_a_waiter_that_is_returned_at_once_has_no_future(runtime):
    waiter = DelayedGroupResponse(runtime.loop)
    waiter.complete_with("joined")
    assert waiter.answer() == "joined"


def test_a_group_may_return_a_waiter_whose_connection_is_closed(runtime):
    async def main():
        waiter = DelayedGroupResponse(runtime.loop)
        waiter.answer().cancel()
        await asyncio.sleep(0)
        waiter.complete_with("joined")

    runtime.simulation.run(main())
