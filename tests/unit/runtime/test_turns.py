"""Turns of the event loop: when one is over."""

import asyncio
import time

from runtime.production import run
from runtime.turns import TURN_S, SharedTurn, in_turns


def _work(duration_s):
    time.sleep(duration_s)


def test_a_shared_turn_is_over_once_it_has_taken_its_time_and_begins_again_before_what_it_has_put_off():
    seen = []

    async def main(runtime):
        turn = SharedTurn(runtime)
        seen.append(turn.is_over())
        _work(TURN_S)
        seen.append(turn.is_over())
        runtime.loop.call_soon(lambda: seen.append(turn.is_over()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(main)
    assert seen == [False, True, False]


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
