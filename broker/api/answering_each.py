"""Requests that name many groups: answered at once where that is short, in turns of the loop where it is not.

The partition of a name takes 50 ns a character, so that 300 names of 32 kB stop the loop for half a second.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from broker.runtime.turns import Clock, in_turns

R = TypeVar("R")
S = TypeVar("S")

#: Names, and characters in all of them, that are answered at once: a millisecond.
_FEW: Final = 50
_SHORT: Final = 16_384


def answer_each(
    names: Sequence[str], answer: Callable[[str], R], convert: Callable[[list[R]], S], clock: Clock
) -> S | Awaitable[S]:
    """`convert` of the answer to each name, in order. Rows of a long request are not all of one moment."""
    if len(names) <= _FEW and sum(map(len, names)) <= _SHORT:
        return convert([answer(name) for name in names])
    return _answer_in_turns(names, answer, convert, clock)


async def _answer_in_turns(
    names: Sequence[str], answer: Callable[[str], R], convert: Callable[[list[R]], S], clock: Clock
) -> S:
    rows: list[R] = []

    def steps() -> Iterator[None]:
        for name in names:
            rows.append(answer(name))
            yield

    await in_turns(clock, steps())
    return convert(rows)
