"""Rules of the KIPs in our words, and the place in the code that applies one, as events of a trace have them."""

import inspect
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

from ottla.stories.trace import Event


class Rule(NamedTuple):
    """A rule in one or two sentences; `kip` is empty where Kafka has it, and no KIP."""

    kip: str
    text: str


class Place(NamedTuple):
    """A function by its dotted name, its file from the top of the repository, and a line of it."""

    function: str
    source: str
    source_line: int


@cache
def place_of(function: Callable[..., Any]) -> Place:
    """Return where a function, a method or a class is defined.

    >>> place_of(place_of).function
    'ottla.stories.rules.place_of'
    """
    function = inspect.unwrap(function)
    _, line = inspect.getsourcelines(function)
    return _place(function.__module__, function.__qualname__, line)


def deciding(frame: FrameType | None) -> Place:
    """Return the line of the decision that led to this frame: that of the innermost function of its module that
    is no private step.
    """
    assert frame is not None
    module = frame.f_globals["__name__"]
    while frame.f_code.co_name.startswith("_") and frame.f_back is not None:
        if frame.f_back.f_globals["__name__"] != module:
            break
        frame = frame.f_back
    return _place(module, frame.f_code.co_qualname, frame.f_lineno)


def _place(module: str, name: str, line: int) -> Place:
    return Place(f"{module}.{name}", f"{module.removeprefix('ottla.').replace('.', '/')}.py", line)


def event(replica: str, line: str, rule: Rule, place: Place) -> Event:
    """Return the event of a replica that applies a rule."""
    return Event(
        replica=replica,
        line=line,
        kip=rule.kip,
        rule=rule.text,
        function=place.function,
        source=place.source,
        source_line=place.source_line,
    )
