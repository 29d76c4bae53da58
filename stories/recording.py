"""Recording: plays a story on its stage, and returns the steps of its trace.

text --script.commands--> command --Stage--> says, messages, events
                                     |
                                     +--observe--> the state after it     = Step
"""

from collections.abc import Callable, Sequence
from typing import Final

from ottla.stories import script
from ottla.stories.script import StoryError
from ottla.stories.stage import BadCommand, Stage
from ottla.stories.trace import Step

#: Errors that end a run early: of a command that the stage does not know, and assertions of the code that is played.
_BAD_COMMANDS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


def record(text: str, stage: Stage, *, on_step: Callable[[Sequence[Step]], None] | None = None) -> list[Step]:
    """Play a story and return its steps. StoryError names the line that cannot be played.

    `on_step` is called with all steps after each one; what it raises ends the run.
    """
    steps: list[Step] = []
    stage.is_recorded = True
    try:
        for command in script.commands(text):
            steps.append(_step(command, stage))
            if on_step is not None:
                on_step(steps)
    finally:
        stage.close()
    return steps


def _step(command: script.Command, stage: Stage) -> Step:
    try:
        says = stage(command.text)
        step = Step(
            line=command.line,
            block=command.block,
            command=command.text,
            comment=command.comment,
            says=says,
            messages=stage.messages,
            events=stage.events,
        )
        stage.messages, stage.events = [], []
        stage.observe(step)
    except _BAD_COMMANDS as error:
        raise StoryError(command.line, f"{command.text!r} cannot be played here: {_reason(error)}") from error
    return step


def _reason(error: Exception) -> str:
    match error:
        case BadCommand():
            return str(error)
        case AssertionError():
            return f"an assertion of the played code fails: {error}".rstrip(": ")
        case KeyError():
            return f"there is no {error} at this point"
        case _:
            return f"the stage cannot read it: {error}".rstrip(": ")
