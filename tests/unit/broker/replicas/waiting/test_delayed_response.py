"""A delayed response is sent at once, when its condition holds, or at the deadline; and exactly once."""

import asyncio
import gc
import weakref

import pytest

from ottla.broker.groups.delayed_join import DelayedGroupResponse
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.runtime.simulated import Simulation


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
    return DelayedOperationPurgatory(
        call_later=runtime.call_later, call_soon=runtime.loop.call_soon, turns=runtime.turns
    )


def test_the_condition_is_checked_before_the_request_waits(runtime, purgatory):
    waiting = Waiting(runtime.loop, is_ready=True)
    assert waiting.try_complete_else_watch(purgatory, timeout_ms=1000) == "ready"
    assert waiting.is_done
    assert purgatory.delayed_count == 0


@pytest.mark.parametrize("as_future", [False, True])
@pytest.mark.parametrize(("is_ready", "response"), [(True, "ready"), (False, "timed out")])
def test_a_response_is_awaited(runtime, purgatory, is_ready, response, as_future):
    async def main():
        waiting = Waiting(runtime.loop)
        assert waiting.try_complete_else_watch(purgatory, timeout_ms=1000) is waiting
        waiting.is_ready = is_ready
        purgatory.signal("p")
        assert await (waiting.as_future() if as_future else waiting) == response
        assert waiting.responses_count == 1
        assert not waiting.force_complete()

    runtime.simulation.run(main())


def test_an_exception_is_raised_where_the_response_is_awaited(runtime, purgatory):
    async def main():
        with pytest.raises(ValueError, match="a bug"):
            await Waiting(runtime.loop, error=ValueError("a bug")).watch(purgatory, timeout_ms=1)

    runtime.simulation.run(main())


@pytest.mark.parametrize("is_signalled", [True, False])
def test_a_cancelled_future_cancels_the_operation(runtime, purgatory, is_signalled):
    async def main():
        waiting = Waiting(runtime.loop)
        future = waiting.watch(purgatory, timeout_ms=1000).as_future()
        waiting.is_ready = True
        if is_signalled:
            purgatory.signal("p")  # its check comes first
        future.cancel()
        await asyncio.sleep(0)
        assert waiting.is_done
        assert waiting.responses_count == is_signalled
        assert purgatory.delayed_count == 0

    runtime.simulation.run(main())


@pytest.mark.parametrize("as_future", [False, True])
def test_a_cancelled_operation_cancels_what_awaits_it(runtime, purgatory, as_future):
    async def main():
        waiting = Waiting(runtime.loop)
        waiting.watch(purgatory, timeout_ms=1000)
        awaiting = waiting.as_future() if as_future else asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaiting
        assert waiting.responses_count == 0

    runtime.simulation.run(main())


# The receiver, mostly a connection


class Receiver:
    """Notes the outcomes that it is called with."""

    def __init__(self):
        self.outcomes = []

    def __call__(self, operation):
        try:
            self.outcomes.append(operation.result())
        except (ValueError, asyncio.CancelledError) as error:
            self.outcomes.append(repr(error))


def check(purgatory):
    """Check what waits for "p" in this turn of the loop."""
    purgatory.signal("p")
    purgatory._check_signalled()


def watched(runtime, purgatory, **how):
    waiting, receiver = Waiting(runtime.loop, **how), Receiver()
    waiting.watch(purgatory, timeout_ms=1000).add_done_callback(receiver)
    return waiting, receiver


@pytest.mark.parametrize("error", [None, ValueError("a bug")])
def test_the_receiver_is_called_by_the_completion_itself(runtime, purgatory, error):
    waiting, receiver = watched(runtime, purgatory, error=error)
    waiting.is_ready = True
    check(purgatory)
    assert receiver.outcomes == ["ready" if error is None else "ValueError('a bug')"]
    waiting.cancel()
    assert len(receiver.outcomes) == 1


def test_the_receiver_is_called_by_the_cancellation_itself(runtime, purgatory):
    waiting, receiver = watched(runtime, purgatory)
    waiting.cancel()
    waiting.cancel()
    assert receiver.outcomes == ["CancelledError()"]
    assert waiting.responses_count == purgatory.delayed_count == 0


def test_one_receiver_may_cancel_an_operation_that_is_checked_after_its_own(runtime, purgatory):
    """A connection does so if its transport reports an error meanwhile while the broker stops."""

    def cancel(_):
        last.cancel()

    first, _ = watched(runtime, purgatory)
    last, receiver = watched(runtime, purgatory)
    first._receiver = cancel
    first.is_ready = last.is_ready = True
    check(purgatory)
    assert first.is_done
    assert receiver.outcomes == ["CancelledError()"]
    assert purgatory.delayed_count == 0


def test_who_comes_after_the_completion_is_called_in_another_turn(runtime, purgatory):
    async def main():
        waiting, receiver = Waiting(runtime.loop, is_ready=True), Receiver()
        waiting.watch(purgatory, timeout_ms=1000)
        check(purgatory)
        waiting.add_done_callback(receiver)
        assert receiver.outcomes == []
        await asyncio.sleep(0)
        assert receiver.outcomes == ["ready"]

    runtime.simulation.run(main())


def test_a_receiver_that_fails_does_not_stop_the_operations_behind_it(runtime, purgatory):
    failures = []
    runtime.loop.set_exception_handler(lambda _, context: failures.append(context))
    first, last = watched(runtime, purgatory), watched(runtime, purgatory)
    first[0]._receiver = lambda _: 1 // 0
    first[0].is_ready = last[0].is_ready = True
    check(purgatory)
    assert purgatory.delayed_count == 0
    assert last[1].outcomes == ["ready"]
    (failure,) = failures
    assert isinstance(failure["exception"], ZeroDivisionError)
    assert failure["message"] == "the receiver of a delayed Other failed"


def test_a_response_has_one_receiver(runtime, purgatory):
    waiting, receiver = watched(runtime, purgatory)
    with pytest.raises(AssertionError):
        waiting.add_done_callback(receiver)
    with pytest.raises(AssertionError):
        waiting.result()  # not yet


@pytest.mark.parametrize("way", ["completed", "time over", "cancelled"])
@pytest.mark.parametrize("as_future", [False, True])
def test_the_response_is_freed_without_the_collector(runtime, purgatory, way, as_future):
    """A delayed Fetch's is large."""

    async def main():
        waiting = Waiting(runtime.loop)
        waiting.watch(purgatory, timeout_ms=1)
        waiting.is_ready = True
        freed = weakref.ref(waiting)
        future = waiting.as_future() if as_future else None
        if way == "completed":
            check(purgatory)
        elif way == "cancelled":
            waiting.cancel()
        else:
            await asyncio.sleep(1)
        await asyncio.sleep(0)
        del waiting, future
        assert freed() is None

    gc.disable()
    try:
        runtime.simulation.run(main())
    finally:
        gc.enable()


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
