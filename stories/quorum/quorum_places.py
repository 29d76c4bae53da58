"""The places at which nodes of the quorum decide: the line of the handler that ran, noted while a story is played.

A few functions (`transitions`, `Core.persist`) carry out what many handlers decide. The place of an event is the
handler: the first function outside the modules that carry its decision out.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import currentframe
from types import FrameType, ModuleType
from typing import Any, Final, Literal
from unittest.mock import patch

from ottla.controller.raft import (
    control_record_history,
    core,
    discovery,
    follower_common,
    high_watermark,
    machine,
    transitions,
)
from ottla.controller.raft.control_record_history import ControlRecordHistory
from ottla.controller.raft.core import Core
from ottla.stories.rules import Place, deciding

#: A decision that has a place.
Kind = Literal["role", "state", "voters", "flush", "high watermark"]

_CARRIERS: Final[Mapping[Kind, tuple[ModuleType, ...]]] = {
    "role": (core, transitions, discovery, follower_common),
    "state": (core, transitions, discovery, follower_common),
    "voters": (core, transitions, control_record_history, high_watermark),
    "flush": (core,),
    "high watermark": (core, follower_common),
}


@contextmanager
def decisions(note: Callable[[object, Kind, Place], None]) -> Iterator[None]:
    """Note each decision, with the Core or the ControlRecordHistory that it is of."""

    def noted(kind: Kind, function: Callable[..., None]) -> Callable[..., None]:
        def call(owner: object, *arguments: Any, **named: Any) -> None:
            note(owner, kind, _place(kind, currentframe()))
            function(owner, *arguments, **named)

        return call

    def noted_voters(function: Callable[..., None]) -> Callable[..., None]:
        def call(history: ControlRecordHistory, *arguments: Any) -> None:
            former = history.voters if hasattr(history, "_voters") else None
            function(history, *arguments)
            if former not in (None, history.voters):
                note(history, "voters", _place("voters", currentframe()))

        return call

    hooks: tuple[tuple[object, str, Callable[..., None]], ...] = (
        (transitions, "_enter", noted("role", transitions._enter)),
        (Core, "persist", noted("state", Core.persist)),
        (Core, "flush", noted("flush", Core.flush)),
        (Core, "update_high_watermark", noted("high watermark", Core.update_high_watermark)),
        *(
            (ControlRecordHistory, name, noted_voters(getattr(ControlRecordHistory, name)))
            for name in ("read", "truncate", "reload")
        ),
    )
    with ExitStack() as stack:
        for owner, name, function in hooks:
            stack.enter_context(patch.object(owner, name, function))
        yield


def _place(kind: Kind, frame: FrameType | None) -> Place:
    """Return the line of the handler; where the machine itself has called, that of what it has called."""
    carriers = {module.__name__ for module in _CARRIERS[kind]}
    outermost = None
    while frame is not None:
        name = frame.f_globals["__name__"]
        if name == machine.__name__:
            break
        if not name.startswith("ottla.stories."):
            outermost = frame
            if name not in carriers:
                break
        frame = frame.f_back
    return deciding(outermost)
