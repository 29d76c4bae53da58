"""Delayed operations leave once, by one of three ways, and leave nothing behind."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.replicas.waiting.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from ottla.runtime.turns import MAX_STEPS, LoopTurns


class FakeTimer:
    def __init__(self, at: float, fire: Callable[[], None]) -> None:
        self.at = at
        self.fire = fire
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []
        self.soon: list[Callable[[], None]] = []
        self.turns = LoopTurns(SimpleNamespace(monotonic=lambda: self.now, loop=self))

    def call_later(self, delay_s: float, fire: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now + delay_s, fire)
        self.timers.append(timer)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if timer.at <= self.now and not timer.is_cancelled:
                timer.is_cancelled = True
                timer.fire()


class Operation(DelayedOperation):
    """Can be completed once `is_ready`; notes how it was completed: at the deadline or before."""

    def __init__(self, on_complete: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.is_ready = self.is_expired = False
        self.asked_count = 0
        self.completed: list[bool] = []
        self.keys: tuple[object, ...] = ()
        self._then = on_complete

    def watch_keys(self) -> tuple[object, ...]:
        return self.keys

    def can_complete(self) -> bool:
        self.asked_count += 1
        return self.is_ready

    def expire(self) -> None:
        self.is_expired = True
        super().expire()

    def on_complete(self) -> None:
        self.completed.append(self.is_expired)
        if self._then is not None:
            self._then()


@pytest.fixture
def loop():
    return FakeLoop()


@pytest.fixture
def purgatory(loop):
    return DelayedOperationPurgatory(call_later=loop.call_later, call_soon=loop.call_soon, turns=loop.turns)


def watch(purgatory, operation, *keys, timeout_ms=1000):
    operation.keys = keys
    purgatory.watch(operation, timeout_ms=timeout_ms)


def assert_empty(purgatory, loop):
    assert purgatory.delayed_count == 0
    assert not purgatory._watched
    assert all(timer.is_cancelled for timer in loop.timers)


def test_a_signal_completes_what_is_satisfied_after_the_present_callback(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p")
    operation.is_ready = True
    purgatory.signal("p")
    assert operation.completed == []
    loop.turn()
    assert operation.completed == [False]
    assert_empty(purgatory, loop)


def test_signals_of_one_turn_ask_once(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p")
    for _ in range(3):
        purgatory.signal("p")
    loop.turn()
    assert operation.asked_count == 1
    assert operation.completed == []
    assert purgatory.delayed_count == 1


def test_signals_of_all_keys_of_one_turn_ask_once(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p", "q", "r")
    for key in "pqr":
        purgatory.signal(key)
    loop.turn()
    assert operation.asked_count == 1
    purgatory.signal("q")
    loop.turn()
    assert operation.asked_count == 2


def test_an_unsatisfied_operation_stays_under_all_its_keys(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p", "q")
    purgatory.signal("p")
    loop.turn()
    operation.is_ready = True
    purgatory.signal("q")
    loop.turn()
    assert operation.completed == [False]
    assert_empty(purgatory, loop)


def test_both_keys_of_one_turn_complete_once(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p", "q")
    operation.is_ready = True
    purgatory.signal("p")
    purgatory.signal("q")
    loop.turn()
    assert operation.completed == [False]


def test_time_over(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p", timeout_ms=500)
    loop.advance(0.4)
    assert operation.completed == []
    loop.advance(0.1)
    assert operation.completed == [True]
    assert_empty(purgatory, loop)


def test_a_cancelled_operation_never_completes(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p")
    operation.cancel()
    operation.cancel()
    operation.is_ready = True
    purgatory.signal("p")
    loop.turn()
    loop.advance(10)
    assert operation.completed == []
    assert_empty(purgatory, loop)


def test_a_signal_without_a_waiter_schedules_nothing(loop, purgatory):
    purgatory.signal("p")
    assert loop.soon == []


def test_completing_may_watch_and_signal_again(loop, purgatory):
    def again() -> None:
        watch(purgatory, second, "p")
        purgatory.signal("p")

    first, second = Operation(again), Operation()
    first.is_ready = second.is_ready = True
    watch(purgatory, first, "p")
    purgatory.signal("p")
    loop.turn()
    assert second.completed == []
    loop.turn()
    assert second.completed == [False]
    assert_empty(purgatory, loop)


def test_one_completion_may_cancel_another(loop, purgatory):
    second = Operation()
    first = Operation(second.cancel)
    first.is_ready = second.is_ready = True
    watch(purgatory, first, "p")
    watch(purgatory, second, "p")
    purgatory.signal("p")
    loop.turn()
    assert second.completed == []
    assert_empty(purgatory, loop)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("watch"), st.sets(st.integers(0, 3), max_size=3), st.integers(1, 5)),
            st.tuples(st.just("ready"), st.integers(0, 9), st.none()),
            st.tuples(st.just("signal"), st.integers(0, 3), st.none()),
            st.tuples(st.just("turn"), st.none(), st.none()),
            st.tuples(st.just("advance"), st.integers(1, 3), st.none()),
            st.tuples(st.just("cancel"), st.integers(0, 9), st.none()),
        ),
        max_size=40,
    )
)
def test_every_operation_ends_exactly_once(steps):
    loop = FakeLoop()
    purgatory = DelayedOperationPurgatory(
        call_later=loop.call_later, call_soon=loop.call_soon, turns=loop.turns
    )
    operations = []
    cancelled = set()
    for what, argument, extra in steps:
        if what == "watch":
            operation = Operation()
            operations.append(operation)
            watch(purgatory, operation, *argument, timeout_ms=extra * 1000)
        elif what == "ready" and argument < len(operations):
            operations[argument].is_ready = True
        elif what == "cancel" and argument < len(operations):
            if not operations[argument].completed:
                cancelled.add(argument)
            operations[argument].cancel()
        elif what == "signal":
            purgatory.signal(argument)
        elif what == "turn":
            loop.turn()
        elif what == "advance":
            loop.advance(argument)
        alive = sum(not operation.is_done for operation in operations)
        assert purgatory.delayed_count == alive
    loop.turn()
    loop.advance(100)
    for at, operation in enumerate(operations):
        assert len(operation.completed) == (0 if at in cancelled else 1)
    assert_empty(purgatory, loop)


@pytest.mark.parametrize("way", ["completed", "time over", "cancelled"])
def test_who_has_waited_is_freed_without_the_collector(loop, purgatory, way):
    operation = Operation()
    watch(purgatory, operation, "p")
    operation.is_ready = True
    freed = weakref.ref(operation)
    if way == "completed":
        purgatory.signal("p")
        loop.turn()
    elif way == "time over":
        operation.expire()
    else:
        operation.cancel()
    loop.timers.clear()
    gc.disable()
    try:
        del operation
        assert freed() is None
    finally:
        gc.enable()


def test_an_operation_is_watched_once(loop, purgatory):
    operation = Operation()
    watch(purgatory, operation, "p")
    with pytest.raises(AssertionError):
        watch(purgatory, operation, "p")
    done = Operation()
    done.cancel()
    with pytest.raises(AssertionError):
        watch(purgatory, done, "p")


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("is_deadline", [False, True])
def test_one_event_completes_thousands_of_operations_in_order_and_in_turns(
    loop, purgatory, is_deadline, is_short
):
    """Requests of others are handled in between, and none is completed twice, whatever happens to it meanwhile."""
    order, in_turn = [], [0]

    def note(number):
        order.append(number)
        in_turn[-1] += 1

    operations = [Operation(partial(note, number)) for number in range(1000)]
    for operation in operations:
        operation.is_ready = not is_deadline
        operation.is_short = is_short
        watch(purgatory, operation, "p", timeout_ms=1000)
    if is_deadline:
        loop.advance(1)
    else:
        purgatory.signal("p")
    operations[900].cancel()
    operations[901].is_ready = True
    operations[901].try_complete()
    purgatory.signal("p")
    while loop.soon:
        in_turn.append(0)
        loop.turn()
    assert sorted(order) == [number for number in range(1000) if number != 900]
    assert [each for each in order if each != 901] == sorted(set(order) - {901})
    assert max(in_turn) <= MAX_STEPS + 2
    assert_empty(purgatory, loop)


def test_a_bug_of_one_completion_leaves_the_wait_of_the_others_as_it_is(loop, purgatory):
    """Their timers have fired, and do not fire again."""

    def fail():
        raise ZeroDivisionError

    loop.call_exception_handler = lambda _context: None
    operations = [Operation(fail if number == 150 else None) for number in range(300)]
    for operation in operations:
        operation.is_short = False
        watch(purgatory, operation, "p", timeout_ms=1000)
    loop.advance(1)
    while loop.soon:
        loop.turn()
    assert all(operation.is_done for operation in operations)
    assert_empty(purgatory, loop)


def test_a_few_short_operations_are_completed_in_the_turn_of_their_event_also_behind_long_ones(
    loop, purgatory
):
    long = [Operation() for _ in range(1000)]
    for operation in long:
        operation.is_ready, operation.is_short = True, False
        watch(purgatory, operation, "p")
    short = Operation()
    short.is_ready = True
    watch(purgatory, short, "q")
    purgatory.signal("q")
    loop.turn()
    assert short.completed == [False]
    purgatory.signal("p")
    loop.turn()
    assert 0 < sum(len(each.completed) for each in long) <= MAX_STEPS
