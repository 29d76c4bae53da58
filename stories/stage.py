"""The stage of a story: plays its commands, and notes what a trace has of each."""

from abc import ABC, abstractmethod

from ottla.stories.trace import Event, Message, Step


class BadCommand(ValueError):
    """A command that a stage does not know, or that cannot be played at this point; the text says why."""

    @classmethod
    def unknown(cls) -> "BadCommand":
        """Return the error of a command that the stage does not know."""
        return cls("the stage of this room has no such command")

    @classmethod
    def first(cls, command: str) -> "BadCommand":
        """Return the error of a command before the one that a story of this room begins with."""
        return cls(f"a story of this room begins with `{command}`")


class Stage(ABC):
    """Plays the commands of a story one by one on real components, and prints what comes of them.

    `__call__` plays a command. While `is_recorded`, it also notes the messages and events of the command, and
    `observe` adds the state after it. `close` ends the play.
    """

    def __init__(self) -> None:
        self.is_recorded = False
        self.messages: list[Message] = []
        self.events: list[Event] = []

    @abstractmethod
    def __call__(self, line: str) -> list[str]:
        """Play a command of the story; the lines that it prints."""

    @abstractmethod
    def observe(self, step: Step) -> None:
        """Write the present state into a step."""

    @abstractmethod
    def close(self) -> None:
        """End the play; a second call does nothing."""
