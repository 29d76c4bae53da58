"""Requests that name many groups: short ones are answered at once, long ones in several turns of the loop.

Computing the partition of a name costs 50 ns for each character: 300 names of 32 kB would stop the loop for 0.5 s.
"""

from collections.abc import Awaitable, Callable, Collection, Generator
from typing import Final, TypeVar

from ottla.broker.api.long_answers import at_once_or_in_turns, distinct
from ottla.broker.services import BrokerServices

R = TypeVar("R")
S = TypeVar("S")

#: The numbers of names, and of characters in all of them, up to which a request is answered at once: a millisecond.
_FEW: Final = 50
_SHORT: Final = 16_384


def answer_each(
    names: Collection[str],
    answer: Callable[[str], R],
    convert: Callable[[list[R]], S | Awaitable[S]],
    broker: BrokerServices,
    *,
    is_distinct: bool = False,
) -> S | Awaitable[S]:
    """Return `convert` of the answers to all names, in order. The answers to a long request are not of one moment.

    With `is_distinct`, a name that occurs several times is answered once.
    """
    work = _answer(names, answer, convert, is_distinct=is_distinct)
    return at_once_or_in_turns(work, broker.runtime, broker.long_answers)


def _answer(
    names: Collection[str],
    answer: Callable[[str], R],
    convert: Callable[[list[R]], S | Awaitable[S]],
    *,
    is_distinct: bool,
) -> Generator[None, None, S | Awaitable[S]]:
    if is_distinct:
        names = yield from distinct(names, str)
    is_short = len(names) <= _FEW and sum(map(len, names)) <= _SHORT
    rows: list[R] = []
    for name in names:
        rows.append(answer(name))
        if not is_short:
            yield
    return convert(rows)
