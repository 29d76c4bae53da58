"""Turns of the event loop: when one is over."""

import asyncio
import gc
import time
from itertools import pairwise

import pytest

from ottla.runtime.garbage import collect_briefly
from ottla.runtime.production import run
from ottla.runtime.simulated import Simulation
from ottla.runtime.turns import MAX_STEPS, TURN_S, FreedInTurns, in_turns


def _work(duration_s):
    time.sleep(duration_s)


def test_a_turn_is_spent_once_its_long_work_has_taken_its_time_and_begins_again_before_what_it_has_put_off():
    seen = []

    async def main(runtime):
        turns = runtime.turns
        seen.append(turns.is_spent)
        turns.charge()
        seen.append(turns.is_spent)
        _work(TURN_S)
        seen.append(turns.is_spent)
        turns.later(lambda: seen.append(turns.is_spent))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(main)
    assert seen == [False, False, True, False]


@pytest.fixture
def simulated():
    with Simulation(seed=1) as simulation:
        yield simulation.runtime("node")


@pytest.mark.parametrize("is_simulated", [True, False])
def test_all_that_is_long_shares_a_turn_in_the_order_of_its_arrival(simulated, is_simulated):
    """Fifty tasks that began at the same time: the steps of a turn are bounded together, and none of them
    waits for all others.
    """
    steps_in_turn, order = [0], []

    def steps(number):
        for _ in range(5 * MAX_STEPS):
            steps_in_turn[-1] += 1
            order.append(number)
            yield

    async def main(runtime):
        works = [in_turns(runtime, steps(number)) for number in range(50)]
        working = asyncio.ensure_future(asyncio.gather(*works))
        while not working.done():
            steps_in_turn.append(0)
            await asyncio.sleep(0)

    if is_simulated:
        simulated.run(main(simulated))
    else:
        run(main)
    assert max(steps_in_turn) <= MAX_STEPS + 1
    assert len(order) == 50 * 5 * MAX_STEPS
    firsts = [order.index(number) for number in range(50)]
    assert firsts == sorted(firsts)
    if is_simulated:
        assert firsts[-1] < 50 * 2 * MAX_STEPS


def test_work_that_goes_first_does_not_wait_for_the_rest_which_goes_on_meanwhile(simulated):
    seen = []
    runtime = simulated

    def steps(name):
        for _ in range(10 * MAX_STEPS):
            seen.append(name)
            yield

    async def main():
        requests = [asyncio.ensure_future(in_turns(runtime, steps(f"request {at}"))) for at in range(20)]
        await asyncio.sleep(0)
        await in_turns(runtime, steps("metadata"), goes_first=True)
        seen.append("applied")
        await asyncio.gather(*requests)

    runtime.run(main())
    until = seen[: seen.index("applied")]
    assert until.count("metadata") == 10 * MAX_STEPS
    assert 10 <= len(until) - until.count("metadata") <= 3 * MAX_STEPS


def test_work_that_is_cancelled_takes_no_further_step_and_an_error_is_raised_where_it_is_awaited(simulated):
    runtime = simulated
    seen = []

    def steps(error_at):
        for at in range(10 * MAX_STEPS):
            if at == error_at:
                raise ValueError("a bug")
            seen.append(at)
            yield

    async def main():
        with pytest.raises(ValueError, match="a bug"):
            await in_turns(runtime, steps(2 * MAX_STEPS))
        seen.clear()
        working = asyncio.ensure_future(in_turns(runtime, steps(None)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        working.cancel()
        taken = len(seen)
        await asyncio.wait([working])
        await asyncio.sleep(1)
        assert (working.cancelled(), len(seen)) == (True, taken)

    runtime.run(main())


def test_each_step_is_a_turn_of_its_own_where_that_is_asked_for():
    seen = []

    async def main(runtime):
        other = asyncio.ensure_future(noted_in_each_turn(seen))
        await in_turns(runtime, (seen.append(step) for step in "abc"), max_steps=1)
        other.cancel()

    run(main)
    assert seen[:6] == ["a", "turn", "b", "turn", "c", "turn"]


async def noted_in_each_turn(seen):
    while True:
        seen.append("turn")
        await asyncio.sleep(0)


class Row:
    """An object that counts its kind."""

    count = 0

    def __init__(self):
        Row.count += 1

    def __del__(self):
        Row.count -= 1


@pytest.mark.parametrize("ends", ["returns", "fails", "is cancelled"])
def test_what_is_large_is_freed_in_later_turns(simulated, ends):
    """Once its owner has ended, however it did, not while another one refers to it."""
    counts, kept = [], []

    async def own():
        parts = FreedInTurns(simulated)
        rows = [Row() for _ in range(100_000)]
        for row in rows:
            parts.hold(row)
        kept.append(rows[7])
        del row
        if ends == "fails":
            raise ValueError("a bug")
        if ends == "is cancelled":
            await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(own())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()  # a traceback refers to what failed
        counts.append(Row.count)
        while Row.count > 1:
            await asyncio.sleep(0)
            counts.append(Row.count)

    simulated.run(main())
    assert counts[0] >= 90_000
    assert max(before - after for before, after in pairwise(counts)) <= 5_000
    kept.clear()
    assert Row.count == 0


@pytest.mark.parametrize("kind", ["list", "set", "dict", "dict of dicts"])
def test_a_container_of_any_size_is_freed_in_later_turns(simulated, kind):
    async def main():
        parts = FreedInTurns(simulated)
        rows = [Row() for _ in range(50_000)]
        match kind:
            case "list":
                parts.append(rows)
            case "set":
                parts.append(set(rows))
            case "dict":
                parts.append(dict.fromkeys(rows))
            case _:
                outer = {1: dict.fromkeys(rows)}
                parts += [outer, outer[1]]
                del outer
        del rows, parts
        counts = [Row.count]
        while Row.count:
            await asyncio.sleep(0)
            counts.append(Row.count)
        assert max(before - after for before, after in pairwise(counts)) <= 5_000

    simulated.run(main())


def test_new_objects_are_visited_while_old_ones_are_freed(simulated):
    """The collector counts new objects less freed ones: it would not begin before all old ones are freed."""

    async def main():
        parts = FreedInTurns(simulated)
        parts.append([[] for _ in range(150_000)])
        gc.collect()
        del parts
        new, most = [], 0
        for _ in range(40):
            new += [[] for _ in range(3_000)]
            await asyncio.sleep(0)
            most = max(most, len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)))
        return most

    assert gc.isenabled()
    thresholds = gc.get_threshold()
    collect_briefly()
    try:
        assert simulated.run(main()) < 20_000
    finally:
        gc.set_threshold(*thresholds)


def test_a_part_that_is_still_used_keeps_its_objects(simulated):
    async def main():
        parts = FreedInTurns(simulated)
        used = [Row() for _ in range(1_000)]
        parts += [used, [Row() for _ in range(1_000)]]
        del parts
        await asyncio.sleep(1)
        assert len(used) == Row.count == 1_000
        used.clear()

    simulated.run(main())


def test_what_is_small_is_freed_at_once(simulated):
    parts = FreedInTurns(simulated)
    for _ in range(100):
        parts.hold(Row())
    del parts
    assert Row.count == 0


def test_freeing_goes_on_where_one_step_is_all_of_a_turn(simulated, monkeypatch):
    """On virtual time it may be, since the work in line is a step itself."""
    monkeypatch.setattr("ottla.runtime.turns.MAX_STEPS", 1)

    async def main():
        parts = FreedInTurns(simulated)
        for _ in range(1_000):
            parts.hold(Row())
        del parts
        turns = 0
        while Row.count:
            turns += 1
            assert turns <= 100
            await asyncio.sleep(0)

    simulated.run(main())
