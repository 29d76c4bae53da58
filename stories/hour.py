"""The guided hour: stories in an order that teaches, with questions on the way, from `hour.toml`.

Each lesson has `story`, `before` (sentences), `chapter`, `remember`, optionally `until` (the last step that is
played), and `pauses`: `step`, `command`, `question`, `answers`, `right` (index from 0), `because`. Steps are counted
from 1. A pause names the command of its step, so that a story that changes cannot shift a question unnoticed.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "hour.toml"

#: A lesson, or a pause, as the file has it.
Table = Mapping[str, Any]


class BadHour(ValueError):
    """The file does not fit the stories."""


def lessons(stories: Mapping[str, Sequence[str]], text: str | None = None) -> list[dict[str, Any]]:
    """Return the lessons of the file, or of `text`; BadHour if one does not fit the commands of its story."""
    if text is None:
        text = FILE.read_text(encoding="utf-8") if FILE.is_file() else ""
    found: list[dict[str, Any]] = tomllib.loads(text).get("hour", [])
    if faults := [fault for lesson in found for fault in _faults(lesson, stories)]:
        raise BadHour("hour.toml: " + "; ".join(faults))
    return found


def _faults(lesson: Table, stories: Mapping[str, Sequence[str]]) -> Iterator[str]:
    name = lesson["story"]
    if name not in stories:
        yield f"{name} is no story"
        return
    steps = stories[name]
    until = lesson.get("until", len(steps))
    if not 1 <= until <= len(steps):
        yield f"{name}: until={until}, and the story has {len(steps)} steps"
        return
    for pause in lesson.get("pauses", ()):
        step = pause["step"]
        if not 1 <= step < until:
            yield f"{name}: the answer to the question of step {step} is in no step that is played"
        elif steps[step - 1] != pause["command"]:
            yield f"{name}: step {step} is {steps[step - 1]!r}, and not {pause['command']!r}"
        if not 0 <= pause["right"] < len(pause["answers"]):
            yield f"{name}: right={pause['right']} is none of the answers of step {step}"
