"""Decisions in steps: about a request of any number of rows, a part of which is decided in each turn of the event loop.

    @in_steps
    def create_topics(state, request) -> Steps[CreateTopicsResponse]:
        for topic in request.topics: ...; a `yield` after each few rows
        return Result(...)

    create_topics(state, request)          all steps at once, for callers that need no turns
    create_topics.steps(state, request)    for the controller, which decides nothing else in between

A request of few rows is decided in its first step.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import update_wrapper
from itertools import islice
from typing import Final, Generic, ParamSpec, TypeAlias, TypeVar

from ottla.controller.result import Result
from ottla.protocol.steps import at_once

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Rows that are decided in one step: a millisecond where each of them is a new topic, or is refused.
ROWS_OF_STEP: Final = 50
#: Partitions that are scanned in one step: 0.2 ms, and 0.5 to 2 ms where all of them change.
PARTITIONS_OF_STEP: Final = 500

#: Yields between two steps, and returns the decision.
Steps: TypeAlias = Generator[None, None, Result[R]]


class InSteps(Generic[P, R]):
    """A decision that is made in steps, a part of its rows in each turn of the event loop."""

    def __init__(self, steps: Callable[P, Steps[R]]) -> None:
        self.steps = steps
        update_wrapper(self, steps)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Make the decision at once, in this turn of the event loop."""
        return at_once(self.steps(*args, **kwargs))


def in_steps(steps: Callable[P, Steps[R]]) -> InSteps[P, R]:
    """Decorates a decision that yields between its steps."""
    return InSteps(steps)


def by_steps(rows: Iterable[T], *, size: int = ROWS_OF_STEP) -> Iterable[tuple[bool, T]]:
    """Each row, and whether a step ends before it."""
    return ((bool(number) and not number % size, row) for number, row in enumerate(rows))


def scanned(partitions: Iterable[T]) -> Iterator[tuple[bool, list[T]]]:
    """The partitions of each step, and whether a step ends before them: for scans of all partitions."""
    left, is_next_step = iter(partitions), False
    while some := list(islice(left, PARTITIONS_OF_STEP)):
        yield is_next_step, some
        is_next_step = True
