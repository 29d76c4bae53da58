"""Requests that name many groups: short ones are answered at once, long ones in several turns of the loop.

Computing the partition of a name costs 50 ns for each character: 300 names of 32 kB would stop the loop for 0.5 s.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from runtime.turns import Clock, in_turns

R = TypeVar("R")
S = TypeVar("S")

#: The numbers of names, and of characters in all of them, up to which a request is answered at once: a millisecond.
_FEW: Final = 50
_SHORT: Final = 16_384


def answer_each(
    names: Sequence[str], answer: Callable[[str], R], convert: Callable[[list[R]], S], clock: Clock
) -> S | Awaitable[S]:
    """`convert` of the answers to all names, in order. The answers of a long request are not from one moment."""
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
