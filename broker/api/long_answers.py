"""Answers of many rows: short ones are given at once, long ones in several turns of the loop.

Work is a generator that yields between two steps and returns the answer. A request of few rows ends in its first step,
and is answered at once. Otherwise other requests are handled between the turns: what the rest of the work reads by then
may have changed. Work whose answer must be of one moment therefore collects what it needs in its first step.

Encoding in steps: `ottla.protocol.codec.stepwise_encoder`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Iterator, Sequence
from contextlib import nullcontext
from heapq import merge
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from ottla.broker.groups.answers import Answer, after_all
from ottla.protocol.steps import NAMES_OF_STEP, listed
from ottla.runtime.turns import MAX_STEPS, HasTurns, in_turns, result_in_turns

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

#: The number of rows of one step, and so of an answer that is given at once: 0.1 to 0.5 ms.
ROWS_OF_STEP: Final = 100
#: The number of steps of a turn that `NAMES_OF_STEP` answers count as.
_STEPS_OF_NAMES: Final = 10

#: Yields between two steps, and returns the answer, which may have to be waited for.
Work: TypeAlias = Generator[None, None, R | Awaitable[R]]


def at_once_or_in_turns(
    work: Work[R], runtime: HasTurns, lock: asyncio.Lock | None = None
) -> R | Awaitable[R]:
    """Return the answer if the work is done in one step; otherwise do the rest in turns of the loop.

    Raises any error that a step raises.

    Where other long work has had its part of this turn, the first step is done in a later one. `lock` is held
    for the others (`BrokerServices.long_answers`): of a hundred answers that were made at the same time, none
    would be complete before nearly all are, and each would hold its rows for as long. It is free while the
    answer is waited for.
    """
    if runtime.turns.is_spent:
        return _all_in_turns(work, runtime, lock)
    try:
        next(work)
    except StopIteration as done:
        answer: R | Awaitable[R] = done.value
        return answer
    runtime.turns.charge(MAX_STEPS)
    return _rest_in_turns(work, runtime, lock)


def distinct(rows: Collection[T], key: Callable[[T], H]) -> Generator[None, None, dict[H, None]]:
    """The keys of all rows, each once, in the order of their first occurrences; made in steps."""
    if len(rows) <= NAMES_OF_STEP:
        return dict.fromkeys(map(key, rows))
    found: dict[H, None] = {}
    left = iter(rows)
    while some := dict.fromkeys(map(key, islice(left, NAMES_OF_STEP))):
        found.update(some)
        yield
    return found


def in_order(names: Collection[str]) -> Generator[None, None, list[str]]:
    """Return all names, sorted in steps."""
    if len(names) <= NAMES_OF_STEP:
        return sorted(names)
    parts: list[list[str]] = []
    left = iter(names)
    while some := sorted(islice(left, NAMES_OF_STEP)):
        parts.append(some)
        yield
    return (yield from listed(merge(*parts), size=ROWS_OF_STEP))


def when_all(
    answers: Sequence[Answer[A]], convert: Callable[[list[A]], R], runtime: HasTurns
) -> R | Awaitable[R]:
    """Convert all answers, in their order, when the last one is available; many are collected in turns of the loop."""
    if len(answers) <= ROWS_OF_STEP:
        return after_all(answers, convert)
    return _one_after_the_other(answers, convert, runtime)


async def _one_after_the_other(
    answers: Sequence[Answer[A]], convert: Callable[[list[A]], R], runtime: HasTurns
) -> R:
    found: list[A] = []
    for number, answer in enumerate(answers):
        if not number % NAMES_OF_STEP:
            await runtime.turns.share(steps=_STEPS_OF_NAMES)
        # Shielded: the coordinator completes the answer, also if this connection is closed.
        found.append(await asyncio.shield(answer) if isinstance(answer, asyncio.Future) else answer)
    return convert(found)


async def _all_in_turns(work: Work[R], runtime: HasTurns, lock: asyncio.Lock | None) -> R:
    """Do the work in turns of the loop, the first step without the lock.

    So a short answer does not wait until a long one is complete.
    """
    answers: list[R | Awaitable[R]] = []

    def first_step() -> Iterator[None]:
        try:
            next(work)
        except StopIteration as done:
            answers.append(done.value)
        yield

    await in_turns(runtime, first_step())
    if not answers:
        return await _rest_in_turns(work, runtime, lock)
    (answer,) = answers
    return await answer if isinstance(answer, Awaitable) else answer


async def _rest_in_turns(work: Work[R], runtime: HasTurns, lock: asyncio.Lock | None) -> R:
    async with lock or nullcontext():
        answer = await result_in_turns(work, runtime)
    return await answer if isinstance(answer, Awaitable) else answer
