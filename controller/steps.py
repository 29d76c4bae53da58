"""Decisions in steps: about a request of any number of rows, a part of which is decided in each turn of the event loop.

    @in_steps
    def create_topics(state, request) -> Steps[CreateTopicsResponse]:
        for topic in request.topics: ...; a `yield` after each few rows
        return Result(...)

    create_topics(state, request)          all steps at once, for callers that need no turns
    create_topics.steps(state, request)    for the controller, which decides nothing else in between

A request of few rows is decided in its first step.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable
from functools import update_wrapper
from itertools import islice
from typing import Final, Generic, TypeAlias, TypeVar

from controller.result import Result
from controller.state import ClusterState

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

#: Rows that are decided in one step: a millisecond where each of them is a new topic, or is refused.
ROWS_OF_STEP: Final = 50
#: Rows that are only counted or listed in one step.
NAMES_OF_STEP: Final = 1000

#: Yields between two steps, and returns the decision.
Steps: TypeAlias = Generator[None, None, Result[R]]


class InSteps(Generic[Q, R]):
    """A decision that is made in steps; see the module."""

    def __init__(self, steps: Callable[[ClusterState, Q], Steps[R]]) -> None:
        self.steps = steps
        update_wrapper(self, steps)

    def __call__(self, state: ClusterState, request: Q) -> Result[R]:
        """Decide at once."""
        return result_of(self.steps(state, request))


def in_steps(steps: Callable[[ClusterState, Q], Steps[R]]) -> InSteps[Q, R]:
    """Decorates a decision that yields between its steps."""
    return InSteps(steps)


def result_of(steps: Generator[None, None, T]) -> T:
    """What the steps return, made at once."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def by_steps(rows: Iterable[T], *, size: int = ROWS_OF_STEP) -> Iterable[tuple[bool, T]]:
    """Each row, and whether a step ends before it."""
    return ((bool(number) and not number % size, row) for number, row in enumerate(rows))


def counted(names: Iterable[H]) -> Generator[None, None, Counter[H]]:
    """How often each name occurs, in steps."""
    counter: Counter[H] = Counter()
    left = iter(names)
    while some := list(islice(left, NAMES_OF_STEP)):
        if counter:
            yield
        counter.update(some)
    return counter


def listed(rows: Iterable[T]) -> Generator[None, None, list[T]]:
    """All rows, made in steps."""
    found: list[T] = []
    left = iter(rows)
    while some := list(islice(left, NAMES_OF_STEP // 5)):
        if found:
            yield
        found += some
    return found
