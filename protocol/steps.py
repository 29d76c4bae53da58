"""Work in steps: a generator that yields between two of them, and returns what it has made.

The caller runs all steps at once (`at_once`), or some in each turn of the event loop (`ottla.runtime.turns`):
decoding, decisions and answers of any number of rows do not stop the loop for longer than a step takes.
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

#: Rows that are made in one step: some 200 us.
ROWS_OF_STEP: Final = 200
#: Names that are only counted in one step.
NAMES_OF_STEP: Final = 1000
#: A list of more in a message is one of its parts itself: else it would be freed in one step, all of whose
#: elements are touched.
MANY_ELEMENTS: Final = 1000


class Step:
    """The rows of one step, counted, for work whose rows are in groups: it yields where a step is full."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = ROWS_OF_STEP) -> None:
        self._size = self._left = size

    def is_full(self, rows: int = 1) -> bool:
        """Count more rows; whether the step is full, so that the next one begins."""
        self._left -= rows
        if self._left > 0:
            return False
        self._left = self._size
        return True


def at_once(work: Generator[None, None, R]) -> R:
    """Do all steps of the work now, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: R = done.value
            return result


def listed(
    rows: Iterable[T], *, size: int = ROWS_OF_STEP, parts: list[Any] | None = None
) -> Generator[None, None, list[T]]:
    """Make all rows, `size` of them in a step. The rows of each step are appended to `parts`, and so is the
    list of all if it is long.
    """
    found: list[T] = []
    left = iter(rows)
    while some := list(islice(left, size)):
        if found:
            yield
        found += some
        if parts is not None:
            parts.append(some)
    if parts is not None and len(found) > MANY_ELEMENTS:
        parts.append(found)
    return found


def counted(names: Iterable[H], *, parts: list[Any] | None = None) -> Generator[None, None, Counter[H]]:
    """Count each name in steps; the names of each step are appended to `parts` as a list of them."""
    counter: Counter[H] = Counter()
    left = iter(names)
    while some := list(islice(left, NAMES_OF_STEP)):
        if counter:
            yield
        counter.update(some)
        if parts is not None:
            parts.append(some)
    return counter


def repeated(counter: Counter[H]) -> Generator[None, None, list[H]]:
    """The names that occur more than once."""
    found: list[H] = []
    left = iter(counter.items())
    some = list(islice(left, NAMES_OF_STEP))
    while some:
        found += [name for name, count in some if count > 1]
        if some := list(islice(left, NAMES_OF_STEP)):
            yield
    return found
